"""Cells whose data are not here are shown from the records of somebody who had them. Nothing is trained."""

import numpy as np
import pytest
from experiments.reproduction.cells import Cell
from experiments.reproduction.findings import described_data, recorded_keys

from protonorm.config.experiment import Experiment
from protonorm.data.prepared import Arrays, write_prepared
from protonorm.data.published.datasets import CIFAR10, TinyImageNet
from protonorm.runs.layout import INFO
from tests.reproduction.studies import TINY, Fake, small_study, task, write_record

PICTURES = {"dataset": {"name": "cifar10"}, "partition": "iid", "clients": 2, "rounds": 3, "models": "plain"}


@pytest.fixture
def data(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    monkeypatch.setenv("PROTONORM_DATA", str(folder))
    put(folder)
    return folder


def put(folder, first=0):
    images = np.full((8, 8, 8, 3), first, np.uint8)
    write_prepared(folder / "cifar10.npz", Arrays(images, np.arange(8) % 2, np.zeros(8, np.int8), ("a", "b")))


def study(**more):
    return small_study(cells=[Cell("ProtoNorm", "Group: one", PICTURES | {"algorithm": "protonorm"} | more)])


def experiment(dataset="cifar10", **more):
    settings = PICTURES | {"algorithm": "protonorm", "dataset": dataset, "validation": 0.0, "seed": 0}
    return Experiment.of(settings | more)


def only_outcome(found):
    [one] = found.findings(found.studies[0]).outcomes
    return one


def test_a_record_is_shown_where_its_data_are_not(tmp_path, data):
    write_record(tmp_path / "runs", experiment(), Fake(0.75))
    with_data = only_outcome(task(tmp_path, study()))
    (data / "cifar10.npz").unlink()
    alone = task(tmp_path, study())
    found = only_outcome(alone)
    assert (found.state, found.key) == (with_data.state, with_data.key) == ("finished", experiment_key(tmp_path))
    assert found.reported == with_data.reported
    alone.write()
    page = (tmp_path / "out" / "small.md").read_text(encoding="utf-8")
    assert "75.00" in page
    assert "What is missing" not in page


def experiment_key(tmp_path):
    [folder] = (tmp_path / "runs").iterdir()
    return folder.name


def test_a_partial_record_is_shown_as_begun_and_is_not_run(tmp_path, data):
    write_record(tmp_path / "runs", experiment(), Fake(0.75, done=2))
    (data / "cifar10.npz").unlink()
    alone = task(tmp_path, study())
    found = only_outcome(alone)
    assert (found.state, found.progress) == ("begun", "2 of 3 rounds")
    assert not alone.pending()


@pytest.mark.parametrize("other", [{"lr": 0.5}, {"seed": 1}, {"dataset": {"name": "cifar10", "samples": 6}}])
def test_the_record_of_another_experiment_is_not_shown(tmp_path, data, other):
    write_record(tmp_path / "runs", experiment(**other), Fake(0.75))
    (data / "cifar10.npz").unlink()
    found = only_outcome(task(tmp_path, study()))
    assert (found.state, found.key) == ("missing", None)


def test_records_of_different_pictures_are_named_and_none_is_shown(tmp_path, data):
    keys = []
    for first in (1, 2):
        put(data, first)
        one = experiment()
        write_record(tmp_path / "runs", one, Fake(first / 4))
        keys.append(one.key)
    (data / "cifar10.npz").unlink()
    found = only_outcome(task(tmp_path, study()))
    assert found.state == "missing"
    assert "Records of different data fit" in found.missing
    assert all(key in found.missing for key in keys)


def test_with_the_data_only_their_own_record_counts(tmp_path, data):
    put(data, 1)
    write_record(tmp_path / "runs", experiment(), Fake(0.75))
    put(data, 2)
    assert only_outcome(task(tmp_path, study())).state == "absent"


def test_damaged_records_say_nothing_of_data(tmp_path, data):
    folder = write_record(tmp_path / "runs", experiment(), Fake(0.75))
    assert [one["name"] for one in described_data(tmp_path / "runs")] == ["cifar10"]
    (folder / INFO).write_text("{")
    assert described_data(tmp_path / "runs") == []


def test_data_that_are_made_and_not_read_are_never_missing(tmp_path):
    one = Experiment.of(TINY | {"algorithm": "protonorm"})
    assert recorded_keys(one, tmp_path, [{"name": "spiral", "points": 20}]) == []


@pytest.mark.parametrize(
    ("dataset", "described", "fits"),
    [
        (CIFAR10(), {"name": "cifar10", "samples": 60000}, True),
        (CIFAR10(), {"name": "cifar10", "samples": 50, "of": 60000}, False),
        (CIFAR10(samples=50), {"name": "cifar10", "samples": 50, "of": 60000}, True),
        (CIFAR10(samples=50), {"name": "cifar10", "samples": 50}, False),
        (CIFAR10(samples=50), {"name": "cifar10", "samples": 60, "of": 60000}, False),
        (CIFAR10(), {"name": "cifar100", "samples": 60000}, False),
        (TinyImageNet(), {"name": "tinyimagenet", "pool": "all", "samples": 9}, True),
        (TinyImageNet(pool="train"), {"name": "tinyimagenet", "pool": "all", "samples": 9}, False),
        (TinyImageNet(pool="all"), {"name": "tinyimagenet", "pool": "all", "samples": 9}, True),
    ],
)
def test_descriptions_fit_by_name_samples_and_pool(dataset, described, fits):
    assert dataset.fits(described) is fits
