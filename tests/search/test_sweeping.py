import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from protonorm.core.progress import listening
from protonorm.runs.run import Run
from protonorm.search import scores, sweeping
from protonorm.search.scores import scores_of, winners
from protonorm.search.sweeping import Crew, how_many
from tests.search.grids import SPIRAL, run_all, sweep
from tests.support import contents, killed_after_last_round, run


def records(root):
    """Read all runs under a folder, but what depends on how they were run."""
    return {path.name: contents(path) for path in root.iterdir() if (path / "experiment.json").exists()}


def test_what_is_done_is_skipped_and_what_was_begun_goes_on(tmp_path):
    found = sweep(tmp_path, "fedproto", "lr=0.05,0.1", "rounds=2")
    first, second = (experiment for _, _, experiment in found.grid.runs())
    run(first, tmp_path)
    run(second.model_copy(update={"rounds": 1}), tmp_path)
    assert [(job.key, job.rounds) for job in found.jobs()] == [(second.key, 1)]
    run_all(found)
    assert found.jobs() == []
    assert [one.state for one in found.standings().values()] == ["done", "done"]


def test_what_a_kill_left_of_a_run_that_is_done_is_removed(tmp_path):
    """Killed between the last round's commit and the end of the run: nothing is left to run, but something to clear."""
    whole, killed = (sweep(tmp_path / name, "fedproto", "lr=0.02", "rounds=3") for name in ("whole", "killed"))
    run_all(whole)
    ((_, _, experiment),) = killed.grid.runs()
    killed_after_last_round(experiment, killed.root)
    assert killed.jobs() == []
    run_all(killed)
    assert records(killed.root) == records(whole.root)


def test_more_rounds_of_one_run_are_run_once(tmp_path):
    found = sweep(tmp_path, "fedproto", "rounds=1,3")
    assert [job.rounds for job in found.jobs()] == [3]
    run_all(found)
    assert {one.point.chosen["rounds"]: len(one.standings[0].run.rounds) for one in scores_of(found)} == {1: 1, 3: 3}
    assert found.jobs() == []


def test_a_run_that_diverges_stops_no_other_and_is_not_run_again(tmp_path):
    told, found = [], sweep(tmp_path, "fedproto", "lr=1.0e+12,0.05")
    run_all(found, told)
    assert len(told) == 1
    assert "became" in told[0] or "finite" in told[0]
    assert [one.state for one in found.standings().values()] == ["diverged", "done"]
    assert found.jobs() == []
    assert [score.point.chosen["lr"] for score in winners(scores_of(found))] == [0.05]


def test_side_by_side_gives_the_bytes_of_one_after_the_other(tmp_path):
    words = ["protonorm", "fedtgp", "lr=0.05,1.0e+12", "seeds=0,1"]
    one, two = sweep(tmp_path / "one", *words), sweep(tmp_path / "two", *words)
    told_one, told_two = [], []
    run_all(one, told_one)
    run_all(two, told_two, count=2, engine=None)
    assert len(records(tmp_path / "one")) == 8
    assert records(tmp_path / "one") == records(tmp_path / "two")
    assert [text.partition(":")[0] for text in sorted(told_one)] == [
        text.partition(":")[0] for text in sorted(told_two)
    ]
    assert len(told_two) == 4


def test_a_process_that_is_killed_is_replaced_and_told_of(tmp_path):
    found = sweep(tmp_path, "fedproto", "lr=0.05,0.1,0.2")
    jobs = found.jobs()
    crew, problems = Crew(jobs, tmp_path, 1), {}
    for news in crew.news():
        if news.round and not problems:
            os.kill(crew.processes[0], signal.SIGKILL)
            problems[news.key] = None
        if news.ended:
            problems[news.key] = news.problem
    assert [bool(problems[job.key]) for job in jobs] == [True, False, False]
    assert "its worker process was ended by signal 9" in problems[jobs[0].key]
    assert [job.key for job in found.jobs()] in ([jobs[0].key], [])  # it may have been done when it was killed
    run_all(found)
    assert [one.state for one in found.standings().values()] == ["done"] * 3


def test_processes_end_when_nobody_listens_any_more(tmp_path):
    found = sweep(tmp_path, "fedproto", "lr=0.05,0.1", "rounds=500")
    crew = Crew(found.jobs(), tmp_path, 2)
    heard = crew.news()
    while not next(heard).round:
        pass
    pids = crew.processes
    heard.close()
    assert len(pids) == 2
    assert has_ended(pids)


def test_own_code_is_forbidden_in_other_processes_too(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from protonorm.algorithms.fedproto import FedProto as Mine\n")
    found = sweep(tmp_path / "runs", f"{path}:Mine")
    *_, refused = Crew(found.jobs(), found.root, 1, no_own_code=True).news()
    assert "importing it would execute it" in refused.problem
    *_, allowed = Crew(found.jobs(), found.root, 1).news()
    assert allowed.problem == ""
    assert found.jobs() == []


def test_how_many_runs_go_side_by_side(monkeypatch):
    monkeypatch.setattr(sweeping, "cores", lambda: 4)
    assert how_many(12, None, None, None) == 4
    assert how_many(4, None, None, None) == 4
    assert how_many(3, None, None, None) == 1  # all cores on one run
    assert how_many(12, None, "serial", None) == 1
    assert how_many(12, None, None, 1) == 1
    assert how_many(12, None, None, None, ["cpu", "cuda"]) == 1
    assert how_many(12, 7, None, None) == 7
    assert how_many(3, 7, None, None) == 3
    assert how_many(0, None, None, None) == 1
    with pytest.raises(ValueError, match="--jobs beside --engine or --workers"):
        how_many(12, 2, None, 3)
    monkeypatch.setattr(sweeping, "cores", lambda: 1)
    assert how_many(12, None, None, None) == 1


def test_estimates_come_from_the_record_or_from_a_timed_round(tmp_path, monkeypatch):
    """A timed round of 8 s in 4 processes is 2 s: 2 runs × 3 rounds × 2 s. On record 5 s, the middle one; 3 rounds."""
    found = sweep(tmp_path, "fedproto", "lr=0.05,0.1", "rounds=3")
    timed = []
    monkeypatch.setattr(scores, "timed_round", lambda point: timed.append(point.method) or 8.0)
    guess = scores.estimate(found, found.jobs(), 4, 4)
    assert guess.seconds == 12
    assert guess.how == "one round each of fedproto, timed now"
    first, second = (experiment for _, _, experiment in found.grid.runs())
    run(first, tmp_path)
    monkeypatch.setattr(Run, "seconds", {1: 1.0, 2: 5.0, 3: 90.0})
    (job,) = found.jobs()
    assert job.key == second.key
    guess = scores.estimate(found, [job], 2, 4)
    assert guess.seconds == 3 * 5 / 2
    assert guess.how == "rounds of this sweep that are on record"
    assert timed == ["fedproto"]


def test_a_round_is_timed_without_a_trace(tmp_path):
    found = sweep(tmp_path / "runs", "fedproto")
    assert scores.timed_round(found.grid.points[0]) > 0
    assert not (tmp_path / "runs").exists()


TWELVE = ["protonorm", "algorithm.gamma=5,10", "lr=0.02,0.05,0.1", "seeds=0,1", "rounds=3"]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc here")
def test_a_sweep_that_is_killed_twice_ends_as_an_unbroken_one(tmp_path):
    """Twelve runs, two side by side; SIGKILL after a third and after two thirds of the rounds."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_all(sweep(whole, *TWELVE))
    words = [word for word in SPIRAL if word.partition("=")[0] not in ("lr", "rounds")] + TWELVE
    command = [sys.executable, "-P", "-m", "protonorm", "sweep", *words, "--jobs", "2", "--out", str(broken)]

    def start():
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    for rounds in (12, 24):
        process = start()
        while done_rounds(broken) < rounds and process.poll() is None:
            time.sleep(0.01)
        children = children_of(process.pid)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert len(children) == 2
        assert has_ended(children), "processes outlive the one that started them"
        assert done_rounds(broken) < 36
    process = start()
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert len(records(whole)) == 12
    assert records(broken) == records(whole)


def done_rounds(root):
    return sum(path.read_bytes().count(b"\n") for path in root.glob("*/metrics.jsonl"))


def children_of(pid):
    """List a process's children; each belongs to the thread that started it."""
    return [int(one) for path in Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text().split()]


def has_ended(pids, patience=60):
    """Wait a while for processes to end."""
    end = time.monotonic() + patience
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, pids))


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return re.search(r"\) (\w)", state)[1] not in "ZX"


def test_the_start_of_workers_is_no_part_of_the_time_left():
    """The first report comes with the first round: the time left is measured from then on."""
    heard = []
    with listening(lambda *told: heard.append(told)):
        follow = sweeping._Follower([sweeping.Job("a", {}, 2)], print, 2)
        follow(sweeping.News("a", warning="slow"))
        follow(sweeping.News("a", 1))
        follow(sweeping.News("a", ended=True))
    assert heard == [("1 runs, 2 side by side, rounds", done, 2) for done in (1, 2)]


def test_a_short_first_round_is_start_up_and_the_second_is_timed(monkeypatch):
    def run(*_, watch, **__):
        for seconds in (3.0, 0.5, 9.0):
            watch(SimpleNamespace(seconds={"round": seconds}))

    monkeypatch.setattr(scores, "run", run)
    point = SimpleNamespace(experiments={0: None})
    assert scores.timed_round(point) == 0.5
    monkeypatch.setattr(scores, "LONG", 2.0)
    assert scores.timed_round(point) == 3.0
