"""The round loop: train, aggregate, evaluate, commit. Clients do what the algorithm says where the engine has them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from protonorm.core.protocols import Engine
from protonorm.core.randomness import SERVER, seeded
from protonorm.core.returned import checked_step
from protonorm.core.task import ByClient, Counts, Lost, Order, Reply, Task
from protonorm.errors import Diverged, TooFewReplies
from protonorm.federation.evaluation import Tally
from protonorm.federation.outcome import Replies, ServerStep, evaluated_part, trained_part, who_was_evaluated
from protonorm.federation.policy import Policy, draw_cohort
from protonorm.runs.checkpoint import Checkpoint
from protonorm.runs.schema import RoundRecord
from protonorm.runs.writer import RoundOutcome
from protonorm.tensors import Tensors, all_finite, floats

SHOWN = 3  # clients that a sentence names
BLOCK = 1000  # clients that an engine is asked to evaluate at a time


class Round(NamedTuple):
    """A committed round."""

    record: RoundRecord
    seconds: dict[str, float]

    @property
    def number(self) -> int:
        """Give its number."""
        return self.record.round


class Recorder(Protocol):
    """Whoever makes rounds final."""

    @property
    def chosen(self) -> int:
        """Give the best round so far by validation; 0 if there is none."""

    @property
    def stopped(self) -> bool:
        """Tell whether the run is to end before its last round."""

    def commit(self, point: Checkpoint, outcome: RoundOutcome) -> RoundRecord:
        """Make a round final."""


def begin(task: Task, policy: Policy) -> Checkpoint:
    """Let the server begin; in a solo run each client's own server does."""
    with seeded(task.seed, 0, SERVER):
        step = checked_step(task.algorithm, "init_server", task.algorithm.init_server(task.server(0)))
    if not policy.solo:
        return Checkpoint(0, step.state, step.message, [0] * policy.clients)
    state, message = (ByClient((id, one) for id in range(policy.clients)) for one in (step.state, step.message))
    return Checkpoint(0, state, message, [0] * policy.clients)


def run_rounds(task: Task, engine: Engine, policy: Policy, point: Checkpoint, recorder: Recorder) -> Iterator[Round]:
    """Run the rounds after a checkpoint, and tell of each once it is committed."""
    for number in range(point.round + 1, task.rounds + 1):
        if recorder.stopped:
            return
        start = time.perf_counter()
        cohort = draw_cohort(task.seed, number, policy.clients, policy.cohort_size)
        replies, step = _train(task, engine, policy, point, cohort)
        trained = list(point.trained)
        for id in replies.ids:
            trained[id] = number
        after = Checkpoint(number, step.state, step.message, trained)
        tallies = _evaluate(task, engine, policy, after, replies.ids)
        evaluated = who_was_evaluated(policy, policy.asked(number, task.rounds), tallies)
        outcome = _outcome(policy, point, cohort, evaluated, replies, step, tallies, time.perf_counter() - start)
        point = after
        record = recorder.commit(point, outcome)
        engine.commit(number, replies.ids, recorder.chosen)
        yield Round(record, dict(outcome.seconds))


def _train(
    task: Task, engine: Engine, policy: Policy, point: Checkpoint, cohort: Sequence[int]
) -> tuple[Replies, ServerStep]:
    """Let the cohort train and the server aggregate; try again if too few reply."""
    number = point.round + 1
    orders = [Order(id, number, point.trained[id]) for id in cohort]
    for attempt in range(policy.retries + 1):
        replies = Replies()
        answers = engine.train(orders, point.message, policy.deadline)
        messages = _messages(task, answers, replies, policy, policy.needed(len(cohort)))
        try:
            step = aggregate(task, point, messages)
            for _ in messages:  # a method that listens to nobody still waits for everybody
                pass
        except TooFewReplies as error:
            if attempt == policy.retries:
                raise TooFewReplies(f"Round {number} does not count: {error} {_tried(policy)}") from None
            continue
        said = step.message
        for message in [said[id] for id in replies.ids] if isinstance(said, ByClient) else [said]:
            check_message(task, message, number)
        return replies, step
    raise AssertionError("a round is tried at least once")


def aggregate(task: Task, point: Checkpoint, replies: Iterator[Reply]) -> ServerStep:
    """Let the server join what all clients said; in a solo run, let each client's own server hear that client alone."""
    number = point.round + 1
    if isinstance(point.state, ByClient) and isinstance(point.message, ByClient):
        return _aggregate_alone(task, number, point.state, point.message, replies)
    assert not isinstance(point.state, ByClient)
    with seeded(task.seed, number, SERVER):
        step = task.algorithm.aggregate(task.server(number), point.state, (reply.message for reply in replies))
    return ServerStep(*checked_step(task.algorithm, "aggregate", step))


def _aggregate_alone(task: Task, number: int, before: ByClient, said: ByClient, replies: Iterator[Reply]) -> ServerStep:
    """Let each client's own server hear that client alone: the control that says what the exchange brings."""
    states, messages = ByClient(before), ByClient(said)
    for reply in replies:
        with seeded(task.seed, number, SERVER):  # each is a federation of its own, with the same random numbers
            found = task.algorithm.aggregate(task.server(number), states[reply.id], iter([reply.message]))
        step = checked_step(task.algorithm, "aggregate", found)
        states[reply.id], messages[reply.id] = step.state, step.message
    return ServerStep(states, messages)


def _messages(
    task: Task, answers: Iterator[Reply | Lost], replies: Replies, policy: Policy, needed: int
) -> Iterator[Reply]:
    """Pass the clients' replies on one by one; a message that the schema does not allow is as good as none."""
    for answer in answers:
        if isinstance(answer, Lost):
            replies.lost[answer.id] = answer.reason
            continue
        try:
            task.schema.check_up(answer.message, f"The reply of {policy.label(answer.id)}")
        except ValueError as error:
            replies.lost[answer.id] = str(error)
            continue
        yield replies.take(answer)
    if len(replies.ids) < needed:
        whole = len(replies.ids) + len(replies.lost)
        reasons = _reasons(replies.lost, policy)
        raise TooFewReplies(f"{len(replies.ids)} of {whole} clients replied, {needed} must ({reasons}).")


def _evaluate(task: Task, engine: Engine, policy: Policy, point: Checkpoint, replied: Sequence[int]) -> list[Tally]:
    """Let those who are due count their right answers with the new message: a tally for each part of the samples.

    Counts are folded as they come, and clients asked in blocks, so that no more than a block is ever held.
    """
    tallies = [Tally(part, task.algorithm.rules, policy.clients, task.num_classes) for part in policy.parts]
    asked = policy.asked(point.round, task.rounds)
    due: Sequence[int] = {"all": range(policy.clients), "cohort": replied, "nobody": ()}[asked]
    lost: dict[int, str] = {}
    for _ in range(policy.retries + 1):
        lost = {}
        for answer in _ask_in_blocks(engine, policy, point, due):
            if isinstance(answer, Lost):
                lost[answer.id] = answer.reason
                continue
            try:
                for tally in tallies:
                    tally.check(answer)
            except ValueError as error:
                lost[answer.id] = str(error)
                continue
            for tally in tallies:
                tally.add(answer)
        due = list(lost)
        if not due or policy.quorum < 1:
            return tallies
    raise TooFewReplies(f"Round {point.round} cannot be evaluated: {_reasons(lost, policy)}. {_tried(policy)}")


def _ask_in_blocks(engine: Engine, policy: Policy, point: Checkpoint, ids: Sequence[int]) -> Iterator[Counts | Lost]:
    for start in range(0, len(ids), BLOCK):
        orders = [Order(id, point.round, point.trained[id]) for id in ids[start : start + BLOCK]]
        yield from engine.evaluate(orders, point.message, policy.parts)


def _outcome(
    policy: Policy,
    point: Checkpoint,
    cohort: Sequence[int],
    evaluated: str,
    replies: Replies,
    step: ServerStep,
    tallies: Sequence[Tally],
    seconds: float,
) -> RoundOutcome:
    """Put a round into the form of the record."""
    trained = trained_part(policy, point, cohort, replies, step)
    counted, arrays = evaluated_part(evaluated, tallies, step.message)
    return RoundOutcome(trained | counted, arrays, {"round": seconds}, step.figures)


def check_message(task: Task, message: Tensors, number: int) -> None:
    """Stop a run whose server would say what is not finite or not allowed."""
    bad = [name for name, value in floats(message).items() if not all_finite(value)]
    if bad:
        raise Diverged(f"What the server would say after round {number} is not finite: {', '.join(bad)}.")
    task.schema.check_down(message, f"What the server would say after round {number}")


def _reasons(lost: Mapping[int, str], policy: Policy) -> str:
    shown = [f"{policy.label(id)}: {reason.rstrip('.')}" for id, reason in list(lost.items())[:SHOWN]]
    return "; ".join([*shown, *([f"and {len(lost) - SHOWN} more"] if len(lost) > SHOWN else [])])


def _tried(policy: Policy) -> str:
    times = f"{policy.retries + 1} times" if policy.retries else "once"
    return f"It was tried {times}. The finished rounds are kept, and the same command goes on from there."
