"""Diagnosis of a device: networks and methods against the CPU, memory, and pictures a second."""

import copy
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from protonorm import __version__
from protonorm.algorithms import ALGORITHMS
from protonorm.config.experiment import Experiment, check_device
from protonorm.core.model import SplitModel
from protonorm.core.node import PRECISIONS
from protonorm.core.randomness import SERVER, one_thread, seeded
from protonorm.core.task import Order
from protonorm.core.text import shortened, size_text
from protonorm.federation.client import evaluate_step, first_state, train_step
from protonorm.models import FAMILIES
from protonorm.models.choose import Recipe
from protonorm.session.build import build
from protonorm.tensors import Tensors, floats, prefixed

SHAPE, CLASSES, BATCH = (3, 32, 32), 100, 32
TOLERANCE = 0.02  # relative error; products of TF32, which GPUs use for convolutions, have ten bits
SECONDS = 1.5  # of each measurement of speed
NETWORKS = (*FAMILIES["light"].models, *FAMILIES["paper"].models)
SPIRAL = {"dataset": {"name": "spiral", "points": 60}, "clients": 2, "partition": "iid", "batch_size": 8, "lr": 0.05}
REPORT = "Please send this output (--json), good or bad, to the project's issues: no GPU has been tried by us."


class Finding(NamedTuple):
    """Result of one check."""

    what: str
    ok: bool
    text: str


def diagnose(device: str) -> Iterator[Finding]:
    """Check a device; raise a ValueError if it cannot be used."""
    check_device(device)
    yield Finding("device", True, _describe(device))
    with one_thread():
        for kind, names, error_of in (("network", NETWORKS, _network_error), ("method", ALGORITHMS, _method_error)):
            errors = {}
            for name in names:
                try:
                    errors[name] = error_of(name, device)
                except (RuntimeError, ValueError) as problem:
                    yield Finding(name, False, f"The {kind} cannot be trained on {device}: {shortened(str(problem))}")
            for name, error in errors.items():
                if not error <= TOLERANCE:
                    text = f"The {kind} differs from the CPU by {error:.1e} of its numbers; expected {TOLERANCE:g}."
                    yield Finding(name, False, text)
            if worst := max(errors, key=lambda name: errors[name], default=""):
                text = f"{len(errors)} compared with the CPU; the largest relative difference is {errors[worst]:.1e}"
                yield Finding(f"{kind}s", True, f"{text} ({worst}).")
        for name in NETWORKS:
            yield Finding(name, True, _speeds(name, device))
    yield Finding("report", True, REPORT)


def _describe(device: str) -> str:
    versions = f"torch {torch.__version__}, protonorm {__version__}"
    if torch.device(device).type != "cuda":
        return f"{device}, {versions}."
    free, total = torch.cuda.mem_get_info(device)
    sizes = f"{size_text(free)} of {size_text(total)} free"
    return f"{torch.cuda.get_device_name(device)}, {sizes}, CUDA {torch.version.cuda}, {versions}."


def _network(name: str, device: str) -> SplitModel:
    with seeded(0, 0, 0, "template"):
        return Recipe(name, SHAPE, 64, CLASSES)().to(device)


def _batch(device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, *SHAPE[1:], SHAPE[0], generator=generator).permute(0, 3, 1, 2)
    return x.to(device), (torch.arange(BATCH) % CLASSES).to(device)


def _network_error(name: str, device: str) -> float:
    """Compare a batch's gradients, without dropout, with those of float64 on the CPU."""

    def gradients(model: SplitModel, x: Tensor, y: Tensor) -> Tensor:
        cross_entropy(model.eval()(x), y).backward()
        return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]).cpu()

    model, (x, y) = _network(name, "cpu"), _batch("cpu")
    exact = gradients(copy.deepcopy(model).double(), x.double(), y)
    return float((gradients(model.to(device), *_batch(device)) - exact).norm() / exact.norm())


def _method_error(name: str, device: str) -> float:
    """Compare a client's states, replies and scores in two rounds with those on the CPU."""
    ours, theirs = (floats(_two_rounds(name, place)) for place in (device, "cpu"))
    norms = [
        (float((value - ours[key]).double().norm()), float(value.double().norm())) for key, value in theirs.items()
    ]
    return sum(error for error, _ in norms) / sum(norm for _, norm in norms)


def _two_rounds(name: str, device: str) -> Tensors:
    settings = SPIRAL | {"algorithm": name, "device": device}
    try:
        task, population = build(Experiment.of(settings))
    except ValueError:  # methods that need features which are not trained
        task, population = build(Experiment.of(settings | {"models": "frozen:identity"}))
    site, found = population.site(0), Tensors()
    with seeded(0, 0, SERVER):
        step = task.algorithm.init_server(task.server(0))
    state = first_state(task, site)
    for number in (1, 2):
        order = Order(0, number, number - 1)
        state, reply = train_step(task, site, order, state, step.message)
        with seeded(0, number, SERVER):
            step = task.algorithm.aggregate(task.server(number), step.state, iter([reply.message]))
        evaluate_step(task, site, order, state, step.message, ["validation", "test"])
        found |= prefixed(f"{number}.state", state) | prefixed(f"{number}.reply", reply.message)
    return found


def _speeds(name: str, device: str) -> str:
    """Measure training steps in each precision, and the memory that they take."""
    kind, (x, y) = torch.device(device).type, _batch(device)
    texts = []
    for precision, dtype in PRECISIONS.items():
        model = _network(name, device).train()
        optimiser = torch.optim.SGD(model.parameters(), 0.01, fused=True)
        if kind == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

        def step(
            model: SplitModel = model, optimiser: torch.optim.SGD = optimiser, dtype: torch.dtype = dtype
        ) -> Tensor:
            optimiser.zero_grad()
            with torch.autocast(kind, dtype, enabled=dtype != torch.float32):
                loss = cross_entropy(model(x), y)
            loss.backward()
            optimiser.step()
            return loss.detach()

        float(step())  # the first takes longer; reading waits for the device
        start, steps = time.perf_counter(), 0
        while (passed := time.perf_counter() - start) < SECONDS or not steps:
            for _ in range(5):
                loss = step()
            float(loss)
            steps += 5
        passed = time.perf_counter() - start
        memory = f", {size_text(torch.cuda.max_memory_allocated(device))}" if kind == "cuda" else ""
        texts.append(f"{precision} {steps * BATCH / passed:,.0f} pictures a second{memory}")
    return f"{'; '.join(texts)}."
