"""Removing runs: after asking, none that is at work, and no file that is not ours."""

import os

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from protonorm.cli.app import app
from protonorm.report.page import write_page
from protonorm.runs.archive import is_run, own_files, remove_runs
from protonorm.runs.run import read_run
from tests.cli.commands import imported
from tests.records import made


@pytest.fixture
def root(tmp_path):
    """Three runs: two seeds of one method, and another one that is not finished."""
    folder = tmp_path / "runs"
    made(folder / "one-a", seed=0)
    made(folder / "one-b", seed=1)
    made(folder / "two", method={"name": "fedproto"}, done=1)
    return folder


@pytest.fixture
def call(root):
    runner = CliRunner()
    return lambda *words, answer="": runner.invoke(app, ["remove", *words, "--out", str(root)], input=answer)


def left(root):
    return sorted(path.name for path in root.iterdir())


def test_it_shows_what_would_go_and_asks(call, root):
    done = call("one-a", answer="n\n")
    assert done.exit_code == 0
    assert "one-a" in done.stdout
    assert "Remove 1 run?" in done.stderr
    assert "Nothing was removed." in done.stdout
    assert left(root) == ["one-a", "one-b", "two"]
    done = call("one-a", answer="y\n")
    assert done.stdout.endswith("Removed 1 run.\n")
    assert left(root) == ["one-b", "two"]


@pytest.mark.parametrize("answer", ["", "\n", "yes please\n"])
def test_nothing_but_yes_removes(call, root, answer):
    done = call("one-a", answer=answer)
    assert done.exit_code == (0 if answer else 2)
    assert left(root) == ["one-a", "one-b", "two"]
    if not answer:
        assert "No answer, and nothing was removed; --yes removes without asking." in done.stderr


@pytest.mark.parametrize(
    ("words", "stay"),
    [
        (["one-a", "two"], ["one-b"]),
        (["two", "two"], ["one-a", "one-b"]),
        (["algorithm=protonorm"], ["two"]),
        (["algorithm=protonorm", "seed=1"], ["one-a", "two"]),
        (["state=unfinished"], ["one-a", "one-b"]),
        (["one-a", "one-b", "seed=0"], ["one-b", "two"]),
    ],
)
def test_runs_by_name_and_by_filter(call, root, words, stay):
    done = call(*words, "--yes")
    assert done.exit_code == 0, done.output
    assert left(root) == stay


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["three"], "There is no run 'three'"),
        (["one-a", "three"], "There is no run 'three'"),
        (["one"], "Several runs begin with 'one'"),
        (["seed=7"], "No run has seed=7; there are: 0, 1."),
        (["algorithm=fedproto", "seed=1"], "There is no run with algorithm=fedproto seed=1"),
        ([], "Missing argument"),
    ],
)
def test_what_is_not_there_is_refused_and_nothing_goes(call, root, words, told):
    done = call(*words, "--yes")
    assert done.exit_code == 2
    assert told in done.stderr
    assert left(root) == ["one-a", "one-b", "two"]


def test_a_run_at_work_is_refused_and_the_others_stay(call, root):
    with FileLock(root / "one-b" / "lock"):
        done = call("algorithm=protonorm", "--yes")
    assert done.exit_code == 2
    assert "Another process is at work on" in done.stderr
    assert "nothing was removed" in done.stderr
    assert [len(read_run(root / name).rounds) for name in ("one-a", "one-b")] == [3, 3]
    assert call("algorithm=protonorm", "--yes").exit_code == 0  # and nobody holds a lock for longer
    assert left(root) == ["two"]


def test_files_of_others_are_kept_and_named(call, root):
    folder = root / "one-a"
    (folder / "notes.txt").write_text("mine")
    (folder / "clients" / "mine.safetensors").write_text("mine")
    (folder / "empty").mkdir()
    (folder / "report.html").write_text("<!doctype html>mine")
    done = call("one-a", "--yes")
    assert done.exit_code == 0
    names = "clients/mine.safetensors, empty, notes.txt, report.html"
    assert f"Kept in {folder}, as no part of the run: {names}.\n" in done.stdout
    stay = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    assert stay == ["clients", "clients/mine.safetensors", "empty", "notes.txt", "report.html"]
    assert call("one-a", "--yes").exit_code == 2  # it is a run no more


def test_our_report_and_what_a_killed_process_left_go_too(call, root):
    folder = root / "one-a"
    write_page([read_run(folder)], folder / "report.html")
    (folder / ".server.safetensors.0123456789abcdef").write_text("half")
    (folder / "tensorboard" / "00000" / "prototypes").mkdir(parents=True)
    (folder / "tensorboard" / "events.out.tfevents.1.host.2.0").write_text("log")
    (folder / "tensorboard" / "00000" / "prototypes" / "tensors.tsv").write_text("1")
    assert "Kept" not in call("one-a", "--yes").stdout
    assert left(root) == ["one-b", "two"]


def test_links_are_not_followed(call, root, tmp_path):
    """Neither a link in place of a run, nor one in place of its clients: what they lead to is not the run's."""
    aside = tmp_path / "aside"
    (root / "two" / "clients").rmdir()
    aside.mkdir()
    (aside / "0.1.safetensors").write_text("mine")
    os.symlink(aside, root / "two" / "clients")
    os.symlink(root / "one-a", root / "link")
    done = call("link", "--yes")
    assert done.exit_code == 2
    assert "is a link; name the run's folder itself" in done.stderr
    assert "clients" in call("two", "--yes").stdout
    assert (aside / "0.1.safetensors").read_text() == "mine"
    assert is_run(root / "one-a")


def test_a_folder_of_another_program_is_refused(call, root):
    """It has a file experiment.json, by which runs are found."""
    folder = root / "other"
    folder.mkdir()
    (folder / "experiment.json").write_text('{"mine": 1}')
    (folder / "metrics.jsonl").write_text('{"mine": 2}\n')
    done = call("other", "--yes")
    assert done.exit_code == 2
    assert "is not a run of protonorm; nothing was removed" in done.stderr
    assert (folder / "experiment.json").exists()
    with pytest.raises(ValueError, match="is not a run of protonorm"):
        remove_runs([root / "one-a", folder])
    assert is_run(root / "one-a")


@pytest.mark.parametrize("name", ["experiment.json", "metrics.jsonl", "server.safetensors"])
def test_a_damaged_run_can_be_removed(call, root, name):
    (root / "two" / name).write_text("damaged\n")
    done = call("two", "--yes")
    assert done.exit_code == 0, done.output
    assert "cannot be read" in done.stdout
    assert left(root) == ["one-a", "one-b"]


def test_what_a_run_is_known_by_goes_last(root):
    """A removal that is cut short leaves a run that can be removed."""
    names = [path.name for path in own_files(root / "one-a")]
    assert names[-2:] == ["metrics.jsonl", "experiment.json"]
    assert len(names) == len(set(names))


def test_it_needs_no_torch(root):
    assert "torch" not in imported("remove", "one-a", "--yes", "--out", str(root))


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_means_no_run(call, root, name):
    """As of a variable that is not set: every name begins with it."""
    before = left(root)
    found = call(name, "--yes")
    assert found.exit_code == 2
    assert "is no run: expected a run's folder, its name" in found.stderr
    assert left(root) == before
