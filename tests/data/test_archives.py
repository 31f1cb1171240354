"""Each official format, read from small archives in its layout; what is damaged or hostile is refused."""

import gzip
import io
import os
import pickle
import tarfile

import numpy as np
import pytest
from PIL import Image

from protonorm.core.progress import listening
from protonorm.data.prepared import read_prepared
from protonorm.data.published.prepare import prepare
from tests.data import archives


def pixels(planes):
    """Turn planes (n, 3072) into pictures (n, 32, 32, 3)."""
    return planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


@pytest.mark.parametrize("make", [archives.cifar10_binary, archives.cifar10_python])
def test_cifar10(tmp_path, make):
    path, planes, labels = make(tmp_path)
    written, arrays = prepare("cifar10", tmp_path, tmp_path / "out", checksums=archives.sums(path))
    np.testing.assert_array_equal(arrays.images, pixels(planes))
    assert arrays.labels.tolist() == labels.tolist()
    assert arrays.split.tolist() == [0] * 10 + [1] * 2
    again = read_prepared(written)
    np.testing.assert_array_equal(again.images, arrays.images)
    assert again.classes == tuple(archives.CIFAR10)
    assert (again.labels.dtype, again.images.dtype) == (np.int64, np.uint8)


@pytest.mark.parametrize("make", [archives.cifar100_binary, archives.cifar100_python])
def test_cifar100(tmp_path, make):
    path, planes, labels = make(tmp_path)
    _, arrays = prepare("cifar100", path, tmp_path / "out", checksums=archives.sums(path))  # the file itself will do
    np.testing.assert_array_equal(arrays.images, pixels(planes))
    assert arrays.labels.tolist() == labels.tolist()
    assert arrays.split.tolist() == [0, 0, 0, 1, 1]
    assert arrays.classes == tuple(archives.FINE)


def test_flowers(tmp_path):
    paths = archives.flowers(tmp_path)
    _, arrays = prepare("flowers102", tmp_path, tmp_path / "out", checksums=archives.sums(*paths))
    assert arrays.images.shape == (6, 64, 64, 3)
    assert arrays.labels.tolist() == [0, 101, 4, 0, 4, 4]
    assert arrays.split.tolist() == [0, 0, 1, 2, 2, 2]
    assert arrays.classes[0] == "pink primrose"
    assert len(set(arrays.classes)) == 102


def test_tiny_imagenet(tmp_path):
    path = archives.tiny(tmp_path)
    _, arrays = prepare("tinyimagenet", tmp_path, tmp_path / "out", checksums=archives.sums(path))
    assert arrays.images.shape == (7, 64, 64, 3)
    assert arrays.labels.tolist() == [0, 0, 1, 1, 1, 0, 1]
    assert arrays.split.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert arrays.classes == ("goldfish, Carassius auratus", "acorn")
    assert (arrays.images[-1, ..., 0] == arrays.images[-1, ..., 1]).all()  # the grey one


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("plain", [False, True])
def test_idx(tmp_path, name, plain):
    paths, pictures = archives.digits(tmp_path)
    sums = archives.content_sums(*paths)
    for path in paths if plain else []:
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    _, arrays = prepare(name, tmp_path, tmp_path / "out", checksums=sums)
    np.testing.assert_array_equal(arrays.images[..., 0], pictures)
    assert arrays.labels.tolist() == [3, 1, 4, 1, 5, 9]
    assert arrays.split.tolist() == [0, 0, 0, 0, 1, 1]
    assert len(arrays.classes) == 10


class Harmful:
    """Run a command when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_a_command_is_refused_and_nothing_is_written(tmp_path, protocol):
    mark = tmp_path / "mark"
    path, *_ = archives.cifar10_python(tmp_path, pickle.dumps({"data": Harmful(mark)}, protocol))
    with pytest.raises(
        ValueError, match=r"data_batch_1 must hold plain data only, but it asks for \w+\.system; nothing was executed"
    ):
        prepare("cifar10", tmp_path, tmp_path / "out", checksums=archives.sums(path))
    assert not mark.exists()
    assert not (tmp_path / "out").exists()


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


MAKERS = {
    "cifar10": lambda folder: [archives.cifar10_binary(folder)[0]],
    "cifar100": lambda folder: [archives.cifar100_python(folder)[0]],
    "flowers102": archives.flowers,
    "tinyimagenet": lambda folder: [archives.tiny(folder)],
    "mnist": lambda folder: archives.digits(folder)[0],
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_wrong_checksum_is_refused_and_nothing_is_written(tmp_path, name):
    MAKERS[name](tmp_path)
    with pytest.raises(ValueError, match="is not the official file, or it is incomplete: its md5 is"):
        prepare(name, tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert prepare(name, tmp_path, tmp_path / "out", checked=False)[0].exists()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("file", [0, -1])
def test_a_truncated_file_is_refused_even_unchecked(tmp_path, name, file):
    cut(MAKERS[name](tmp_path)[file])
    with pytest.raises(ValueError, match="damaged|incomplete|missing"):
        prepare(name, tmp_path, tmp_path / "out", checked=False)
    assert not (tmp_path / "out").exists()


def test_archives_that_lack_something(tmp_path):
    archives.tar(tmp_path / "cifar-10-binary.tar.gz", {"cifar-10-batches-bin/test_batch.bin": b"x"})
    with pytest.raises(ValueError, match="lacks data_batch_1.bin"):
        prepare("cifar10", tmp_path, tmp_path / "out", checked=False)
    with pytest.raises(ValueError, match="does not hold tiny-imagenet-200.zip"):
        prepare("tinyimagenet", tmp_path, tmp_path / "out")
    with pytest.raises(ValueError, match="no folder"):
        prepare("tinyimagenet", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="did you mean 'cifar10'"):
        prepare("cifar1", tmp_path)
    archives.flowers(tmp_path, photographs=4)
    with pytest.raises(ValueError, match="2 of 6 photographs are missing"):
        prepare("flowers102", tmp_path, tmp_path / "out", checked=False)


def test_members_that_point_elsewhere_are_left_alone(tmp_path):
    """Names that lead out of the folder are never used as paths, and links are not followed."""
    path, *_ = archives.cifar10_binary(tmp_path)
    with tarfile.open(path) as archive:
        members = {one.name: archive.extractfile(one).read() for one in archive}
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {"../../escaped": b"x", f"{tmp_path}/escaped": b"x", **members}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    before = {one.name for one in tmp_path.iterdir()}
    _, arrays = prepare("cifar10", tmp_path, tmp_path / "out", checked=False)
    assert len(arrays.labels) == 12
    assert {one.name for one in tmp_path.iterdir()} - before == {"out"}
    assert not (tmp_path.parent.parent / "escaped").exists()


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    archives.digits(tmp_path)
    prepare("mnist", tmp_path, tmp_path / "out", checked=False)
    before = (tmp_path / "out" / "mnist.npz").read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("protonorm.data.prepared.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        prepare("mnist", tmp_path, tmp_path / "out", checked=False)
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["mnist.npz"]
    assert (tmp_path / "out" / "mnist.npz").read_bytes() == before


def test_flowers_are_resized_bilinearly(tmp_path):
    path = archives.flowers(tmp_path)[0]

    with tarfile.open(path) as archive:
        content = archive.extractfile("jpg/image_00003.jpg").read()
    _, arrays = prepare("flowers102", tmp_path, tmp_path / "out", checked=False)
    with Image.open(io.BytesIO(content)) as picture:
        expected = np.asarray(picture.resize((64, 64), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(arrays.images[2], expected)


@pytest.mark.parametrize(
    "header", [b"", b"\x00\x00\x08\x03\x00", bytes([0, 0, 8, 3]) + b"\xff" * 12, bytes([0, 0, 9, 3])]
)
def test_idx_files_that_are_none(tmp_path, header):
    """Nothing, half a size, sizes of 2⁹⁶ bytes in all, another type."""
    archives.digits(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(header)
    with pytest.raises(ValueError, match="train-images-idx3-ubyte.gz is damaged"):
        prepare("mnist", tmp_path, tmp_path / "out", checked=False)


def test_what_is_being_done_is_reported(tmp_path):
    """Six batches and the names are read; the file is checked and written whole."""
    path, *_ = archives.cifar10_binary(tmp_path)
    events = []
    with listening(lambda *event: events.append(event)):
        prepare("cifar10", tmp_path, tmp_path / "out", checksums=archives.sums(path))
    size = path.stat().st_size
    assert events[0] == (f"Checking {path.name}", size, size)
    assert events[1:-2] == [(f"Reading {path.name}", done, 7) for done in range(1, 8)]
    assert events[-2:] == [("Writing cifar10.npz", 0, 1), ("Writing cifar10.npz", 1, 1)]


def no_list(batch):
    return batch | {"labels": "01"}


def no_numbers(batch):
    return batch | {"labels": ["0", "1"]}


def wrong_count(batch):
    return batch | {"labels": [0]}


def wrong_width(batch):
    return batch | {"data": batch["data"][:, :3071]}


def no_labels(batch):
    return {"data": batch["data"]}


def no_pixels(batch):
    return batch | {"data": [0, 1]}


@pytest.mark.parametrize("damage", [no_list, no_numbers, wrong_count, wrong_width, no_labels, no_pixels])
def test_pickles_of_other_data(tmp_path, damage):
    batch = damage({"labels": [0, 1], "data": archives.planes(2)})
    archives.cifar10_python(tmp_path, archives.python2_pickle(batch))
    with pytest.raises(ValueError, match="data_batch_1 does not hold pictures and their labels"):
        prepare("cifar10", tmp_path, tmp_path / "out", checked=False)


def test_labels_without_a_name(tmp_path):
    archives.cifar10_python(tmp_path, archives.python2_pickle({"labels": [0, 10], "data": archives.planes(2)}))
    with pytest.raises(ValueError, match="The labels go from 0 to 10, but 10 classes are named"):
        prepare("cifar10", tmp_path, tmp_path / "out", checked=False)
