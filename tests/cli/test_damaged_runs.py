"""One damaged run never hides the others: show, compare and report go on after it; reproduce has tests of its own."""

import csv
import io
import json

import pytest
from typer.testing import CliRunner

from protonorm.analysis.comparison import Unread, rows, whole
from protonorm.cli.app import app
from protonorm.runs.run import read_whole
from tests.records import made, record
from tests.support import cases

SMALL = ["dataset=spiral", "dataset.points=60", "partition=iid", "clients=3", "rounds=2", "--engine", "serial"]


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def make_folder(path):
    path.unlink()
    path.mkdir()


DAMAGE = {
    "settings": lambda folder: flip(folder / "experiment.json"),
    "settings that are a folder": lambda folder: make_folder(folder / "experiment.json"),
    "deep settings": lambda folder: (folder / "experiment.json").write_text("[" * 100_000),
    "metrics": lambda folder: flip(folder / "metrics.jsonl"),
    "metrics that are a folder": lambda folder: make_folder(folder / "metrics.jsonl"),
    "arrays": lambda folder: flip(folder / "evaluations.bin"),
    "lost arrays": lambda folder: (folder / "evaluations.bin").unlink(),
    "population": lambda folder: flip(folder / "population.safetensors"),
    "lost population": lambda folder: (folder / "population.safetensors").unlink(),
}


@pytest.fixture
def call():
    def invoke(*words, code=0):
        result = CliRunner().invoke(app, list(map(str, words)))
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return invoke


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_show_and_report_leave_a_damaged_run_out_and_say_so(call, tmp_path, damage):
    root = tmp_path / "runs"
    whole_one, bad = record(root / "a"), record(root / "b", seed=1)
    damage(bad)
    for words in (["show"], ["show", "--json"]):
        listed = call(*words)
        assert str(bad) in listed.stderr
    assert [run["key"] for run in json.loads(listed.stdout)["runs"]] == ["a"]
    page = tmp_path / "page.html"
    told = call("report", whole_one, bad, "--to", page)
    assert str(bad) in told.stderr
    assert page.exists()
    alone = CliRunner().invoke(app, ["report", str(bad), "--to", str(tmp_path / "other.html")])
    assert alone.exit_code in (1, 2)
    assert str(bad) in alone.stderr


def test_a_report_of_damaged_runs_alone_is_refused(call, tmp_path):
    folders = [record(tmp_path / "runs" / name) for name in "ab"]
    for folder in folders:
        flip(folder / "metrics.jsonl")
    told = call("report", *folders, "--to", tmp_path / "page.html", code=2)
    assert "None of these 2 runs can be read" in told.stderr
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("damage", cases(DAMAGE, ("settings", "metrics", "lost arrays")))
def test_compare_has_a_row_for_a_damaged_run_and_shows_the_others(call, tmp_path, damage):
    call("compare", "protonorm", *SMALL)
    (bad,) = (tmp_path / "runs").glob("protonorm-*")
    damage(bad)
    shown = call("compare", "protonorm", "fedproto", *SMALL)
    assert str(bad) in shown.stderr
    assert "ProtoNorm not read: " in shown.stdout
    found = json.loads(call("compare", "protonorm", "fedproto", *SMALL, "--json").stdout)
    first, second, *_ = found["rows"]
    assert (first["method"], first["rule"], first["cells"]["best"]) == ("protonorm", "nearest-global", None)
    assert first["note"].startswith("not read: ")
    assert (second["method"], second["cells"]["best"] is not None) == ("fedproto", True)
    assert list(found["runs"]) == ["fedproto", "local"]
    assert str(bad) in found["unread"][0]
    lines = list(csv.reader(io.StringIO(call("compare", "protonorm", "fedproto", *SMALL, "--csv").stdout)))
    assert lines[1][:5] == ["protonorm", "nearest-global", "True", "", ""]


def test_a_comparison_of_damaged_runs_alone_is_refused(call, tmp_path):
    call("compare", "local", *SMALL)
    for folder in (tmp_path / "runs").glob("local-*"):
        flip(folder / "metrics.jsonl")
    assert "there is nothing to compare" in call("compare", "local", *SMALL, code=2).stderr


def test_what_is_wrong_with_the_settings_is_no_damage(call):
    for words in (["clients=100000"], ["--engine", "cloud"], ["partition=dirichlet", "partition.least=10000"]):
        refused = call("compare", "protonorm", *SMALL, *words, code=2)
        assert "not read" not in refused.output


def test_a_row_of_some_seeds_says_which_is_damaged(tmp_path):
    """Of two seeds one is damaged: the numbers are those of the other."""
    run = made(tmp_path / "run")
    table = rows(
        {"mine": [run, Unread("nearest-global", "x is damaged.")], "lost": [Unread("logits", "y is damaged.")]}
    )
    assert [(row.method, row.rule, row.note) for row in table[:3]] == [
        ("mine", "nearest-global", "1 of 2 seeds, not read: x is damaged"),
        ("mine", "logits", "1 of 2 seeds, not read: x is damaged"),
        ("lost", "logits", "not read: y is damaged"),
    ]
    assert str(table[0].cells["best"]) == "75.00"
    assert table[2].headline
    assert whole({"mine": [run], "lost": [Unread("logits", "y")]}) == {"mine": [run]}


def test_a_whole_run_is_read(tmp_path):
    assert len(read_whole(record(tmp_path / "run")).rounds) == 3
