"""The server of a real federation: its rounds from the first, or from where it stopped, to the last.

A round is committed once it is aggregated. Its evaluation comes with the replies of the next one, for both use the same
message and the same states: evaluating one round and training the next is one request. The last round is evaluated by a
request of its own. What is recorded is what the loop of a simulation would have recorded, byte for byte.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from protonorm.core.randomness import one_thread
from protonorm.core.task import ByClient, Counts, Lost, Order, Task
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.events import Event, Observer, ignore
from protonorm.deployment.messages import Answer, Kind
from protonorm.deployment.record import info_of, nothing_known, policy_of
from protonorm.deployment.remote import Remote, Transport, counts_of, reply_of
from protonorm.errors import Diverged
from protonorm.federation.evaluation import Tally
from protonorm.federation.outcome import Replies, evaluated_part, trained_part, who_was_evaluated
from protonorm.federation.policy import Policy
from protonorm.federation.rounds import aggregate, begin, check_message
from protonorm.runs.checkpoint import Checkpoint
from protonorm.runs.deferred import DeferredWriter, TrainedRound
from protonorm.runs.provenance import provenance
from protonorm.runs.reader import read_run
from protonorm.runs.run import Run
from protonorm.runs.schema import RoundRecord


def run_federation(
    agreement: Agreement,
    transport: Transport,
    folder: Path,
    *,
    clients: Sequence[str],
    quorum: float = 1.0,
    deadline: float = 600.0,
    tell: Observer = ignore,
    clock: Callable[[], float] = time.monotonic,
) -> Run:
    """Run a federation in its run folder, or go on where it stopped; give the record.

    `clients` are the names of the roster, by number. `quorum` is the share of them that must answer for a round to
    count, `deadline` the seconds that they have. `tell` hears of everything that happens. It may be killed at any time:
    the same call goes on.
    """
    if not clients:
        raise ValueError("The federation has no clients yet; `protonorm deploy add-client` adds one.")
    task, policy = agreement.task, policy_of(agreement, clients, quorum, deadline)
    with one_thread(), DeferredWriter(folder, agreement.digest) as writer:
        writer.describe(info_of(agreement, clients), nothing_known(len(clients), task.num_classes))
        point = writer.resume() or begin(task, policy)
        writer.start(provenance(point.round, engine="federation", device="cpu", threads=torch.get_num_threads()))
        numbers = {"rounds": task.rounds, "done": point.round, "clients": len(clients)}
        tell(Event("started", f"{point.round} of {task.rounds} rounds are done.", point.round, numbers=numbers))
        server = Server(task, Remote(agreement, transport, policy, tell, clock), policy, writer, tell, clock)
        try:
            for _ in server.run(point):
                pass
        except Diverged as error:
            writer.fail(server.done + 1, str(error))
            tell(Event("failed", str(error), server.done + 1))
            raise
        tell(Event("finished", f"All {task.rounds} rounds are done.", task.rounds, numbers={"rounds": task.rounds}))
    return read_run(folder)


class Server:
    """The round loop of a real federation."""

    def __init__(
        self,
        task: Task,
        remote: Remote,
        policy: Policy,
        writer: DeferredWriter,
        tell: Observer = ignore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._task, self._remote, self._policy, self._writer = task, remote, policy, writer
        self._tell, self._clock = tell, clock
        self._first = True  # whether nobody was asked yet: clients may still be on their way
        self.done = 0  # committed rounds

    def run(self, point: Checkpoint) -> Iterator[RoundRecord]:
        """Run the rounds after a checkpoint; give each round's record once it is evaluated."""
        self.done = point.round
        for number in range(point.round + 1, self._task.rounds + 1):
            start, before = self._clock(), (self._remote.bytes_up, self._remote.bytes_down)
            parts = self._due(point)
            answers = self._ask(point, number, parts)
            if self._writer.pending:  # the round before is on record before this one is committed
                yield self._record(point, answers.values() if parts else ())
            point = self._commit(point, answers, start, before)
        if self._writer.pending:
            parts = self._due(point)
            counted = self._call("evaluate", point, point.round, parts) if parts else {}
            yield self._record(point, counted.values())
        self._writer.end()

    def _due(self, point: Checkpoint) -> tuple[str, ...]:
        """Name the parts of the samples on which a committed round is still to be evaluated."""
        asked = self._policy.asked(point.round, self._task.rounds)
        return self._policy.parts if self._writer.pending and asked != "nobody" else ()

    def _ask(self, point: Checkpoint, number: int, parts: Sequence[str]) -> dict[int, Answer | Lost]:
        """Let everybody train, and evaluate the round before."""
        needed, clients = self._policy.needed(self._policy.clients), self._policy.clients
        numbers = {"clients": clients, "needed": needed}
        self._tell(Event("round", f"Round {number} of {self._task.rounds} begins.", number, numbers=numbers))
        return self._call("evaluate+train" if parts else "train", point, number, parts)

    def _call(self, kind: Kind, point: Checkpoint, number: int, parts: Sequence[str]) -> dict[int, Answer | Lost]:
        """Send everybody an order with what the server said last; the first call waits for those who are away too."""
        orders = [Order(id, number, trained) for id, trained in enumerate(point.trained)]
        self._remote.chosen = self._writer.chosen
        patient, self._first = self._first, False
        return self._remote.ask(kind, orders, point.message, parts, patient=patient)

    def _record(self, point: Checkpoint, answers: Iterable[Answer | Lost]) -> RoundRecord:
        """Put the committed round on record, with what its clients counted."""
        task, policy = self._task, self._policy
        tallies = [Tally(part, task.algorithm.rules, policy.clients, task.num_classes) for part in policy.parts]
        for answer in answers:
            found = answer if isinstance(answer, Lost) else counts_of(answer)
            if isinstance(found, Counts):
                for tally in tallies:
                    tally.add(found)
        asked = policy.asked(point.round, task.rounds)
        evaluated, arrays = evaluated_part(who_was_evaluated(policy, asked, tallies), tallies, point.message)
        record = self._writer.add_evaluation(evaluated, arrays)
        self._tell_of_evaluation(record, max((tally.clients for tally in tallies), default=0))
        return record

    def _commit(
        self, point: Checkpoint, answers: Mapping[int, Answer | Lost], start: float, before: tuple[int, int]
    ) -> Checkpoint:
        """Let the server aggregate the replies, in the order of the clients' numbers, and make the round final."""
        number, replies = point.round + 1, Replies()
        for id, answer in answers.items():
            if isinstance(answer, Lost):
                replies.lost[id] = answer.reason
        taken = (replies.take(reply_of(answer)) for answer in answers.values() if isinstance(answer, Answer))
        step = aggregate(self._task, point, taken)
        for _ in taken:  # a method that listens to nobody still counts who replied
            pass
        assert not isinstance(step.message, ByClient)
        check_message(self._task, step.message, number)
        trained = list(point.trained)
        for id in replies.ids:
            trained[id] = number
        after = Checkpoint(number, step.state, step.message, trained)
        record = trained_part(self._policy, point, range(self._policy.clients), replies, step)
        seconds = self._clock() - start
        self._writer.commit_trained(after, TrainedRound(record, step.figures, {"round": seconds}))
        self.done = number
        self._tell_of_commit(number, replies, seconds, before)
        return after

    def _tell_of_commit(self, number: int, replies: Replies, seconds: float, before: tuple[int, int]) -> None:
        numbers = {
            "replied": len(replies.ids),
            "lost": len(replies.lost),
            "seconds": seconds,
            "bytes_up": self._remote.bytes_up - before[0],
            "bytes_down": self._remote.bytes_down - before[1],
        }
        sentence = f"Round {number} is done: {len(replies.ids)} of {self._policy.clients} clients took part."
        self._tell(Event("committed", sentence, number, numbers=numbers))

    def _tell_of_evaluation(self, record: RoundRecord, clients: int) -> None:
        """Tell each rule's mean accuracy over clients, on each part; the method's headline rule makes the sentence."""
        found = {"test": record.rules, "validation": record.validation}
        numbers = {f"{part}.{rule}": one.mean for part, rules in found.items() for rule, one in rules.items() if one}
        headline = self._task.algorithm.headline
        said = [f"{part} {numbers[name]:.1%}" for part in found if (name := f"{part}.{headline}") in numbers]
        who = "1 client" if clients == 1 else f"{clients} clients"
        sentence = f"Round {record.round}, evaluated by {who}: {', '.join(said) or 'no accuracy yet'}."
        self._tell(Event("evaluated", sentence, record.round, numbers={"clients": clients, **numbers}))
