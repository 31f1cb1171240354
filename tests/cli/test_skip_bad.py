"""Commands that read pictures: what cannot be used is listed, --skip-bad goes on, and one sees how far reading is."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import protonorm as pn
from protonorm.cli import progress
from protonorm.cli.app import app

pytestmark = pytest.mark.filterwarnings("always:.*pictures cannot be used:UserWarning")  # the command prints them

SMALL = ["dataset.size=16", "models=plain", "feature_dim=8", "clients=2", "partition=iid", "rounds=0"]
SETTINGS = {"models": "plain", "feature_dim": 8, "clients": 2, "partition": "iid", "rounds": 0}


@pytest.fixture
def pets(tmp_path):
    """Eight pictures of each of two classes, and a ninth that is none."""
    for kind, level in (("cat", 0), ("dog", 99)):
        (tmp_path / "pets" / kind).mkdir(parents=True)
        for number in range(8):
            Image.fromarray(np.full((8, 8), level + number, np.uint8)).save(tmp_path / "pets" / kind / f"{number}.png")
    (tmp_path / "pets" / "dog" / "8.png").write_text("no picture")
    return tmp_path / "pets"


def call(*words):
    return CliRunner().invoke(app, [*words])


def test_the_refusal_names_the_option_and_with_it_the_run_goes_on(pets):
    words = ["run", f"dataset=folder:{pets}", *SMALL, "--engine", "serial"]
    refused = call(*words)
    assert refused.exit_code == 2
    assert "1 of 17 pictures cannot be used:" in refused.stderr
    assert "--skip-bad, or dataset.skip_bad=true, goes on without them." in refused.stderr
    done = call(*words, "--skip-bad", "--json")
    assert done.exit_code == 0, done.output
    assert "The other 16 are used." in done.stderr
    spelt = call(*words, "dataset.skip_bad=true", "--json")
    assert json.loads(done.stdout)["key"] == json.loads(spelt.stdout)["key"]


def test_a_comparison_goes_on_too(pets):
    data = [f"dataset=folder:{pets}", *SMALL]
    done = call("compare", "fedproto", *data, "--engine", "serial", "--skip-bad", "--json")
    assert done.exit_code == 0, done.output
    assert list(json.loads(done.stdout)["runs"]) == ["fedproto", "local"]


@pytest.mark.parametrize(
    "words",
    [["run"], ["compare", "local"], ["sweep", "local"], ["tune", "local", "lr=0.1..0.2"]],
    ids=lambda words: words[0],
)
def test_data_without_picture_files_refuse_it(words):
    done = call(*words, "dataset=spiral", "--skip-bad")
    assert done.exit_code == 2
    assert "skip_bad" in done.stderr
    assert "spiral" in done.stderr


@pytest.mark.parametrize("words", [["run", "algorithm=local"], ["compare", "local"]], ids=lambda words: words[0])
def test_one_sees_how_far_reading_is(pets, monkeypatch, words):
    monkeypatch.setattr(progress, "LATE", 0.0)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    done = call(*words, f"dataset=folder:{pets}", *SMALL, "--skip-bad", "--engine", "serial")
    assert done.exit_code == 0, done.output
    assert "Reading pictures: 8/16" in done.stderr


def test_in_a_notebook_one_sees_it_too(pets, monkeypatch, capsys, tmp_path):
    """A comparison reads the data for the key of its first run, before that is begun."""
    (pets / "dog" / "8.png").unlink()
    monkeypatch.setattr("protonorm.session.progress.LATE", 0.0)
    monkeypatch.setattr("protonorm.session.progress.EVERY", 0.0)
    data = {"name": "folder", "path": str(pets), "size": 16}
    pn.compare("local", dataset=data, engine="serial", out=tmp_path / "runs", progress=True, **SETTINGS)
    assert "Reading pictures: 8 of 16" in capsys.readouterr().out
    data["size"] = 20
    pn.run(pn.Experiment(dataset=data, **SETTINGS), engine="serial", out=tmp_path / "runs", progress=True)
    assert "Reading pictures: 8 of 16" in capsys.readouterr().out
    data["size"] = 24
    pn.compare("local", dataset=data, engine="serial", out=tmp_path / "runs", **SETTINGS)
    assert capsys.readouterr().out == ""
