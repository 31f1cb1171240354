"""The prepared form: what is read, what is refused, and where its files are kept."""

from pathlib import Path

import numpy as np
import platformdirs
import pytest

from protonorm.data.prepared import data_root, read_prepared, read_shape


def test_data_are_in_the_named_folder_or_else_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PROTONORM_DATA", str(tmp_path))
    assert data_root(Path("given")) == Path("given")
    assert data_root() == tmp_path
    monkeypatch.setenv("PROTONORM_DATA", "~/pictures")
    assert data_root() == Path.home() / "pictures"
    for unset in ("", None):
        monkeypatch.setenv("PROTONORM_DATA", unset) if unset is not None else monkeypatch.delenv("PROTONORM_DATA")
        assert data_root() == platformdirs.user_cache_path("protonorm")


@pytest.mark.skipif(platformdirs.PlatformDirs.__name__ != "Unix", reason="other systems have no XDG_CACHE_HOME")
def test_the_users_cache_is_where_the_desktop_says(monkeypatch, tmp_path):
    monkeypatch.delenv("PROTONORM_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_root() == tmp_path / "protonorm"


def npz(path, **held):
    usual = {"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.array([0, 1])}
    np.savez(path, **{name: value for name, value in (usual | held).items() if value is not None})
    return path


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"images": None}, "it lacks images"),
        ({"labels": None}, "it lacks labels"),
        ({"images": np.zeros((2, 4, 4, 3), np.float32)}, "expected uint8"),
        ({"images": np.zeros((0, 4, 4, 3), np.uint8)}, "expected uint8"),
        ({"labels": np.array([0.0, 1.0])}, "expected int64"),
        ({"labels": np.array([0])}, "expected int64"),
        ({"labels": np.array([0, -1])}, "labels go from -1 to 0"),
        ({"classes": np.array(["a"])}, "labels go from 0 to 1, but 1 classes"),
        ({"classes": np.array(["a", "a"])}, "the same name"),
        ({"classes": np.array([1, 2])}, "expected text"),
        ({"split": np.zeros(3, np.uint8)}, "split has shape"),
        ({"labels": np.array([{}, {}], object)}, "cannot be used as prepared data"),
    ],
)
def test_files_of_another_form(tmp_path, held, said):
    with pytest.raises(ValueError, match=said):
        read_prepared(npz(tmp_path / "a.npz", **held))


def test_files_that_are_no_archives(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"hello")
    np.save(tmp_path / "b.npy", np.zeros(3))
    whole = npz(tmp_path / "c.npz")
    whole.write_bytes(whole.read_bytes()[:-100])
    for name in ("a.npz", "b.npy", "c.npz"):
        with pytest.raises(ValueError, match="cannot be used as prepared data"):
            read_prepared(tmp_path / name)
    with pytest.raises(ValueError, match="no file"):
        read_prepared(tmp_path / "d.npz")


def test_split_and_classes_may_be_left_out_and_grey_pictures_flat(tmp_path):
    found = read_prepared(npz(tmp_path / "a.npz", images=np.zeros((2, 5, 4), np.uint8)))
    assert found.images.shape == (2, 5, 4, 1)
    assert found.split.tolist() == [0, 0]
    assert found.classes == ("0", "1")
    assert read_shape(tmp_path / "a.npz") == (2, 5, 4)
