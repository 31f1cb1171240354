"""Files that are there whole or not at all, whatever lies beside them."""

import os
import re

import pytest

from protonorm import files


def test_no_planted_file_or_link_is_opened_for_writing(tmp_path, monkeypatch):
    """Whoever knows the name beside the place could have a link there; the name that was drawn is not used twice."""
    victim, path = tmp_path / "victim", tmp_path / "record"
    victim.write_text("precious")
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "0" * 2 * size)
    planted = tmp_path / f".record.{'0' * 16}"
    planted.symlink_to(victim)
    with pytest.raises(FileExistsError):
        files.replace(path, b"new")
    assert victim.read_text() == "precious"
    monkeypatch.undo()
    (tmp_path / f".record.{os.getpid()}").symlink_to(victim)  # what could be guessed
    files.replace(path, b"new")
    assert (path.read_bytes(), victim.read_text()) == (b"new", "precious")
    assert not path.is_symlink()


def test_names_beside_a_place_cannot_be_guessed(tmp_path, monkeypatch):
    seen, usual = [], os.replace
    monkeypatch.setattr(os, "replace", lambda source, target: seen.append(source.name) or usual(source, target))
    for _ in range(2):
        files.replace(tmp_path / "record", b"new")
    assert len(set(seen)) == 2
    assert all(re.fullmatch(rf"\.record{files.TEMPORARY}", name) for name in seen)


@pytest.mark.parametrize("write", [files.replace, files.append])
def test_a_full_disk_names_the_file_and_where_it_is(tmp_path, monkeypatch, write):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match=f"No space left on device: {tmp_path}/record could not be written. Make space on"
    ):
        write(tmp_path / "record", b"new")


def test_other_errors_stay_as_they_are(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.replace(tmp_path / "nowhere" / "record", b"new")
