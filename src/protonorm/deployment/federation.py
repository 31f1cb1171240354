"""Server of a deployment: the round loop of every run, with an engine whose clients are on other machines.

A round is committed once it is aggregated. Its evaluation comes with the replies of the next round; the last round is
evaluated by a separate request. The record equals that of a simulation, byte for byte.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from protonorm.core.randomness import one_thread
from protonorm.core.task import Task
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.engine import FederationEngine, Transport
from protonorm.deployment.events import Event, Observer, ignore
from protonorm.deployment.guard import check_scale
from protonorm.errors import Diverged
from protonorm.federation.policy import Policy
from protonorm.federation.rounds import Round, begin, run_rounds
from protonorm.runs.provenance import provenance, versions
from protonorm.runs.run import Population, Run, read_run
from protonorm.runs.schema import FORMAT, Component, ExperimentInfo, RunInfo
from protonorm.runs.states import Checkpoint
from protonorm.runs.writer import DeferredWriter

PARTS = ("validation", "test")  # in the order of a simulation's evaluation
OWN = "its owner's"  # placeholder for a client's data and network, which the server does not know


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
    """Run a federation in its run folder, or resume it; return the record.

    The process may be killed at any time: the same call resumes. `clients` are names by id; `quorum` is the share of
    them that must answer for a round to count within `deadline` seconds. Raises Diverged if the server's message or
    training loss is not finite.
    """
    if not clients:
        raise ValueError("The federation has no clients yet; `protonorm deploy add-client` adds one.")
    task, policy = agreement.task, policy_of(agreement, clients, quorum, deadline)
    zeros = np.zeros((len(clients), task.num_classes), np.int64)  # (M, K): clients do not disclose their sample counts
    with one_thread(), DeferredWriter(folder, agreement.digest) as writer:
        writer.describe(info_of(agreement, clients), Population(*[zeros] * 3))
        point = writer.resume() or begin(task, policy)
        writer.start(provenance(point.round, engine="federation", device="cpu", threads=torch.get_num_threads()))
        numbers = {"rounds": task.rounds, "done": point.round, "clients": len(clients)}
        tell(Event("started", f"{point.round} of {task.rounds} rounds are done.", point.round, numbers=numbers))
        engine = FederationEngine(agreement, transport, policy, tell, clock, writer.chosen)
        try:
            for _ in report_rounds(task, engine, policy, point, writer, tell):
                pass
        except Diverged as error:
            failed = max(engine.committed, point.round) + 1
            writer.fail(failed, str(error))
            tell(Event("failed", str(error), failed))
            raise
        done = max(engine.committed, point.round)
        text = f"All {done} rounds are done." if done == task.rounds else f"The method is finished after round {done}."
        tell(Event("finished", text, done, numbers={"rounds": done}))
    return read_run(folder)


def report_rounds(
    task: Task, engine: FederationEngine, policy: Policy, point: Checkpoint, writer: DeferredWriter, tell: Observer
) -> Iterator[Round]:
    """Run the rounds after a checkpoint and report each evaluation; no round is left pending at the end."""
    for round in run_rounds(task, engine, policy, point, writer):
        tell(evaluation_event(task, round))
        yield round
    writer.end()


def evaluation_event(task: Task, round: Round) -> Event:
    """Create the event with each rule's mean accuracy over clients; its sentence shows the headline rule."""
    parts = {"test": round.record.rules, "validation": round.record.validation}
    numbers = {f"{part}.{rule}": value.mean for part, rules in parts.items() for rule, value in rules.items() if value}
    headline = task.algorithm.headline
    shown = [f"{part} {numbers[name]:.1%}" for part in parts if (name := f"{part}.{headline}") in numbers]
    who = "1 client" if round.evaluated == 1 else f"{round.evaluated} clients"
    sentence = f"Round {round.number}, evaluated by {who}: {', '.join(shown) or 'no accuracy yet'}."
    return Event("evaluated", sentence, round.number, numbers={"clients": round.evaluated, **numbers})


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


def info_of(agreement: Agreement, clients: Sequence[str]) -> RunInfo:
    """Describe the run for the record, without the clients' data and networks, which the server does not know."""
    task, shared = agreement.task, agreement.shared_network
    network = shared if shared and task.algorithm.needs_shared_network else {"name": OWN}
    return RunInfo(
        format=FORMAT,
        key=agreement.digest,
        experiment=ExperimentInfo(
            algorithm=Component.model_validate(agreement.algorithm),
            dataset=Component(name=OWN),
            partition=Component(name="given"),
            models=network,
            feature_dim=agreement.feature_dim,
            clients=len(clients),
            rounds=agreement.rounds,
            seed=agreement.seed,
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
