"""How long cells will take: guessed from their settings, then learned from the seconds of rounds. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from protonorm.data import DATASETS
from protonorm.reproduction.cells import Settings

# Seconds for a training picture of 32×32, with its share of testing and prototypes, on two cores nobody else uses.
COST = {"light": 0.0004, "plain": 0.0004, "residual": 0.0005, "cnn": 0.0007, "paper": 0.0015, "resnet18": 0.0016}
COST_OF_POINTS = 0.00004
TWO_NETWORKS = ("fml", "fedkd", "fedmrl", "duet")  # train a second one beside their own


class Work(NamedTuple):
    """What is left of one run."""

    kind: str  # runs of one kind take about as long as guessed by the same factor
    rounds: int  # left
    guess: float  # seconds a round


def work_left(settings: Settings, done: int = 0) -> Work:
    """Describe what is left of a run."""
    dataset = _named(settings.get("dataset", "fashion"))["name"]
    return Work(f"{dataset} {settings.get('models')}", settings.get("rounds", 20) - done, seconds_a_round(settings))


def seconds_a_round(settings: Settings) -> float:
    """Guess how long a round takes on two cores."""
    dataset = _named(settings.get("dataset", "fashion"))
    details = DATASETS[dataset["name"]].details if dataset["name"] in DATASETS else {}
    samples = dataset.get("samples") or 6 * dataset.get("points", 0) or int(details.get("samples", 6000))
    size = [int(part) for part in details.get("size", "32×32×3").split("×")]
    if len(size) == 1:
        cost = COST_OF_POINTS
    else:
        given = settings.get("models") or details.get("models", "light")
        cost = COST.get(given if isinstance(given, str) else str(given[0]), 0.001) * size[0] * size[1] / 32**2
    twice = 1.8 if _named(settings.get("algorithm", "protonorm"))["name"] in TWO_NETWORKS else 1.0
    return float(0.75 * samples * cost * twice + 0.4)


def total_seconds(works: Iterable[Work]) -> float:
    """Guess how long all takes, as if on two cores nobody else uses."""
    return sum(one.rounds * one.guess for one in works)


class Estimate:
    """Learns by how much guesses are wrong here, and says how much time is left."""

    def __init__(self) -> None:
        self._guessed: dict[str, float] = {}
        self._taken: dict[str, float] = {}

    def learn(self, one: Work, taken: float, rounds: int = 1) -> None:
        """Take note of how long rounds took."""
        self._guessed[one.kind] = self._guessed.get(one.kind, 0.0) + rounds * one.guess
        self._taken[one.kind] = self._taken.get(one.kind, 0.0) + taken

    def left(self, works: Sequence[Work]) -> float:
        """Say how many seconds are left; kinds that have not run yet are corrected like all others together."""
        return sum(one.rounds * one.guess * self._factor(one.kind) for one in works)

    def _factor(self, kind: str) -> float:
        if self._guessed.get(kind):
            return self._taken[kind] / self._guessed[kind]
        whole = sum(self._guessed.values())
        return sum(self._taken.values()) / whole if whole else 1.0


def duration(seconds: float) -> str:
    """Write a duration for people: 40 s, 12 min, 5 h, 3 days."""
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _named(value: Any) -> dict[str, Any]:
    """Write a component as a dict with its name, which is empty for an object of the user's own."""
    if isinstance(value, Mapping):
        return {"name": "", **value}
    return {"name": value if isinstance(value, str) else ""}
