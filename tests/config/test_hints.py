"""Settings that were looked for in the wrong place, or under the name that another tool has for them."""

import pytest

import protonorm as pn
from protonorm.algorithms import ALGORITHMS
from protonorm.config.hints import OTHERS, OURS, REMARKS, hint, hint_dotted, hint_inside, plain_name
from protonorm.config.kinds import COMPONENTS, KINDS
from protonorm.core.settings import known_fields

SETTINGS = pn.Experiment.model_fields


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_setting_of_every_algorithm_is_found_from_its_bare_name(name):
    for field, inner in known_fields(ALGORITHMS[name].load()).items():
        if field not in SETTINGS:
            assert f"'algorithm.{field}'" in hint(field, {"algorithm": name})
        for one in inner:
            assert f"'algorithm.{field}.{one}'" in hint(one, {"algorithm": {"name": name}})


def test_settings_of_data_and_partition_are_found_however_these_are_given():
    from protonorm.data.builtin import Spiral

    for given in ("spiral", {"name": "spiral"}, Spiral()):
        assert hint("points", {"dataset": given}) == "did you mean 'dataset.points'?"
    assert hint("alpha", {}) == "did you mean 'partition.alpha'?"  # of dirichlet, the usual one


def test_what_is_elsewhere_twice_is_listed_twice():
    assert hint("decay", {}) == "did you mean 'algorithm.schedule.decay' or 'lr_schedule.decay'?"
    assert hint("patience", {}) == "did you mean 'algorithm.schedule.patience' or 'early_stopping'?"


@pytest.mark.parametrize(
    "given", [{"algorithm": 3}, {"algorithm": {"name": 3}}, {"algorithm": "no"}, {"dataset": "x.py:X"}]
)
def test_what_is_wrong_elsewhere_is_no_matter(given):
    assert hint("learning_rate", given) == "did you mean 'lr'?"


def test_nobody_knows_everything():
    assert hint("nonsense", {}) is None
    assert hint("", {}) is None


def test_every_name_of_ours_is_a_setting():
    """A table of names that leads nowhere would be worse than none."""
    inside = {"lr_schedule.warmup"}
    for kind in COMPONENTS:
        for entry in KINDS[kind].table().values():
            inside |= {f"{kind}.{field}" for field in known_fields(entry.load())}
    assert OURS.keys() <= {*SETTINGS, *inside}


def test_no_name_of_others_is_one_of_ours():
    for theirs in {*OTHERS, *REMARKS}:
        assert theirs not in SETTINGS
        assert theirs == plain_name(theirs)
    assert not OTHERS.keys() & REMARKS.keys()
    assert len(OTHERS) == sum(len(names.split()) for names in OURS.values())  # none is there twice


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("local_epochs", "epochs"),  # PFLlib, HtFLlib
        ("global_rounds", "rounds"),
        ("join_ratio", "participation"),
        ("num_clients", "clients"),
        ("eval_gap", "evaluate_every"),
        ("num-server-rounds", "rounds"),  # Flower
        ("fraction-fit", "participation"),
        ("n_clients", "clients"),  # fluke
        ("eligible_perc", "participation"),
        ("Learning Rate", "lr"),
    ],
)
def test_names_of_other_tools(theirs, ours):
    with pytest.raises(ValueError, match=f"did you mean '{ours}'\\?"):
        pn.Experiment.of({theirs: 1})


def test_inside_a_component():
    assert "a setting of the experiment itself" in hint_inside("lr", "algorithm", ["lam"])
    assert hint_inside("learning_rate", "algorithm", []) == "did you mean 'lr', a setting of the experiment itself?"
    assert hint_inside("lamda", "algorithm", ["lam"]) == "did you mean 'lam'?"
    assert hint_inside("lamda", "algorithm", ["alpha"]) is None
    assert hint_inside("lamda", "dataset", ["lam"]) is None


def test_sections_of_other_tools():
    assert hint_dotted("optimizer.lr") == "did you mean 'lr'?"
    assert hint_dotted("protocol.n_rounds") == "did you mean 'rounds'?"
    assert hint_dotted("method.gamma") == "did you mean 'algorithm.gamma'?"
    assert hint_dotted("foo.qqqq") is None
