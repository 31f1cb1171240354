"""What crosses the wire is what the schema says, and what the papers count."""

from itertools import pairwise

import pytest
from experiments.reproduction.communication import round_floats, run_floats

import protonorm as pn
from protonorm.algorithms import ALGORITHMS
from protonorm.session.build import build
from tests.support import FROZEN, Given, pictures, run, vectors

SHARES = [[0, 1, 2] * 8, [0, 1] * 9, [2] * 12]  # labels of three clients: K_i = 3, 2, 1; nobody has class 3


def experiment(algorithm, **more):
    ends = [0, 24, 42, 54]
    made = {
        "algorithm": algorithm,
        "dataset": pictures([label for share in SHARES for label in share], 4),
        "partition": Given([list(range(a, b)) for a, b in pairwise(ends)]),
        "clients": 3,
        "models": "plain",
        "feature_dim": 5,
        "batch_size": 4,
        "rounds": 3,
    }
    if algorithm in FROZEN:
        made |= {"models": "frozen:identity", "dataset": vectors(made["dataset"])}
    return pn.Experiment.of(made | more)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_the_floating_numbers_of_a_round_are_those_of_the_schema(tmp_path, algorithm):
    """From the second round on, when the server knows all classes; FedKD's student, FPL's clusters and FedL2G's
    gradients, of the classes of one batch, are never more.

    Methods on frozen trunks send theirs in the first round, and what they receive in the last one.
    """
    chosen = experiment(algorithm, rounds=2)
    task, population = build(chosen)
    wanted = round_floats(task, population.facts().train)
    found = run(chosen, out=tmp_path).run
    for record in found.rounds[1:]:
        if algorithm in FROZEN:
            assert record.floats.up == 0
            assert record.floats.down == wanted.down
        elif algorithm in ("fedkd", "fpl", "fedl2g"):
            assert 0 < record.floats.up <= wanted.up
            assert 0 < record.floats.down <= wanted.down
        else:
            assert record.floats == wanted
    assert found.rounds[0].floats.up == wanted.up or algorithm not in FROZEN
    assert run_floats(found) == wanted  # from the record alone


def test_a_cohort_sends_what_its_members_do(tmp_path):
    """Of clients with 3, 2 and 1 classes, two are in a round: (K_1 + K_3)·5 numbers up, 2 · 3 · 5 down, and so on."""
    chosen = experiment("fedproto", participation=0.7, rounds=6)
    task, population = build(chosen)
    train = population.facts().train
    found = run(chosen, out=tmp_path).run
    cohorts = {tuple(record.cohort) for record in found.rounds[3:]}
    assert all(len(cohort) == 2 for cohort in cohorts)
    for record in found.rounds[3:]:
        wanted = sum((3, 2, 1)[id] for id in record.cohort) * 5
        assert record.floats.up == wanted == round_floats(task, train, record.cohort).up
        assert record.floats.down == 2 * 3 * 5 == round_floats(task, train, record.cohort).down
