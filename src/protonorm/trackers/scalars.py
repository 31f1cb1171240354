"""A run in plain names and numbers, as trackers take them. Nothing here needs torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from protonorm.analysis.labels import flatten_settings
from protonorm.analysis.plain_text import markdown_text
from protonorm.runs.run import Run
from protonorm.runs.schema import Accuracy, RoundRecord

if TYPE_CHECKING:
    from protonorm.federation.rounds import Round

Numbers = NDArray[np.float64]

MOST_CLIENTS = 100  # with a curve each


def scalars(round: Round) -> dict[str, float]:
    """Name each number of a round: accuracy/global/pooled, loss/train, bytes/up, …; what is not known is left out.

    Names that begin with accuracy are of the test parts, those with validation of the validation parts.
    """
    record = round.record
    found: dict[str, float] = {}
    for part, rules in (("accuracy", record.rules), ("validation", record.validation)):
        for rule, value in rules.items():
            found |= _named(f"{part}/{rule}", value) if value else {}
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

    Clients and classes without samples, and clients that were not evaluated, are left out.
    """
    arrays = run.arrays(record)
    found: dict[str, Numbers] = {}
    for name, part, rules in (("accuracy", "test", record.rules), ("validation", "validation", record.validation)):
        for rule, unit in ((rule, unit) for rule, value in rules.items() if value for unit in ("clients", "classes")):
            support, correct = (arrays.get(f"{part}.{kind}") for kind in (f"support.{unit}", f"correct.{unit}.{rule}"))
            if support is not None and correct is not None:
                found[f"{name}/{rule}/{unit}"] = correct[support > 0] / support[support > 0]
    return found | ({"prototypes/margins": arrays["margins"]} if "margins" in arrays else {})


def client_scalars(run: Run, record: RoundRecord) -> dict[str, float]:
    """Name the accuracies of clients that have names, client/berlin/accuracy, under the method's headline rule.

    Clients that have numbers alone, or that are very many, have no curves of their own.
    """
    if run.info.client_names is None or len(run.info.client_names) > MOST_CLIENTS:
        return {}
    found: dict[str, float] = {}
    for name, part, rules in (("accuracy", "test", record.rules), ("validation", "validation", record.validation)):
        if rules.get(run.info.headline):
            shares = run.by_client(record, run.info.headline, part)
            found |= {
                f"client/{run.client_name(id)}/{name}": float(shares[id]) for id in np.flatnonzero(shares >= 0).tolist()
            }
    return found


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
    """Name the final numbers of a run under its method's headline rule; `best` is chosen by test, and so optimistic."""
    beside, choice = run.summary(), run.chosen
    reported = choice.record.rules.get(run.info.headline) if choice else None
    if beside is None or choice is None or reported is None:
        return {}
    found = _named("accuracy/reported", reported) | {"accuracy/reported/round": float(choice.record.round)}
    found |= {f"accuracy/best/{name}": getattr(beside.best, name) for name in ("pooled", "mean", "worst")}
    return found | {"accuracy/best/own": beside.own_best, "accuracy/last/pooled": beside.last.pooled}


def reported_text(run: Run) -> str:
    """Say which round is reported, and how it was chosen."""
    if run.chosen is None:
        return "No round has been evaluated yet."
    return f"Round {run.chosen.record.round} is reported: {run.chosen.why}."


def settings(run: Run) -> dict[str, float | str]:
    """Name each setting: algorithm, algorithm.gamma, rounds, …; numbers stay numbers, all else becomes text."""
    return {name: _number_or_text(value) for name, value in flatten_settings(run.info.experiment.plain()).items()}


def settings_table(run: Run) -> str:
    """Write the settings as a table in Markdown."""
    rows = [f"| {markdown_text(name)} | {markdown_text(str(value))} |" for name, value in settings(run).items()]
    return "\n".join(["| setting | value |", "|---|---|", *rows])


def _named(prefix: str, accuracy: Accuracy) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in accuracy.model_dump(exclude_none=True).items()}


def _number_or_text(value: Any) -> float | str:
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return json.dumps(value)
