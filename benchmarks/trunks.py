"""Frozen trunks: features of all pictures, a second start, and rounds of ProtoNorm on features and on pictures.

Seconds are of the clock, and of processors, which other programs on the machine disturb less. A second start is a new
process that finds the features, until its clients could train.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import protonorm as pn
from protonorm.core import one_thread
from protonorm.core.samples import view
from protonorm.data.features import BATCH, compute, features_of
from protonorm.engines.serial import Serial
from protonorm.models.frozen import FrozenNetwork
from protonorm.session.build import build

from .results import silent
from .running import MeasuredRun

TRUNKS = tuple(f"frozen:efficientnet_lite{number}" for number in range(3))
PICTURES: dict[str, Any] = {"name": "flowers102"}
TRAINED: dict[str, Any] = {"name": "cifar100", "samples": 15_000}
SMALL = "frozen:efficientnet_lite0@96"  # of the rounds
ROUNDS: dict[str, dict[str, Any]] = {
    "stored features": {"models": SMALL, "feature_dim": 512},
    "pictures, networks of `paper`": {"models": "paper", "dataset": {"name": "cifar100", "samples": 1500}},
}
HALF = 1024  # pictures in bfloat16
COMMON: dict[str, Any] = {"clients": 20, "batch_size": 32, "partition": {"name": "dirichlet", "alpha": 0.5}}
START = "import sys; from benchmarks.trunks import start; start(*sys.argv[1:])"


def measure(
    notify: Callable[[str], None] = silent,
    trunks: tuple[str, ...] = TRUNKS,
    pictures: dict[str, Any] = PICTURES,
    trained: dict[str, Any] = TRAINED,
    rounds: dict[str, dict[str, Any]] = ROUNDS,
    measured: int = 1,
) -> dict[str, Any]:
    """Time the features of each trunk, a second start with all of them, and rounds after a first one."""
    inputs, features = pn.Experiment.of({"dataset": pictures}).dataset.load().inputs, {}
    for trunk in trunks:
        notify(f"trunks: features of {trunk}")
        frozen = FrozenNetwork.of(trunk)
        assert frozen is not None
        features[trunk] = timed(lambda frozen=frozen: compute(frozen, inputs)) | {"pictures": len(inputs)}
    notify("trunks: the same in bfloat16")
    half = in_bfloat16(trunks[0], inputs[:HALF])
    notify("trunks: a second start")
    settings = COMMON | {"dataset": pictures, "models": list(trunks)}
    build(pn.Experiment.of(settings))  # a first start
    words = [str(pictures["name"]), str(pictures.get("samples") or 0), *trunks]
    again = timed(lambda: subprocess.run([sys.executable, "-c", START, *words], check=True))
    return {
        "features": features,
        "bfloat16": half,
        "second start": again | {"pictures": len(inputs)},
        "rounds": {name: train(trained, way, measured, notify) for name, way in rounds.items()},
    }


def in_bfloat16(name: str, inputs: Any) -> dict[str, Any]:
    """Time features in bfloat16, by one thread, and measure how far they are from those in float32."""
    frozen = FrozenNetwork.of(name)
    assert frozen is not None
    trunk, batches, found = frozen.load(), view(inputs).split(BATCH), []
    wanted = torch.cat([features_of(trunk, batch) for batch in batches])
    trunk.network.bfloat16().to(memory_format=torch.channels_last)
    trunk.normalise = torch.nn.Sequential(trunk.normalise, Cast())
    with one_thread():
        took = timed(lambda: found.extend(features_of(trunk, batch) for batch in batches))
    difference = (torch.cat(found) - wanted).norm(dim=1) / wanted.norm(dim=1)
    return took | {"pictures": len(inputs), "difference": round(float(difference.mean()), 4), "of": name}


class Cast(torch.nn.Module):
    """Layer that gives bfloat16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convert a batch."""
        return x.bfloat16()


def start(name: str, samples: str, *trunks: str) -> None:
    """Build task and clients, as a run does before its first round."""
    dataset = {"name": name} | ({"samples": int(samples)} if int(samples) else {})
    _, population = build(pn.Experiment.of(COMMON | {"dataset": dataset, "models": list(trunks)}))
    for id in range(len(trunks)):
        population.site(id).client(1)


def train(dataset: dict[str, Any], way: dict[str, Any], rounds: int, notify: Callable[[str], None]) -> dict[str, Any]:
    """Time rounds of ProtoNorm in this process, evaluation included, after a first one."""
    settings = COMMON | {"dataset": dataset} | way | {"algorithm": "protonorm", "rounds": rounds + 1}
    with tempfile.TemporaryDirectory() as root, one_thread():
        run = MeasuredRun(settings, Path(root) / "run", Serial)
        notify(f"trunks: {rounds + 1} rounds of {settings['models']}")
        run.round()
        found = timed(lambda: [run.round() for _ in range(rounds)])
        run.close()
    return found | {"pictures": rounds * run.pictures}


def timed(work: Callable[[], Any]) -> dict[str, float]:
    """Return the seconds of the clock and of processors, child processes included."""
    first, began = np.array(os.times()[:4]).sum(), time.perf_counter()
    work()
    took = np.array(os.times()[:4]).sum() - first
    return {"seconds": round(time.perf_counter() - began, 2), "processor": round(float(took), 2)}


def table(result: dict[str, Any]) -> list[list[str]]:
    """Show what was done, and how long it took, headings first."""
    ways = [(f"features of {name}", found) for name, found in result["features"].items()]
    half = result["bfloat16"]
    ways += [(f"{half['of']} in bfloat16: {100 * half['difference']:.1f} % of their length away", half)]
    ways += [("second start with all of them", result["second start"])]
    ways += [(f"ProtoNorm on {name}", found) for name, found in result["rounds"].items()]
    head = ["what", "pictures", "seconds", "of processors", "pictures a second of a processor"]
    rows = [[what, f"{found['pictures']:,}", *(f"{found[kind]:.1f}" for kind in ("seconds", "processor")),
             f"{found['pictures'] / found['processor']:,.0f}"] for what, found in ways]  # fmt: skip
    return [head, *rows]
