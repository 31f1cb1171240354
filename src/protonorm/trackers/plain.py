"""A run in plain names and numbers, as trackers take them. Nothing here needs torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

from protonorm.history import Run

if TYPE_CHECKING:
    from protonorm.federation import Round

MEANS = ("pooled", "mean", "worst")


def scalars(round: Round) -> dict[str, float]:
    """Name each number of a round: accuracy/global/pooled, loss/train, bytes/up, …; what is not known is left out."""
    line = round.metrics
    found = {f"accuracy/{rule}/{name}": value[name] for rule, value in line["rules"].items() if value for name in MEANS}
    found["loss/train"] = line["loss"]
    if line["unseen"] is not None:
        found["samples/unseen"] = line["unseen"]
    for unit in ("bytes", "floats"):
        found |= {f"{unit}/{way}": line[unit][way] for way in ("up", "down")}
    found |= {f"seconds/{name}": value for name, value in round.seconds.items()}
    if shape := line.get("prototypes"):
        found |= {f"prototypes/distance/{name}": value for name, value in shape["distance"].items()}
        found |= {"prototypes/margin/mean": fmean(shape["margins"]), "prototypes/margin/min": min(shape["margins"])}
    return found | {f"server/{name}": value for name, value in line["server"].items()}


def spreads(round: Round) -> dict[str, list[float]]:
    """Name each list of a round: the accuracies of clients and of classes under each rule, and the margins."""
    found = {
        f"accuracy/{rule}/{name}": [one for one in value[name] if one is not None]
        for rule, value in round.metrics["rules"].items()
        if value
        for name in ("clients", "classes")
    }
    shape = round.metrics.get("prototypes")
    return found | ({"prototypes/margins": list(shape["margins"])} if shape else {})


def majority(run: Run) -> dict[str, float]:
    """Name what guessing each client's most frequent class gives."""
    level = run.about["majority"]
    return {f"accuracy/majority/{name}": level[name] for name in MEANS} if level else {}


def outcome(run: Run) -> dict[str, float]:
    """Name what a run came to under its method's headline rule, equally for all methods."""
    found = run.summary()
    if not found:
        return {}
    best = {f"accuracy/best/{name}": found["best"][name] for name in MEANS}
    return best | {"accuracy/best/own": found["own_best"], "accuracy/last/pooled": found["last"]["pooled"]}


def settings(run: Run) -> dict[str, float | str]:
    """Name each setting: algorithm, algorithm.gamma, rounds, …; numbers stay numbers, all else becomes text."""
    found: dict[str, float | str] = {}
    for name, value in run.experiment.items():
        parts = value if isinstance(value, Mapping) else {"name": value}
        found |= {name if key == "name" else f"{name}.{key}": _cell(part) for key, part in parts.items()}
    return found


def settings_table(run: Run) -> str:
    """Write the settings as a table in Markdown."""
    rows = [f"| {name} | {_escape(str(value))} |" for name, value in settings(run).items()]
    return "\n".join(["| setting | value |", "|---|---|", *rows])


def _cell(value: Any) -> float | str:
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return json.dumps(value)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
