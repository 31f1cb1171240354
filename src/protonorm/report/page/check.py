"""Hold a record against what every record holds before a page is made of it; say by file and name what is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from protonorm.history import Run, damaged

SHARES = ("pooled", "mean", "worst")
DISTANCES = ("min", "mean", "max")


def check(run: Run) -> None:
    """Refuse a run whose experiment.json or metrics.jsonl lacks what the page tells of."""
    about = run.folder / "experiment.json"
    for lack in _lacks_of_experiment(run.about):
        raise damaged(about, lack)
    clients, classes = len(run.about["networks"]), len(run.about["classes"])
    if run.about["majority"] and (lack := _lack_of_accuracy(run.about["majority"], clients, classes)):
        raise damaged(about, f"under majority, {lack}")
    for number, line in enumerate(run.history, 1):
        for lack in _lacks_of_round(line, clients, classes):
            raise damaged(run.folder / "metrics.jsonl", f"in line {number}, {lack}")


def is_number(value: Any) -> bool:
    """Tell whether a value is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def _lacks_of_experiment(about: Mapping[str, Any]) -> Iterator[str]:
    if missing := {"key", "classes", "networks", "counts"} - set(about):
        yield f"it lacks {', '.join(sorted(missing))}"
    for kind in ("algorithm", "dataset", "partition"):
        part = about["experiment"].get(kind)
        if not isinstance(part, dict) or not isinstance(part.get("name"), str):
            yield f"expected the name of the {kind} under experiment"
    if missing := {"models", "clients", "seed"} - set(about["experiment"]):
        yield f"under experiment, it lacks {', '.join(sorted(missing))}"
    if type(about["experiment"]["seed"]) is not int:
        yield "expected a whole number as the seed"
    for name in ("classes", "networks"):
        if not isinstance(about[name], list) or not about[name]:
            yield f"expected a list under {name}"
    for part in ("train", "test"):
        if not isinstance(about["counts"], dict) or not _is_table(
            about["counts"].get(part), len(about["networks"]), len(about["classes"])
        ):
            yield f"expected the samples of each client and class under counts, {part}"


def _lacks_of_round(line: Mapping[str, Any], clients: int, classes: int) -> Iterator[str]:
    sent = line.get("bytes")
    if not isinstance(sent, dict) or not all(is_number(sent.get(way)) for way in ("up", "down")):
        yield "expected the bytes up and down under bytes"
    for rule, value in line["rules"].items():
        if value is not None and (lack := _lack_of_accuracy(value, clients, classes)):
            yield f"under rules, {rule}, {lack}"
    if (shape := line.get("prototypes")) and not _is_shape(shape):
        yield "expected distances (min, mean, max) and margins under prototypes"


def _lack_of_accuracy(value: Any, clients: int, classes: int) -> str:
    if not isinstance(value, dict) or not all(is_number(value.get(name)) for name in SHARES):
        return f"expected the numbers {', '.join(SHARES)}"
    for name, count in (("clients", clients), ("classes", classes)):
        if not _is_row(value.get(name), count):
            return f"expected {count} accuracies of {name}"
    return ""


def _is_shape(value: Any) -> bool:
    apart = value.get("distance") if isinstance(value, dict) else None
    margins = value.get("margins") if isinstance(value, dict) else None
    known = isinstance(apart, dict) and all(is_number(apart.get(name)) for name in DISTANCES)
    return known and isinstance(margins, list) and bool(margins) and _is_row(margins, len(margins))


def _is_table(value: Any, clients: int, classes: int) -> bool:
    return isinstance(value, list) and len(value) == clients and all(_is_row(row, classes) for row in value)


def _is_row(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(one is None or is_number(one) for one in value)
