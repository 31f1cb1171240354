"""The commands: what they print, what they import, and how they end."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr

import pytest
import typer
from typer.testing import CliRunner

from protonorm import __version__
from protonorm.cli.app import app
from protonorm.cli.console import reporting
from tests.cli.commands import imported
from tests.support import run, spiral

SMALL = ["dataset=spiral", "dataset.points=60", "partition.alpha=0.5", "partition.least=4", "clients=3", "rounds=2"]
SERIAL = ["--engine", "serial"]


@pytest.fixture
def call():
    runner = CliRunner()
    return lambda *words: runner.invoke(app, list(words))


def test_help_imports_nothing_heavy():
    heavy = {"torch", "numpy", "pydantic", "scipy", "matplotlib", "torchvision", "yaml"}
    assert not heavy & imported("--help")


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--help"],
        ["list", "algorithms"],
        ["list", "models"],
        ["list", "families"],
        ["list", "datasets"],
        ["list", "partitions"],
        ["list", "engines"],
        ["list", "trackers"],
        ["bench"],
    ],
    ids=" ".join,
)
def test_listing_imports_nothing_heavy(words):
    assert not {"torch", "numpy", "scipy", "matplotlib", "torchvision"} & imported(*words)


@pytest.mark.parametrize(
    "words",
    [
        ["data", "list"],
        ["show"],
        ["show", "protonorm"],
        ["report", "protonorm"],
        ["archive", "protonorm", "--to", "kept"],
    ],
    ids=" ".join,
)
def test_looking_at_data_and_runs_does_without_torch(words, tmp_path):
    run(spiral(rounds=1), out=tmp_path / "runs")
    words = [str(tmp_path / word) if word == "kept" else word for word in words]
    assert not {"torch", "torchvision"} & imported(*words)


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


def test_the_version_is_that_of_the_package(call):
    assert call("--version").output == f"protonorm {__version__}\n"


def test_run_prints_a_table_then_finds_the_run_done(call):
    first = call("run", *SMALL, *SERIAL)
    assert first.exit_code == 0, first.output
    assert "majority" in first.output
    found = json.loads(call("run", *SMALL, *SERIAL, "--json").stdout)
    assert found["finished"] is True
    assert found["summary"]["nearest-global"]["last"]["round"] == 2


def test_json_is_all_that_a_machine_is_told(call):
    result = call("run", *SMALL, *SERIAL, "--json")
    assert result.stderr == ""
    assert json.loads(result.stdout)["rounds"] == 2


def test_a_field_of_a_field_can_be_set(call):
    result = call("run", *SMALL, "algorithm.schedule.epsilon=1e-4", "algorithm.schedule.steps=7", *SERIAL, "--json")
    assert result.exit_code == 0, result.output
    schedule = json.loads(result.stdout)["experiment"]["algorithm"]["schedule"]
    assert (schedule["epsilon"], schedule["steps"], schedule["mu"]) == (1e-4, 7, 0.9)


def test_rounds_without_an_evaluation_are_shown_too(call):
    """Every third round is evaluated, and the last: of four rounds the third and the fourth."""
    words = [*SMALL, "rounds=4", "evaluate_every=3", "evaluate=cohort", "participation=0.5"]
    result = call("run", *words, *SERIAL)
    assert result.exit_code == 0, result.output
    key = json.loads(call("show", "--json").stdout)["runs"][0]["key"]
    history = json.loads(call("show", key, "--json").stdout)["history"]
    assert [record["evaluated"] for record in history] == ["nobody", "nobody", "cohort", "cohort"]
    assert "4 of 4 rounds are done" in call("show", key).output


def test_show_lists_runs_and_shows_one(call):
    assert "no runs" in call("show").output
    call("run", *SMALL, *SERIAL)
    listed = json.loads(call("show", "--json").output)["runs"]
    assert len(listed) == 1
    assert "2/2" in call("show").output
    one = json.loads(call("show", listed[0]["key"], "--json").output)
    assert len(one["history"]) == 2
    shown = call("show", listed[0]["key"]).output
    assert "2 of 2 rounds are done." in shown
    assert '"name": "spiral"' in shown
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
    assert "stopped in round 2" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "protonrom"], "did you mean 'protonorm'"),
        (["compare", "rounds=2"], "no method"),
        (["compare", "protonorm", "algorithm=fedproto"], "Give methods by themselves"),
        (["compare", "protonorm:gamma"], "A setting in 'protonorm:gamma' must be field=value, got 'gamma'"),
        (["report", "nothing"], "There is no run 'nothing'"),
        (["export", "nothing", "here", "--client", "0"], "There is no run 'nothing'"),
        (["inspect", "mlp", "--shape", "3x"], "--shape must be numbers such as 3x32x32, or 2 for vectors, got 3x."),
        (["run", "tracker=nobody"], "Unknown tracker 'nobody'"),
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


def test_a_round_that_nobody_finishes_in_time_has_code_1(call):
    result = call("run", *SMALL, "deadline=1e-9", "retries=1", *SERIAL)
    assert result.exit_code == 1
    said = " ".join(result.stderr.split())
    assert "Round 1 does not count: 0 of 3 clients replied, 3 must" in said
    assert "client 0: it had not replied after 1e-09 seconds" in said
    assert "It was tried 2 times. The finished rounds are kept" in said


def test_ctrl_c_stops_cleanly_says_how_to_resume_and_has_code_130(tmp_path):
    words = [sys.executable, "-m", "protonorm", "run", *SMALL, "rounds=100000", "--out", str(tmp_path)]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background may have it ignored
    try:
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    finally:
        signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("*/server.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    try:
        _, text = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "the same command goes on from there" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("words", [["list", "algorithms"], ["list", "algorithms", "--json"]])
def test_a_reader_who_has_gone_is_no_failure_to_speak_of(words):
    """As of `| head`."""
    command = [sys.executable, "-P", "-u", "-m", "protonorm", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait()


def test_a_pipe_that_broke_elsewhere_is_told():
    """A tracker's connection, say: somebody still reads what the command prints."""
    with pytest.raises(typer.Exit) as left, redirect_stderr(io.StringIO()) as told, reporting(quiet=True):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")
    assert left.value.exit_code == 1
    assert told.getvalue() == f"protonorm: A file could not be used: [Errno {errno.EPIPE}] Broken pipe.\n"


def test_a_full_disk_is_told_in_a_sentence():
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-P", "-u", "-m", "protonorm", "list", "models"]
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == 1
    assert found.stderr.startswith("protonorm: A file could not be used:")


def test_an_empty_path_is_no_folder_to_write_into(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["export", "run", "", "--client", "0"], ["predict", "run", "", "--client", "0"]):
        found = CliRunner().invoke(app, words)
        assert found.exit_code == 2
        assert "expected the path of a file or folder" in found.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["run", *SMALL],
        ["compare", "local", *SMALL],
        ["sweep", "lr=0.1,0.2", *SMALL],
        ["tune", "lr=0.1..0.2", *SMALL],
        ["reproduce", "table1", "--profile", "smoke"],
    ],
    ids=lambda words: words[0],
)
def test_several_processes_of_the_engine_that_has_one_are_refused_before_anything_begins(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, [*words, "--engine", "serial", "--workers", "2"])
    assert found.exit_code == 2
    assert found.stderr == "protonorm: workers must be 1 with the engine serial, which has one process, got 2.\n"
    assert list(tmp_path.iterdir()) == []


def test_a_command_does_without_the_modules_of_the_others():
    program = (
        "import sys; from protonorm.cli.app import app; app(['list', 'engines'], standalone_mode=False)\n"
        "print(*sorted(name for name in sys.modules if name.startswith('protonorm.cli.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names = [name.removeprefix("protonorm.cli.") for name in done.stdout.splitlines()[-1].split()]
    assert names == ["app", "console", "listing", "options", "progress"]
