"""Damaged records, and files that a report must not overwrite."""

import json
import re

import pytest
from typer.testing import CliRunner

from protonorm.cli import app
from protonorm.history import read_run
from protonorm.report.page import write_page
from tests.report.pages import data, made, page, record, words


def changed(folder, name, change):
    path = folder / name
    lines = [json.loads(line) for line in path.read_text().splitlines()] if name.endswith("l") else None
    value = lines or json.loads(path.read_text())
    change(value)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) if lines else json.dumps(value))


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("metrics.jsonl", lambda v: v[1].pop("bytes"), "in line 2, expected the bytes up and down"),
        ("metrics.jsonl", lambda v: v[1]["rules"]["global"].pop("worst"), "in line 2, under rules, global, expected"),
        ("metrics.jsonl", lambda v: v[0]["rules"]["logits"]["clients"].pop(), "expected 4 accuracies of clients"),
        ("metrics.jsonl", lambda v: v[2]["prototypes"].pop("margins"), "in line 3, expected distances"),
        ("experiment.json", lambda v: v.update(rules=[]), "names of one or more prediction rules"),
        ("experiment.json", lambda v: v.pop("classes"), "it lacks classes"),
        ("experiment.json", lambda v: v["experiment"].pop("dataset"), "the name of the dataset"),
        ("experiment.json", lambda v: v["experiment"].pop("models"), "it lacks models"),
        ("experiment.json", lambda v: v["counts"].pop("test"), "under counts, test"),
        ("experiment.json", lambda v: v["majority"].pop("mean"), "under majority, expected"),
    ],
)
def test_what_a_record_lacks_is_said_by_file_and_name(tmp_path, name, change, said):
    folder = record(tmp_path / "run")
    changed(folder, name, change)
    with pytest.raises(ValueError, match=f"{re.escape(name)} is damaged: .*{said}") as refused:
        write_page([read_run(folder)], tmp_path / "page.html")
    assert "Error" not in str(refused.value)


@pytest.mark.parametrize("lost", [True, False])
def test_prototypes_that_cannot_be_read_are_told_of_and_the_others_shown(tmp_path, lost):
    folder = record(tmp_path / "run")
    path = folder / "prototypes" / "2.safetensors"
    path.unlink() if lost else path.write_bytes(b"no tensors")
    text = page([read_run(folder)], tmp_path)
    why = "not there" if lost else "damaged and could not be read"
    assert f"protonorm: Of the folder prototypes, 2.safetensors is {why}." in words(text)
    assert data(text)["spheres"][0]["rounds"] == [1, 3]


def test_a_whole_record_tells_of_nothing_lost(tmp_path):
    read = words(page([made(tmp_path / "run", rounds=120, done=70)], tmp_path))
    assert "does not show" not in read
    assert "timings.jsonl holds" not in read


def test_times_that_are_missing_are_told_beside_the_time(tmp_path):
    folder = record(tmp_path / "run")
    (folder / "timings.jsonl").write_text('{"round": 0.5}\n')
    read = words(page([read_run(folder)], tmp_path))
    assert "0.5 s timings.jsonl holds the times of 1 of 3 rounds" in read
    assert "protonorm, seed 0: timings.jsonl holds the times of 1 of 3 rounds." in read


def refused(folder, to):
    result = CliRunner().invoke(app, ["report", str(folder), "--to", str(to)])
    assert result.exit_code == 2, result.output
    return " ".join(result.stderr.split())


def test_only_a_report_is_written_over(tmp_path):
    folder = record(tmp_path / "run")
    before = (folder / "metrics.jsonl").read_bytes()
    assert "ends in .html or .htm" in refused(folder, folder / "metrics.jsonl")
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
