"""Packed files: read like plain ones, every flipped bit noticed, and no few bytes that fill the memory."""

import lzma
import random
import tracemalloc

import pytest

from protonorm.runs import packed
from protonorm.runs.packed import Blocks, pack, read_either, read_either_lines, unpack

TEXT = b"one\ntwo\nthree"


@pytest.fixture
def path(tmp_path):
    """A file that is there packed alone."""
    (tmp_path / "file.xz").write_bytes(lzma.compress(TEXT))
    return tmp_path / "file"


def test_either_form_is_read_and_the_plain_one_counts(path):
    assert read_either(path, 13) == TEXT
    assert read_either_lines(path) == [b"one\n", b"two\n"]
    assert Blocks(path).read(4, 3) == b"two"
    assert Blocks(path).read(10, 9) == b"ree"
    assert Blocks(path).path.name == "file.xz"
    path.write_bytes(b"other\n")
    assert read_either(path, 1) == b"other\n"  # the limit is for packed files
    assert read_either_lines(path) == [b"other\n"]
    assert Blocks(path).read(0, 5) == b"other"
    assert Blocks(path).path.name == "file"


def test_a_file_that_is_not_there(tmp_path):
    assert read_either(tmp_path / "none", 1) is None
    assert read_either_lines(tmp_path / "none") == []
    with pytest.raises(ValueError, match=r"none is missing\."):
        Blocks(tmp_path / "none").read(0, 1)


def test_other_programs_can_unpack_what_is_packed(tmp_path):
    """With as little memory as there is content: the second half of random bytes is found in the first."""
    content = pack(TEXT, tmp_path / "file", 13)
    assert lzma.decompress(content, lzma.FORMAT_XZ, memlimit=2**17) == TEXT
    twice = random.Random(0).randbytes(2**16) * 2
    content = pack(twice, tmp_path / "file", 2**17)
    assert lzma.decompress(content, lzma.FORMAT_XZ, memlimit=2**19) == twice
    assert len(content) < 1.01 * 2**16
    assert lzma.decompress(pack(b"", tmp_path / "file", 0)) == b""
    with pytest.raises(ValueError, match=r"file is too large to be packed: it has more than 1\.14441e-05 MiB"):
        pack(TEXT, tmp_path / "file", 12)


def test_a_bomb_is_refused_and_what_just_fits_is_not(path, monkeypatch):
    """Thirteen bytes may come out, or twelve; 64 KiB of zeros are packed in 132 bytes or so."""
    whole = path.with_name("file.xz")
    assert unpack(whole, 13) == TEXT
    with pytest.raises(ValueError, match=r"file\.xz is refused: unpacked it has more than 1\.14441e-05 MiB\."):
        unpack(whole, 12)
    whole.write_bytes(lzma.compress(bytes(2**16)))
    assert whole.stat().st_size < 200
    monkeypatch.setattr(packed, "TEXT", 2**15)
    monkeypatch.setattr(packed, "ARRAYS", 2**15)
    for read in (read_either_lines, Blocks):
        with pytest.raises(ValueError, match=r"file\.xz is refused: unpacked it has more than 0\.03125 MiB\."):
            read(path)


def test_a_bomb_does_not_fill_the_memory_before_it_is_refused(path):
    """It would become 64 MiB, and 32 KiB are let in."""
    whole = path.with_name("file.xz")
    whole.write_bytes(lzma.compress(bytes(2**26), preset=0))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="is refused"):
            unpack(whole, 2**15)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_a_file_that_asks_for_too_much_memory_to_be_unpacked_is_refused(path, monkeypatch):
    """The strongest packing of other programs asks for 64 MiB, of whatever it is."""
    path.with_name("file.xz").write_bytes(lzma.compress(TEXT, preset=9))
    assert read_either(path, 13) == TEXT
    monkeypatch.setattr(packed, "MEMORY", 2**26)
    with pytest.raises(ValueError, match=r"file\.xz is damaged: it cannot be unpacked \(Memory usage limit exceeded\)"):
        read_either(path, 13)


def test_every_flipped_bit_and_every_cut_is_noticed(path):
    whole = path.with_name("file.xz")
    content = whole.read_bytes()
    for place in range(len(content)):
        for broken in (content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :], content[:place]):
            whole.write_bytes(broken)
            with pytest.raises(ValueError, match=r"file\.xz is damaged: "):
                unpack(whole, 1000)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content + b"\0", "something stands behind its end"),
        (lambda content: content + content, "something stands behind its end"),
        (lambda content: b"", "it is cut short"),
        (lambda content: lzma.compress(TEXT, lzma.FORMAT_ALONE), r"it cannot be unpacked \(Input format not supported"),
        (lambda content: TEXT, r"it cannot be unpacked \(Input format not supported"),
    ],
)
def test_what_is_not_one_packed_file_is_refused(path, change, said):
    whole = path.with_name("file.xz")
    whole.write_bytes(change(whole.read_bytes()))
    with pytest.raises(ValueError, match=rf"file\.xz is damaged: {said}"):
        read_either(path, 13)
