"""Labels of runs, filters on runs, and the settings in which runs differ."""

import pytest

from protonorm.analysis.settings import (
    data_settings,
    differing,
    flatten_settings,
    labels,
    matching,
    read_filters,
    settings_of,
    written,
)
from tests.records import made


def test_settings_are_named_as_on_the_command_line():
    nested = {
        "algorithm": {"name": "protonorm", "gamma": 5.0, "schedule": {"eta": 0.1, "steps": 9}},
        "models": ["mlp", {"name": "own"}],
        "auxiliary": None,
        "rounds": 3,
    }
    assert flatten_settings(nested) == {
        "algorithm": "protonorm",
        "algorithm.gamma": 5.0,
        "algorithm.schedule.eta": 0.1,
        "algorithm.schedule.steps": 9,
        "models": ["mlp", {"name": "own"}],
        "auxiliary": None,
        "rounds": 3,
    }


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ([{"clients": 4}], [""]),
        ([{"clients": 4}, {"clients": 4}], ["", ""]),
        ([{"dataset": "spiral", "lr": 0.5}, {"dataset": "fashion", "lr": 0.1}], ["spiral", "fashion"]),
        ([{"partition.alpha": 1.0}, {"partition.alpha": 0.1}], ["alpha=1", "alpha=0.1"]),
        (
            [{"dataset": "a", "lr": 1}, {"dataset": "a", "lr": 2}, {"dataset": "b", "lr": 2}],
            ["a, lr=1", "a, lr=2", "b"],
        ),
        ([{"x": 1}, {}], ["x=1", ""]),
        ([{"models": "m" * 30}, {"models": "n"}], [f"models={'m' * 23}…", "models=n"]),
    ],
)
def test_a_label_has_no_more_words_than_tell_it_apart(settings, wanted):
    assert labels(settings) == wanted


def test_the_settings_of_the_data_have_no_seeds(tmp_path):
    run = made(tmp_path / "run", train=0.5, partition={"name": "dirichlet", "alpha": 0.1, "seed": 7})
    assert data_settings(run) == {
        "dataset": "fashion",
        "partition": "dirichlet",
        "partition.alpha": 0.1,
        "clients": 4,
        "train": 0.5,
    }


@pytest.fixture
def runs(tmp_path):
    own = {"name": "protonorm_own_x:Mine", "nu": 2}
    return [
        made(tmp_path / "a", lr=0.1),
        made(tmp_path / "b", seed=1, lr=0.1, method={"name": "protonorm", "lam": 1.0, "gamma": 10.0}),
        made(tmp_path / "c", lr=0.5, method={"name": "fedproto", "lam": 3.0}, dataset={"name": "spiral", "points": 9}),
        made(tmp_path / "d", lr=0.1, method=own, done=1, failure=(2, "It diverged.")),
        made(tmp_path / "e", lr=0.1, done=1),
    ]


def names(runs):
    return "".join(run.folder.name for run in runs)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], "abcde"),
        (["algorithm=protonorm"], "abe"),
        (["algorithm=protonorm,fedproto"], "abce"),
        (["algorithm=protonorm", "algorithm=fedproto"], "abce"),
        (["algorithm=Mine"], "d"),
        (["algorithm=protonorm_own_x:Mine"], "d"),
        (["algorithm.gamma=10"], "b"),
        (["algorithm.gamma=10.0"], "b"),
        (["algorithm.lam=1", "seed=0"], "ae"),
        (["dataset=fashion", "lr=0.1", "seed=0,1"], "abde"),
        (["lr=5e-1"], "c"),
        (["lr=1e-1", "algorithm.gamma=1e1"], "b"),
        (["dataset=spiral"], "c"),
        (["state=finished"], "abc"),
        (["state=failed"], "d"),
        (["state=unfinished"], "e"),
        (["state=failed", "seed=1"], ""),
    ],
)
def test_filters_keep_the_runs_with_these_settings(runs, words, wanted):
    assert names(matching(runs, read_filters(words))) == wanted


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gamma=10"], "'gamma' is not a setting of these runs; did you mean algorithm.gamma?"),
        (["datset=fashion"], "'datset' is not a setting of these runs; did you mean dataset"),
        (["xyzzy=1"], "'xyzzy' is not a setting of these runs; there are: algorithm, "),
        (["dataset=cifar10"], "No run has dataset=cifar10; there are: fashion, spiral."),
        (["seed=0,7"], "No run has seed=7; there are: 0, 1."),
        (["state=done"], "No run has state=done; there are: finished, failed, unfinished."),
    ],
)
def test_a_name_or_a_value_that_no_run_has_is_refused_with_those_that_there_are(runs, words, told):
    with pytest.raises(ValueError, match=".") as refused:
        matching(runs, read_filters(words))
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize("word", ["seed", "=1", "seed=", " = "])
def test_what_is_no_filter_is_refused(word):
    with pytest.raises(ValueError, match="A filter must look like dataset=fashion"):
        read_filters([word])


def test_without_runs_nothing_is_known_and_nothing_refused():
    assert matching([], {"anything": ["1"]}) == []


def test_settings_differ_if_runs_of_the_same_method_differ_in_them(runs):
    """`lam` is 1 in both runs of ProtoNorm: that FedProto has another one is no difference of its own."""
    assert differing(runs) == ["algorithm", "algorithm.gamma", "dataset", "lr", "seed"]
    assert differing(runs[:1]) == []
    assert differing([runs[0], runs[4]]) == []


def test_values_are_written_in_few_characters(runs):
    assert [written(value) for value in (100.0, 0.05, True, None, [1, 2])] == ["100", "0.05", "true", "", "[1, 2]"]
    assert len(written("x" * 99)) == 24
    assert settings_of(runs[0])["state"] == "finished"


def test_a_number_is_found_as_lists_print_it(tmp_path):
    run = made(tmp_path / "a", lr=0.012345678)
    assert written(0.012345678) == "0.0123457"
    assert matching([run], read_filters(["lr=0.0123457"])) == [run]
    assert matching([run], read_filters(["lr=0.012345678"])) == [run]
