import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from protonorm.cli import app

SMALL = ["dataset=spiral", "dataset.points=60", "partition.alpha=0.5", "partition.least=4", "clients=3", "rounds=2"]
SERIAL = ["--engine", "serial"]


@pytest.fixture
def call():
    runner = CliRunner()
    return lambda *words: runner.invoke(app, list(words))


def test_help_and_list_do_not_import_torch():
    code = (
        "import sys, runpy; sys.argv = ['protonorm', *sys.argv[1:]]\n"
        "try: runpy.run_module('protonorm', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'scipy', 'matplotlib', 'torchvision'} & set(sys.modules); assert not heavy, heavy"
    )
    for words in (
        ["--help"],
        ["list", "algorithms"],
        ["list", "models"],
        ["list", "datasets"],
        ["list", "trackers"],
        ["run", "--help"],
    ):
        subprocess.run([sys.executable, "-c", code, *words], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("algorithms", "protonorm"),
        ("models", "mlp"),
        ("families", "light"),
        ("datasets", "fashion"),
        ("partitions", "dirichlet"),
        ("engines", "serial"),
        ("trackers", "tensorboard"),
    ],
)
def test_list_names_everything(call, kind, name):
    assert name in call("list", kind).output
    assert name in json.loads(call("list", kind, "--json").output)


def test_run_prints_a_table_then_finds_the_run_done(call):
    first = call("run", *SMALL, *SERIAL)
    assert first.exit_code == 0, first.output
    assert "majority" in first.output
    found = json.loads(call("run", *SMALL, *SERIAL, "--json").stdout)
    assert found["finished"] is True
    assert found["summary"]["global"]["best"]["round"] == 2


def test_show_lists_runs_and_shows_one(call):
    assert "no runs" in call("show").output
    call("run", *SMALL, *SERIAL)
    listed = json.loads(call("show", "--json").output)["runs"]
    assert len(listed) == 1
    assert "2/2" in call("show").output
    one = json.loads(call("show", listed[0]["key"], "--json").output)
    assert len(one["history"]) == 2
    assert call("show", "nothing").exit_code == 2


def test_show_goes_on_after_a_damaged_run(call, tmp_path):
    call("run", *SMALL, *SERIAL)
    call("run", *SMALL, "seed=1", *SERIAL)
    whole, damaged = sorted(path.parent for path in (tmp_path / "runs").glob("*/experiment.json"))
    (damaged / "metrics.jsonl").write_bytes(b"")
    listed = call("show", "--json")
    assert listed.exit_code == 0
    assert [run["key"] for run in json.loads(listed.stdout)["runs"]] == [whole.name]
    assert "damaged" in listed.stderr


def test_compare_puts_methods_local_and_majority_side_by_side(call):
    result = call("compare", "protonorm:gamma=5", "fedproto", *SMALL, "seeds=0,1", *SERIAL, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    methods = [row["method"] for row in found["rows"] if row["headline"]]
    assert methods == ["protonorm:gamma=5", "fedproto", "local", "majority"]
    assert [len(runs) for runs in found["runs"].values()] == [2, 2, 2]
    assert found["runs"]["protonorm:gamma=5"][0]["experiment"]["algorithm"]["gamma"] == 5
    assert found["rows"][0]["cells"]["best"]["std"] is not None


def test_compare_shows_a_method_that_diverged(call):
    result = call("compare", "protonorm:gamma=1e18", *SMALL, *SERIAL)
    assert result.exit_code == 0
    assert "diverged in round 2" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "algorithm=protnorm"], "did you mean 'protonorm'"),
        (["run", "roundz=3"], "did you mean 'rounds'"),
        (["run", "algorithm.gama=3", "algorithm=protonorm"], "did you mean 'gamma'"),
        (["run", "rounds=-1"], "rounds=-1"),
        (["run", "--engine", "nowhere"], "Unknown engine"),
        (["run", *SMALL, "clients=5000"], "clients"),
        (["compare", "protonrom"], "did you mean 'protonorm'"),
        (["compare", "rounds=2"], "no method"),
    ],
)
def test_bad_input_is_refused_with_a_sentence_and_code_2(call, words, said):
    result = call(*words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_a_failed_run_has_code_1(call):
    result = call("run", *SMALL, "algorithm.gamma=1e18", "algorithm=protonorm", *SERIAL)
    assert result.exit_code == 1
    assert "kept in" in result.stderr


def test_an_unwritable_folder_has_code_1(call, tmp_path):
    (tmp_path / "file").write_text("")
    result = call("run", *SMALL, *SERIAL, "--out", str(tmp_path / "file"))
    assert result.exit_code == 1
    assert "could not be used" in result.stderr


def test_ctrl_c_stops_cleanly_says_how_to_resume_and_has_code_130(tmp_path):
    words = [sys.executable, "-m", "protonorm", "run", *SMALL, "rounds=100000", "--out", str(tmp_path)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("*/server.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from there" in text
    assert "Traceback" not in text
