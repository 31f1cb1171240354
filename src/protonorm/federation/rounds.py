"""Round loop: train, aggregate, evaluate, commit; identical for every engine."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from numpy.typing import NDArray

from protonorm.core.algorithm import checked_step
from protonorm.core.node import COMMON
from protonorm.core.randomness import SERVER, seeded
from protonorm.core.systems import Plan
from protonorm.core.task import ByClient, Counts, DeferredEngine, Engine, Lost, Order, Reply, Task
from protonorm.core.text import digits
from protonorm.errors import Again, Burned, TooFewReplies
from protonorm.federation.evaluation import Tally, mean_metrics, prototype_shape
from protonorm.federation.policy import Policy, draw_cohort
from protonorm.federation.server import Replies, Servers, ServerStep, admit, check_message
from protonorm.runs.schema import RoundRecord, Traffic
from protonorm.runs.states import Checkpoint
from protonorm.runs.writer import DeferredWriter, RoundOutcome, RunWriter
from protonorm.tensors import Tensors, nbytes, numbers, prefixed, strip_prefix

NEWCOMERS = "newcomers"  # name of the clients that never train, in a record
SHOWN = 3  # clients named in an error message
BLOCK = 1000  # clients per evaluation request to an engine
PAST = "past"  # prefix of earlier messages in the state of an asynchronous server

Concluded = tuple[Replies, ServerStep]  # of a round
Renew = Callable[[Checkpoint], tuple[Task, Policy, Checkpoint]]


class Round(NamedTuple):
    """Committed round."""

    record: RoundRecord
    seconds: dict[str, float]
    evaluated: int = 0  # clients

    @property
    def number(self) -> int:
        """Round number."""
        return self.record.round


def begin(task: Task, policy: Policy) -> Checkpoint:
    """Return the checkpoint before the first round; in a solo run each client has a server of its own."""
    with seeded(task.seed, 0, SERVER):
        step = checked_step(task.algorithm, "init_server", task.algorithm.init_server(task.server(0)))
    if not policy.solo:
        return Checkpoint(0, step.state, step.message, [0] * policy.clients)
    state, message = (ByClient((id, tensors) for id in range(policy.clients)) for tensors in (step.state, step.message))
    return Checkpoint(0, state, message, [0] * policy.clients)


def run_rounds(
    task: Task, engine: Engine, policy: Policy, point: Checkpoint, writer: RunWriter, renew: Renew | None = None
) -> Iterator[Round]:
    """Run the rounds after a checkpoint; yield each round once its record is complete.

    `renew` is called before each round: clients may join and leave, and settings of the task may change.

    With a deferred engine a round is committed before it is evaluated: its counts arrive with the next replies, or
    after the last round in reply to a separate request.
    """
    plans = policy.plans(task.seed, point.round) if policy.system else None
    deferred = writer if isinstance(engine, DeferredEngine) and isinstance(writer, DeferredWriter) else None
    while not writer.stopped:
        if renew:
            task, policy, point = renew(point)
        number = point.round + 1
        if number > task.rounds:
            break
        start, complete = time.perf_counter(), None
        plan = next(plans) if plans else None
        cohort = list(policy.members or draw_cohort(task.seed, number, policy.participants, policy.cohort_size))
        cohort = plan.cohort if plan else cohort
        members = cohort if task.secure and not deferred else ()  # of a real federation, its engine chooses them
        asked = [id for id in cohort if plan is None or id not in plan.lost]
        orders = [Order(id, number, point.trained[id], members) for id in asked]
        if deferred and deferred.pending:
            try:
                answers, tallies = _evaluate_and_train(task, engine, policy, point, orders)
            except Again:
                continue
            yield _add_evaluation(task, policy, point, tallies, deferred)
            replies, step = _conclude(task, policy, point, answers, len(cohort))
        else:
            try:
                replies, step = _train(task, engine, policy, point, orders, plan)
            except Again:
                continue
        trained = list(point.trained)
        for id in replies.ids:
            trained[id] = number
        record = trained_part(policy, point, cohort, replies, step)
        point = Checkpoint(number, step.state, step.message, trained)
        if deferred:
            seconds = {"round": time.perf_counter() - start}
            deferred.commit_trained(point, RoundOutcome(record, {}, seconds, step.figures))
        else:
            tallies = _evaluate(task, engine, policy, point)
            counted, arrays = evaluated_part(task, policy, point, tallies)
            seconds = {"round": time.perf_counter() - start}
            committed = writer.commit(point, RoundOutcome(record | counted, arrays, seconds, step.figures))
            complete = Round(committed, seconds, _clients(tallies))
        engine.commit(number, replies.ids, writer.chosen)
        if complete:
            yield complete
    if deferred and deferred.pending:
        yield _add_evaluation(task, policy, point, _evaluate(task, engine, policy, point), deferred)


def _train(
    task: Task, engine: Engine, policy: Policy, point: Checkpoint, orders: Sequence[Order], plan: Plan | None = None
) -> Concluded:
    """Train the cohort and aggregate its replies; retry if the quorum is missed."""
    point, past = _without_past(point)
    messages, lost = point.message, [Lost(*item) for item in plan.lost.items()] if plan else []
    if plan and not isinstance(point.message, ByClient):
        past[point.round] = point.message
        if any(plan.late(order.id) for order in orders):  # the first message of some methods is empty
            messages = ByClient((order.id, past.get(plan.started[order.id], {})) for order in orders)
    for attempt in range(policy.retries + 1):
        answers = chain(engine.train(orders, messages, policy.deadline), lost)
        try:
            replies, step = _conclude(task, policy, point, answers, len(orders), plan)
        except TooFewReplies as error:
            if attempt == policy.retries:
                raise TooFewReplies(f"Round {point.round + 1} does not count: {error} {_tried(policy)}") from None
        else:
            return replies, _with_past(step, past, plan) if plan else step
    raise AssertionError("a round is tried at least once")


def _without_past(point: Checkpoint) -> tuple[Checkpoint, dict[int, Tensors]]:
    """Split off earlier messages, by round, which clients of an asynchronous server still have."""
    if isinstance(point.state, ByClient):
        return point, {}
    rounds = {int(name.split(".")[1]) for name in point.state if name.startswith(f"{PAST}.")}
    state = {name: value for name, value in point.state.items() if not name.startswith(f"{PAST}.")}
    past = {number: strip_prefix(point.state, f"{PAST}.{number}") for number in rounds}
    return point._replace(state=state) if rounds else point, past


def _with_past(step: ServerStep, past: Mapping[int, Tensors], plan: Plan) -> ServerStep:
    """Add the messages that clients still have to the server's state, and what the record tells of the system."""
    state = step.state
    for number in sorted(plan.waiting):
        assert not isinstance(state, ByClient)
        state = state | prefixed(f"{PAST}.{number}", past.get(number, {}))
    return step._replace(state=state, metrics={**step.metrics, **plan.metrics})


def _conclude(
    task: Task,
    policy: Policy,
    point: Checkpoint,
    answers: Iterable[Reply | Lost],
    size: int,
    plan: Plan | None = None,
) -> Concluded:
    """Check and aggregate the replies, and check the server's next message."""
    replies, servers = Replies(), Servers(task, point)
    for answer in answers:
        if admit(task, answer, replies, policy) and isinstance(answer, Reply):
            servers.add(answer, policy.system.factor(plan.late(answer.id)) if plan and policy.system else 1.0)
    if task.secure:
        return _conclude_secure(task, point, replies, servers)
    if (count := len(replies.ids)) < (needed := policy.needed(size)):
        total, reasons = count + len(replies.lost), _reasons(replies.lost, policy)
        raise TooFewReplies(f"{count} of {total} clients replied, {needed} must ({reasons}).")
    step = servers.conclude()
    if policy.watch and step.standings:
        policy.watch(point.round + 1, step.standings)
    messages = step.message
    for message in [messages[id] for id in replies.ids] if isinstance(messages, ByClient) else [messages]:
        check_message(task, message, point.round + 1)
    return replies, step


def _conclude_secure(task: Task, point: Checkpoint, replies: Replies, servers: Servers) -> Concluded:
    """Conclude a secure sum; without all of its members' messages the round yields nothing, and none is sent again."""
    try:
        step = servers.conclude()
    except Burned as error:
        replies.lost |= {id: str(error) for id in replies.ids}
        replies.ids.clear()
        return replies, ServerStep(point.state, point.message, {"burned": 1.0})
    assert not isinstance(step.message, ByClient)
    check_message(task, step.message, point.round + 1)
    return replies, step


def _evaluate_and_train(
    task: Task, engine: Engine, policy: Policy, point: Checkpoint, orders: Sequence[Order]
) -> tuple[list[Reply | Lost], list[Tally]]:
    """Evaluate the last round, if due, and train the next in the same request."""
    assert isinstance(engine, DeferredEngine)
    parts = policy.parts if policy.evaluation_scope(point.round, task.rounds) != "nobody" else ()
    tallies, answers = _tallies(task, policy), []
    for answer in engine.evaluate_and_train(orders, point.message, parts, policy.deadline):
        answers.append(answer)
        if isinstance(answer, Reply) and answer.counts:
            _fold(Counts(answer.id, answer.counts), tallies)
    return answers, tallies


def _add_evaluation(
    task: Task, policy: Policy, point: Checkpoint, tallies: Sequence[Tally], writer: DeferredWriter
) -> Round:
    """Complete the record of the committed round whose evaluation is pending."""
    assert writer.pending is not None
    seconds = dict(writer.pending.seconds)
    counted, arrays = evaluated_part(task, policy, point, tallies)
    return Round(writer.add_evaluation(counted, arrays), seconds, _clients(tallies))


def _evaluate(task: Task, engine: Engine, policy: Policy, point: Checkpoint) -> list[Tally]:
    """Evaluate the clients that are due, in blocks to bound memory; return a tally for each part of the samples."""
    tallies, scope = _tallies(task, policy), policy.evaluation_scope(point.round, task.rounds)
    due: Sequence[int] = policy.participants if scope == "all" and policy.parts else ()
    if scope == "cohort":
        due = [id for id, last in enumerate(point.trained) if last == point.round]
    lost: dict[int, str] = {}
    for _ in range(policy.retries + 1):
        lost = {}
        for start in range(0, len(due), BLOCK):
            orders = [Order(id, point.round, point.trained[id]) for id in due[start : start + BLOCK]]
            for answer in engine.evaluate(orders, point.message, policy.parts):
                if reason := answer.reason if isinstance(answer, Lost) else _fold(answer, tallies):
                    lost[answer.id] = reason
        due = list(lost)
        if not due or policy.quorum < 1 or isinstance(engine, DeferredEngine):
            return [*tallies, *_evaluate_held_out(task, engine, policy, point)]
    raise TooFewReplies(f"Round {point.round} cannot be evaluated: {_reasons(lost, policy)}. {_tried(policy)}")


def _evaluate_held_out(task: Task, engine: Engine, policy: Policy, point: Checkpoint) -> list[Tally]:
    """Evaluate the clients that never train on their test parts, when all are due; return a tally of their own."""
    if not policy.held_out or "test" not in policy.parts or policy.evaluation_scope(point.round, task.rounds) != "all":
        return []
    tally = Tally(NEWCOMERS, task.algorithm.rules, len(policy.held_out), task.num_classes)
    for answer in engine.evaluate([Order(id, point.round, 0) for id in policy.held_out], point.message, ["test"]):
        if isinstance(answer, Counts):
            _fold(Counts(answer.id, prefixed(NEWCOMERS, strip_prefix(answer.counts, "test"))), [tally])
    return [tally]


def _tallies(task: Task, policy: Policy) -> list[Tally]:
    size = policy.clients, task.num_classes
    return [Tally(part, task.algorithm.rules, *size, by_cell=policy.by_cell) for part in policy.parts]


def _fold(counts: Counts, tallies: Sequence[Tally]) -> str:
    """Add a client's counts to the tallies if they are valid; return the error message, or ""."""
    try:
        for tally in tallies:
            tally.check(counts)
    except ValueError as error:
        return str(error)
    for tally in tallies:
        tally.add(counts)
    return ""


def _clients(tallies: Sequence[Tally]) -> int:
    """Return the number of clients evaluated."""
    return max((tally.clients for tally in tallies), default=0)


def _reasons(lost: Mapping[int, str], policy: Policy) -> str:
    shown = [f"{policy.label(id)}: {reason.rstrip('.')}" for id, reason in list(lost.items())[:SHOWN]]
    return "; ".join([*shown, *([f"and {len(lost) - SHOWN} more"] if len(lost) > SHOWN else [])])


def _tried(policy: Policy) -> str:
    times = f"{policy.retries + 1} times" if policy.retries else "once"
    return f"It was tried {times}. The finished rounds are kept, and the same command goes on from there."


def trained_part(
    policy: Policy, point: Checkpoint, cohort: Sequence[int], replies: Replies, step: ServerStep
) -> dict[str, Any]:
    """Build the part of a round's record on training and aggregation."""
    published: Tensors = {} if isinstance(point.message, ByClient) else point.message
    size = 0 if policy.solo else len(replies.ids) + len(replies.lost)  # in a solo run nothing is sent
    return {
        "round": point.round + 1,
        "cohort": "all" if len(cohort) == policy.clients else list(cohort),
        "lost": {str(id): reason for id, reason in replies.lost.items()},
        "metrics": mean_metrics(replies.metrics),
        "bytes": Traffic(up=replies.nbytes if size else 0, down=size * nbytes(published)),
        "floats": Traffic(up=replies.floats if size else 0, down=size * numbers(published)),
        "server": {name: digits(value) for name, value in step.metrics.items()},
    }


def evaluated_part(
    task: Task, policy: Policy, point: Checkpoint, tallies: Sequence[Tally]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Build the part of a round's record on evaluation and published prototypes, with its arrays."""
    distances, arrays = prototype_shape({} if isinstance(point.message, ByClient) else point.message)
    accuracies = {tally.part: tally.accuracies() for tally in tallies}
    tallies = [tally for tally in tallies if tally.part != NEWCOMERS]
    for tally in tallies:
        arrays |= tally.arrays()
    counted = {tally.clients for tally in tallies}
    some = "cohort" if policy.evaluation_scope(point.round, task.rounds) == "cohort" else "some"  # others had no reply
    record = {
        "evaluated": "nobody" if counted <= {0} else "all" if counted == {len(policy.participants)} else some,
        "rules": accuracies.get("test", {}),
        "validation": accuracies.get("validation", {}),
        "unseen": next((tally.unseen() for tally in tallies if tally.part == "test"), None),
        "prototypes": distances,
    }
    record |= {part: accuracies[part] for part in (COMMON, NEWCOMERS) if part in accuracies}
    return record, arrays
