import re

import numpy as np
import pytest

from protonorm.search.space import Choices, Range, read_dimension, read_space
from protonorm.search.tuning import evenly
from tests.search.grids import SPIRAL


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("10..1000:log", Range(10, 1000, log=True)),
        ("0.1..10", Range(0.1, 10)),
        ("1e-4..1.5e-1:log", Range(1e-4, 0.15, log=True)),
        ("-1...5", Range(-1, 0.5)),
        ("folder:/a1..2", None),
        ("sgd|adam", Choices(("sgd", "adam"))),
        ("[1, 2]|3|null", Choices(([1, 2], 3, None))),
        ("sgd", None),
        ("0.5", None),
        ("folder:../pictures", None),
        ("'a|b'", None),
    ],
)
def test_ranges_and_choices_are_told_from_plain_values(text, dimension):
    assert read_dimension("x", text) == dimension


@pytest.mark.parametrize("text", ["10..1", "1..1", "0..1:log", "-1..1:log", "1..2:lgo", "1..x", "1..", "1..2..3"])
def test_bad_ranges_are_refused(text):
    with pytest.raises(ValueError, match=f"x must .*, got {re.escape(repr(text))}"):
        read_dimension("x", text)


def test_bare_names_are_the_experiments_settings_or_else_the_methods():
    """FML has a setting `clip` of its own, and so has every experiment; epochs take no fractions, γ does."""
    space = read_space([*SPIRAL, "protonorm", "gamma=10..1000:log", "clip=1..5", "epochs=1..3", "lam=2", "seed=4"])
    assert space.dimensions == {
        "algorithm.gamma": Range(10, 1000, log=True),
        "clip": Range(1, 5),
        "epochs": Range(1, 3, whole=True),
    }
    assert space.fixed["algorithm.lam"] == 2
    assert space.seed == 4
    assert list(read_space([*SPIRAL, "fml", "clip=1..5"]).dimensions) == ["clip"]
    assert list(read_space([*SPIRAL, "fml", "algorithm.clip=1..5"]).dimensions) == ["algorithm.clip"]
    assert list(read_space([*SPIRAL, "protonorm", "algorithm.schedule.eta=0.1..1"]).dimensions) == [
        "algorithm.schedule.eta"
    ]


def test_the_middle_of_a_range_of_factors_is_the_root_of_its_ends():
    """√(10 · 1000) = 100; numbers have four digits: 10^(7/3) is 215.443…; ends are never left."""
    assert Range(10, 1000, log=True).at(0.5) == 100
    assert Range(10, 1000, log=True).at(2 / 3) == 215.4
    assert Range(0, 1).at(0.25) == 0.25
    assert Range(1, 3.00004).at(1.0) == 3.0
    assert Range(1.00006, 3).at(0.0) == 1.00006  # 1.000 would be outside
    assert Range(1, 4, whole=True).at(0.6) == 3  # 2.8
    assert [Choices(("a", "b", "c")).at(share) for share in (0.0, 0.34, 0.99, 1.0)] == ["a", "b", "c", "c"]


def test_a_search_has_a_name_of_its_own():
    """Whatever decides which trials are made is in it; the words are not: 1 is 1.0, and the order does not matter."""
    usual = [*SPIRAL, "protonorm", "gamma=10..1000:log", "epochs=1..3"]
    name = read_space(usual).name
    assert name == read_space([*usual[:-2], *reversed(usual[-2:])]).name
    assert name == read_space([*usual[:-2], "gamma=10.0..1e3:log", "epochs=1..3", "algorithm.lam=1"]).name
    others = [["gamma=10..1001:log"], ["gamma=10..1000"], ["gamma=11..1000:log"], ["seed=1"], ["rounds=3"], ["lam=2"]]
    others += [["momentum=0|0.5"], ["epochs=1|3"]]
    assert len({name, *(read_space([*usual, *more]).name for more in others)}) == 1 + len(others)


def test_trials_never_test_and_the_end_does():
    space = read_space([*SPIRAL, "protonorm", "gamma=10..1000:log"])
    trial = space.experiment({"algorithm.gamma": 20.0}, tested=False)
    last = space.experiment({"algorithm.gamma": 20.0}, 7, tested=True)
    assert (trial.tested, trial.seed, trial.algorithm.gamma) == (False, 0, 20.0)
    assert (last.tested, last.seed) == (True, 7)
    assert trial.key != space.experiment({"algorithm.gamma": 20.0}, tested=True).key


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["protonorm"], "There is nothing to search"),
        (["protonorm", "local", "lr=0.1..1"], "one method, and protonorm and local are given"),
        (["lr=0.1..1"], "one method, and none is given"),
        (["protonorm", "gama=1..2"], "An experiment has no setting 'gama'"),
        (["protonorm", "gamma=-1..2"], "algorithm.gamma must "),
        (["protonorm", "gamma=1..2", "momentum=0..1.5"], "momentum must "),
        (["protonorm", "optimiser=sgd|foo"], "optimiser must "),
        (["protonorm", "epochs=1..2.5"], "epochs must "),
        (["protonorm", "rounds=1..5"], "rounds cannot be searched"),
        (["protonorm", "partition.alpha=0.1..1"], "partition.alpha cannot be searched"),
        (["protonorm", "gamma=1..2", "seeds=0,1"], "A search has one seed"),
        (["protonorm", "gamma=1..2", "tested=false"], "A search has no setting tested"),
        (["protonorm", "gamma=1..2", "validation=0"], "validation"),
    ],
)
def test_what_a_trial_would_be_refused_for_is_refused_at_once(words, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        read_space([*SPIRAL, *words])


def test_first_trials_are_spread_evenly():
    """With one setting, five steps of the golden ratio cut a circle into arcs of two or three lengths, none tiny."""
    points = np.sort(evenly(5, 1, seed=3)[:, 0])
    gaps = np.diff([*points, points[0] + 1])
    assert gaps.min() > 0.1
    assert gaps.max() < 0.3
    assert evenly(5, 3, seed=0).shape == (5, 3)
    assert np.array_equal(evenly(5, 2, seed=1), evenly(5, 2, seed=1))
