"""Lies are what they are called, and the bench has a line for each."""

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benchmarks import attacks
from benchmarks.liars import LIES, TARGET, candidates, moments, poisoned, stamped

import protonorm as pn
from protonorm.session.build import build
from protonorm.tensors import root_mean_square
from tests.support import spiral

OWN = {"classes": torch.tensor([0, 2]), "prototypes": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}
OTHERS = [
    {"classes": torch.tensor([0, 1]), "prototypes": torch.tensor([[2.0, 2.0], [0.0, 1.0]])},
    {"classes": torch.tensor([0]), "prototypes": torch.tensor([[4.0, 2.0]])},
]
SMALL = {"dataset": {"name": "fashion", "samples": 200}, "rounds": 2, "batch_size": 8, "seeds": (0,)}


@pytest.mark.parametrize("name", [name for name in LIES if LIES[name].change != "adaptive"])
def test_a_lie_has_the_form_of_a_message_and_leaves_the_honest_one_alone(name):
    before = {key: value.clone() for key, value in OWN.items()}
    sent = LIES[name].change(OWN, OTHERS)
    assert all(OWN[key].equal(before[key]) for key in OWN)
    assert (sent is None) == (name == "absent")
    if sent is not None:
        assert sent.keys() == OWN.keys()
        assert sent["prototypes"].shape == (len(sent["classes"]), 2)
        assert ", large" not in name or root_mean_square(sent["prototypes"]) == pytest.approx(5e5)


def test_lies_by_hand():
    """Class 0 of the others has mean (3, 2) and deviation (1, 0); class 2 nobody else has."""
    lie = {name: one.change(OWN, OTHERS) for name, one in LIES.items() if one.change != "adaptive"}
    assert lie["another class"]["prototypes"].tolist() == [[3.0, 4.0], [1.0, 2.0]]
    assert lie["collapsed"]["prototypes"].tolist() == [[2.0, 3.0]] * 2
    assert lie["invented class"]["classes"].tolist() == [0, 2, 1]
    assert lie["invented class"]["prototypes"][2].tolist() == [2500.0, 2500.0]
    assert lie["backdoor"]["prototypes"].tolist() == [[-3.0, 2.0], [3.0, 4.0]]  # (3, 2) + 3·((1, 2) − (3, 2))
    mean, deviation = moments(OWN, OTHERS)
    assert mean["prototypes"].tolist() == [[3.0, 2.0], [3.0, 4.0]]
    assert deviation["prototypes"].tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert [2.0, 2.0] in [one["prototypes"][0].tolist() for one in candidates(OWN, OTHERS)]  # one deviation off


def test_moments_have_their_classes_in_columns():
    """Of (P, K) the columns are collapsed; a negated message has both signs turned."""
    message = {"gram.a": torch.tensor([1.0, 2.0]), "moments.a": torch.tensor([[1.0, 3.0], [0.0, 4.0]])}
    assert LIES["collapsed"].change(message, OTHERS)["moments.a"].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert LIES["negated"].change(message, OTHERS)["gram.a"].tolist() == [-1.0, -2.0]


def test_poisoned_samples_are_those_of_liars_alone():
    experiment = spiral()
    _, population = build(experiment)
    data = population.dataset
    patched = pn.Dataset("patched", data.inputs + 1, data.labels, data.classes)
    bad = poisoned(population, patched, "backdoor", [1]).dataset
    changed = np.flatnonzero((bad.inputs != data.inputs).any(1))
    assert set(changed) == set(population.parts[1].train[::2].tolist())
    assert set(bad.labels[changed]) == {TARGET}
    swapped = poisoned(population, patched, "swapped", [1]).dataset.labels
    assert ((swapped - data.labels) % data.num_classes == 1).all()
    assert stamped(np.zeros((1, 14, 14, 1), np.uint8)).sum() == 255 * 4


def test_the_bench_has_a_line_for_each_attack_and_a_column_for_each_rule():
    """A liar that negates at a large size is named in each run; honest clients are not named in the honest one."""
    study = {"methods": ("fedproto",), "rules": ("mean", "trust"), "lies": ("honest", "negated, scaled", "adaptive")}
    found = attacks.measure(studies={"small": {**study, "shares": (0.3,), **SMALL}})
    cases = {(case["attack"], case["combine"]): case for case in found["cases"]}
    assert not any(cases["honest", "trust"]["alarms"][0])
    assert all(cases["negated, scaled", "trust"]["alarms"][0][:3])
    head, *rows = attacks.table(json.loads(json.dumps(found)))
    assert head == ["pictures", "method", "lie", "liars", "mean", "trust"]
    assert [row[2] for row in rows] == ["honest", "negated, scaled", "adaptive"]
    assert [row[5].endswith("*") for row in rows[:2]] == [False, True]


def test_an_interrupted_bench_goes_on_with_what_it_has_of_the_same_commit(monkeypatch):
    """Each run is saved when it ends, and is not made again; nothing is taken over from another commit."""
    played = []

    def play(settings, lie, liars, patched):
        if len(played) == 3:
            raise KeyboardInterrupt
        played.append((settings["seed"], lie))
        return {"accuracy": [0.5] * 10, "fooled": [0.0] * 10, "lost": [0] * 10, "alarms": [0] * 10}

    monkeypatch.setattr(attacks, "play", play)
    monkeypatch.setattr(attacks, "provenance", lambda *_, **__: SimpleNamespace(commit="c0"))
    saved, small = [], {"methods": ("fedproto",), "rules": ("mean",), "lies": ("honest", "negated"), "shares": (0.3,)}
    measure = partial(attacks.measure, studies={"small": {**small, "seeds": (0, 1)}})
    with pytest.raises(KeyboardInterrupt):
        measure(save=lambda found: saved.append(json.loads(json.dumps(found))))
    assert [sum(len(case["seeds"]) for case in found["cases"]) for found in saved] == [1, 2, 3]
    assert attacks.table(saved[-1])[1:] == [
        ["fashion", "fedproto", "honest", "0 of 10", "50.0"],
        ["fashion", "fedproto", "negated", "3 of 10", "50.0 (+0.0)"],
    ]
    assert attacks.summary(saved[-1])[1:] == [
        ["fashion", "fedproto", "0 of 10", "50.0"],
        ["fashion", "fedproto", "3 of 10", "+0.0 negated"],
    ]
    before, played[:] = saved[-1], []
    whole = measure(before=before)
    assert played == [(1, "negated")]
    assert [case["seeds"] for case in whole["cases"]] == [[0, 1], [0, 1]]
    played.clear()
    monkeypatch.setattr(attacks, "provenance", lambda *_, **__: SimpleNamespace(commit="c1"))
    with pytest.raises(KeyboardInterrupt):
        measure(before=before, save=lambda found: saved.append(json.loads(json.dumps(found))))
    assert len(played) == 3
    assert [(case["commit"], case["seeds"]) for case in saved[-1]["cases"]] == [("c1", [0, 1]), ("c1", [0])]
    assert [case["commit"] for case in saved[-3]["cases"]] == ["c0", "c1"]  # the other is still to be made


@pytest.mark.parametrize("method", [pytest.param("choir", marks=pytest.mark.long), "fedavg"])
def test_the_backdoor_is_measured_on_pictures_with_the_pattern(method):
    cases = []
    attacks.play_all(cases, methods=(method,), rules=("mean",), lies=("backdoor",), shares=(0.3,), **SMALL)
    fooled = cases[0]["fooled"][0]
    assert len(fooled) == attacks.CLIENTS
    assert all(0 <= share <= 1 for share in fooled)
