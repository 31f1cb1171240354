"""The server's part of a round: ProtoNorm against FedTGP, with more and more clients.

Messages are made once. A client holds a random number of classes; its prototypes are the classes' own, plus noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from protonorm.algorithms.fedtgp import FedTGP
from protonorm.algorithms.protonorm import ProtoNorm
from protonorm.core import Algorithm, Server, one_thread, seeded
from protonorm.tensors import Tensors

from .results import silent

CLIENTS, CLASSES, WIDTH, FEWEST = (20, 100, 1000), 100, 512, 20
EPOCHS = 100  # of FedTGP's server, as in its authors' scripts
AFFORDED = 200_000  # prototypes that FedTGP's server is shown: with more, some epochs stand for all
REPEATS = 5
LONG = 10.0  # seconds of a call that is not worth repeating

RIVALS: dict[str, Algorithm] = {
    "protonorm, paper": ProtoNorm(alignment="paper"),
    "protonorm, auto": ProtoNorm(alignment="auto"),
    "protonorm, no alignment": ProtoNorm(alignment="none"),
}
FEDTGP = "fedtgp"


def measure(
    notify: Callable[[str], None] = silent,
    clients: Sequence[int] = CLIENTS,
    classes: int = CLASSES,
    width: int = WIDTH,
    epochs: int = EPOCHS,
    repeats: int = REPEATS,
) -> dict[str, Any]:
    """Time `aggregate` of each method on the same messages, in turns."""
    server = Server(2, 300, classes, width, None, None, lr=0.01, batch_size=32)
    with one_thread():
        cases = [_case(count, server, epochs, repeats, notify) for count in clients]
    return {"K": classes, "d": width, "epochs": epochs, "batch size": server.batch_size, "cases": cases}


def messages(clients: int, classes: int, width: int) -> list[Tensors]:
    """Make what clients say."""
    generator = torch.Generator().manual_seed(0)
    own = torch.rand(classes, width, generator=generator)
    messages_sent = []
    for _ in range(clients):
        owned = int(torch.randint(min(FEWEST, classes), classes + 1, (), generator=generator))
        order = torch.randperm(classes, generator=generator)[:owned].sort().values
        noise = 0.1 * torch.rand(owned, width, generator=generator)
        messages_sent.append({"classes": order, "prototypes": own[order] + noise})
    return messages_sent


def _case(clients: int, server: Server, epochs: int, repeats: int, notify: Callable[[str], None]) -> dict[str, Any]:
    replies = messages(clients, server.num_classes, server.feature_dim)
    sent = sum(len(message["classes"]) for message in replies)
    afforded = max(1, min(epochs, AFFORDED // sent))
    rivals = RIVALS | {FEDTGP: FedTGP(server_epochs=afforded)}
    notify(f"server: {clients} clients, {sent} prototypes")
    seconds = _in_turns(rivals, server, replies, repeats)
    part = {name: float(f"{value:.3g}") for name, value in seconds.items()}
    part[FEDTGP] = float(f"{seconds[FEDTGP] * epochs / afforded:.3g}")
    return {"clients": clients, "prototypes": sent, "seconds": part, "epochs measured": afforded}


def _in_turns(rivals: dict[str, Algorithm], server: Server, replies: list[Tensors], repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(repeats):
        for name, algorithm in rivals.items():
            if not times[name] or times[name][0] <= LONG:
                times[name].append(_time(algorithm, server, replies))
    return {name: median(values) for name, values in times.items()}


def _time(algorithm: Algorithm, server: Server, replies: list[Tensors]) -> float:
    with seeded(0, 0, 0):
        state = algorithm.init_server(server).state
        start = time.perf_counter()
        algorithm.aggregate(server, state, iter(replies))
        return time.perf_counter() - start


def table(result: dict[str, Any]) -> list[list[str]]:
    """Show a line for each number of clients, headings first."""
    heads = ["clients", "prototypes sent", *(f"{name}, s" for name in RIVALS), "of this alignment", "fedtgp, s"]
    rows = [[*heads, "fedtgp against protonorm"]]
    for case in result["cases"]:
        seconds = case["seconds"]
        aligned, plain = seconds["protonorm, paper"], seconds["protonorm, no alignment"]
        part = case["epochs measured"] < result["epochs"]
        note = f" ({case['epochs measured']} of {result['epochs']} epochs measured)" if part else ""
        rows.append(
            [
                f"{case['clients']:,}",
                f"{case['prototypes']:,}",
                *(_digits(seconds[name]) for name in RIVALS),
                f"{100 * max(0.0, 1 - plain / aligned):.0f} %",
                f"{_digits(seconds[FEDTGP])}{note}",
                f"{seconds[FEDTGP] / aligned:,.0f}×",
            ]
        )
    return rows


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
