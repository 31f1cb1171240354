"""What commands say of settings, data and seeds; and how little with --quiet."""

import json

import pytest
from typer.testing import CliRunner

from protonorm.algorithms import ALGORITHMS
from protonorm.cli.app import app
from protonorm.cli.listing import read_class
from protonorm.cli.run_tables import seeds_text
from protonorm.config.experiment import Experiment
from protonorm.core.settings import known_fields
from tests.cli.commands import imported
from tests.cli.own_files import METHOD

SMALL = ["dataset=spiral", "dataset.points=60", "partition.alpha=0.5", "partition.least=4", "clients=3", "rounds=1"]
SERIAL = ["--engine", "serial"]
PROBLEM = "spiral, dirichlet (alpha 0.5), 3 clients, 1 round"


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, list(words))


def test_run_takes_a_method_with_settings_and_says_what_was_run(call):
    done = call("run", "protonorm:gamma=5", *SMALL, *SERIAL)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].strip() == f"{PROBLEM}, seed 0"
    assert "Record: " in done.stdout
    again = json.loads(call("run", "gamma=5", *SMALL, "--json").stdout)
    assert again["experiment"]["algorithm"]["gamma"] == 5
    assert f"{again['key']}" in done.stdout.replace("\n", "")  # the same run
    quiet = call("run", "protonorm:gamma=5", *SMALL, "--quiet")
    assert quiet.stderr == ""
    assert quiet.stdout.splitlines()[0].strip() == f"{PROBLEM}, seed 0"
    assert "Record" not in quiet.stdout
    assert "Accuracy" not in quiet.stdout
    assert len(quiet.stdout.strip().splitlines()) < len(done.stdout.strip().splitlines())


def test_comparisons_say_their_seeds(call):
    done = call("compare", "fedproto", *SMALL, "seeds=2", *SERIAL)
    assert done.exit_code == 0, done.output
    assert f"{PROBLEM}, seeds 0, 1" in " ".join(done.stdout.split())
    quiet = call("compare", "fedproto", *SMALL, "seeds=2", "-q")
    assert quiet.stderr == ""
    assert f"{PROBLEM}, seeds 0, 1" in " ".join(quiet.stdout.split())
    for word in ("Report", "Figures", "interval"):
        assert word in done.stdout
        assert word not in quiet.stdout
    assert "FedProto" in quiet.stdout


def test_sweeps_say_their_seeds(call):
    words = ["sweep", "fedproto", *SMALL, "rounds=2", "lam=0.5,1", "seeds=2", "--jobs", "1", *SERIAL]
    done = call(*words)
    assert done.exit_code == 0, done.output
    assert "Settings by validation accuracy, seeds 0, 1" in " ".join(done.stdout.split())
    quiet = call(*words, "--quiet")
    assert quiet.stderr == ""
    assert "algorithm.lam" in quiet.stdout
    assert "protonorm run" in quiet.stdout or "protonorm compare" in quiet.stdout
    for word in ("Map:", "optimistic"):
        assert word in done.stdout
        assert word not in quiet.stdout


def test_searches_are_quiet_too(call):
    pytest.importorskip("optuna")
    words = ["tune", "fedproto", *SMALL, "rounds=2", "lam=0.5..1", "--trials", "2", "--repeat", "2", *SERIAL]
    done = call(*words)
    assert done.exit_code == 0, done.output
    assert "with seeds 1, 2, which the search has not seen" in " ".join(done.stdout.split())
    quiet = call(*words, "--quiet")
    assert quiet.stderr == ""
    assert "Trials" in quiet.stdout
    for word in ("Search:", "per cent"):
        assert word in done.stdout
        assert word not in quiet.stdout


def test_errors_are_said_quietly_as_well(call):
    done = call("run", "nosuch=1", "--quiet")
    assert done.exit_code == 2
    assert done.stderr.startswith("protonorm: An experiment has no setting 'nosuch'")


@pytest.mark.parametrize(("seeds", "text"), [([0], "seed 0"), ([0, 1, 0, 1], "seeds 0, 1"), ([], "")], ids=str)
def test_seeds_in_a_heading(seeds, text):
    assert seeds_text(seeds) == text


def test_many_seeds_in_a_heading():
    assert seeds_text(range(30)) == "seeds 0, 1, 2, …, 29"


def test_all_settings_of_an_experiment_are_listed(call):
    listed = json.loads(call("list", "settings", "--json").stdout)["settings"]
    assert {item["name"] for item in listed} == set(Experiment.model_fields)
    assert all(item["meaning"] and item["type"] for item in listed)
    found = {item["name"]: item for item in listed}
    for name, field in Experiment.model_fields.items():
        assert found[name]["meaning"] == field.description
        default = field.default if isinstance(field.default, str) else json.dumps(field.default)
        assert found[name]["default"] == default
    assert found["optimiser"]["type"] == "sgd | adam | adamw | a name"
    shown = call("list", "settings").stdout
    assert shown.index("algorithm") < shown.index("optimiser")
    assert "protonorm list protonorm" in " ".join(shown.split())


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_all_settings_of_a_method_are_listed(call, name):
    cls = ALGORITHMS[name].load()
    known = known_fields(cls)
    names = [field if not inner else f"{field}.{item}" for field, inner in known.items() for item in (inner or [""])]
    listed = read_class(*ALGORITHMS[name].target.split(":"))
    assert list(listed) == names
    usual = cls()
    for field, item in listed.items():
        if "." not in field:
            value = getattr(usual, field)
            assert item.default == (value if isinstance(value, str) else json.dumps(value))
        assert item.meaning
    shown = " ".join(call("list", name).stdout.split())
    assert "client message:" in shown


def test_settings_of_a_method_of_one_s_own_are_listed(call, tmp_path):
    (tmp_path / "own.py").write_text(METHOD)
    done = call("list", f"{tmp_path / 'own.py'}:Mine", "--json")
    found = {item["name"]: (item["type"], item["default"]) for item in json.loads(done.stdout)["settings"]}
    assert found["mu"] == ("float", "1.0")
    assert list(found) == ["mu", "inner"]
    for name in ("Yours", "pn"):
        assert call("list", f"{tmp_path / 'own.py'}:{name}").exit_code == 2


def test_a_methods_symbols_are_listed(call):
    shown = " ".join(call("list", "protonorm").stdout.split())
    assert "γ, Eq. 15" in shown
    assert "schedule.eta" in shown
    assert "server message: the same" in shown


@pytest.mark.parametrize("topic", ["settings", "protonorm", "targets"])
def test_settings_are_listed_without_torch(topic):
    assert not {"torch", "numpy", "pydantic", "scipy"} & imported("list", topic)


def test_what_there_is_nothing_about(call):
    done = call("list", "protonrm")
    assert done.exit_code == 2
    assert "There is nothing to list about 'protonrm'; did you mean 'protonorm'?" in done.stderr


def test_help_names_the_lists_of_settings(call):
    text = " ".join(call("run", "--help").stdout.split())
    assert "protonorm list settings" in text
    assert "partition.alpha=0.1" in text
