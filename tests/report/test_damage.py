"""Damaged records, and files that a report must not overwrite."""

import re

import pytest
from typer.testing import CliRunner

from protonorm.cli.app import app
from protonorm.report.page import write_page
from protonorm.runs.run import read_run
from tests.report.pages import data, made, page, record, words


def flip(path):
    """Change one byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["experiment.json", "population.safetensors", "metrics.jsonl", "evaluations.bin"])
def test_a_damaged_file_is_named_and_no_page_is_written(tmp_path, name):
    folder = record(tmp_path / "run")
    flip(folder / name)
    with pytest.raises(ValueError, match=f"{re.escape(name)} is (damaged|not)"):
        write_page([read_run(folder)], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("name", ["population.safetensors", "metrics.jsonl", "evaluations.bin"])
def test_a_lost_file_is_named(tmp_path, name):
    folder = record(tmp_path / "run")
    (folder / name).unlink()
    with pytest.raises(ValueError, match=re.escape(name)):
        write_page([read_run(folder)], tmp_path / "page.html")


@pytest.mark.parametrize("lost", [True, False])
def test_prototypes_that_cannot_be_read_are_told_of_and_the_others_shown(tmp_path, lost):
    folder = record(tmp_path / "run")
    path = folder / "prototypes" / "2.safetensors"
    path.unlink() if lost else flip(path)
    text = page([read_run(folder)], tmp_path)
    why = "missing" if lost else "damaged"
    assert f"ProtoNorm: Of the folder prototypes, 2.safetensors is {why}." in words(text)
    assert data(text)["spheres"][0]["rounds"] == [1, 3]


def test_a_whole_record_tells_of_nothing_lost(tmp_path):
    read = words(page([made(tmp_path / "run", rounds=120, done=70)], tmp_path))
    assert "does not show" not in read
    assert "timings.jsonl holds" not in read


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(path.read_bytes().splitlines(True)[0]), flip])
def test_times_that_are_missing_or_damaged_are_told_beside_the_time(tmp_path, damage):
    """Of three lines one is left, or the one in the middle is damaged."""
    folder = record(tmp_path / "run")
    damage(folder / "timings.jsonl")
    held = 2 if damage is flip else 1
    read = words(page([read_run(folder)], tmp_path))
    assert f"{0.5 * held:g} s timings.jsonl holds the times of {held} of 3 rounds" in read
    assert f"ProtoNorm, seed 0: timings.jsonl holds the times of {held} of 3 rounds." in read


def refused(folder, to):
    result = CliRunner().invoke(app, ["report", str(folder), "--to", str(to)])
    assert result.exit_code == 2, result.output
    return " ".join(result.stderr.split())


def test_only_a_report_is_written_over(tmp_path):
    folder = record(tmp_path / "run")
    before = (folder / "metrics.jsonl").read_bytes()
    assert "must end in .html or .htm" in refused(folder, folder / "metrics.jsonl")
    assert (folder / "metrics.jsonl").read_bytes() == before
    other = tmp_path / "thesis.html"
    other.write_text("<!doctype html><title>Thesis</title>")
    assert "not a report of protonorm" in refused(folder, other)
    assert "Thesis" in other.read_text()
    (tmp_path / "folder.html").mkdir()
    assert "is a folder" in refused(folder, tmp_path / "folder.html")
    assert "is a folder" in refused(folder, "")
    for _ in range(2):
        assert CliRunner().invoke(app, ["report", str(folder), "--to", str(tmp_path / "page.htm")]).exit_code == 0
