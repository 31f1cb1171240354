"""The messages of more and more clients through ProtoNorm's `aggregate`: seconds, and memory that must not grow.

Messages are made as they are asked for, as a network would bring them; each is checked as the round loop does it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from protonorm.algorithms.protonorm import ProtoNorm
from protonorm.core import Task, seeded
from protonorm.tensors import Tensors, nbytes

from .machine import memory
from .results import silent
from .turns import Rival

CLIENTS, CLASSES, WIDTH = (1_000, 10_000, 100_000, 1_000_000), 10, 64
VARIETY = 1000  # different messages; others repeat them
LIMIT = 7200.0  # seconds that one number of clients may take


def measure(
    notify: Callable[[str], None] = silent,
    clients: Sequence[int] = CLIENTS,
    classes: int = CLASSES,
    width: int = WIDTH,
) -> dict[str, Any]:
    """Fold messages of each number of clients, each in a fresh process."""
    cases = []
    for count in clients:
        notify(f"fold: {count} clients")
        rival = Rival((work, (count, classes, width)))
        cases.append({"clients": count} | (rival.ask(LIMIT) or {"failed": f"over {LIMIT:g} s"}))
        rival.close()
    return {"K": classes, "d": width, "cases": cases}


def task(classes: int, width: int) -> Task:
    """Return the task that all agree on."""
    return Task(ProtoNorm(gamma=1.0), tuple(map(str, range(classes))), width, rounds=2, seed=0)


def messages(clients: int, classes: int, width: int) -> Iterator[Tensors]:
    """Make what clients say, one after the other: prototypes of all classes, plus noise."""
    generator = torch.Generator().manual_seed(0)
    own = torch.rand(classes, width, generator=generator)
    for client in range(clients):
        if client % VARIETY == 0:
            generator.manual_seed(1)
        noise = 0.1 * torch.rand(classes, width, generator=generator)
        yield {"classes": torch.arange(classes), "prototypes": own + noise}


def work(clients: int, classes: int, width: int) -> dict[str, Any]:
    """Check and aggregate all messages on the server; return its seconds, the bytes received, and its memory in MB."""
    agreed, came = task(classes, width), 0

    def arriving() -> Iterator[Tensors]:
        nonlocal came
        for message in messages(clients, classes, width):
            agreed.schema.check_up(message, "A message")
            came += nbytes(message)
            yield message

    with seeded(0, 2, 0):
        start = time.perf_counter()
        step = agreed.algorithm.aggregate(agreed.server(2), {}, arriving())
        taken = time.perf_counter() - start
    making = _time_of_making(min(clients, VARIETY), classes, width) * clients
    assert step.message["prototypes"].shape == (classes, width)
    return {"server": max(0.0, taken - making), "bytes": came, "whole": memory("VmHWM")}


def _time_of_making(clients: int, classes: int, width: int) -> float:
    """Time how long it takes to make a message, which is not the server's work."""
    start = time.perf_counter()
    for _ in messages(clients, classes, width):
        pass
    return (time.perf_counter() - start) / clients


def table(result: dict[str, Any]) -> list[list[str]]:
    """Show a line for each number of clients, headings first."""
    rows = [["clients", "MB that came", "seconds", "messages a second", "memory, MB", "against 1,000 clients"]]
    base = result["cases"][0].get("whole")
    for case in result["cases"]:
        if "failed" in case:
            rows.append([f"{case['clients']:,}", "–", case["failed"], "–", "–", "–"])
            continue
        memories = ["–", "–"] if not base else [f"{case['whole']:,.0f}", f"{case['whole'] / base:.3f}×"]
        speed = f"{case['clients'] / case['server']:,.0f}" if case["server"] else "–"
        rows.append([f"{case['clients']:,}", f"{case['bytes'] / 1e6:,.1f}", f"{case['server']:.3g}", speed, *memories])
    return rows
