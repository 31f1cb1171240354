"""Prepared files that are damaged or lie: a sentence, and no memory is taken for what is not there."""

import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from protonorm.data import access
from protonorm.data.own.datasets import Clients, Npz
from protonorm.data.prepared import check_arrays, has_training, open_npz, read_prepared, read_shape

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (4, 5, 5, 1), dtype=np.uint8)
LABELS = np.array([0, 1, 1, 0])


def save(path, save=np.savez, **held):
    usual = {"images": IMAGES, "labels": LABELS, "split": np.array([0, 0, 1, 1], np.uint8), "classes": ["a", "b"]}
    save(path, **{name: np.array(value) for name, value in (usual | held).items() if value is not None})
    return path


def plain(arrays):
    return arrays.images.tobytes(), arrays.labels.tolist(), arrays.split.tolist(), arrays.classes


@pytest.mark.parametrize("how", [np.savez, np.savez_compressed])
def test_a_flipped_bit_is_a_sentence_or_changes_nothing(tmp_path, how):
    """One bit of every byte; those of dates and the like mean nothing."""
    whole = save(tmp_path / "a.npz", how)
    expected, content = plain(read_prepared(whole)), whole.read_bytes()
    refused = 0
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << int(RANDOM.integers(8))
        whole.write_bytes(changed)
        try:
            assert plain(read_prepared(whole)) == expected
        except ValueError as error:
            refused += 1
            assert str(error).startswith(f"{whole} cannot be used as prepared data: ")
            assert str(error).endswith(".")
            assert "\n" not in str(error)
    assert refused > len(content) / 2


@pytest.mark.parametrize("how", [np.savez, np.savez_compressed])
def test_a_cut_file_is_a_sentence(tmp_path, how):
    whole = save(tmp_path / "a.npz", how)
    content = whole.read_bytes()
    for size in range(0, len(content), 7):
        whole.write_bytes(content[:size])
        with pytest.raises(ValueError, match="cannot be used as prepared data: it is not a whole .npz archive"):
            read_prepared(whole)


def header(shape, kind="|u1", version=b"\x01\x00"):
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + version + struct.pack("<H" if version[0] == 1 else "<I", len(text)) + text


def write_members(path, packing=zipfile.ZIP_STORED, **members):
    """Write an archive of raw members beside whole labels."""
    labels = io.BytesIO()
    np.save(labels, LABELS)
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, content in ({"labels": labels.getvalue()} | members).items():
            archive.writestr(f"{name}.npy", content)
    return path


def refuse(path, said):
    """Refuse a file, and take no more memory than a few pages for it."""
    read_prepared(save(path.with_name("whole.npz")))  # what is imported on first use is not counted
    for use in (read_prepared, read_shape):
        tracemalloc.start()
        try:
            with pytest.raises(ValueError, match=said):
                use(path)
            assert tracemalloc.get_traced_memory()[1] < 2**22
        finally:
            tracemalloc.stop()


LIES = {
    "a million million": (header((10**6, 10**3, 10**3, 1)) + bytes(50), "has 50 bytes, which do not fit"),
    "far beyond 64 bits": (header((10**30, 1, 1, 1)) + bytes(50), "has 50 bytes, which do not fit"),
    "too few": (header((2, 5, 5, 1)) + bytes(51), "has 51 bytes, which do not fit"),
    "negative": (header((-2, -5, 5, 1)) + bytes(50), "has 50 bytes, which do not fit"),
    "objects": (header((4,), "|O") + bytes(32), "objects of Python"),
    "a long header": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b" " * 10, "EOF"),
    "no array": (b"hello", "magic|EOF"),
    "no bytes": (b"", "EOF"),
    "no dict": (b"\x93NUMPY\x01\x00\x04\x00(0,)", "not a dictionary"),
    "open brackets": (b"\x93NUMPY\x01\x00\x04\x00((((", "."),
    "deep brackets": (b"\x93NUMPY\x01\x00\x00\x20" + b"[" * 0x2000, "."),
}


@pytest.mark.parametrize(("images", "said"), LIES.values(), ids=LIES)
def test_headers_that_lie(tmp_path, images, said):
    refuse(write_members(tmp_path / "a.npz", images=images), said)


def test_a_long_header_that_packs_well_is_not_unpacked(tmp_path):
    long = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**26) + b" " * 2**26
    refuse(write_members(tmp_path / "a.npz", zipfile.ZIP_DEFLATED, images=long), "EOF")


def test_sizes_that_the_directory_of_an_archive_makes_up(tmp_path):
    """The header and the directory agree on five thousand million bytes, but the file has fifty."""
    for packing in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        start = header((50_000, 1000, 100, 1))
        path = write_members(tmp_path / "a.npz", packing, images=start + bytes(50))
        size = len(start) + 50
        claimed = struct.pack("<L", (len(start) + 50_000 * 1000 * 100) % 2**32)
        content = path.read_bytes()
        at = content.rindex(b"PK\x01\x02")  # the last entry is that of the pictures
        assert content[at + 24 : at + 28] == struct.pack("<L", size)
        path.write_bytes(content[: at + 24] + claimed + content[at + 28 :])
        refuse(path, "do not fit|cannot have")


def test_pictures_beyond_the_limit_are_not_unpacked(tmp_path, monkeypatch):
    """Eight million zeros pack into a few thousand bytes; the header tells the truth, and that is enough to refuse."""
    path = save(tmp_path / "a.npz", np.savez_compressed, images=np.zeros((4, 2**11, 2**10, 1), np.uint8))
    assert path.stat().st_size < 2**14
    assert read_prepared(path).images.nbytes == 2**23
    monkeypatch.setattr(access, "LIMIT", 2**22)
    refuse(path, "images would take .* GiB, the limit is")
    with pytest.raises(ValueError, match="images would take"):
        Npz(path).load()


def test_clients_share_one_limit(tmp_path, monkeypatch):
    for client in range(3):
        save(tmp_path / f"{client}.npz")
    monkeypatch.setattr(access, "LIMIT", 250)
    with pytest.raises(ValueError, match="The pictures of 3 clients would take"):
        Clients(tmp_path).load()


def test_other_packings_and_names_that_come_twice(tmp_path):
    refuse(
        write_members(tmp_path / "a.npz", zipfile.ZIP_LZMA, images=header((4, 1, 1, 1)) + bytes(4)), "packed in a way"
    )
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("images.npy", header((4, 1, 1, 1)) + bytes(4))
        archive.writestr("images", header((4, 1, 1, 1)) + bytes(4))
    refuse(tmp_path / "b.npz", "two arrays of the same name")


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.uint32, np.int32])
def test_labels_that_are_no_classes(tmp_path, kind):
    """A date for a label would name twenty million classes."""
    labels = np.array([20240101, 20240102, 20240101, 20240102], kind)
    (tmp_path / "clients").mkdir()
    path = save(tmp_path / "clients" / "a.npz", labels=labels, classes=None)
    tracemalloc.start()
    try:
        for data in (Npz(path), Clients(path.parent)):
            with pytest.raises(ValueError, match="labels go up to 20240102, and no names of classes are given"):
                data.load()
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    with pytest.raises(ValueError, match="labels go from 20240101 to 20240102, but 2 classes are named"):
        read_prepared(save(path, labels=labels))


def test_labels_at_the_edge():
    labels = np.array([0, 9_999, 3, 3])
    assert len(check_arrays(IMAGES, labels, None, None).classes) == 10_000
    with pytest.raises(ValueError, match="labels go up to 18446744073709551615"):
        check_arrays(IMAGES, np.array([0, 2**64 - 1, 3, 3], np.uint64), None, None)
    with pytest.raises(ValueError, match="labels go from -1"):
        check_arrays(IMAGES, np.array([0, -1, 3, 3]), None, None)


def test_all_kinds_of_arrays_are_read_as_numpy_reads_them(tmp_path):
    held = {
        "columns": np.asfortranarray(RANDOM.normal(size=(3, 4))),
        "single": np.array(7.0),
        "empty": np.zeros((0, 3), np.float32),
        "text": np.array(["äöü", ""]),
        "big": RANDOM.integers(0, 256, 2**17, dtype=np.uint8),
        "other end": np.arange(5, dtype=">i4"),
    }
    for how in (np.savez, np.savez_compressed):
        how(tmp_path / "a.npz", **held)
        with open_npz(tmp_path / "a.npz") as file:
            for name, value in held.items():
                found = file.read(name)
                assert found.dtype == value.dtype
                np.testing.assert_array_equal(found, value)
                assert file.shape(name) == value.shape
            assert "none" not in file
            assert file.get("none") is None


def test_whether_there_are_training_pictures(tmp_path):
    assert has_training(save(tmp_path / "a.npz"))
    assert has_training(save(tmp_path / "a.npz", split=None))
    assert not has_training(save(tmp_path / "a.npz", split=np.ones(4, np.uint8)))


def test_a_split_of_large_numbers_does_not_become_a_training_part(tmp_path):
    found = read_prepared(save(tmp_path / "a.npz", split=np.array([0, 256, 512, 1])))
    assert (found.split > 0).tolist() == [False, True, True, True]
