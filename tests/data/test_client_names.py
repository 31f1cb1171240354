"""Clients are called as their folders or files are."""

import numpy as np
import pytest
from PIL import Image

import protonorm as pn
from protonorm.data.own.datasets import Clients


def save(path):
    path.parent.mkdir(exist_ok=True)
    images = np.arange(8 * 16, dtype=np.uint8).reshape(8, 4, 4, 1)
    np.savez(path, images=images, labels=np.arange(8) % 2)


def test_files_give_their_names_without_endings(tmp_path):
    for name in ("site10", "site2", "São Paulo"):
        save(tmp_path / "set" / f"{name}.npz")
    data = Clients(tmp_path / "set").load()
    assert data.client_names == ("São Paulo", "site2", "site10")
    assert data.clients == 3


def test_folders_give_their_names_with_all_their_dots(tmp_path):
    for name in ("site.2", "site.10"):
        for kind in "ab":
            path = tmp_path / "set" / name / kind / "1.png"
            path.parent.mkdir(parents=True)
            Image.new("L", (4, 4)).save(path)
    assert Clients(tmp_path / "set").load().client_names == ("site.2", "site.10")


def test_names_that_would_be_equal_keep_their_endings(tmp_path):
    save(tmp_path / "set" / "a.npz")
    (tmp_path / "set" / "a.NPZ").write_bytes((tmp_path / "set" / "a.npz").read_bytes())
    if len(list((tmp_path / "set").iterdir())) < 2:
        pytest.skip("file names here do not tell capitals apart")
    assert sorted(Clients(tmp_path / "set").load().client_names) == ["a.NPZ", "a.npz"]


def test_what_cannot_be_seen_in_a_name_is_shown(tmp_path):
    save(tmp_path / "set" / "a\x1b[2J.npz")
    save(tmp_path / "set" / "b.npz")
    assert Clients(tmp_path / "set").load().client_names == ("a\\x1b[2J", "b")


def test_a_name_decides_no_number(tmp_path):
    """The same files under other names, in the same order, are the same experiment."""
    keys = []
    for names in (("bonn", "graz"), ("berlin", "paris")):
        (tmp_path / names[0]).mkdir()
        for name in names:
            save(tmp_path / names[0] / "set" / f"{name}.npz")
        keys.append(pn.Experiment(dataset=f"clients:{tmp_path / names[0] / 'set'}").key)
    assert keys[0] == keys[1]


def dataset(**more):
    owner = np.array([0, 0, 1])
    return pn.Dataset("mine", np.zeros((3, 2), np.float32), np.array([0, 1, 1]), ("a", "b"), **{"owner": owner} | more)


def test_a_data_set_in_memory_has_names_too():
    assert dataset(client_names=("x", "y")).client_names == ("x", "y")
    assert dataset().client_names is None
    assert dataset().description() == dataset(client_names=("x", "y")).description()


@pytest.mark.parametrize("names", [("x",), ("x", "y", "z"), ("x", "x"), ("x", ""), ("x", 2)])
def test_names_that_do_not_fit(names):
    with pytest.raises(ValueError, match=r"client_names has .*; expected 2 different texts, one for each client\."):
        dataset(client_names=names)


def test_names_need_owners():
    with pytest.raises(ValueError, match="names of clients without owners are not used"):
        dataset(owner=None, client_names=("x", "y"))
