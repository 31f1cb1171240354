"""Published data sets: a copy that is mapped, and a key that follows the content and not the place."""

import numpy as np
import pytest

import protonorm as pn
from protonorm.data.prepared import Arrays, write_prepared
from protonorm.data.published.datasets import CIFAR10, TinyImageNet
from protonorm.data.published.prepare import SOURCES

RANDOM = np.random.default_rng(0)


def arrays(split=(0, 0, 0, 1), classes=("a", "b")):
    count = len(split)
    images = RANDOM.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
    return Arrays(images, np.arange(count) % len(classes), np.array(split, np.int8), classes)


def write(root, name="cifar10", **settings):
    made = arrays(**settings)
    write_prepared(root / f"{name}.npz", made)
    return made


@pytest.mark.parametrize("name", SOURCES)
def test_every_prepared_set_is_mapped(tmp_path, name):
    made = write(tmp_path, name, split=(0, 0, 1, 1))
    experiment = pn.Experiment.of({"dataset": {"name": name, "root": str(tmp_path), **pool(name)}, "models": "light"})
    data = experiment.dataset.load()
    assert isinstance(data.inputs, np.memmap)
    np.testing.assert_array_equal(data.inputs, made.images)  # training and test pictures together
    assert data.labels.tolist() == made.labels.tolist()
    assert (data.name, data.classes) == (name, ("a", "b"))
    assert f"-{name}-" in experiment.key


def pool(name):
    return {"pool": "all"} if name == "tinyimagenet" else {}


def key(root):
    return pn.Experiment(dataset={"name": "cifar10", "root": root}, models="light").key


def test_the_key_follows_the_content_and_not_the_place(tmp_path, monkeypatch):
    made = write(tmp_path / "one")
    write_prepared(tmp_path / "other" / "cifar10.npz", made)
    assert key(tmp_path / "one") == key(tmp_path / "other")
    monkeypatch.setenv("PROTONORM_DATA", str(tmp_path / "one"))
    assert pn.Experiment(dataset="cifar10", models="light").key == key(tmp_path / "other")
    before = key(tmp_path / "one")
    write(tmp_path / "one")  # other pictures in the same place
    assert key(tmp_path / "one") != before


def test_the_fingerprint_is_that_of_a_data_set_in_memory(tmp_path):
    made = write(tmp_path)
    held = pn.Dataset("cifar10", made.images, made.labels, made.classes).description()
    found = CIFAR10(root=tmp_path).description()
    assert found == held | {"size": [16, 16, 3]}


def test_the_copy_is_made_once_and_older_ones_go(tmp_path):
    write(tmp_path)
    CIFAR10(root=tmp_path).load()
    (first,) = (tmp_path / "mapped").iterdir()
    time = (first / "images.npy").stat().st_mtime_ns
    CIFAR10(root=tmp_path).load()
    assert (first / "images.npy").stat().st_mtime_ns == time
    write(tmp_path, split=(0, 0, 0, 0, 1))
    assert len(CIFAR10(root=tmp_path).load().labels) == 5
    (second,) = (tmp_path / "mapped").iterdir()
    assert second != first
    assert sorted(one.name for one in second.iterdir()) == ["about.json", "images.npy", "rest.npz"]


def test_where_nothing_can_be_written_the_pictures_stay_in_memory(tmp_path):
    made = write(tmp_path)
    (tmp_path / "mapped").write_text("a file in the way")
    with pytest.warns(UserWarning, match="stay in memory"):
        data = CIFAR10(root=tmp_path).load()
    assert not isinstance(data.inputs, np.memmap)
    np.testing.assert_array_equal(data.inputs, made.images)
    assert CIFAR10(root=tmp_path).description()["samples"] == 4  # read once


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"There is no cifar10.npz in .* `protonorm data list`"):
        CIFAR10(root=tmp_path).load()


def test_tiny_imagenets_pool(tmp_path):
    made = write(tmp_path, "tinyimagenet", split=(0, 1, 0, 1))
    data = TinyImageNet(root=tmp_path).load()
    np.testing.assert_array_equal(data.inputs, made.images[[0, 2]])
    assert isinstance(data.inputs, np.memmap)
    assert TinyImageNet(root=tmp_path).description()["pool"] == "train"
    assert TinyImageNet(root=tmp_path).description() == TinyImageNet(root=tmp_path, pool="train").description()
    everything = TinyImageNet(root=tmp_path, pool="all")
    assert len(everything.load().labels) == 4
    assert everything.description()["pool"] == "all"


def test_tiny_imagenet_without_training_pictures(tmp_path):
    write(tmp_path, "tinyimagenet", split=(1, 1, 1, 1))
    with pytest.warns(UserWarning, match="holds no training pictures: all that it holds are taken"):
        assert len(TinyImageNet(root=tmp_path).load().labels) == 4
    with pytest.raises(ValueError, match="dataset.pool=all"):
        TinyImageNet(root=tmp_path, pool="train").load()
