"""What a federation's server knows of its run, in the form of the record."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protonorm.deployment.agreement import Agreement
from protonorm.federation.policy import Policy
from protonorm.runs.provenance import versions
from protonorm.runs.run import Population
from protonorm.runs.schema import FORMAT, Component, ExperimentInfo, InputInfo, RunInfo

PARTS = ("validation", "test")  # in the order in which a simulation evaluates them
OWN = "its owner's"  # what the server knows of a client's data and network


def policy_of(agreement: Agreement, clients: Sequence[str], quorum: float, deadline: float) -> Policy:
    """Say that everybody takes part in every round, and when a round counts."""
    return Policy(
        clients=len(clients),
        cohort_size=len(clients),
        evaluate_every=agreement.evaluate_every,
        quorum=quorum,
        retries=0,
        deadline=deadline,
        parts=tuple(part for part in PARTS if part in agreement.evaluated),
        client_names=tuple(clients),
    )


def info_of(agreement: Agreement, clients: Sequence[str]) -> RunInfo:
    """Describe the run for the record; the server knows nothing of the clients' data and networks."""
    task, shared = agreement.task, agreement.shared_network
    network = shared if shared and task.algorithm.needs_shared_network else {"name": OWN}
    given = agreement.input
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
        input=InputInfo(**given.model_dump()) if given else InputInfo(shape=[1], type=OWN),
        versions=versions(),
        client_names=list(clients),
    )


def nothing_known(clients: int, classes: int) -> Population:
    """Count no samples of anybody: how many there are is the clients' own business."""
    return Population(*(np.zeros((clients, classes), np.int64) for _ in Population._fields))
