"""Data that are not pictures, from the command line by one setting."""

import json

import numpy as np
from typer.testing import CliRunner

from protonorm.cli.app import app


def test_a_file_of_tokens_trains_with_one_setting(tmp_path):
    """Of eight tokens three are of the text's class, one of ten tokens each; the others are anybody's."""
    random = np.random.default_rng(0)
    labels = np.arange(480) % 4
    tokens = random.integers(50, 90, (480, 8))
    tokens[:, ::3] = 1 + 10 * labels[:, None] + random.integers(0, 10, (480, 3))
    np.savez(tmp_path / "tokens.npz", tokens=tokens, labels=labels)
    words = [f"dataset=text:{tmp_path / 'tokens.npz'}", "partition=iid", "clients=2", "rounds=6", "lr=0.1"]
    done = CliRunner().invoke(app, ["run", *words, "algorithm=local", "--engine", "serial", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["experiment"]["models"] == "text"
    assert found["chosen"]["by"] == "validation"
    assert found["chosen"]["rules"]["logits"]["pooled"] > found["majority"]["pooled"] + 0.3  # guessing gives about 1/4


def test_two_perceptrons_on_an_array_beat_the_majority_of_their_clients(tmp_path):
    """Three clouds of points in five dimensions, four deviations apart, by clients with uneven shares."""
    random = np.random.default_rng(0)
    labels = np.arange(600) % 3
    inputs = random.normal(size=(600, 5))
    inputs[:, 0] += 4 * labels
    np.savez(tmp_path / "points.npz", inputs=inputs, labels=np.array(["left", "middle", "right"])[labels])
    words = [f"dataset=array:{tmp_path / 'points.npz'}", "partition.alpha=1", "clients=4", "rounds=4"]
    done = CliRunner().invoke(app, ["compare", "protonorm", *words, "--engine", "serial", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    (run,) = found["runs"]["protonorm"]
    assert run["experiment"]["models"] == "tabular"  # mlp_small and mlp_wide
    rows = {row["method"]: row["cells"]["accuracy"]["mean"] for row in found["rows"] if row["headline"]}
    assert rows["protonorm"] > rows["majority"] + 0.05
