"""Mapped copies: checked when they are opened, made again when damaged, private, and nothing else is removed."""

import os
import shutil
import stat
import subprocess
import sys
import warnings

import numpy as np
import pytest

from protonorm.core.progress import listening
from protonorm.data import mapped
from protonorm.data.prepared import Arrays, write_prepared
from protonorm.data.published.datasets import CIFAR10
from protonorm.files import read_json, sealed

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)


def arrays(count=6):
    return Arrays(IMAGES[:count], np.arange(count) % 2, np.zeros(count, np.int8), ("cat", "dog"))


def opened(root):
    """Open as a new process would."""
    mapped.open_mapped.cache_clear()
    return CIFAR10(root=root).load()


@pytest.fixture(autouse=True)
def _forgetful():
    yield
    mapped.open_mapped.cache_clear()


@pytest.fixture
def copy(tmp_path):
    """A whole copy of six pictures."""
    write_prepared(tmp_path / "cifar10.npz", arrays())
    opened(tmp_path)
    (found,) = (tmp_path / "mapped").iterdir()
    return found


def is_same(data):
    np.testing.assert_array_equal(data.inputs, IMAGES)
    return data.labels.tolist() == [0, 1, 0, 1, 0, 1] and data.classes == ("cat", "dog")


def flip(path, place, bit):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["images.npy", "rest.npz", "about.json"])
def test_a_flipped_bit_anywhere_is_noticed_and_the_copy_made_again(tmp_path, copy, name):
    """Three dozen places of each file, in its first and its last bytes too; the warning names the file."""
    size = (copy / name).stat().st_size
    for place in sorted({0, size - 1, *RANDOM.integers(0, size, 34).tolist()}):
        flip(copy / name, place, int(RANDOM.integers(8)))
        with pytest.warns(UserWarning, match="has been made again") as told:
            data = opened(tmp_path)
        (warning,) = told
        assert str(copy / name) in str(warning.message)
        assert is_same(data)
        assert isinstance(data.inputs, np.memmap)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_same(opened(tmp_path))


def only_files(copy):
    return {"files": read_json(copy / "about.json")["files"]}


DAMAGES = {
    "no images": lambda copy: (copy / "images.npy").unlink(),
    "no rest": lambda copy: (copy / "rest.npz").unlink(),
    "no about": lambda copy: (copy / "about.json").unlink(),
    "images cut": lambda copy: os.truncate(copy / "images.npy", 300),
    "rest cut": lambda copy: os.truncate(copy / "rest.npz", 0),
    "about cut": lambda copy: os.truncate(copy / "about.json", 20),
    "images longer": lambda copy: (copy / "images.npy").open("ab").write(b"x"),
    "nothing": lambda copy: [one.unlink() for one in copy.iterdir()],
    "a pipe": lambda copy: [(copy / "images.npy").unlink(), os.mkfifo(copy / "images.npy")],
    "about is a list": lambda copy: (copy / "about.json").write_text("[]"),
    "about tells of no files": lambda copy: (copy / "about.json").write_bytes(sealed({"files": 3}, pretty=True)),
    "about tells of no pictures": lambda copy: (copy / "about.json").write_bytes(sealed(only_files(copy), pretty=True)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_missing_and_cut_files(tmp_path, copy, damage):
    damage(copy)
    with pytest.warns(UserWarning, match="has been made again from its source"):
        assert is_same(opened(tmp_path))
    assert sorted(one.name for one in copy.iterdir()) == ["about.json", "images.npy", "rest.npz"]
    assert is_same(opened(tmp_path))


def test_the_facts_in_a_key_are_those_of_the_pictures_alone(tmp_path, copy):
    assert set(CIFAR10(root=tmp_path).description()) == {"name", "samples", "size", "sha256"}


def test_a_damaged_copy_of_a_damaged_source(tmp_path, copy):
    """The source has the size and time it had, so that it counts as the same version."""
    source = tmp_path / "cifar10.npz"
    before = source.stat()
    flip(source, 400, 0)
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert is_same(opened(tmp_path))  # the copy is whole
    flip(copy / "images.npy", 200, 3)
    with pytest.raises(ValueError, match=r"images.npy is damaged: .* Bring the source back .* remove") as error:
        opened(tmp_path)
    assert str(source) in str(error.value)
    assert (copy / "images.npy").exists()


def test_a_missing_source_is_said(tmp_path, copy):
    flip(copy / "images.npy", 200, 3)
    (tmp_path / "cifar10.npz").unlink()
    with pytest.raises(ValueError, match="There is no cifar10.npz .* `protonorm data list` says what to do"):
        opened(tmp_path)


def test_the_check_of_large_files_is_told(tmp_path, copy, monkeypatch):
    events = []
    with listening(lambda *event: events.append(event)):
        opened(tmp_path)
        assert events == []
        monkeypatch.setattr(mapped, "LARGE", 1000)
        opened(tmp_path)
    size = (copy / "images.npy").stat().st_size
    assert events[0] == (f"Checking {copy.name}", size, size)


def modes(root):
    return {str(path.relative_to(root)): stat.S_IMODE(path.lstat().st_mode) for path in root.rglob("*")}


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_only_the_owner_can_read_what_is_made(tmp_path):
    before = os.umask(0)
    try:
        write_prepared(tmp_path / "a" / "b" / "cifar10.npz", arrays())
        opened(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    found = modes(tmp_path)
    assert len(found) == 8
    assert {mode for path, mode in found.items() if (tmp_path / path).is_dir()} == {0o700}
    assert {mode for path, mode in found.items() if not (tmp_path / path).is_dir()} == {0o600}


KILLED = """
import os, sys
from pathlib import Path
import numpy as np
from protonorm import files
from protonorm.data.published.datasets import CIFAR10

moment = {"images": (np, "save"), "rest": (np, "savez"), "about": (files, "replace"), "move": (os, "replace")}
module, name = moment[sys.argv[2]]
usual = getattr(module, name)

def die(*arguments, **settings):
    if sys.argv[2] == "about" or (sys.argv[2] == "move" and Path(arguments[0]).is_dir()):
        os.kill(os.getpid(), 9)
    usual(*arguments, **settings)
    if sys.argv[2] in ("images", "rest"):
        os.kill(os.getpid(), 9)

setattr(module, name, die)
CIFAR10(root=sys.argv[1]).load()
"""


@pytest.mark.parametrize("moment", ["images", "rest", "about", "move"])
def test_what_a_killed_process_left_is_removed(tmp_path, moment, monkeypatch):
    write_prepared(tmp_path / "cifar10.npz", arrays())
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), moment], check=False)
    assert ended.returncode == -9
    (left,) = (tmp_path / "mapped").iterdir()
    assert left.name.startswith(".cifar10-")
    monkeypatch.setattr("protonorm.files.YOUNG", -1.0)  # as if it had been a while ago
    assert is_same(opened(tmp_path))
    (copy,) = (tmp_path / "mapped").iterdir()
    assert not copy.name.startswith(".")


def test_unfinished_copies_go_although_the_copy_is_there(tmp_path, copy):
    """Also those of other data; a hidden folder of somebody else stays, however old it is."""
    unfinished, foreign = copy.parent / ".other-123-abcd1234", copy.parent / ".mine-2020"
    for folder, name in ((unfinished, "lock"), (unfinished, "images.npy"), (foreign, "lock"), (foreign, "diary")):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("")
    opened(tmp_path)
    assert sorted(one.name for one in copy.parent.iterdir()) == [".mine-2020", copy.name]


def test_only_our_own_copies_are_removed(tmp_path, copy):
    """Folders with such names that are not ours, a link to one that is, and other files in an older copy of ours."""
    place = copy.parent
    (place / "cifar10-0123456789").mkdir()
    (place / "cifar10-0123456789" / "thesis.tex").write_text("years of work")
    (place / "cifar10-aaaaaaaaaa").mkdir()
    (place / "cifar10-aaaaaaaaaa" / "about.json").write_text('{"name": "something else"}')
    shutil.copytree(copy, tmp_path / "kept")
    (place / "cifar10-bbbbbbbbbb").symlink_to(tmp_path / "kept")
    shutil.copytree(copy, place / "cifar10-cccccccccc")
    (place / "cifar10-cccccccccc" / "notes.txt").write_text("mine")
    shutil.copytree(copy, place / "cifar10-dddddddddd")
    (place / "cifar10-eeeeeeeeee").write_text("a file")
    write_prepared(tmp_path / "cifar10.npz", arrays(4))
    assert len(opened(tmp_path).labels) == 4
    names = {one.name for one in place.iterdir()}
    assert copy.name not in names
    assert "cifar10-dddddddddd" not in names
    assert (place / "cifar10-0123456789" / "thesis.tex").read_text() == "years of work"
    assert (place / "cifar10-aaaaaaaaaa" / "about.json").exists()
    assert (place / "cifar10-bbbbbbbbbb").is_symlink()
    assert len(list((tmp_path / "kept").iterdir())) == 3
    assert [one.name for one in (place / "cifar10-cccccccccc").iterdir()] == ["notes.txt"]
    assert (place / "cifar10-eeeeeeeeee").read_text() == "a file"


def test_a_damaged_copy_with_other_files_in_it(tmp_path, copy):
    """What is not ours stays, and the pictures stay in memory."""
    (copy / "thesis.tex").write_text("years of work")
    flip(copy / "images.npy", 200, 3)
    with pytest.warns(UserWarning, match="stay in memory"):
        data = opened(tmp_path)
    assert is_same(data)
    assert (copy / "thesis.tex").read_text() == "years of work"


def test_something_else_in_the_place_of_a_copy(tmp_path, copy):
    shutil.rmtree(copy)
    copy.symlink_to(tmp_path)
    with pytest.warns(UserWarning, match="stay in memory"):
        assert is_same(opened(tmp_path))
    assert copy.is_symlink()
    copy.unlink()
    copy.write_text("a file")
    with pytest.warns(UserWarning, match="stay in memory"):
        assert is_same(opened(tmp_path))
    assert copy.read_text() == "a file"


def test_two_processes_make_the_same_copy(tmp_path, monkeypatch):
    """The slower one finds the faster one's copy in the place, and takes it."""
    write_prepared(tmp_path / "cifar10.npz", arrays())
    usual = os.replace

    def slower(source, target):
        if os.path.isdir(source):
            shutil.copytree(source, target)
        usual(source, target)

    monkeypatch.setattr(os, "replace", slower)
    assert is_same(opened(tmp_path))
    (copy,) = (tmp_path / "mapped").iterdir()
    assert read_json(copy / "about.json")["samples"] == 6
