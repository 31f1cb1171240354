"""What happened in a round, in the form of the record: what was trained and aggregated, and what was counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from numpy.typing import NDArray

from protonorm.core.digits import digits
from protonorm.core.task import ByClient, Messages, Reply
from protonorm.federation.evaluation import Tally, mean_metrics, prototype_shape
from protonorm.federation.policy import Policy
from protonorm.runs.checkpoint import Checkpoint
from protonorm.runs.schema import Traffic
from protonorm.tensors import Tensors, nbytes, numbers


class ServerStep(NamedTuple):
    """What the server has after it acted; in a solo run, what each client's own server has."""

    state: Messages
    message: Messages
    metrics: Mapping[str, float] = {}
    figures: Tensors = {}


@dataclass
class Replies:
    """What arrived of a round's cohort."""

    ids: list[int] = field(default_factory=list)
    metrics: dict[str, list[float]] = field(default_factory=dict)  # what was reported under each name
    lost: dict[int, str] = field(default_factory=dict)
    nbytes: int = 0
    floats: int = 0

    def take(self, reply: Reply) -> Reply:
        """Note a reply, and pass it on."""
        self.ids.append(reply.id)
        for name, value in reply.metrics.items():
            self.metrics.setdefault(name, []).append(value)
        self.nbytes += nbytes(reply.message)
        self.floats += numbers(reply.message)
        return reply


def trained_part(
    policy: Policy, point: Checkpoint, cohort: Sequence[int], replies: Replies, step: ServerStep
) -> dict[str, Any]:
    """Put a round's training and aggregation into the form of the record."""
    heard: Tensors = {} if isinstance(point.message, ByClient) else point.message
    asked = 0 if policy.solo else len(replies.ids) + len(replies.lost)  # alone, a client sends nothing to nobody
    return {
        "round": point.round + 1,
        "cohort": "all" if len(cohort) == policy.clients else list(cohort),
        "lost": {str(id): reason for id, reason in replies.lost.items()},
        "metrics": mean_metrics(replies.metrics),
        "bytes": Traffic(up=replies.nbytes if asked else 0, down=asked * nbytes(heard)),
        "floats": Traffic(up=replies.floats if asked else 0, down=asked * numbers(heard)),
        "server": {name: digits(value) for name, value in step.metrics.items()},
    }


def evaluated_part(
    evaluated: str, tallies: Sequence[Tally], message: Messages
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Put a round's evaluation and the shape of what was published into the form of the record, with its arrays."""
    distances, arrays = prototype_shape({} if isinstance(message, ByClient) else message)
    for tally in tallies:
        arrays |= tally.arrays()
    accuracies = {tally.part: tally.accuracies() for tally in tallies}
    test = next((tally for tally in tallies if tally.part == "test"), None)
    record = {
        "evaluated": evaluated,
        "rules": accuracies.get("test", {}),
        "validation": accuracies.get("validation", {}),
        "unseen": test.unseen() if test else None,
        "prototypes": distances,
    }
    return record, arrays


def who_was_evaluated(
    policy: Policy, asked: str, tallies: Sequence[Tally]
) -> Literal["all", "cohort", "some", "nobody"]:
    """Say who was evaluated; with a quorum, some of those who were asked may not have answered."""
    counted = {tally.clients for tally in tallies}
    if counted <= {0}:
        return "nobody"
    if counted == {policy.clients}:
        return "all"
    return "cohort" if asked == "cohort" else "some"
