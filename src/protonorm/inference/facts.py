"""What a run's record says of one of its clients: which rule to take, how good it was, where it comes from."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from protonorm.core.digits import digits
from protonorm.federation.client import PROBABLE
from protonorm.federation.experts import JOINT
from protonorm.inference.info import Facts, Measured, Recommendation
from protonorm.runs import layout
from protonorm.runs.arrays import BESIDE, SHARPNESS
from protonorm.runs.run import Run
from protonorm.runs.schema import RoundRecord

PARTS: tuple[Literal["validation", "test"], ...] = ("validation", "test")
MEASURED = (
    "Accuracy is the share of right answers on samples of this client that it did not train on. Rounds and rules are "
    "chosen by the validation part, never by the test part, unless it is said otherwise; balanced is the mean recall "
    "of the classes, f1 the mean F1, log_loss the mean of −log p of the true class, calibration the mean distance of "
    "confidence and accuracy in 15 bins."
)


def recommend(run: Run, round: int, among: Collection[str] | None = None) -> Recommendation:
    """Recommend the rule with the best mean validation accuracy in a round; the headline wins among equals.

    A client may lack some of the method's rules: `among` are those that it has.
    """
    info = run.info
    validated, there = run.rounds[round - 1].validation, info.rules if among is None else among
    order = dict.fromkeys([info.headline, *info.rules])
    known = {rule: found for rule in order if rule in there and (found := validated.get(rule))}
    if not known:
        return usual_rule(info.headline, there)
    rule = max(known, key=lambda one: known[one].mean)  # the first of equals
    probability = rule if rule in PROBABLE else "logits"
    calibrated = known.get(probability)
    return Recommendation(
        rule=rule,
        by="validation",
        validation=known[rule].mean,
        probability=probability,
        calibration=calibrated.calibration if calibrated else None,
    )


def usual_rule(headline: str, rules: Collection[str]) -> Recommendation:
    """Recommend the method's usual rule, without validation; the first there is, if a client lacks it."""
    usual = "logits" if headline == "received" else headline
    rule = usual if usual in rules else next(iter(rules), usual)
    return Recommendation(rule=rule, by="headline", probability=rule if rule in PROBABLE else "logits")


def sharpness_of(run: Run, id: int, round: int) -> dict[str, float] | None:
    """Find 1/T of a client's rules in `joint`, {} where all are 1; None for a client that was not evaluated."""
    arrays, start = run.arrays(run.rounds[round - 1]), f"validation.{SHARPNESS}.clients."
    place = arrays["ids"] == id if "ids" in arrays else np.arange(run.info.experiment.clients) == id
    if JOINT not in run.info.rules or not (place.any() and run.rounds[round - 1].evaluated != "nobody"):
        return None
    found = {name.removeprefix(start): float(one[place][0]) for name, one in arrays.items() if name.startswith(start)}
    return {rule: found[rule] for rule in run.info.rules if not np.isnan(found.get(rule, np.nan))}  # in one order


def facts_of(run: Run, id: int, round: int) -> Facts:
    """Gather where a client comes from, and how good it was after a round."""
    record, origin = run.rounds[round - 1], run.provenance
    return Facts(
        data=run.info.experiment.dataset.name,
        train=int(run.population.train[id].sum()),
        rounds=len(run.rounds),
        chosen=_chosen(run, round),
        metrics=[one for part in PARTS for rule in run.info.rules for one in _measured(run, id, record, part, rule)],
        measured=MEASURED,
        date=_date(run, round),
        commit=origin.commit if origin else None,
        dirty=origin.dirty if origin else None,
        versions=origin.versions if origin else run.info.versions,
    )


def _measured(run: Run, id: int, record: RoundRecord, part: Literal["validation", "test"], rule: str) -> list[Measured]:
    """Give a rule's measures on one part; none if the client was not evaluated there."""
    accuracy = run.by_client(record, rule, part)[id]
    if np.isnan(accuracy):
        return []
    samples = int(getattr(run.population, part)[id].sum())
    found = {name: float(run.measured(record, rule, name, part)[id]) for name in BESIDE}
    beside = {name: None if np.isnan(value) else digits(value) for name, value in found.items()}
    return [Measured(part=part, rule=rule, samples=samples, accuracy=digits(accuracy), **beside)]


def _chosen(run: Run, round: int) -> str:
    """Say why it is this round."""
    if run.chosen and run.chosen.record.round == round:
        return f"round {round} of {len(run.rounds)}: {run.chosen.why}"
    return f"round {round} of {len(run.rounds)}: the last one; the run's tables do not report it"


def _date(run: Run, round: int) -> str:
    """Tell on which day the round's state was written."""
    path = run.folder / (layout.SERVER if round == layout.committed(run.folder) else layout.CHOSEN)
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()
