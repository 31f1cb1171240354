import pytest

from protonorm.analysis.labels import data_settings, dataset_names, flatten_settings, labels
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
    assert dataset_names([run, made(tmp_path / "b", dataset={"name": "spiral"}), run]) == ["fashion", "spiral"]
