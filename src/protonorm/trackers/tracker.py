"""Tracker protocol, notification of trackers, and conversion of runs to named scalars and distributions."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from protonorm.analysis.settings import run_settings
from protonorm.core.own_code import load_own, name_missing
from protonorm.core.own_failures import wrong_arguments
from protonorm.core.registry import find
from protonorm.core.text import markdown_text, shortened
from protonorm.core.types import shown
from protonorm.federation.rounds import Round
from protonorm.runs.run import Run, read_run
from protonorm.runs.schema import Accuracy, RoundRecord
from protonorm.trackers import TRACKERS

MOST_CLIENTS = 100  # maximum number of clients with individual curves

Numbers = NDArray[np.float64]
Listener = Callable[[Round], None]


@runtime_checkable
class Tracker(Protocol):
    """Observer of runs, one at a time; it never changes results."""

    def begin(self, run: Run) -> None:
        """Handle the start of a run, before any round; `run.rounds` holds the rounds recorded earlier."""

    def __call__(self, round: Round) -> None:
        """Handle a round; called once per round, in order, including rounds recorded earlier."""

    def end(self, run: Run) -> None:
        """Handle the end of a run that is finished, failed or interrupted."""


@dataclass(frozen=True)
class FunctionTracker:
    """Tracker that passes each round to a function."""

    listener: Listener

    def begin(self, run: Run) -> None:
        """Do nothing."""

    def __call__(self, round: Round) -> None:
        """Pass the round to the function."""
        self.listener(round)

    end = begin


def choose(value: Any) -> Tracker | None:
    """Create a tracker from a name, a user's file.py:Name, an object or a function; return None for None."""
    if isinstance(value, str):
        name_missing(value, "tracker")
        value = load_own(value, "tracker") if ".py:" in value else find(TRACKERS, shortened(value), "tracker").load()
        if isinstance(value, type):
            if problem := wrong_arguments(value, ()):
                raise ValueError(f"{problem} A tracker is made without settings.")
            value = value()
    if value is None or (isinstance(value, Tracker) and not isinstance(value, type)):
        return value
    if callable(value) and not isinstance(value, type) and not hasattr(value, "begin") and not hasattr(value, "end"):
        return FunctionTracker(value)
    raise ValueError(
        f"{shown(value)} is not a tracker: expected a name ({', '.join(sorted(TRACKERS))}), "
        "a function that takes a round, or an object with begin(run), __call__(round) and end(run)."
    )


@contextmanager
def tracked(tracker: Tracker | None, folder: Path, rounds: int | None = None) -> Iterator[Listener]:
    """Notify a tracker of a run from its first round on; finished rounds are replayed from the record.

    If `rounds` is given, only the first `rounds` rounds are replayed.
    """
    if tracker is None:
        yield lambda _: None
        return
    run = read_run(folder, rounds)
    tracker.begin(run)
    try:
        for round in recorded_rounds(run):
            tracker(round)
        yield tracker
    finally:
        tracker.end(read_run(folder, rounds))


def recorded_rounds(run: Run) -> list[Round]:
    """Return the committed rounds of a run as trackers receive them; missing timings are omitted."""
    times = run.seconds
    return [Round(record, {"round": times[record.round]} if record.round in times else {}) for record in run.rounds]


def scalars(round: Round) -> dict[str, float]:
    """Return the scalars of a round by name: accuracy/global/pooled, loss/train, bytes/up, …; unknown ones are omitted.

    Names beginning with accuracy refer to the test parts, those with validation to the validation parts.
    """
    record = round.record
    values: dict[str, float | None] = {}
    for name, _, rules in _parts(record):
        for rule, value in rules.items():
            values |= _named(f"{name}/{rule}", value) if value else {}
    values["loss/train"] = record.loss
    values |= {f"clients/{name}": value for name, value in record.metrics.items() if name != "loss"}
    values["samples/unseen"] = record.unseen
    for unit, sent in (("bytes", record.bytes), ("floats", record.floats)):
        values |= {f"{unit}/up": sent.up, f"{unit}/down": sent.down}
    values |= {f"seconds/{name}": value for name, value in round.seconds.items()}
    values["clients/lost"] = len(record.lost) or None
    distances = record.prototypes.model_dump() if record.prototypes else {}
    values |= {f"prototypes/distance/{name}": value for name, value in distances.items()}
    values |= {f"server/{name}": value for name, value in record.server.items()}
    return {name: value for name, value in values.items() if value is not None}


def distributions(run: Run, record: RoundRecord) -> dict[str, Numbers]:
    """Return the distributions of a round by name: accuracies of clients and classes under each rule, and margins.

    Clients and classes without samples, and clients that were not evaluated, are omitted.
    """
    arrays = run.arrays(record)
    shares: dict[str, Numbers] = {}
    for name, part, rules in _parts(record):
        for rule, unit in ((rule, unit) for rule, value in rules.items() if value for unit in ("clients", "classes")):
            support, correct = (arrays.get(f"{part}.{kind}") for kind in (f"support.{unit}", f"correct.{unit}.{rule}"))
            if support is not None and correct is not None:
                shares[f"{name}/{rule}/{unit}"] = correct[support > 0] / support[support > 0]
    return shares | ({"prototypes/margins": arrays["margins"]} if "margins" in arrays else {})


def client_scalars(run: Run, record: RoundRecord) -> dict[str, float]:
    """Return accuracies of named clients under the method's headline rule, by name such as client/berlin/accuracy.

    Empty if clients have only numbers, or if there are more than MOST_CLIENTS.
    """
    if run.info.client_names is None or len(run.info.client_names) > MOST_CLIENTS:
        return {}
    headline = run.info.headline
    return {
        f"client/{run.client_name(id)}/{name}": float(share)
        for name, part, rules in _parts(record)
        if rules.get(headline)
        for id, share in enumerate(run.by_client(record, headline, part))
        if share >= 0  # NaN if it was not evaluated
    }


def margin_scalars(lists: Mapping[str, Numbers]) -> dict[str, float]:
    """Return the mean and minimum of a round's margins by name, if it has any."""
    margins = lists.get("prototypes/margins", np.zeros(0))
    if not margins.size:
        return {}
    return {"prototypes/margin/mean": float(margins.mean()), "prototypes/margin/min": float(margins.min())}


def majority(run: Run) -> dict[str, float]:
    """Return the accuracies of predicting each client's most frequent class, by name."""
    return _named("accuracy/majority", run.majority) if run.majority else {}


def outcome(run: Run) -> dict[str, float]:
    """Return a run's final results under the headline rule by name; `best` is selected by test, thus optimistic."""
    summary, choice = run.summary(), run.chosen
    reported = choice.record.rules.get(run.info.headline) if choice else None
    if summary is None or choice is None or reported is None:
        return {}
    values = _named("accuracy/reported", reported) | {"accuracy/reported/round": float(choice.record.round)}
    values |= {f"accuracy/best/{name}": getattr(summary.best, name) for name in ("pooled", "mean", "worst")}
    return values | {"accuracy/best/own": summary.own_best, "accuracy/last/pooled": summary.last.pooled}


def reported_text(run: Run) -> str:
    """Return a sentence that names the reported round and how it was chosen."""
    if run.chosen is None:
        return "No round has been evaluated yet."
    return f"Round {run.chosen.record.round} is reported: {run.chosen.why}."


def settings(run: Run) -> dict[str, float | str]:
    """Return the settings by name: algorithm, algorithm.gamma, rounds, …; values other than numbers become text."""
    return {
        name: value if isinstance(value, int | float | str) and not isinstance(value, bool) else json.dumps(value)
        for name, value in run_settings(run.info).items()
    }


def settings_table(run: Run) -> str:
    """Format the settings as a Markdown table."""
    rows = [f"| {markdown_text(name)} | {markdown_text(str(value))} |" for name, value in settings(run).items()]
    return "\n".join(["| setting | value |", "|---|---|", *rows])


def _named(prefix: str, accuracy: Accuracy) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in accuracy.model_dump(exclude_none=True).items()}


def _parts(record: RoundRecord) -> tuple[tuple[str, str, Mapping[str, Accuracy | None]], ...]:
    """Return name prefix, part of the data, and accuracies by rule; empty for a part that a run does not have."""
    own = ("accuracy", "test", record.rules), ("validation", "validation", record.validation)
    return *own, ("common", "common", record.common), ("newcomers", "newcomers", record.newcomers)
