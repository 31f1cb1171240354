"""What one server can take in, and align, with more and more classes: constants that are measured, and what follows.

A client says the prototypes of all classes, the most there is to say. Each message comes as bytes and is decoded,
checked and folded; ten thousand, a hundred thousand and a million clients take as many times as long. Alignment does
not depend on clients. Where it would take too long, one update is measured, or taken from fewer classes as K².
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from protonorm.algorithms.protonorm import ProtoNorm
from protonorm.geometry.alignment import align
from protonorm.geometry.points import unit
from protonorm.geometry.sphere.energy import DEFAULT_SCHEDULE, updates
from protonorm.tensors import Tensors, decode, encode

from .alignment import prototypes
from .fold import task
from .results import silent
from .turns import Rival

SIZES = ((10, 64), (100, 512), (1_000, 512), (10_000, 512), (100_000, 64))  # K, d
CLIENTS = (10_000, 100_000, 1_000_000)
BYTES, FEWEST = 2 * 10**8, 3  # of messages that are taken in to measure one: so many bytes, but some messages
METHODS = ("paper", "auto")
LIMIT = 900.0  # seconds that one alignment may take
SHORT = 1_000  # classes up to which an update takes less than a second
WHOLE = 1_000  # classes up to which alignment is measured whole; beyond, one update


def measure(
    notify: Callable[[str], None] = silent,
    sizes: Sequence[tuple[int, int]] = SIZES,
    budget: int = WHOLE,
    limit: float = LIMIT,
    amount: int = BYTES,
) -> dict[str, Any]:
    """Measure what a message costs and what alignment costs, each in a fresh process."""
    cases = []
    for classes, width in sizes:
        notify(f"capacity: K = {classes}, d = {width}, messages")
        case: dict[str, Any] = {"K": classes, "d": width, "message": _alone(take_in, classes, width, amount)}
        notify(f"capacity: K = {classes}, d = {width}, one update")
        case["update"] = _alone(one_update, classes, width, limit=limit)
        for method in METHODS if classes <= budget else ():
            notify(f"capacity: K = {classes}, d = {width}, {method}")
            case[method] = _alone(align_once, classes, width, method, limit=limit)
        cases.append(case)
    return {"clients": list(CLIENTS), "limit": limit, "cases": cases}


def _alone(work: Callable[..., dict[str, Any]], *arguments: Any, limit: float = LIMIT) -> dict[str, Any] | None:
    rival = Rival((work, arguments))
    answer = rival.ask(limit)
    rival.close()
    return answer


def take_in(classes: int, width: int, amount: int) -> dict[str, Any]:
    """Decode, check and fold some messages; give the bytes and the seconds of one."""
    agreed = task(classes, width)
    frame = encode({"classes": torch.arange(classes), "prototypes": prototypes(classes, width)})
    count = max(FEWEST, amount // len(frame))

    def arriving() -> Iterator[Tensors]:
        for _ in range(count):
            message = decode(frame)
            agreed.schema.check_up(message, "A message")
            yield message

    start = time.perf_counter()
    ProtoNorm(gamma=1.0, alignment="none").aggregate(agreed.server(2), {}, arriving())
    return {"bytes": len(frame), "each": (time.perf_counter() - start) / count, "messages": count}


def one_update(classes: int, width: int) -> dict[str, Any]:
    """Make the first update of Algorithm 1; of a short one the second time counts, when libraries are loaded."""
    points, seconds = unit(prototypes(classes, width).double()), 0.0
    for _ in range(2 if classes <= SHORT else 1):
        start = time.perf_counter()
        next(updates(points, 0.0, DEFAULT_SCHEDULE))
        seconds = time.perf_counter() - start
    return {"each": seconds}


def align_once(classes: int, width: int, method: str) -> dict[str, Any]:
    """Align prototypes by a method."""
    return {"steps": align(prototypes(classes, width), method).steps}


def alignment_seconds(result: dict[str, Any], case: dict[str, Any], method: str) -> tuple[float | None, bool]:
    """Return the seconds of an alignment, and whether they were measured or computed from updates; None if unknown."""
    if case.get(method):
        return case[method]["seconds"], True
    solved = [
        row for row in result["cases"] if row.get(method) and row.get("update") and row[method].get("steps", 0) > 1
    ]
    if not solved or not case.get("update"):
        return None, False
    largest = max(solved, key=lambda row: row["K"])
    return case["update"]["each"] * largest[method]["seconds"] / largest["update"]["each"], False


def table(result: dict[str, Any]) -> list[list[str]]:
    """Show a line for each size and number of clients, headings first; ≈ stands before what is computed."""
    head = ["K", "d", "clients", "GB in", "GB out", "taking in, s", *(f"{name}, s" for name in METHODS), "memory, MB"]
    return [head, *(_row(result, case, clients) for case in result["cases"] for clients in result["clients"])]


def _row(result: dict[str, Any], case: dict[str, Any], clients: int) -> list[str]:
    message = case["message"]
    sent = f"≈ {_digits(clients * message['bytes'] / 1e9)}"
    cells = []
    for method in METHODS:
        seconds, measured = alignment_seconds(result, case, method)
        cells.append("–" if seconds is None else _digits(seconds) if measured else f"≈ {_digits(seconds)}")
    grown = [step["megabytes"] for name in ("message", "update", *METHODS) if (step := case.get(name))]
    peak = max((megabytes for megabytes in grown if megabytes is not None), default=None)
    taking = f"≈ {_digits(clients * message['each'])}"
    peak_text = "–" if peak is None else f"{peak:,.0f}"
    return [f"{case['K']:,}", str(case["d"]), f"{clients:,}", sent, sent, taking, *cells, peak_text]


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
