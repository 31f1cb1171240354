"""A run in plain names and numbers, as trackers take them. Nothing here needs torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protonorm.analysis.labels import flatten_settings
from protonorm.analysis.plain_text import markdown_text
from protonorm.runs.reader import Run
from protonorm.runs.schema import Accuracy, RoundRecord

if TYPE_CHECKING:
    from protonorm.federation.rounds import Round

Numbers = NDArray[np.float64]


def scalars(round: Round) -> dict[str, float]:
    """Name each number of a round: accuracy/global/pooled, loss/train, bytes/up, …; what is not known is left out."""
    record = round.record
    found: dict[str, float] = {}
    for rule, value in record.rules.items():
        found |= _named(f"accuracy/{rule}", value) if value else {}
    if record.loss is not None:
        found["loss/train"] = record.loss
    found |= {f"clients/{name}": value for name, value in record.metrics.items() if name != "loss"}
    if record.unseen is not None:
        found["samples/unseen"] = record.unseen
    for unit, sent in (("bytes", record.bytes), ("floats", record.floats)):
        found |= {f"{unit}/up": sent.up, f"{unit}/down": sent.down}
    found |= {f"seconds/{name}": value for name, value in round.seconds.items()}
    if record.lost:
        found["clients/lost"] = len(record.lost)
    if record.prototypes:
        found |= {f"prototypes/distance/{name}": value for name, value in record.prototypes.model_dump().items()}
    return found | {f"server/{name}": value for name, value in record.server.items()}


def distributions(run: Run, record: RoundRecord) -> dict[str, Numbers]:
    """Name each list of a round: accuracies of clients and of classes under each rule, and margins.

    Clients and classes without test samples, and clients that were not evaluated, are left out.
    """
    arrays = run.arrays(record)
    found: dict[str, Numbers] = {}
    for rule, value in record.rules.items():
        for unit in ("clients", "classes") if value else ():
            support = arrays[f"support.{unit}"]
            tested = support > 0
            found[f"accuracy/{rule}/{unit}"] = arrays[f"correct.{unit}.{rule}"][tested] / support[tested]
    return found | ({"prototypes/margins": arrays["margins"]} if "margins" in arrays else {})


def margin_scalars(lists: Mapping[str, Numbers]) -> dict[str, float]:
    """Name the mean and the smallest of a round's margins, if it has any."""
    margins = lists.get("prototypes/margins", np.zeros(0))
    if not margins.size:
        return {}
    return {"prototypes/margin/mean": float(margins.mean()), "prototypes/margin/min": float(margins.min())}


def majority(run: Run) -> dict[str, float]:
    """Name what guessing each client's most frequent class gives."""
    return _named("accuracy/majority", run.majority) if run.majority else {}


def outcome(run: Run) -> dict[str, float]:
    """Name the final numbers of a run under its method's headline rule."""
    found = run.summary()
    if not found:
        return {}
    best = {f"accuracy/best/{name}": getattr(found.best, name) for name in Accuracy.model_fields}
    return best | {"accuracy/best/own": found.own_best, "accuracy/last/pooled": found.last.pooled}


def settings(run: Run) -> dict[str, float | str]:
    """Name each setting: algorithm, algorithm.gamma, rounds, …; numbers stay numbers, all else becomes text."""
    return {name: _number_or_text(value) for name, value in flatten_settings(run.info.experiment.plain()).items()}


def settings_table(run: Run) -> str:
    """Write the settings as a table in Markdown."""
    rows = [f"| {markdown_text(name)} | {markdown_text(str(value))} |" for name, value in settings(run).items()]
    return "\n".join(["| setting | value |", "|---|---|", *rows])


def _named(prefix: str, accuracy: Accuracy) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in accuracy.model_dump().items()}


def _number_or_text(value: Any) -> float | str:
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return json.dumps(value)
