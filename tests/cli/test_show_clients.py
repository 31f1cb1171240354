"""The clients of a run in `show`: who has what, how each does, and what it gains on training alone."""

import csv
import io
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from protonorm.analysis.breakdown import local_beside
from protonorm.cli import run_tables
from protonorm.cli.app import app
from protonorm.runs.layout import METRICS
from tests.records import hundred, made

NAMES = ["berlin", "paris"]
LOCAL = {"name": "local"}


def two(folder, right, **settings):
    """Make a run of two named clients with 100 samples of each part, and so many right answers in its one round."""
    parts = {"tested": [right], "validated": [[50, 50]], "population": hundred(2)}
    usual = {"clients": 2, "classes": 1, "rounds": 1, "client_names": NAMES, "networks": ("plain", "dense")}
    return made(folder, **parts | usual | settings)


@pytest.fixture
def runs(tmp_path):
    """A method with 70 and 55 right, and Local with 60 of each: +10 and −5 points."""
    two(tmp_path / "runs" / "ours", [70, 55])
    two(tmp_path / "runs" / "alone", [60, 60], method=LOCAL, rules=["logits"])
    return tmp_path / "runs"


def call(*words):
    return CliRunner().invoke(app, list(words))


def test_a_table_says_who_gains(runs):
    done = call("show", "ours")
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["berlin", "300", "1", "plain", "70.00", "60.00", "+10.00"] in lines
    assert ["paris", "300", "1", "dense", "55.00", "60.00", "−5.00"] in lines
    assert "Alone: the same client in alone" in done.stdout


def test_alone_there_is_nothing_to_gain(runs):
    shown = call("show", "alone").stdout
    assert ["berlin", "300", "1", "plain", "60.00"] in [line.split() for line in shown.splitlines()]
    assert not any("gain" in line.split() for line in shown.splitlines())


def test_json_and_csv_have_every_client(runs):
    found = json.loads(call("show", "ours", "--json").stdout)["clients"]
    assert [(one["client"], one["accuracy"], one["alone"], one["gain"]) for one in found] == [
        ("berlin", 0.7, 0.6, 0.1),
        ("paris", 0.55, 0.6, -0.05),
    ]
    assert found[0]["log_loss"] is None  # not measured: JSON has no NaN
    lines = list(csv.DictReader(io.StringIO(call("show", "--csv").stdout)))
    assert [(line["run"], line["client"], line["gain"]) for line in lines] == [
        ("alone", "berlin", ""),
        ("alone", "paris", ""),
        ("ours", "berlin", "0.1"),
        ("ours", "paris", "-0.05"),
    ]
    one = list(csv.DictReader(io.StringIO(call("show", "ours", "--csv").stdout)))
    assert [(line["network"], line["train"], line["rule"]) for line in one] == [
        ("plain", "100", "nearest-global"),
        ("dense", "100", "nearest-global"),
    ]
    assert call("show", "--csv", "--json").exit_code == 2


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"lr": 0.5},
        {"networks": ("dense", "plain")},
        {"rounds": 2, "done": 1, "tested": [[60, 60]]},
        {"rounds": 1, "tested": [[60, 60]]},
    ],
)
def test_a_run_with_other_settings_or_not_done_does_not_stand_beside(tmp_path, other):
    """The last two have too few rounds, one that is not done and one that is: ours has two."""
    settings = {"rounds": 2, "tested": [[70, 55], [70, 55]], "validated": [[50, 50]] * 2} if "rounds" in other else {}
    ours = two(tmp_path / "runs" / "ours", [70, 55], **settings)
    two(tmp_path / "runs" / "alone", [60, 60], method=LOCAL, rules=["logits"], **other)
    assert local_beside(ours) is None


def test_of_a_longer_run_alone_the_first_rounds_count(tmp_path):
    """Alone, validation would choose the second round, with 90 right; the method has one round only."""
    ours = two(tmp_path / "runs" / "ours", [70, 55])
    longer = {"rounds": 2, "tested": [[60, 60], [90, 90]], "validated": [[50, 50], [60, 60]]}
    two(tmp_path / "runs" / "alone", [], method=LOCAL, rules=["logits"], **longer)
    found = local_beside(ours)
    assert (found.chosen.record.round, found.by_client(found.chosen.record, "logits").tolist()) == (1, [0.6, 0.6])


def test_a_damaged_run_beside_it_is_passed_over(runs):
    path = runs / "alone" / METRICS
    path.write_bytes(path.read_bytes().replace(b"pooled", b"poofed"))
    shown = call("show", "ours")
    assert shown.exit_code == 0, shown.output
    assert not any("gain" in line.split() for line in shown.stdout.splitlines())


def test_of_very_many_clients_the_first_are_shown(runs, monkeypatch):
    monkeypatch.setattr(run_tables, "MOST", 1)
    shown = call("show", "ours").stdout
    assert "These are the first 1 of 2 clients; --csv and --json have all." in shown
    assert "paris" not in shown


def test_it_does_without_torch(runs):
    code = (
        "import sys; from protonorm.cli.app import app\n"
        "try:\n    app(['show', 'ours', '--out', sys.argv[1]])\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, str(runs)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "berlin" in done.stdout
