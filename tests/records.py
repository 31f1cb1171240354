"""Records of runs that never were, written as real ones are: with all checksums right."""

from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from protonorm.core.types import rule_name
from protonorm.runs.arrays import accuracy_of
from protonorm.runs.run import Population, Run, read_run
from protonorm.runs.schema import FORMAT, Accuracy, Distances, RunInfo, Traffic
from protonorm.runs.states import Checkpoint
from protonorm.runs.writer import RoundOutcome, RunWriter

METHOD = {"name": "protonorm", "lam": 1.0, "gamma": 100.0}
RULES = ["nearest-global", "logits"]


def record(
    folder: Path,
    *,
    classes=3,
    clients=4,
    rounds=3,
    done=None,
    width=5,
    names=None,
    method=METHOD,
    seed=0,
    changed=None,
    population=None,
    evaluate_every=1,
    evaluated=None,  # ids of the clients that are evaluated; everybody if not given
    lost=None,  # {round: {client: reason}}
    metrics=None,  # what clients report
    failure=None,  # (round, reason)
    tested=None,  # right answers of each client in each round under `nearest-global` (R, M); half under `logits`
    validated=None,  # the same on the validation parts
    beside=None,  # {rule: measures beside accuracy} on the test parts, in all rounds, if `tested` is given
    networks=("plain",),
    rules=RULES,
    early_stopping=None,
    client_names=None,
    **more,
):
    """Write a record; numbers follow from round, client and class, or are those given.

    If they are not given, right answers under `logits` are round / (rounds + 1) / 2 of the samples of every client and
    class, and twice as many under `nearest-global`, a rule that there is from the second round on.
    """
    names = names or [f"class {k}" for k in range(classes)]
    population = population or samples(clients, classes)
    info = RunInfo(
        format=FORMAT,
        key=folder.name,
        experiment={"algorithm": method, "dataset": {"name": "fashion"}, "partition": {"name": "iid", "seed": 1}}
        | {"models": "light", "feature_dim": width, "clients": clients, "rounds": rounds, "seed": seed}
        | more,
        changed={"algorithm": method["name"], "rounds": rounds} if changed is None else changed,
        rules=list(rules),
        headline=rules[0],
        networks=list(networks),
        classes=names,
        input={"shape": [28, 28, 1], "type": "uint8"},
        versions={"python": "3.11", "protonorm": "0"},
        early_stopping=early_stopping,
        client_names=client_names,
    )
    random = np.random.default_rng(seed)
    done = rounds if done is None else done
    folder.mkdir(parents=True)
    with patch("os.fsync"), RunWriter(folder, folder.name) as writer:  # no need to wait for the disk
        writer.describe(info, population)
        for number in range(1, done + 1):
            vectors = torch.from_numpy(random.standard_normal((classes, width)).astype(np.float32))
            message = {"classes": torch.arange(classes), "prototypes": vectors}
            due = number % evaluate_every == 0 or number == rounds
            share = number / (rounds + 1)
            usual = {"nearest-global": share if number > 1 else None, "logits": share / 2}
            shares = {rule: usual[rule_name(rule)] for rule in rules} if due else {}
            outcome = made_round(number, shares, population, evaluated, (lost or {}).get(number, {}), metrics)
            for part, right in (("test", tested), ("validation", validated)):
                if right is not None and due:
                    answer(
                        outcome, part, rules, np.asarray(right)[number - 1], getattr(population, part).sum(1), beside
                    )
            writer.commit(Checkpoint(number, {}, message, [number] * clients), outcome)
        if failure:
            writer.fail(*failure)
    return folder


def samples(clients, classes):
    """Build a split: client i has i + k + 1 samples of class k to train on, as many to test on, none to validate."""
    counts = np.add.outer(np.arange(clients), np.arange(classes)) + 1  # (M, K)
    return Population(counts, np.zeros_like(counts), counts)


def hundred(clients, validation=100):
    """Build a split: each client has 100 samples of one class to train on and to test on, and some to validate."""
    counts = np.full((clients, 1), 100)
    return Population(counts, np.full((clients, 1), validation), counts)


def answer(outcome, part, rules, right, support, beside=None):
    """Fake a round: clients (M,) have so many correct answers under the first rule, and half as many under others."""
    for rule in rules:
        correct = right if rule == rules[0] else right // 2
        outcome.arrays[f"{part}.support.clients"] = support
        outcome.arrays[f"{part}.correct.clients.{rule}"] = correct
        outcome.record["rules" if part == "test" else "validation"][rule] = accuracy_of(
            correct, support, **(beside or {}).get(rule, {}) if part == "test" else {}
        )


def made_round(number, shares, population, evaluated, lost, metrics):
    """Make what a round leaves behind: half a second, 100 bytes up, 200 down, all margins 1, distances 1 to 3."""
    clients, classes = population.test.shape
    ids = np.arange(clients) if evaluated is None else np.array(evaluated)
    arrays = {"margins": np.ones(classes), "margins.classes": np.arange(classes)}
    if shares:
        support = {"clients": population.test.sum(1)[ids], "classes": population.test[ids].sum(0)}
        arrays |= {f"test.support.{unit}": counts for unit, counts in support.items()}
        arrays |= {
            f"test.correct.{unit}.{rule}": np.rint(share * counts).astype(np.int64)
            for rule, share in shares.items()
            if share is not None
            for unit, counts in support.items()
        }
        if len(ids) < clients:
            arrays["ids"] = ids
    line = {
        "round": number,
        "cohort": "all",
        "lost": {str(id): reason for id, reason in lost.items()},
        "evaluated": ("all" if evaluated is None else "cohort") if shares else "nobody",
        "metrics": {"loss": 1.0} if metrics is None else metrics,
        "rules": {
            rule: None if share is None else Accuracy(pooled=share, mean=share, worst=share, p10=share)
            for rule, share in shares.items()
        },
        "validation": {},
        "unseen": None,
        "bytes": Traffic(up=100, down=200),
        "floats": Traffic(up=20, down=40),
        "server": {},
        "prototypes": Distances(min=1.0, mean=2.0, max=3.0) if classes > 1 else None,
    }
    return RoundOutcome(line, arrays, {"round": 0.5}, {})


def made(folder: Path, **settings) -> Run:
    """Write a record and read it."""
    return read_run(record(folder, **settings))


def guessing(level, clients=4, classes=3):
    """Make a population of which guessing each client's most frequent class gets a share right, in twentieths."""
    train, test = np.zeros((2, clients, classes), dtype=np.int64)
    train[:, 0], train[:, 1] = 9, 1
    test[:, 0] = round(20 * level)
    test[:, 1] = 20 - test[:, 0]
    return Population(train, np.zeros_like(train), test)
