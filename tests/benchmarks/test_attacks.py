"""Lies are what they are called, and the bench has a line for each."""

import json

import pytest
import torch
from benchmarks import attacks

from protonorm.tensors import root_mean_square

OWN = {"classes": torch.tensor([0, 2]), "prototypes": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}
OTHERS = [
    {"classes": torch.tensor([0, 1]), "prototypes": torch.tensor([[2.0, 2.0], [0.0, 1.0]])},
    {"classes": torch.tensor([0]), "prototypes": torch.tensor([[4.0, 2.0]])},
]


@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_a_lie_has_the_form_of_a_message_and_leaves_the_honest_one_alone(name):
    before = {key: value.clone() for key, value in OWN.items()}
    sent = attacks.ATTACKS[name](OWN, OTHERS)
    assert all(OWN[key].equal(before[key]) for key in OWN)
    assert (sent is None) == (name == "absent")
    if sent is not None:
        assert sent.keys() == OWN.keys()
        assert sent["prototypes"].shape == (len(sent["classes"]), 2)
        assert ", large" not in name or root_mean_square(sent["prototypes"]) == pytest.approx(5e5)


def test_lies_by_hand():
    """Class 0 of the others has mean (3, 2) and deviation (1, 0); class 2 nobody else has."""
    lie = {name: attack(OWN, OTHERS) for name, attack in attacks.ATTACKS.items()}
    assert lie["another class"]["prototypes"].tolist() == [[3.0, 4.0], [1.0, 2.0]]
    assert lie["all classes alike"]["prototypes"].tolist() == [[2.0, 3.0]] * 2
    assert lie["knows the defence"]["prototypes"].tolist() == [[1.5, 2.0], [3.0, 4.0]]
    assert lie["a class of its own"]["classes"].tolist() == [0, 2, 1]
    assert lie["a class of its own"]["prototypes"][2].tolist() == [2500.0, 2500.0]


def test_the_bench_has_a_line_for_each_attack_and_a_column_for_each_rule():
    """A liar that negates at a large size is named in each run; an honest client is not."""
    found = attacks.measure(
        methods=("fedproto",),
        rules=("mean", "median"),
        attacks=("honest", "negated, large", "a million times"),
        rounds=2,
        dataset={"name": "spiral", "points": 60},
        partition={"alpha": 10.0},
        batch_size=8,
    )
    head, *rows = attacks.table(json.loads(json.dumps(found)))
    assert head == ["method", "liars", "attack", "mean", "median"]
    assert [row[2] for row in rows] == ["honest", "negated, large", "a million times"]
    assert [row[4].endswith("*") for row in rows] == [False, True, True]
    assert all(0 <= float(cell.rstrip("*")) <= 100 for row in rows for cell in row[3:])
