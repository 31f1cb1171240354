import builtins
import json

import pytest
from typer.testing import CliRunner

from protonorm.cli.app import app
from protonorm.search import tuning
from tests.cli.commands import imported
from tests.search.grids import SPIRAL

WORDS = [*SPIRAL, "fedproto", "lam=0.1..10:log", "lr=0.01..0.1:log"]


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_search_shows_its_trials_and_tests_the_best_with_fresh_seeds(tmp_path):
    pytest.importorskip("optuna")
    words = [*WORDS, "--trials", "4", "--repeat", "2", "--engine", "serial", "--out", tmp_path]
    shown = call("tune", *words)
    assert shown.exit_code == 0, shown.stderr
    assert "The test parts were not read." in " ".join(shown.stdout.split())
    assert "trial 3: algorithm.lam=" in shown.stderr
    assert "seeds=1,2" in shown.stdout
    tested = [path for path in tmp_path.iterdir() if (path / "experiment.json").exists()]
    assert len(tested) == 2
    assert all("-seed1-" in path.name or "-seed2-" in path.name for path in tested)
    found = json.loads(call("tune", *words, "--json").stdout)
    assert len(found["trials"]) == 4
    assert {run["key"] for run in found["runs"]} == {path.name for path in tested}
    assert found["command"].startswith("protonorm compare fedproto:lam=")
    listed = call("show", "--out", found["folder"])  # runs without test numbers are shown like others
    assert listed.exit_code == 0
    assert len([line for line in listed.stdout.splitlines() if "-seed0-" in line]) == 4
    one = call("show", found["trials"][0]["key"], "--out", found["folder"])
    assert one.exit_code == 0, one.stderr


def test_a_fresh_seed_that_diverges_hides_nothing(tmp_path, monkeypatch):
    """The first of two fresh seeds diverges: trials and command are shown before, and the other one has its row."""
    pytest.importorskip("optuna")
    real = tuning.run

    def broken(experiment, **options):
        if experiment.seed == 1:
            key, experiment = experiment.key, experiment.model_copy(update={"lr": 1e12})
            experiment.__dict__["key"] = key  # in the folder of the same key
        return real(experiment, **options)

    monkeypatch.setattr(tuning, "run", broken)
    words = [*WORDS, "--trials", "2", "--repeat", "2", "--engine", "serial", "--out", tmp_path]
    shown = call("tune", *words)
    assert shown.exit_code == 0, shown.stderr
    assert "A smaller lr, λ or γ may help" in shown.stderr
    trials, command, fresh = (shown.stdout.index(text) for text in ("Trials", "protonorm compare", "The best settings"))
    assert trials < command < fresh
    assert "seeds=1,2" in shown.stdout
    found = json.loads(call("tune", *words, "--json").stdout)
    assert [run["failure"] is None for run in found["runs"]] == [False, True]
    assert found["unread"] == []


def test_without_optuna_a_sentence_says_what_to_install(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *more, **options):
        if name.partition(".")[0] == "optuna":
            raise ImportError(name)
        return real(name, *more, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    refused = call("tune", *WORDS, "--out", tmp_path / "runs")
    assert refused.exit_code == 2
    assert "pip install '.[tune]' in a checkout" in refused.stderr
    assert not (tmp_path / "runs").exists()


def test_bad_words_are_refused_before_anything_is_run(tmp_path):
    pytest.importorskip("optuna")
    for words in ([], ["lam=2..1"], ["lam=1..2", "local"], ["lam=1..2", "validation=0"], ["lam=0..1", "rounds=1..2"]):
        refused = call("tune", *SPIRAL, "fedproto", *words, "--out", tmp_path / "runs")
        assert refused.exit_code == 2
        assert refused.stderr.startswith("protonorm: ")
    assert not (tmp_path / "runs").exists()


def test_nothing_to_choose_is_an_error(tmp_path):
    pytest.importorskip("optuna")
    words = [*SPIRAL, "fedproto", "lr=1.0e+11..1.0e+12:log", "--trials", "1", "--engine", "serial"]
    failed = call("tune", *words, "--out", tmp_path)
    assert failed.exit_code == 1
    assert "No trial has come to its end" in failed.stderr


def test_help_needs_no_torch():
    assert not {"torch", "optuna"} & imported("tune", "--help")
