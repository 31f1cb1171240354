"""The round loop: who acts when. What they do is the algorithm's; where they live is the engine's."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from protonorm.core import SERVER, Reply, Step, seeded
from protonorm.errors import Diverged
from protonorm.evaluation import by_rule, digits, evaluate, prototype_metrics, unseen
from protonorm.record import Checkpoint, Record
from protonorm.setup import Setup
from protonorm.tensors import Tensors, nbytes, numbers


class Engine(Protocol):
    """Where clients live: the engine keeps what they remember, and asks them to act."""

    def run_clients(
        self, round: int, cohort: Collection[int], message: Tensors, trained: Sequence[int]
    ) -> Iterable[Reply]:
        """Let the cohort train and everybody be tested; replies come in the order of the clients' numbers.

        `trained` holds the last round each client trained in, 0 for never: it says which state is the right one.
        """

    def close(self) -> None:
        """End what the engine started."""


class Round(NamedTuple):
    """What a round leaves."""

    number: int
    metrics: dict[str, Any]  # one line of the record
    seconds: dict[str, float]


def draw_cohort(seed: int, round: int, clients: int, size: int) -> list[int]:
    """Choose the clients of a round, without replacement."""
    with seeded(seed, round, SERVER):
        return sorted(np.random.permutation(clients)[:size].tolist())


def begin(setup: Setup) -> Checkpoint:
    """Let the server begin."""
    with seeded(setup.experiment.seed, 0, SERVER):
        step = setup.experiment.algorithm.init_server(setup.server(0))
    return Checkpoint(0, step.state, step.message, [0] * setup.experiment.clients)


def first_state(setup: Setup, id: int) -> Tensors:
    """Let a client begin: what it remembers before its first round."""
    client = setup.fresh_client(id)
    with seeded(setup.experiment.seed, 0, id):
        state: Tensors = setup.experiment.algorithm.init_client(client)
    return state


def client_step(
    setup: Setup, id: int, round: int, state: Tensors, message: Tensors, train: bool
) -> tuple[Tensors, Reply]:
    """Do all that a client does in a round: train if it is in the cohort, and be tested."""
    algorithm, client = setup.experiment.algorithm, setup.client(id, round)
    with seeded(setup.experiment.seed, round, id):
        received = algorithm.receive(client, state, message)
        arrived = evaluate(algorithm, client, received, message) if received is not None else {}
        step = algorithm.local_update(client, state, message) if train else Step(state, {})
        counts = evaluate(algorithm, client, step.state, message)
    if arrived:
        counts["correct.received"] = arrived["correct.logits"]
    metrics = dict(step.metrics) | {"unseen": float(unseen(client, step.state))}
    return step.state, Reply(id, step.message, metrics, counts)


def rounds(setup: Setup, engine: Engine, record: Record, point: Checkpoint) -> Iterator[Round]:
    """Run the rounds after a checkpoint, commit each to the record, and tell of it."""
    experiment = setup.experiment
    for number in range(point.round + 1, experiment.rounds + 1):
        start = time.perf_counter()
        cohort = draw_cohort(experiment.seed, number, experiment.clients, experiment.cohort_size)
        replies: list[Reply] = []
        messages = _heard(engine.run_clients(number, cohort, point.message, point.trained), cohort, replies)
        with seeded(experiment.seed, number, SERVER):
            step = experiment.algorithm.aggregate(setup.server(number), point.state, messages)
        for _ in messages:  # a method that listens to nobody still waits for everybody
            pass
        _check_finite(step.message, number)
        metrics = _line(setup, number, cohort, point.message, step, replies)
        trained = [number if id in cohort else last for id, last in enumerate(point.trained)]
        point = Checkpoint(number, step.state, step.message, trained)
        seconds = {"round": time.perf_counter() - start}
        record.commit(point, metrics, seconds, step.figures)
        yield Round(number, metrics, seconds)


def _heard(replies: Iterable[Reply], cohort: Sequence[int], kept: list[Reply]) -> Iterator[Tensors]:
    """Pass the cohort's messages on one by one, and keep of each reply what the record needs."""
    members = set(cohort)
    for reply in replies:
        kept.append(reply._replace(message={}, metrics=reply.metrics | _sizes(reply.message)))
        if reply.id in members:
            yield reply.message


def _sizes(message: Tensors) -> dict[str, float]:
    return {"bytes": float(nbytes(message)), "floats": float(numbers(message))}


def _traffic(unit: str, trained: Sequence[Reply], message: Tensors) -> dict[str, int]:
    """Count what a round's cohort sent and was sent."""
    return {
        "up": int(sum(reply.metrics[unit] for reply in trained)),
        "down": int(_sizes(message)[unit]) * len(trained),
    }


def _check_finite(message: Tensors, round: int) -> None:
    bad = [name for name, value in message.items() if value.is_floating_point() and not value.isfinite().all()]
    if bad:
        raise Diverged(f"What the server would say after round {round} is not finite: {', '.join(bad)}.")


def _line(
    setup: Setup, round: int, cohort: Sequence[int], message: Tensors, step: Step, replies: list[Reply]
) -> dict[str, Any]:
    """Write a round as one line of the record; nothing in it depends on the time or the machine."""
    algorithm = setup.experiment.algorithm
    trained = [reply for reply in replies if reply.id in set(cohort)]
    support = sum(int(reply.evaluation["support"].sum()) for reply in replies)
    line: dict[str, Any] = {
        "round": round,
        "cohort": list(cohort) if len(cohort) < setup.experiment.clients else "all",
        "loss": digits(sum(reply.metrics["loss"] for reply in trained) / len(trained)),
        "rules": by_rule(algorithm.rules, {reply.id: reply.evaluation for reply in replies}),
        "unseen": digits(sum(reply.metrics["unseen"] for reply in replies) / support) if support else None,
        "bytes": _traffic("bytes", trained, message),
        "floats": _traffic("floats", trained, message),
        "server": {name: digits(value) for name, value in step.metrics.items()},
    }
    shape = prototype_metrics(step.message)
    return line | ({"prototypes": shape} if shape else {})
