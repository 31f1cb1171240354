"""What crosses the wire is what the papers count."""

from itertools import pairwise

import pytest

import protonorm as pn
from protonorm.algorithms import ALGORITHMS
from protonorm.communication import FORMULAS, sizes
from protonorm.setup import Setup
from tests.support import Given, pictures, run

SHARES = [[0, 1, 2] * 8, [0, 1] * 9, [2] * 12]  # labels of three clients: K_i = 3, 2, 1


def experiment(algorithm):
    ends = [0, 24, 42, 54]
    return pn.Experiment.of(
        {
            "algorithm": algorithm,
            "dataset": pictures([label for share in SHARES for label in share], 3),
            "partition": Given([list(range(a, b)) for a, b in pairwise(ends)]),
            "clients": 3,
            "models": "plain",
            "feature_dim": 5,
            "batch_size": 4,
            "rounds": 3,
        }
    )


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_the_floating_numbers_of_a_round_are_those_of_the_formula(tmp_path, algorithm):
    """From the second round on, when the server knows all classes; FedKD's compressed student is never larger."""
    chosen = experiment(algorithm)
    history = run(chosen, out=tmp_path).history
    formula, found = FORMULAS[algorithm], sizes(Setup(chosen))
    for line in history[1:]:
        expected = {"up": formula.up(found), "down": formula.down(found)}
        if algorithm == "fedkd":
            assert 0 < line["floats"]["up"] <= expected["up"]
            assert 0 < line["floats"]["down"] <= expected["down"]
        else:
            assert line["floats"] == expected


def test_the_example_of_the_paper_by_hand():
    """M = 20, K = 100, d = 512, Σ K_i = 921: prototypes (921 + 2000)·512 = 1,495,552 numbers, logits 292,100."""
    found = sizes(Setup(experiment("local")))._replace(clients=20, classes=100, width=512, held=921)
    totals = {name: FORMULAS[name].up(found) + FORMULAS[name].down(found) for name in ("protonorm", "feddistill")}
    assert totals == {"protonorm": 1_495_552, "feddistill": 292_100}
