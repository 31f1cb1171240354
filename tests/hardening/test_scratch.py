"""Temporary folders: what killed processes left is removed, and nothing that only looks like it."""

import os

import pytest
from filelock import FileLock, Timeout

from protonorm.files import LOCK, TRIES, Scratch, remove_abandoned

KEPT = {  # what is in a folder that is not ours, by its name
    "protonorm-spiral-seed0-c059c872cc": ("lock", "experiment.json"),  # a run, with its lock
    "protonorm-fashion": ("lock", "thesis.tex"),
    "protonorm-pictures": ("cat.png",),  # eight letters, and no lock
    "protonorm-": ("lock",),
    "protonorm": ("lock",),
    "my-protonorm-abcd1234": ("lock",),
    "protonorm-ABCD1234": ("lock",),
}


@pytest.fixture
def place(tmp_path):
    for name, files in KEPT.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_text("mine")
        os.utime(tmp_path / name, (0, 0))
    return tmp_path


def test_folders_of_others_stay_however_old_they_are(place):
    (place / "protonorm-abcd1234").mkdir()
    (place / "protonorm-abcd1234" / "lock").touch()
    (place / "protonorm-abcd1234" / "inputs.npy").write_bytes(b"private")
    (place / "protonorm-12345678").mkdir()  # of a process that was killed before it had a lock
    os.utime(place / "protonorm-12345678", (0, 0))
    with Scratch(place) as scratch:
        assert {path.name for path in place.iterdir()} == {*KEPT, scratch.folder.name}
    assert {path.name for path in place.iterdir()} == set(KEPT)
    assert all((place / name / file).read_text() == "mine" for name, files in KEPT.items() for file in files)


def test_the_folder_of_a_living_process_stays(place):
    with Scratch(place) as one, Scratch(place) as two:
        remove_abandoned(place, "protonorm-")
        assert one.folder.exists()
        assert two.folder.exists()


def test_whoever_has_looked_into_a_folder_may_have_it_removed_without_a_lock(place):
    remove_abandoned(place, "protonorm-pictures")
    assert not (place / "protonorm-pictures").exists()


@pytest.mark.parametrize("often", [1, TRIES - 1])
def test_a_folder_whose_lock_somebody_holds_for_a_moment_is_replaced_by_another(tmp_path, monkeypatch, often):
    """Who removes abandoned folders tries their locks, perhaps just before their owner does."""
    real, refused = FileLock.acquire, []

    def acquire(self, timeout=None, **options):
        if len(refused) < often:
            refused.append(self.lock_file)
            raise Timeout(self.lock_file)
        return real(self, timeout=timeout, **options)

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with Scratch(tmp_path) as made:
        assert len(refused) == often
        assert str(made.folder / LOCK) not in refused
        assert (made.folder / LOCK).exists()


def test_a_lock_that_is_never_to_be_had_is_told(tmp_path, monkeypatch):
    def acquire(self, timeout=None, **options):
        raise Timeout(self.lock_file)

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with pytest.raises(Timeout):
        Scratch(tmp_path)
