"""A data set is checked where it is made; a client's part looks at it without copying."""

import numpy as np
import pytest
import torch

from protonorm.data.dataset import Dataset, Samples, at_once


def pictures(count=4, height=3, width=5, channels=3):
    """Number all bytes of some pictures."""
    size = (count, height, width, channels)
    inputs = (np.arange(np.prod(size)) % 256).astype(np.uint8).reshape(size)
    return Dataset("numbered", inputs, np.arange(count) % 2, ("even", "odd"))


def vectors():
    """Make three points in the plane."""
    return Dataset("points", np.float32([[0, 1], [2, 3], [4, 5]]), np.array([1, 0, 1]), ("a", "b"))


def test_shape_is_what_a_network_gets():
    assert pictures().shape == (3, 3, 5)  # C, H, W
    assert vectors().shape == (2,)
    assert vectors().num_classes == 2


@pytest.mark.parametrize(
    ("inputs", "labels", "sentence"),
    [
        (np.zeros((2, 3, 3), np.uint8), np.zeros(2, np.int64), "expected uint8 pictures"),
        (np.zeros((2, 3, 3, 1), np.float32), np.zeros(2, np.int64), "expected uint8 pictures"),
        (np.zeros((2, 3), np.float64), np.zeros(2, np.int64), "type float64; expected"),
        (np.zeros((0, 3), np.float32), np.zeros(0, np.int64), "are empty"),
        (np.zeros((2, 0), np.float32), np.zeros(2, np.int64), "are empty"),
        (np.float32([[0, np.nan]]), np.zeros(1, np.int64), "NaN or infinite"),
        (np.float32([[0, np.inf]]), np.zeros(1, np.int64), "NaN or infinite"),
        (np.zeros((2, 3), np.float32), np.zeros(3, np.int64), "2 inputs but 3 labels"),
        (np.zeros((2, 3), np.float32), np.zeros(2, np.int32), "expected int64"),
        (np.zeros((2, 3), np.float32), np.zeros((2, 1), np.int64), "expected int64"),
        (np.zeros((2, 3), np.float32), np.array([0, 2]), "go from 0 to 2, but 2 classes"),
        (np.zeros((2, 3), np.float32), np.array([-1, 0]), "go from -1 to 0"),
    ],
)
def test_refuses_what_cannot_be_trained_on(inputs, labels, sentence):
    with pytest.raises(ValueError, match=sentence):
        Dataset("mine", inputs, labels, ("a", "b"))


def test_description_follows_the_content():
    one, other = pictures(), pictures()
    assert one.description() == other.description()
    other.inputs[0, 0, 0, 0] += 1
    assert one.description() != other.description()
    assert one.load() is one


def test_parts_share_one_array():
    """Two parts of the same data set read the memory of the data set itself."""
    data = pictures()
    one, other = Samples.of(data, np.array([0, 1])), Samples.of(data, np.array([2, 3]))
    assert one.inputs.data_ptr() == other.inputs.data_ptr() == data.inputs.ctypes.data
    assert one.targets.data_ptr() == data.labels.ctypes.data
    assert one.inputs.dtype == torch.uint8


def test_batch_gathers_the_named_positions():
    part = Samples.of(vectors(), np.array([2, 0]))
    x, y = part.batch(torch.tensor([1, 0, 0]))
    assert x.tolist() == [[0, 1], [4, 5], [4, 5]]  # vectors are left as they are
    assert y.tolist() == [1, 1, 1]
    assert part.labels.tolist() == [1, 1]
    assert part.class_counts(3).tolist() == [0, 2, 0]
    assert len(part) == 2


def test_bytes_become_numbers_from_minus_one_to_one():
    """(0/255 − ½)/½ = −1, (51/255 − ½)/½ = 2·0.2 − 1 = −0.6, (255/255 − ½)/½ = 1."""
    data = Dataset("grey", np.uint8([0, 51, 255]).reshape(1, 1, 3, 1), np.zeros(1, np.int64), ("all",))
    x, _ = Samples.of(data, np.array([0])).batch(torch.tensor([0]))
    assert torch.equal(x, torch.tensor([-1.0, -0.6, 1.0]).reshape(1, 1, 1, 3))


def test_every_byte_is_normalised_as_written():
    data = Dataset("bytes", np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1), np.zeros(1, np.int64), ("all",))
    x, _ = Samples.of(data, np.array([0])).batch(torch.tensor([0]))
    expected = (torch.arange(256.0) / 255 - 0.5) / 0.5
    assert torch.equal(x.flatten(), expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_come_channels_last(channels):
    data = pictures(channels=channels)
    x, _ = Samples.of(data, np.arange(4)).batch(torch.tensor([3, 1]))
    assert x.shape == (2, channels, 3, 5)
    assert x.stride() == (3 * 5 * channels, 1, 5 * channels, channels)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x[0], torch.from_numpy(data.inputs[3]).permute(2, 0, 1).float() / 127.5 - 1)


@pytest.mark.parametrize(("shape", "rows"), [((32, 32, 3), 128), ((64, 64, 3), 32), ((224, 224, 3), 32), ((2,), 256)])
def test_large_samples_are_computed_few_at_a_time(shape, rows):
    assert at_once(torch.zeros(1, *shape)) == rows


def test_sweep_goes_through_the_part_once():
    part = Samples.of(pictures(count=7), np.array([6, 0, 1, 2, 3]))
    batches = list(part.sweep(2))
    assert [len(y) for _, y in batches] == [2, 2, 1]
    assert torch.cat([y for _, y in batches]).tolist() == part.labels.tolist()
    assert list(Samples.of(pictures(), np.array([], dtype=np.int64)).sweep(2)) == []


def test_read_only_arrays_are_welcome(tmp_path):
    """A memory-mapped file neither warns nor is copied."""
    np.save(tmp_path / "points.npy", vectors().inputs)
    inputs = np.load(tmp_path / "points.npy", mmap_mode="r")
    part = Samples.of(Dataset("mapped", inputs, vectors().labels, ("a", "b")), np.array([1]))
    assert part.inputs.data_ptr() == inputs.ctypes.data
    assert part.batch(torch.tensor([0]))[0].tolist() == [[2, 3]]
