"""Server of a deployment: the round loop of every run, with an engine whose clients are on other machines.

A round is committed once it is aggregated. Its evaluation comes with the replies of the next round; the last round is
evaluated by a separate request. The record equals that of a simulation, byte for byte.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from protonorm.core.randomness import one_thread
from protonorm.core.robust import Standing
from protonorm.core.task import Order, Task
from protonorm.deployment.agreement import Agreement, terms_of
from protonorm.deployment.call import AGAIN
from protonorm.deployment.engine import FederationEngine, Transport
from protonorm.deployment.events import Event, Observer, ignore
from protonorm.deployment.guard import LARGEST_SCALE, check_scale
from protonorm.deployment.settings import listed
from protonorm.errors import Diverged
from protonorm.federation.policy import Policy
from protonorm.federation.rounds import Renew, Round, begin, run_rounds
from protonorm.runs import layout
from protonorm.runs.provenance import provenance, versions
from protonorm.runs.run import Population, Run, read_run
from protonorm.runs.schema import FORMAT, Component, ExperimentInfo, RunInfo, read_info
from protonorm.runs.states import Checkpoint
from protonorm.runs.writer import DeferredWriter

PARTS = ("validation", "test")  # in the order of a simulation's evaluation
LONGEST_PAUSE = 10.0  # seconds between two offers of amended terms
OWN = "its owner's"  # placeholder for a client's data and network, which the server does not know


class Membership(NamedTuple):
    """Members of a federation in a round, and its terms and limits."""

    names: Sequence[str]  # of all clients that ever took part, by id
    members: Sequence[int]  # ids of those that take part now
    terms: Sequence[Agreement]  # the agreement and its amendments
    confirmed: Mapping[int, str] = {}  # digest of the last confirmed terms by client, if not the first
    missed: Mapping[int, int] = {}  # consecutive missed rounds by client
    quorum: float = 1.0
    deadline: float = 600.0
    grace: float | None = None
    patience: int | None = None


class Registry(Protocol):
    """Register of a federation's members and terms, which may change between rounds."""

    def membership(self) -> Membership:
        """Return who takes part in the next round, and by which terms."""

    def change(self, id: int, **fields: Any) -> Any:
        """Keep what a client has confirmed or missed."""


class Fixed(NamedTuple):
    """Register of a federation whose members and terms do not change."""

    current: Membership

    def membership(self) -> Membership:
        """Return who takes part."""
        return self.current

    def change(self, id: int, **fields: Any) -> None:
        """Keep nothing."""


def run_federation(
    agreement: Agreement,
    transport: Transport,
    folder: Path,
    *,
    clients: Sequence[str] | Registry,
    quorum: float = 1.0,
    deadline: float = 600.0,
    notify: Observer = ignore,
    clock: Callable[[], float] = time.monotonic,
    update: bool = False,
) -> Run:
    """Run a federation in its run folder, or resume it; return the record.

    With `update`, a method that is finished is continued: clients that joined since, and samples that were added, are
    heard, and everybody gets what follows from them.
    The process may be killed at any time: the same call resumes. `clients` are names by id, or a register that is
    looked at before each round; `quorum` is the share of them that must answer for a round to count within `deadline`
    seconds. Raises Diverged if the server's message or training loss is not finite.
    """
    if isinstance(clients, Sequence):
        clients = Fixed(Membership(clients, range(len(clients)), [agreement], quorum=quorum, deadline=deadline))
    membership = clients.membership()
    if not membership.names:
        raise ValueError("The federation has no clients yet; `protonorm deploy add-client` adds one.")
    with one_thread(), DeferredWriter(folder, agreement.root) as writer:
        members = Members(clients, writer, notify)
        point = members.begin(membership, update=update)
        writer.start(provenance(point.round, engine="federation", device="cpu", threads=torch.get_num_threads()))
        task, policy = members.agreement.task, members.policy
        numbers = {"rounds": task.rounds, "done": point.round, "clients": len(membership.members)}
        notify(Event("started", f"{point.round} of {task.rounds} rounds are done.", point.round, numbers=numbers))
        note = lambda id, missed: clients.change(id, missed=missed)  # noqa: E731
        engine = FederationEngine(
            members.agreement, transport, policy, notify, clock, writer.chosen, missed=membership.missed, note=note
        )
        try:
            for _ in report_rounds(
                task, engine, members.loop_policy, point, writer, notify, partial(members.renew, engine)
            ):
                pass
            left = set(members.policy.participants)
            for best in writer.reported():  # the last round for clients that joined after the best one
                orders = [Order(id, best.round, last) for id, last in enumerate(best.trained) if last and id in left]
                engine.deliver(orders, best.message)
                left -= {order.id for order in orders}
            task = members.agreement.task
        except Diverged as error:
            failed = max(engine.committed, point.round) + 1
            writer.fail(failed, str(error))
            notify(Event("failed", str(error), failed))
            raise
        done = max(engine.committed, point.round)
        text = f"All {done} rounds are done." if done == task.rounds else f"The method is finished after round {done}."
        notify(Event("finished", text, done, numbers={"rounds": done}))
    return read_run(folder)


class Members:
    """Members and terms of the rounds, looked up before each; the record's description follows them."""

    def __init__(self, registry: Registry, writer: DeferredWriter, notify: Observer) -> None:
        self._registry, self._writer, self._notify = registry, writer, notify
        self._joined: list[int] = []  # by client: the first round whose record counts it
        self._updated = 0  # round after which the method was last continued
        self.agreement: Agreement
        self.policy: Policy

    @property
    def loop_policy(self) -> Policy:
        """Policy of the round loop: the engine alone knows the quorum, as members may go during a round."""
        return replace(self.policy, quorum=0.0)

    def begin(self, membership: Membership, *, update: bool = False) -> Checkpoint:
        """Describe the run, or take it up, perhaps after its method was finished; return its checkpoint."""
        file = self._writer.folder / layout.INFO
        if file.exists():
            recorded = read_info(file).experiment
            self._joined = list((recorded.model_extra or {}).get("joined") or [0] * recorded.clients)
            run = read_run(self._writer.folder)
            self._updated = run.info.updated
            if update and run.stopped_early:
                self._updated = len(run.rounds)
                if self._updated >= (limit := membership.terms[-1].rounds):
                    raise ValueError(
                        f"All {limit} rounds of the agreement are done; `deploy amend rounds=…` allows more."
                    )
            before = len(self._joined)  # others join when the next round begins
            membership = membership._replace(
                names=membership.names[:before], members=[id for id in membership.members if id < before]
            )
        self._adopt(membership, layout.committed(self._writer.folder))
        self._describe(membership)
        return self._writer.resume() or begin(self.agreement.task, self.policy)

    def _adopt(self, membership: Membership, done: int, among: Collection[int] | None = None) -> None:
        """Take the terms and the policy of the round after `done`."""
        self.agreement = terms_of(membership.terms, done + 1)
        policy = policy_of(self.agreement, membership.names, membership.quorum, membership.deadline)
        members = tuple(id for id in membership.members if among is None or id in among)
        everybody = len(members) == len(membership.names)
        watch = partial(report_standings, self._notify, membership.names)
        self.policy = replace(policy, members=None if everybody else members, watch=watch)
        new = len(membership.names) - len(self._joined)
        self._joined += [done + (self._writer.pending is None) if done else 0] * new

    def _describe(self, membership: Membership) -> None:
        info = info_of(self.agreement, membership.names, self._joined, self._updated)
        shape = len(membership.names), len(self.agreement.classes)
        zeros = np.zeros(shape, np.int64)  # (M, K): only clients know theirs
        write = self._writer.redescribe if (self._writer.folder / layout.INFO).exists() else self._writer.describe
        write(info, Population(*[zeros] * 3))

    def renew(self, engine: FederationEngine, point: Checkpoint) -> tuple[Task, Policy, Checkpoint]:
        """Look up who takes part in the next round and by which terms, and offer amended terms."""
        before, said, pause = (self.agreement.digest, list(self.policy.participants)), "", AGAIN
        while True:
            membership = self._registry.membership()
            self._adopt(membership, point.round, among := self._confirmed(engine, membership, point.round + 1))
            counted = set(membership.members) - engine.aside
            needed = max(self.agreement.least_answers, self.policy.needed(len(counted)))
            enough = len(among) >= needed and len(among & counted) >= min(needed, len(counted))
            if enough or point.round >= self.agreement.rounds:
                break
            confirmed = f"{len(among)} of {len(membership.members)} members have confirmed its terms"
            missing = listed([membership.names[id] for id in membership.members if id not in among])
            sentence = f"Round {point.round + 1} waits: {confirmed}, {needed} must"
            if missing:
                sentence += (
                    f"; missing: {missing}. Their owners do it by `protonorm deploy accept` while their clients run."
                )
            else:
                sentence += f": the secure sum needs {needed} members, and the federation has {len(among)}."
            if sentence != said:
                numbers = {"needed": needed, "rounds": self.agreement.rounds}
                self._notify(Event("waiting", sentence, point.round + 1, numbers=numbers))
            said, pause = sentence, min(2 * pause, LONGEST_PAUSE)
            engine.pull(pause)
        self._describe(membership)
        engine.grace, engine.patience = membership.grace, membership.patience
        engine.renew(self.agreement, self.policy, set(membership.members) - among)
        if (self.agreement.digest, list(self.policy.participants)) != before:
            names = ", ".join(membership.names[id] for id in self.policy.participants) or "nobody"
            away = listed([membership.names[id] for id in membership.members if id not in among])
            unconfirmed = f" Until they confirm them, these are not asked: {away}." if away else ""
            sentence = (
                f"From round {point.round + 1} on members are: {names}; agreement {self.agreement.fingerprint}."
                f"{unconfirmed}"
            )
            self._notify(Event("members", sentence, point.round + 1, numbers={"rounds": self.agreement.rounds}))
        trained = point.trained + [0] * (len(membership.names) - len(point.trained))
        return self.agreement.task, self.loop_policy, point._replace(trained=trained)

    def _confirmed(self, engine: FederationEngine, membership: Membership, round: int) -> set[int]:
        """Offer the members the first terms that they have not confirmed; return those that may be asked in a round."""
        digests = [terms.digest for terms in membership.terms]
        confirmed = {id: digests.index(membership.confirmed.get(id, digests[0])) for id in membership.members}
        for index, terms in enumerate(membership.terms[1:], 1):
            if offered := [id for id, confirmed_index in confirmed.items() if confirmed_index == index - 1]:
                for id in engine.offer(round, offered, terms):
                    confirmed[id] = index
                    self._registry.change(id, confirmed=terms.digest)
        required = digests.index(terms_of(membership.terms, round).digest)
        return {id for id, confirmed_index in confirmed.items() if confirmed_index >= required}


def report_rounds(
    task: Task,
    engine: FederationEngine,
    policy: Policy,
    point: Checkpoint,
    writer: DeferredWriter,
    notify: Observer,
    renew: Renew | None = None,
) -> Iterator[Round]:
    """Run the rounds after a checkpoint and report each evaluation; no round is left pending at the end."""
    for round in run_rounds(task, engine, policy, point, writer, renew):
        notify(evaluation_event(task, round, engine.members))
        yield round
    writer.end()


def evaluation_event(task: Task, round: Round, members: int) -> Event:
    """Create the event with each rule's mean accuracy over clients; its sentence shows the headline rule."""
    parts = {"test": round.record.rules, "validation": round.record.validation}
    numbers = {f"{part}.{rule}": value.mean for part, rules in parts.items() for rule, value in rules.items() if value}
    headline = task.algorithm.headline
    accuracies = [f"{part} {numbers[name]:.1%}" for part in parts if (name := f"{part}.{headline}") in numbers]
    count = f"{round.evaluated} of {members} clients"
    sentence = f"Round {round.number}, evaluated by {count}: {', '.join(accuracies) or 'no accuracy yet'}."
    return Event("evaluated", sentence, round.number, numbers={"clients": round.evaluated, **numbers})


def report_standings(notify: Observer, clients: Sequence[str], round: int, standings: Mapping[int, Standing]) -> None:
    """Report how each client's contribution to a round compares with the others', and who is far from them."""
    for id, standing in standings.items():
        alarm = standing.alarm if len(standings) > 2 else ""  # of two that differ, nobody knows which one is right
        text = alarm or f"length {standing.length:.3g}, cosine {standing.cosine:.2f} to the others"
        sentence = f"Round {round}: the message of client {clients[id]} was compared: {text}."
        numbers = {name: min(value, LARGEST_SCALE) for name, value in standing._asdict().items()}
        notify(Event("suspect" if alarm else "compared", sentence, round, id, numbers=numbers))


def policy_of(agreement: Agreement, clients: Sequence[str], quorum: float, deadline: float) -> Policy:
    """Return the policy of a deployment: all clients take part in every round."""
    return Policy(
        clients=len(clients),
        cohort_size=len(clients),
        evaluate_every=agreement.evaluate_every,
        quorum=quorum,
        retries=0,
        deadline=deadline,
        parts=tuple(part for part in PARTS if part in agreement.evaluated),
        client_names=tuple(clients),
        checks=(check_scale,),
        last_round=agreement.task.algorithm.last_round,
    )


def info_of(agreement: Agreement, clients: Sequence[str], joined: Sequence[int] = (), updated: int = 0) -> RunInfo:
    """Describe the run for the record, without the clients' data and networks, which the server does not know."""
    task, shared = agreement.task, agreement.shared_network
    network = shared if shared and task.algorithm.needs_shared_network else {"name": OWN}
    later: dict[str, Any] = {"joined": list(joined)} if any(joined) else {}
    later |= {"updated": updated} if updated else {}
    return RunInfo(
        format=FORMAT,
        key=agreement.root,
        experiment=ExperimentInfo(
            algorithm=Component.model_validate(agreement.algorithm),
            dataset=Component(name=OWN),
            partition=Component(name="given"),
            models=network,
            feature_dim=agreement.feature_dim,
            clients=len(clients),
            rounds=agreement.rounds,
            seed=agreement.seed,
            **later,
        ),
        changed={},
        rules=list(task.algorithm.rules),
        headline=task.algorithm.headline,
        networks=[network],
        classes=list(agreement.classes),
        input=agreement.input,
        versions=versions(),
        last_round=task.algorithm.last_round,
        client_names=list(clients),
    )
