"""Pictures that cannot be used are named all at once, or left out; what else lies about is counted."""

import os
import re
import warnings

import numpy as np
import pytest
from PIL import Image

import protonorm as pn
from protonorm.core.progress import listening
from protonorm.data.own.datasets import Clients, Folder
from protonorm.data.own.folders import count_left_out, pictures_in
from protonorm.data.pictures import LISTED, describe_errors, read_usable


def draw(path, value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(path)


def cut(path):
    """Write a picture whose header is whole and whose pixels are not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:3000])


@pytest.fixture
def pets(tmp_path):
    """Three good pictures of each class, of values 1 to 3; and three that are bad, each in another way."""
    for kind in ("cat", "dog"):
        for number in (1, 2, 3):
            draw(tmp_path / "pets" / kind / f"{number}.png", number)
    (tmp_path / "pets" / "cat" / "0.png").write_text("hello")
    cut(tmp_path / "pets" / "dog" / "2b.png")
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(tmp_path / "pets" / "dog" / "9.png")
    return tmp_path / "pets"


def test_all_bad_pictures_are_named_at_once(pets):
    with pytest.raises(ValueError, match="^3 of 9 pictures cannot be used:\n") as refused:
        Folder(pets, size=8).load()
    _, *listed, advice = str(refused.value).split("\n")
    assert advice == "--skip-bad, or dataset.skip_bad=true, goes on without them."
    assert len(listed) == 3
    assert f"{pets / 'cat' / '0.png'} is not a picture" in listed[0]
    assert f"{pets / 'dog' / '2b.png'} cannot be read" in listed[1]
    assert "its pixels have more than eight bits" in listed[2]


def test_damaged_pixels_alone_are_refused_too(pets):
    for bad in (pets / "cat" / "0.png", pets / "dog" / "9.png"):
        bad.unlink()
    with pytest.raises(ValueError, match=r"^1 of 7 pictures cannot be used:\n.*2b\.png cannot be read"):
        Folder(pets, size=8).load()


def test_they_are_left_out_if_that_is_wanted(pets):
    with pytest.warns(UserWarning, match=r"3 of 9 pictures cannot be used:\n(.*\n)+The other 6 are used") as told:
        data = Folder(pets, size=8, skip_bad=True).load()
    assert len(told) == 1
    assert data.inputs[:, 0, 0, 0].tolist() == [1, 2, 3, 1, 2, 3]
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the copy is opened, and what was left out has been said
        again = Folder(pets, size=8, skip_bad=True)
        assert len(again.load().labels) == 6
    with pytest.raises(ValueError, match="3 of 9 pictures"):  # the copy is not that of all pictures
        Folder(pets, size=8).load()


def test_the_key_is_that_of_the_good_pictures(pets):
    with pytest.warns(UserWarning, match="3 of 9"):
        about = Folder(pets, size=8, skip_bad=True).description()
    for bad in ("cat/0.png", "dog/2b.png", "dog/9.png"):
        (pets / bad).unlink()
    assert Folder(pets, size=8).description() == about
    settings = {"dataset": {"name": "folder", "path": str(pets), "size": 8}, "clients": 2}
    skipping = settings | {"dataset": settings["dataset"] | {"skip_bad": True}}
    assert pn.Experiment.of(skipping).key == pn.Experiment.of(settings).key


def test_a_bad_picture_that_is_mended_is_read(pets):
    with pytest.warns(UserWarning, match="3 of 9"):
        Folder(pets, size=8, skip_bad=True).load()
    draw(pets / "cat" / "0.png", 7)
    with pytest.warns(UserWarning, match="2 of 9"):
        assert Folder(pets, size=8, skip_bad=True).load().inputs[0, 0, 0, 0] == 7


@pytest.mark.skipif(os.name != "posix", reason="pipes are those of POSIX")
def test_what_is_no_file_is_left_out_with_the_others(pets):
    os.mkfifo(pets / "cat" / "4.png")
    with pytest.raises(ValueError, match=r"^4 of 10 pictures(.*\n)+.*is a pipe, not a file; it was not opened"):
        Folder(pets, size=8).load()
    with pytest.warns(UserWarning, match="4 of 10"):
        assert len(Folder(pets, size=8, skip_bad=True).load().labels) == 6


def test_something_must_be_left(tmp_path):
    for kind in ("a", "b"):
        (tmp_path / "set" / kind).mkdir(parents=True)
        (tmp_path / "set" / kind / "1.png").write_text("")
    with pytest.raises(ValueError, match=r"^2 of 2 pictures(.*\n)+No picture is left\."):
        Folder(tmp_path / "set", skip_bad=True).load()
    draw(tmp_path / "set" / "a" / "2.png")
    with pytest.warns(UserWarning, match="2 of 3"), pytest.raises(ValueError, match=r"one class only \(a\)"):
        Folder(tmp_path / "set", skip_bad=True).load()


def test_every_client_must_have_one(tmp_path):
    for owner, kind in (("north", "a"), ("north", "b"), ("south", "a")):
        draw(tmp_path / "set" / owner / kind / "1.png")
    cut(tmp_path / "set" / "north" / "a" / "2.png")
    with pytest.raises(ValueError, match=r"1 of 4 pictures(.*\n)+--skip-bad, or dataset\.skip_bad"):
        Clients(tmp_path / "set", size=8).load()
    with pytest.warns(UserWarning, match="1 of 4"):
        data = Clients(tmp_path / "set", size=8, skip_bad=True).load()
    assert data.owner.tolist() == [0, 0, 1]
    cut(tmp_path / "set" / "south" / "a" / "1.png")
    with pytest.raises(ValueError, match=r"No picture is left of the client that .*south"):
        Clients(tmp_path / "set", size=8, skip_bad=True).load()


def test_skipping_is_for_picture_files(tmp_path):
    (tmp_path / "set").mkdir()
    np.savez(tmp_path / "set" / "a.npz", images=np.zeros((2, 8, 8, 1), np.uint8), labels=np.array([0, 1]))
    with pytest.raises(ValueError, match=r"dataset\.skip_bad is for picture files"):
        Clients(tmp_path / "set", skip_bad=True).load()


def test_what_is_left_out_is_counted_by_kind(tmp_path):
    root = tmp_path / "set"
    for kind in ("a", "b"):
        draw(root / kind / "1.png")
    for name in ("a/.DS_Store", "b/.hidden.png", "a/x.HEIC", "a/y.heic", "b/notes.txt", "LICENCE", "loose.png"):
        (root / name).write_text("")
    draw(root / "a" / "deeper" / "2.png")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("")  # in a hidden folder: counted with it
    taken = {root / "a" / "1.png", root / "b" / "1.png"}
    elsewhere = "pictures that are not in a class folder"
    assert count_left_out(root, taken) == {"hidden": 3, ".heic": 2, ".txt": 1, "without an ending": 1, elsewhere: 2}
    with pytest.warns(
        UserWarning, match=r"2 pictures were found; left out: 2 \.heic, 1 \.txt, 3 hidden, 2 pictures that"
    ):
        Folder(root).load()


def test_a_clean_folder_is_read_without_a_word_and_with_progress(tmp_path):
    for kind in ("a", "b"):
        draw(tmp_path / "set" / kind / "1.png")
    events = []
    with listening(lambda *event: events.append(event)):
        assert len(Folder(tmp_path / "set").load().labels) == 2
    assert events[-1] == ("Reading pictures", 2, 2)


def test_pictures_in_folders_inside(tmp_path):
    for name in ("10.png", "9.png", "in/1.png", ".no/1.png"):
        draw(tmp_path / "set" / name)
    (tmp_path / "set" / "circle").symlink_to(tmp_path / "set")
    assert [str(path.relative_to(tmp_path / "set")) for path in pictures_in(tmp_path / "set")] == [
        "9.png", "10.png", "in/1.png",
    ]  # fmt: skip


def test_reading_what_can_be_read(pets):
    paths = [pets / "cat" / "0.png", pets / "cat" / "1.png", pets / "cat" / "none.png", pets / "cat" / "3.png"]
    images, bad = read_usable(paths, (4, 4), 1)
    assert images[:, 0, 0, 0].tolist() == [1, 3]
    assert sorted(bad) == [0, 2]
    listed = r"2 of 4 pictures cannot be used:\n.*0\.png is not a picture.*\nThere is no picture"
    assert re.match(listed, describe_errors(bad, len(paths)))


def test_a_long_list_ends():
    text = describe_errors({number: f"{number} is bad." for number in range(LISTED + 7)}, 100)
    assert text.startswith("57 of 100 pictures")
    assert text.endswith("\nand 7 more.")
    assert len(text.split("\n")) == LISTED + 2
