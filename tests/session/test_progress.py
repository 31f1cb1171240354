"""A line of text says how far a run is: in notebooks, and where it is asked for."""

import sys
from types import SimpleNamespace

import pytest

from protonorm.core.progress import report
from protonorm.session.progress import LATE, ProgressLine, in_notebook, progress_line
from tests.support import run, spiral


def test_rounds_are_told_where_it_is_wanted(tmp_path, capsys):
    seen = []
    result = run(spiral(), out=tmp_path, watch=seen.append, progress=True)
    written = capsys.readouterr().out
    assert written.endswith("\n")
    lines = [line.rstrip() for line in written.strip().split("\r")]
    shares = [f"{100 * one.rules['nearest-global'].pooled:.2f} %" for one in result.history]
    assert len(lines) == len(seen) == 3
    for number, (line, share) in enumerate(zip(lines, shares, strict=True), 1):
        assert line.startswith(f"ProtoNorm, seed 0: round {number} of 3, nearest-global {share}")


def test_a_run_that_is_done_says_nothing(tmp_path, capsys):
    run(spiral(rounds=1), out=tmp_path)
    run(spiral(rounds=1), out=tmp_path, progress=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("shell", "shown"), [(SimpleNamespace(kernel=1), True), (SimpleNamespace(), False)])
def test_in_a_notebook_it_is_wanted_unless_refused(tmp_path, capsys, monkeypatch, shell, shown):
    """A notebook's shell has a kernel; that of a terminal has none."""
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert in_notebook() is shown
    run(spiral(rounds=1), out=tmp_path / "a")
    assert ("round 1 of 1" in capsys.readouterr().out) is shown
    run(spiral(rounds=1), out=tmp_path / "b", progress=False)
    assert capsys.readouterr().out == ""


def test_other_work_is_told_of_once_it_takes_a_while(capsys):
    """At 0 s and 1 s nothing, after 2 s a line, 0.1 s later none, then again; work that is done begins anew."""
    now = 0.0
    line = ProgressLine("title", 3, "nearest-global", lambda: now)
    for now, done in ((0.0, 0), (1.0, 1), (LATE, 2), (LATE + 0.1, 3), (LATE + 1, 4), (LATE + 2, 5)):
        line("Reading", done, 5)
    line("Reading", 0, 5)
    line("Counting", 1, 0)
    now += LATE
    line("Counting", 7, 0)
    line.close()
    written = [one.rstrip() for one in capsys.readouterr().out.split("\r")[1:]]
    assert written == ["Reading: 2 of 5", "Reading: 4 of 5", "Reading: 5 of 5", "Counting: 7"]


def test_a_shorter_line_covers_a_longer_one(capsys):
    now = 0.0
    line = ProgressLine("title", 3, "nearest-global", lambda: now)
    for now, done in ((0.0, 1), (3.0, 1000), (4.0, 1)):
        line("w", done, 0)
    assert capsys.readouterr().out == "\rw: 1000\rw: 1   "


def test_long_work_of_a_run_is_heard(capsys, monkeypatch):
    monkeypatch.setattr("protonorm.session.progress.LATE", 0.0)
    with progress_line(spiral(), None, True):
        report("Reading pictures", 1, 2)
    report("Reading pictures", 2, 2)  # nobody listens any more
    assert capsys.readouterr().out == "\rReading pictures: 1 of 2\n"
