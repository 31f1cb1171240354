"""Arrays that are mapped from a file already are handed over by its name, not written again."""

import sys
from pathlib import Path

import numpy as np
import pytest

import protonorm as pn
from protonorm.core import Order
from protonorm.data.partitions import Parts
from protonorm.data.prepared import Arrays, write_prepared
from protonorm.engines.handover import array_location, hand_over, map_array, take_over
from protonorm.engines.processes import Processes
from protonorm.engines.serial import Serial
from protonorm.runs.states import FolderStore
from protonorm.session.build import build
from protonorm.tensors import encode
from tests.support import spiral

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture
def mapped(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(240, dtype=np.int16).reshape(10, 4, 6))
    return np.load(tmp_path / "a.npy", mmap_mode="r")


@pytest.mark.parametrize("part", [np.s_[:], np.s_[2:5], np.s_[3:]])
def test_a_mapped_array_or_a_piece_of_it_is_not_written(mapped, part, tmp_path):
    told = array_location(mapped[part], tmp_path / "b.npy")
    assert told["file"] == str(tmp_path / "a.npy")
    assert not (tmp_path / "b.npy").exists()
    np.testing.assert_array_equal(map_array(told), mapped[part])


@pytest.mark.parametrize("part", [np.s_[:, 1], np.s_[::2], np.s_[[1, 2]]])
def test_other_pieces_are_written(mapped, part, tmp_path):
    told = array_location(mapped[part], tmp_path / "b.npy")
    assert told == {"file": str(tmp_path / "b.npy")}
    np.testing.assert_array_equal(map_array(told), mapped[part])


def test_an_array_whose_file_has_gone_is_written(mapped, tmp_path):
    (tmp_path / "a.npy").unlink()
    assert array_location(mapped, tmp_path / "b.npy") == {"file": str(tmp_path / "b.npy")}
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), mapped)


def prepared(root, count=80, side=16):
    images = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    labels = np.arange(count) % 4
    write_prepared(root / "cifar10.npz", Arrays(images, labels, np.zeros(count, np.int8), tuple("abcd")))
    settings = {"dataset": {"name": "cifar10", "root": str(root)}, "models": "plain", "feature_dim": 8}
    return pn.Experiment.of(settings | {"clients": 4, "rounds": 1, "partition": "iid", "batch_size": 8})


def test_pictures_are_not_written_into_the_folder_of_the_handover(tmp_path):
    (tmp_path / "handover").mkdir()
    told = hand_over(*build(prepared(tmp_path)), tmp_path / "handover")
    assert sorted(one.name for one in (tmp_path / "handover").iterdir()) == ["cuts.npy", "index.npy", "labels.npy"]
    (copy,) = (tmp_path / "mapped").iterdir()
    assert told["arrays"]["inputs"]["file"] == str(copy / "images.npy")


def test_given_parts_are_handed_over(tmp_path):
    """How many samples validate, and common test samples, are arrays of a population that has them."""
    task, population = build(spiral())
    given = Parts(population.parts.index, population.parts.cuts, np.arange(len(population)), np.array([3, 1]))
    population.parts = given
    _, there = take_over(hand_over(task, population, tmp_path))
    for name in ("index", "cuts", "validating", "common"):
        np.testing.assert_array_equal(getattr(there.parts, name), getattr(given, name))
    assert len(there.site(2).client(1).validation) == 2


def test_vectors_in_memory_are(tmp_path):
    hand_over(*build(spiral()), tmp_path)
    assert (tmp_path / "inputs.npy").exists()


def maps(pid, file):
    """Add up the kilobytes that a process has of a file: resident, its share, and its own."""
    found = {"Rss": 0, "Pss": 0, "Private_Dirty": 0}
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            inside = line.endswith(str(file))
        elif inside and words[0].rstrip(":") in found:
            found[words[0].rstrip(":")] += int(words[1])
    return found


@linux
def test_workers_map_the_same_file_and_say_what_a_single_process_says(tmp_path):
    """Both workers have the pictures' file mapped, and each page of it is there once: nobody has a copy of his own."""
    task, population = build(prepared(tmp_path, count=1200))  # 0.9 MB
    store = FolderStore(tmp_path / "run", "key")
    store.folder.mkdir(parents=True)
    orders = [Order(id, 1, 0) for id in range(4)]
    engine = Processes(task, population, store, workers=2)
    try:
        replies = list(engine.train(orders, {}))
        expected = list(Serial(task, population, store).train(orders, {}))
        for reply, other in zip(replies, expected, strict=True):
            assert encode(reply.message) == encode(other.message)
        (copy,) = (tmp_path / "mapped").iterdir()
        for worker in engine.pool.processes:
            held = maps(worker, copy / "images.npy")
            assert held["Rss"] > 600  # each has half of the clients, whose samples are everywhere in the file
            assert held["Private_Dirty"] == 0
            assert held["Pss"] < 0.8 * held["Rss"]
    finally:
        engine.close()
