"""The embedded pictures are those that were packed."""

from importlib.resources import files

import numpy as np
import pytest

from protonorm.data import fashion
from protonorm.data.fashion import Fashion


def test_six_hundred_of_each_class():
    data = Fashion().load()
    assert data.inputs.shape == (6000, 28, 28, 1)
    assert data.inputs.flags["C_CONTIGUOUS"]
    assert data.shape == (1, 28, 28)
    assert np.bincount(data.labels).tolist() == [600] * 10
    assert len(data.classes) == 10


def test_pictures_stand_upright():
    """A trouser (class 1) is higher than wide, a sneaker (class 7) wider than high: count rows and columns in use."""
    data = Fashion().load()
    grey = data.inputs[..., 0].astype(float)
    rows = np.count_nonzero(grey.max(2), axis=1)
    columns = np.count_nonzero(grey.max(1), axis=1)
    taller = rows - columns
    assert taller[data.labels == 1].mean() > 5
    assert taller[data.labels == 7].mean() < -5


def test_the_file_is_small():
    assert len(files("protonorm.data").joinpath("fashion.xz").read_bytes()) < 2_200_000


def test_other_pictures_are_refused(monkeypatch):
    monkeypatch.setattr(fashion, "SHA256", "0" * 64)
    with pytest.raises(ValueError, match="install the package again"):
        Fashion().load()


def test_licence_lies_beside():
    text = files("protonorm.data").joinpath("fashion-licence.txt").read_text(encoding="utf-8")
    assert "MIT" in text
    assert "Zalando" in text
