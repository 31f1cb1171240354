"""Features of frozen trunks: computed once for each content, by any number of cores, and made again when damaged."""

import stat
import warnings

import numpy as np
import pytest

from protonorm.core.progress import listening
from protonorm.data import features
from protonorm.data.features import compute, open_features
from protonorm.data.prepared import data_root
from protonorm.models.frozen import FrozenNetwork
from tests.support import pictures

TRUNKS = """
import torch
from torch import nn

class Mean(nn.Module):
    calls = 0

    def forward(self, x):
        Mean.calls += 1
        return x.mean((2, 3)).repeat(1, 3) * torch.tensor([1.0, 2.0, 3.0])

def mean():
    return Mean()

def maps():
    return nn.Identity()

def broken():
    class Broken(nn.Module):
        def forward(self, x):
            return x.mean((2, 3)) / 0
    return Broken()
"""
DATA = pictures([0, 1, 2] * 13, 3)  # 39 pictures: two full batches of 16, and one of 7


@pytest.fixture(autouse=True)
def _trunks(tmp_path, monkeypatch):
    (tmp_path / "trunks.py").write_text(TRUNKS)
    monkeypatch.chdir(tmp_path)
    yield
    features._open.cache_clear()


def opened(name="frozen:trunks.py:mean", inputs=DATA.inputs):
    """Open as a new process would."""
    features._open.cache_clear()
    return open_features(FrozenNetwork.of(name), inputs)


def never(*_):
    raise AssertionError("computed again")


def expected(inputs=DATA.inputs):
    means = inputs.reshape(len(inputs), -1).mean(1, keepdims=True) / 127.5 - 1
    return means * [1, 2, 3]


def test_features_are_those_of_the_samples_and_private():
    found = opened()
    assert isinstance(found, np.memmap)
    np.testing.assert_allclose(found, expected(), rtol=1e-5, atol=1e-6)
    (folder,) = (data_root() / "mapped").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}


def test_the_second_start_opens_what_the_first_computed(monkeypatch):
    first = np.array(opened())
    monkeypatch.setattr(features, "compute", never)
    np.testing.assert_array_equal(opened(), first)
    np.testing.assert_array_equal(opened(inputs=DATA.inputs.copy()), first)
    np.testing.assert_array_equal(opened("frozen:trunks.py:mean+mlp"), first)  # another head


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("frozen:trunks.py:mean@8", DATA.inputs),
        ("frozen:trunks.py:mean", DATA.inputs[::-1]),
        ("frozen:trunks.py:mean", DATA.inputs.reshape(39, 8, 32, 1)),
    ],
)
def test_other_trunks_and_other_content_have_features_of_their_own(name, inputs, monkeypatch):
    opened()
    monkeypatch.setattr(features, "compute", never)
    with pytest.raises(AssertionError, match="computed again"):
        opened(name, inputs)


def test_copies_of_other_trunks_and_other_samples_stay():
    opened()
    opened("frozen:trunks.py:mean@8")
    opened(inputs=DATA.inputs[::-1])
    assert len(list((data_root() / "mapped").iterdir())) == 3


def test_a_damaged_copy_is_computed_again():
    first = np.array(opened())
    (file,) = (data_root() / "mapped").glob("features-*/images.npy")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.warns(UserWarning, match="has been made again"):
        np.testing.assert_array_equal(opened(), first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened()


def test_neither_cores_nor_other_samples_change_a_bit(monkeypatch):
    frozen, found = FrozenNetwork.of("frozen:trunks.py:mean@9"), []
    for cores in (1, 3):
        monkeypatch.setattr(features, "cores", lambda cores=cores: cores)
        found.append(compute(frozen, DATA.inputs))
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(compute(frozen, DATA.inputs[5:30]), found[0][5:30])


def test_progress_is_reported_in_samples():
    told = []
    with listening(lambda what, done, whole: told.append((what, done, whole))):
        compute(FrozenNetwork.of("frozen:trunks.py:mean"), DATA.inputs)
    what = "Computing features of frozen:trunks.py:mean"
    assert told == [(what, done, 39) for done in (0, 16, 32, 39)]


def test_what_is_no_feature_is_refused():
    with pytest.raises(ValueError, match=r"expected features \(16, D\)"):
        opened("frozen:trunks.py:maps")
    with pytest.raises(ValueError, match="gives features that are NaN or infinite"):
        opened("frozen:trunks.py:broken")


def test_vectors_are_features_themselves():
    vectors = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    assert opened("frozen:identity", vectors) is vectors
    assert not (data_root() / "mapped").exists()
