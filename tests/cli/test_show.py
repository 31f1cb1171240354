"""What `show` says of a run: which round is reported, and why; and the checkpoints of `predict` and `export`."""

import json
import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import protonorm as pn
from protonorm.cli.app import app
from protonorm.cli.records import reported_round, samples_line
from tests.records import hundred, made
from tests.support import pictures, run, spiral


@pytest.fixture
def call():
    runner = CliRunner()
    return lambda *words: runner.invoke(app, list(map(str, words)))


def one_client(folder, validation=100, **settings):
    """Make a run of one client with 100 samples of each part and so many right answers in each round."""
    parts = {"tested": [[90], [40], [50]], "population": hundred(1, validation)}
    return made(folder, clients=1, classes=1, **parts, **settings)


def test_the_round_with_the_best_validation_accuracy_is_reported(tmp_path):
    """3 of 100 right is the best validation accuracy, in round 2; the test has 40 right there."""
    found = one_client(tmp_path / "a", validated=[[1], [3], [2]], early_stopping=4)
    assert reported_round(found) == (
        "Round 2 is reported: it has the best mean validation accuracy; nearest-global 3.00 % on validation (mean over "
        "clients), 40.00 % on test (pooled). The run ends early after 4 evaluations without a better one."
    )
    assert samples_line(found) == "Samples of all clients: 100 to train on, 100 to validate on, 100 to test on."


def test_the_accuracy_on_validation_is_the_mean_over_clients(tmp_path):
    """5 of 10 and 10 of 40 right: 37.5 % in the mean, 30 % of all samples."""
    parts = {"population": hundred(2)._replace(validation=np.array([[10], [40]])), "tested": [[50, 50]]}
    found = made(tmp_path / "a", clients=2, classes=1, rounds=1, validated=[[5, 10]], **parts)
    assert "nearest-global 37.50 % on validation (mean over clients)" in reported_round(found)


def test_without_a_validation_part_the_optimistic_choice_is_said(tmp_path):
    found = one_client(tmp_path / "a", validation=0)
    assert reported_round(found) == (
        "Round 1 is reported: it has the best test accuracy, which is optimistic: there is no validation part; "
        "nearest-global 90.00 % on test (pooled)."
    )
    assert samples_line(found) == "Samples of all clients: 100 to train on, no validation part, 100 to test on."


def test_where_only_cohorts_are_evaluated_the_last_round_is_reported(tmp_path):
    """Two of four clients are evaluated each round, under `logits` 3/4/2 = 37.5 % right in the last."""
    found = made(tmp_path / "a", evaluated=[0, 2])
    assert reported_round(found).startswith(
        "Round 3 is reported: it is the last that was evaluated, and no round was evaluated by all clients; "
        "nearest-global 75.00 %"
    )


def test_a_run_without_a_round(tmp_path):
    found = made(tmp_path / "a", done=0)
    assert (
        reported_round(found) == "No round is reported yet: no client was evaluated under the method's headline rule."
    )


def test_show_prints_them(call, tmp_path):
    """Validation falls from round 1 on, and two evaluations without a better one are all the patience: it is over."""
    one_client(tmp_path / "runs" / "mine", validated=[[3], [2], [1]], early_stopping=2, rounds=9, done=3)
    shown = call("show", "mine").output
    assert "3 of 9 rounds are done; it ended early, as the validation accuracy rose no more." in shown
    assert "Round 1 is reported: it has the best mean validation accuracy; nearest-global 3.00 % on validation" in shown
    assert "100 to validate on" in shown
    assert json.loads(call("show", "mine", "--json").stdout)["chosen"]["round"] == 1


@pytest.fixture
def three(tmp_path):
    """Two seeds of a method and one of another on other data, in the folder of all runs."""
    made(tmp_path / "runs" / "one-a", seed=0)
    made(tmp_path / "runs" / "one-b", seed=1)
    made(tmp_path / "runs" / "two", method={"name": "fedproto", "lam": 1.0}, dataset={"name": "spiral", "points": 9})
    return tmp_path / "runs"


def listed(done):
    assert done.exit_code == 0, done.output
    return [run["key"] for run in json.loads(done.stdout)["runs"]]


@pytest.mark.usefixtures("three")
def test_show_filters_and_says_in_what_runs_differ(call):
    assert listed(call("show", "--json")) == ["one-a", "one-b", "two"]
    assert listed(call("show", "dataset=fashion", "algorithm=protonorm", "--json")) == ["one-a", "one-b"]
    assert listed(call("show", "seed=1", "--json")) == ["one-b"]
    assert listed(call("show", "one-a", "two", "--json")) == ["one-a", "two"]
    assert listed(call("show", "one-a", "two", "seed=0", "dataset=spiral", "--json")) == ["two"]
    head = next(line for line in call("show").output.splitlines() if "rounds" in line)
    assert head.split()[:5] == ["run", "algorithm", "dataset", "seed", "rounds"]
    lines = [line.split()[:4] for line in call("show").output.splitlines()]
    assert ["two", "fedproto", "spiral", "0"] in lines
    assert "There are no runs with seed=1 dataset=spiral in" in call("show", "seed=1", "dataset=spiral").output


@pytest.mark.usefixtures("three")
def test_a_filter_that_fits_nothing_is_refused_with_what_there_is(call):
    for words, told in (
        (["dataset=cifar10"], "No run has dataset=cifar10; there are: fashion, spiral."),
        (["gamma=3"], "'gamma' is not a setting of these runs; did you mean algorithm.gamma?"),
        (["seed="], "A filter must look like dataset=fashion or seed=0,1, got 'seed='."),
        (["nothing", "seed=0"], "There is no run 'nothing'"),
    ):
        done = call("show", *words)
        assert done.exit_code == 2
        assert done.stderr.startswith(f"protonorm: {told}")


def test_a_run_whose_name_has_an_equals_sign_is_a_name(call, tmp_path):
    made(tmp_path / "runs" / "lr=1")
    assert "Round 3 is reported" in call("show", "lr=1").output


def test_show_says_where_a_run_comes_from(call, tmp_path, monkeypatch):
    """The command as typed; a folder that no repository holds has no commit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(sys, "argv", ["/bin/protonorm", "run", "some words"])
    run(spiral(rounds=1), out=tmp_path / "runs")
    shown = call("show", "protonorm").output
    assert (
        "\ncommand: protonorm run 'some words'\ncommit: none, the command was given in no repository\nmachine: "
        in shown
    )
    assert "1 threads a process, engine serial" in shown


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose chosen round is not its last: brightness is soon learnt, and of equal rounds the first is chosen."""
    settings = {"models": "plain", "feature_dim": 4, "clients": 2, "rounds": 4, "lr": 0.02, "validation": 0.3}
    data = pictures(np.arange(120) % 2, classes=2)
    experiment = pn.Experiment(algorithm=pn.FedProto(lam=0.1), dataset=data, partition="iid", batch_size=8, **settings)
    result = run(experiment, tmp_path_factory.mktemp("runs"))
    assert result.run.chosen.record.round < 4
    return result


@pytest.fixture
def picture(tmp_path, trained):
    Image.fromarray(trained.population.dataset.inputs[1][:, :, 0]).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


def test_predict_takes_the_chosen_or_the_last_round(call, trained, picture):
    answers = {
        name: json.loads(call("predict", trained.run.folder, picture, "--client", 1, "--json", *words).stdout)
        for name, words in (("usual", []), ("chosen", ["--checkpoint", "chosen"]), ("last", ["--checkpoint", "last"]))
    }
    assert answers["usual"] == answers["chosen"]
    assert (answers["chosen"]["round"], answers["last"]["round"]) == (trained.run.chosen.record.round, 4)
    x = trained.population.dataset.inputs[1:2]
    for checkpoint in ("chosen", "last"):
        client = trained.trained(checkpoint)[1]
        rules = answers[checkpoint]["pictures"][0]["rules"]
        for rule, shares in client.confidence(x).items():
            assert rules[rule]["confidence"] == pytest.approx(shares.max(), rel=1e-5)


def test_export_takes_them_too_and_an_exported_client_is_of_one_round(call, trained, picture, tmp_path):
    for checkpoint, round in (("chosen", trained.run.chosen.record.round), ("last", 4)):
        folder = tmp_path / checkpoint
        done = call("export", trained.run.folder, folder, "--client", 0, "--checkpoint", checkpoint)
        assert done.exit_code == 0, done.output
        assert f"after round {round}" in done.output
        assert pn.load_client(folder).info.round == round
    assert f"after round {trained.run.chosen.record.round}" in call("predict", tmp_path / "chosen", picture).output
    refused = call("predict", tmp_path / "chosen", picture, "--checkpoint", "last")
    assert refused.exit_code == 2
    assert "--checkpoint last is for runs" in refused.stderr


def test_another_checkpoint_is_refused(call, trained, picture):
    done = call("predict", trained.run.folder, picture, "--client", 1, "--checkpoint", "best")
    assert done.exit_code == 2
    assert "chosen" in done.output


def test_the_help_says_what_a_checkpoint_is(call):
    for command in ("predict", "export"):
        assert "best validation accuracy" in " ".join(call(command, "--help").output.replace("│", " ").split())
