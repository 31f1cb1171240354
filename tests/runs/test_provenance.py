"""Each start of a run says where its rounds come from; nothing that is compared byte by byte depends on it."""

import shlex
import shutil
import subprocess
import sys

import pytest

import protonorm as pn
from protonorm.runs import layout, provenance
from protonorm.runs.run import read_run
from protonorm.runs.writer import RunWriter
from tests.runs.records import record

git = pytest.mark.skipif(not shutil.which("git"), reason="git is not here")


def made(done=0):
    return provenance.provenance(done, engine="serial", device="cpu", threads=1)


def repository(folder):
    for words in (
        ["init", "-q"],
        ["config", "user.email", "a@b"],
        ["config", "user.name", "a"],
        ["commit", "-q", "--allow-empty", "-m", "first"],
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True).stdout


@git
def test_the_users_commit_and_whether_files_were_changed_since(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commit = repository(tmp_path).strip()
    (tmp_path / "new.txt").write_text("not yet known to git")
    assert (made().commit, made().dirty) == (commit, False)
    subprocess.run(["git", "add", "new.txt"], check=True)
    assert (made().commit, made().dirty) == (commit, True)


@git
@pytest.mark.parametrize("attributes", [".gitattributes", ".git/info/attributes"])
def test_nothing_that_a_repository_names_is_executed(tmp_path, monkeypatch, attributes):
    """Its settings name programs for filters, hooks, file watching and the fetching of objects that are missing."""
    monkeypatch.chdir(tmp_path)
    repository(tmp_path)
    for name in ("data.txt", "more.csv"):
        (tmp_path / name).write_text("as committed")
    subprocess.run(["git", "add", "data.txt", "more.csv"], check=True)
    subprocess.run(["git", "commit", "-q", "-m", "second"], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    marker = tmp_path.parent / f"{tmp_path.name}-executed"
    program = tmp_path / "evil.sh"
    program.write_text(f"#!/bin/sh\ntouch {marker}\ncat\n")
    program.chmod(0o755)
    for name in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        shutil.copy(program, tmp_path / ".git" / "hooks" / name)
    with (tmp_path / ".git" / "config").open("a") as file:
        file.write(f'[filter "evil"]\n clean = {program}\n smudge = {program}\n required = true\n')
        file.write(f'[filter "long"]\n process = {program}\n required = true\n')
        file.write(f"[core]\n fsmonitor = {program}\n sshCommand = {program}\n pager = {program}\n")
        file.write(f"[diff]\n external = {program}\n[alias]\n status = !{program}\n")
    (tmp_path / attributes).write_text("data.txt filter=evil\n*.csv filter=long\n")
    for name in ("data.txt", "more.csv"):
        (tmp_path / name).write_text("as changed!!")  # of the same size: its content must be compared
    found = made()
    assert not marker.exists()
    assert (found.commit, found.dirty) == (commit, True)


@git
@pytest.mark.parametrize("broken", [b"evil\xff", b"evil"])
def test_filters_of_strange_names_are_not_executed_either(tmp_path, monkeypatch, broken):
    """A name need not be text; and if the settings cannot be listed, no file is compared."""
    monkeypatch.chdir(tmp_path)
    repository(tmp_path)
    (tmp_path / "data.txt").write_text("as committed")
    subprocess.run(["git", "add", "data.txt"], check=True)
    subprocess.run(["git", "commit", "-q", "-m", "second"], check=True)
    marker, program = tmp_path.parent / f"{tmp_path.name}-executed", tmp_path / "evil.sh"
    program.write_text(f"#!/bin/sh\ntouch {marker}\ncat\n")
    program.chmod(0o755)
    with (tmp_path / ".git" / "config").open("ab") as file:
        file.write(b'[filter "' + broken + b'"]\n clean = ' + bytes(program) + b"\n")
    (tmp_path / ".gitattributes").write_bytes(b"data.txt filter=" + broken + b"\n")
    (tmp_path / "data.txt").write_text("as changed!!")
    if broken == b"evil":
        usual = subprocess.run

        def slow(words, **options):
            if "config" in words:
                raise subprocess.TimeoutExpired(words, 10)
            return usual(words, **options)

        monkeypatch.setattr(subprocess, "run", slow)
    assert made().dirty is (None if broken == b"evil" else True)
    assert not marker.exists()


@git
def test_a_repository_without_a_commit_and_a_folder_without_a_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert (made().commit, made().dirty) == (None, None)
    subprocess.run(["git", "init", "-q"], check=True)
    assert (made().commit, made().dirty) == (None, None)


def test_without_git_there_is_no_commit(monkeypatch):
    monkeypatch.setattr(provenance, "GIT", ("no-such-program",))
    assert (made().commit, made().dirty) == (None, None)


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (["/env/bin/protonorm", "run", "lr=0.1", "a b"], "protonorm run lr=0.1 'a b'"),
        (["/lib/protonorm/__main__.py", "run"], "protonorm run"),
        (["study.py", "--fast"], "python study.py --fast"),
        ([""], "python -"),
        ([], "python -"),
    ],
)
def test_the_command_as_one_types_it(monkeypatch, words, typed):
    monkeypatch.setattr(sys, "argv", words)
    assert made().command == typed


@pytest.mark.parametrize(
    ("argv", "typed", "told"),
    [
        (["/x/tools/exchange/__main__.py", "map"], ["python", "-m", "tools.exchange", "map"], "-m tools.exchange map"),
        (["/x/tools/table.py"], ["/env/python", "-P", "-m", "tools.table"], "-m tools.table"),
        (["study.py", "-m", "5"], ["python", "study.py", "-m", "5"], "study.py -m 5"),
    ],
)
def test_a_module_as_one_types_it(monkeypatch, argv, typed, told):
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", typed)
    assert made().command == f"python {told}"


@pytest.mark.parametrize(
    ("word", "short"),
    [
        ("dataset=folder:/home/me/my pictures/cats", "dataset=folder:cats"),
        ("--out=/srv/runs/", "--out=runs/"),
        ("~/data/x.npz", "x.npz"),
        (r"C:\work\study.py", "study.py"),
        ("models=mine.py:Net,/x/y.py:Net", "models=mine.py:Net,y.py:Net"),
        ("algorithm=./near/mine.py:Mine", "algorithm=./near/mine.py:Mine"),
        ("share=1/2", "share=1/2"),
        ("/", "/"),
        ("a b", "a b"),
    ],
)
def test_of_absolute_paths_the_last_part_is_left(word, short):
    assert provenance.without_folders(shlex.join(["protonorm", word])) == shlex.join(["protonorm", short])


def test_every_start_is_on_record_and_a_damaged_line_is_left_out(tmp_path):
    folder = record(tmp_path / "run", done=2)
    assert read_run(folder).provenance is None
    path = folder / layout.PROVENANCE
    for done in (0, 2):
        with RunWriter(folder, "key") as writer:
            writer.start(made(done))
        with path.open("ab") as file:
            file.write(b"a line that a kill has cut short")
    assert [one.done for one in read_run(folder).starts] == [0, 2]
    path.write_bytes(path.read_bytes().replace(b"serial", b"qerial", 1))
    assert [one.done for one in read_run(folder).starts] == [2]


def test_a_run_tells_of_each_time_it_was_begun_or_went_on(tmp_path):
    settings = {"dataset": "spiral", "clients": 2, "algorithm": "local", "epochs": 1}
    for rounds in (1, 2, 2):  # the last time there is nothing to do
        result = pn.run(pn.Experiment(rounds=rounds, **settings), out=tmp_path, engine="serial")
    run = result.run
    assert [(one.done, one.engine, one.device, one.threads) for one in run.starts] == [
        (0, "serial", "cpu", 1),
        (1, "serial", "cpu", 1),
    ]
    assert run.provenance.versions == run.info.versions
    assert run.provenance.cores >= 1
    assert run.provenance.cpu
