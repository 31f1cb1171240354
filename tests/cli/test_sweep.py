import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from protonorm.cli.app import app
from tests.cli.commands import imported
from tests.search.grids import SPIRAL
from tests.support import contents

WORDS = [*SPIRAL, "fedproto", "local", "algorithm.lam=0,1", "lr=0.02,0.05"]


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Six runs: FedProto with two λ and two rates, Local with two rates."""
    out = tmp_path_factory.mktemp("swept")
    return out, call("sweep", *WORDS, "--out", out, "--engine", "serial")


def test_a_sweep_shows_a_table_a_map_and_what_is_chosen(swept):
    out, shown = swept
    assert shown.exit_code == 0, shown.stderr
    assert "Without algorithm.lam, which is no setting of theirs: local." in shown.stdout
    assert "one seed: there is no interval" in shown.stdout
    assert shown.stdout.count("which had no say") == 2  # test accuracies are those of chosen settings alone
    assert "protonorm run algorithm=fedproto" in shown.stdout.replace("\\\n   ", "")
    (figure,) = out.glob("sweeps/*/sweep.png")
    with Image.open(figure) as picture:
        assert picture.info["Software"] == "protonorm"


def test_the_same_command_again_runs_nothing(swept):
    out, shown = swept
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/metrics.jsonl")}
    assert len(before) == 6
    again = call("sweep", *WORDS, "--out", out)
    assert again.stdout == shown.stdout
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/metrics.jsonl")} == before


def test_json_has_all_points_and_test_numbers_of_the_chosen_alone(swept):
    out, _ = swept
    found = json.loads(call("sweep", *WORDS, "--out", out, "--json").stdout)
    points = found["points"]
    assert len(points) == 6
    assert [point["mean"] for point in points] == sorted((point["mean"] for point in points), reverse=True)
    for method in ("fedproto", "local"):
        first, *others = [point for point in points if point["method"] == method]
        assert first["chosen"]
        assert first["test"] is not None
        assert not any(point["chosen"] or point["test"] for point in others)


def test_best_prints_commands_and_nothing_else(swept, tmp_path):
    """The command gives the run that the sweep has: to the byte."""
    out, _ = swept
    found = call("sweep", *WORDS, "--out", out, "--best").stdout.replace("\\\n   ", "").splitlines()
    assert all(line.startswith("protonorm run ") for line in found)
    words = next(line.split()[2:] for line in found if "fedproto" in line)
    assert call("run", *words, "--out", tmp_path, "--engine", "serial").exit_code == 0
    (folder,) = (path for path in tmp_path.iterdir() if (path / "experiment.json").exists())
    assert contents(folder) == contents(out / folder.name)


def test_a_dry_run_runs_nothing(swept, tmp_path):
    out, _ = swept
    done = call("sweep", *WORDS, "--out", out, "--dry-run")
    assert "6 runs: 6 done, 0 left" in done.stdout
    more = call("sweep", *WORDS, "seeds=0,1", "--out", out, "--dry-run")
    assert "12 runs: 6 done, 6 left, of which 0 begun." in more.stdout
    assert "estimated from rounds of this sweep that are on record" in more.stdout
    fresh = call("sweep", *SPIRAL, "local", "lr=0.1,0.2", "--out", tmp_path / "new", "--dry-run", "--json")
    found = json.loads(fresh.stdout)
    assert (found["runs"], found["left"]) == (2, 2)
    assert found["seconds"] > 0
    assert found["estimated from"] == "one round each of local, timed now"
    assert not (tmp_path / "new").exists()


def test_a_file_that_is_not_ours_is_left_as_it_is(swept, tmp_path):
    out, _ = swept
    (tmp_path / "sweep.png").write_text("mine")
    refused = call("sweep", *WORDS, "--out", out, "--figures", tmp_path)
    assert refused.exit_code == 2
    assert "is not a figure of protonorm" in refused.stderr
    assert (tmp_path / "sweep.png").read_text() == "mine"


def test_nothing_to_choose_is_an_error_that_shows_what_there_is(tmp_path):
    shown = call("sweep", *SPIRAL, "local", "lr=1.0e+12,1.0e+13", "--out", tmp_path, "--engine", "serial")
    assert shown.exit_code == 1
    assert "1 diverged" in shown.stdout
    assert "No settings can be chosen" in shown.stderr


def test_bad_words_are_refused_before_anything_is_run(tmp_path):
    for words in (
        ["local", "validation=0"],
        ["local", "lr=0.1,x"],
        ["lr=0.1"],
        ["local", "--jobs", "2", "--workers", "1"],
    ):
        refused = call("sweep", *SPIRAL, *words, "--out", tmp_path / "runs")
        assert refused.exit_code == 2
        assert refused.stderr.startswith("protonorm: ")
    assert not (tmp_path / "runs").exists()


def test_help_needs_no_torch():
    assert "torch" not in imported("sweep", "--help")


@pytest.mark.parametrize("other", ["--json", "--dry-run"])
def test_best_prints_commands_alone(tmp_path, other):
    found = call("sweep", *WORDS, "--best", other, "--out", str(tmp_path))
    assert found.exit_code == 2
    assert "as it prints commands alone" in found.stderr
