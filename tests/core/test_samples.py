"""A client's samples look at arrays that all clients share, without copying them."""

import numpy as np
import pytest
import torch

from protonorm.core.samples import Samples, evaluation_batch
from protonorm.data.dataset import Dataset


def pictures(count=4, height=3, width=5, channels=3):
    """Number all bytes of some pictures."""
    size = (count, height, width, channels)
    inputs = (np.arange(np.prod(size)) % 256).astype(np.uint8).reshape(size)
    return Dataset("numbered", inputs, np.arange(count) % 2, ("even", "odd"))


def vectors():
    """Make three points in the plane."""
    return Dataset("points", np.float32([[0, 1], [2, 3], [4, 5]]), np.array([1, 0, 1]), ("a", "b"))


def part_of(data, *index):
    return Samples.of(data.inputs, data.labels, np.array(index, dtype=np.int64))


def test_parts_share_one_array():
    """Two parts of the same data set read the memory of the data set itself."""
    data = pictures()
    one, other = part_of(data, 0, 1), part_of(data, 2, 3)
    assert one.inputs.data_ptr() == other.inputs.data_ptr() == data.inputs.ctypes.data
    assert one.targets.data_ptr() == data.labels.ctypes.data
    assert one.inputs.dtype == torch.uint8


def test_batch_gathers_the_named_positions():
    part = part_of(vectors(), 2, 0)
    x, y = part.batch(torch.tensor([1, 0, 0]))
    assert x.tolist() == [[0, 1], [4, 5], [4, 5]]  # vectors are left as they are
    assert y.tolist() == [1, 1, 1]
    assert part.labels.tolist() == [1, 1]
    assert part.class_counts(3).tolist() == [0, 2, 0]
    assert len(part) == 2


def test_bytes_become_numbers_from_minus_one_to_one():
    """(0/255 − ½)/½ = −1, (51/255 − ½)/½ = 2·0.2 − 1 = −0.6, (255/255 − ½)/½ = 1."""
    data = Dataset("grey", np.uint8([0, 51, 255]).reshape(1, 1, 3, 1), np.zeros(1, np.int64), ("all",))
    x, _ = part_of(data, 0).batch(torch.tensor([0]))
    assert torch.equal(x, torch.tensor([-1.0, -0.6, 1.0]).reshape(1, 1, 1, 3))


def test_every_byte_is_normalised_as_written():
    data = Dataset("bytes", np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1), np.zeros(1, np.int64), ("all",))
    x, _ = part_of(data, 0).batch(torch.tensor([0]))
    expected = (torch.arange(256.0) / 255 - 0.5) / 0.5
    assert torch.equal(x.flatten(), expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_come_channels_last(channels):
    data = pictures(channels=channels)
    x, _ = part_of(data, *range(4)).batch(torch.tensor([3, 1]))
    assert x.shape == (2, channels, 3, 5)
    assert x.stride() == (3 * 5 * channels, 1, 5 * channels, channels)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x[0], torch.from_numpy(data.inputs[3]).permute(2, 0, 1).float() / 127.5 - 1)


@pytest.mark.parametrize(("shape", "rows"), [((32, 32, 3), 128), ((64, 64, 3), 32), ((224, 224, 3), 32), ((2,), 256)])
def test_large_samples_are_computed_few_at_a_time(shape, rows):
    assert evaluation_batch(torch.zeros(1, *shape)) == rows


def test_sweep_goes_through_the_part_once():
    part = part_of(pictures(count=7), 6, 0, 1, 2, 3)
    batches = list(part.sweep(2))
    assert [len(y) for _, y in batches] == [2, 2, 1]
    assert torch.cat([y for _, y in batches]).tolist() == part.labels.tolist()
    assert list(part_of(pictures()).sweep(2)) == []


def test_read_only_arrays_are_welcome(tmp_path):
    """A memory-mapped file neither warns nor is copied."""
    np.save(tmp_path / "points.npy", vectors().inputs)
    inputs = np.load(tmp_path / "points.npy", mmap_mode="r")
    part = part_of(Dataset("mapped", inputs, vectors().labels, ("a", "b")), 1)
    assert part.inputs.data_ptr() == inputs.ctypes.data
    assert part.batch(torch.tensor([0]))[0].tolist() == [[2, 3]]


def test_a_part_without_samples():
    part = Samples.none((2, 3))
    assert len(part) == 0
    assert part.class_counts(2).tolist() == [0, 0]
    assert list(part.sweep()) == []
