import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import protonorm as pn
from protonorm.runs.layout import committed
from protonorm.runs.run import read_run
from protonorm.session.build import build
from protonorm.session.running import choose_engine, finished_run
from tests.support import contents, run, run_folder, spiral


class Killed(BaseException):
    """Stand for kill -9: nothing may catch it."""


def test_a_run_leaves_a_complete_record(tmp_path):
    experiment = spiral()
    result = run(experiment, out=tmp_path)
    record = read_run(run_folder(experiment, tmp_path))
    assert [one.round for one in record.rounds] == [1, 2, 3]
    assert record.finished
    assert result.history == record.rounds
    first, last = record.rounds[0], record.rounds[-1]
    assert first.rules["nearest-global"] is not None  # the prototypes that the server has just published
    assert set(last.rules) == {"nearest-global", "nearest-local", "logits", "joint"}
    assert record.by_client(last, "nearest-global").shape == (6,)
    assert last.server["alignment.steps"] >= 1
    assert last.prototypes.min > 0
    assert record.info.changed["clients"] == 6
    assert record.info.versions["torch"] == torch.__version__
    assert sorted(path.name for path in (record.folder / "prototypes").iterdir()) == [
        f"{r}.safetensors" for r in (1, 2, 3)
    ]
    assert (record.folder / "figures.safetensors").exists()
    held = {path.name for path in (record.folder / "clients").iterdir()}
    assert held == {f"{id}.{round}.safetensors" for id in range(6) for round in (record.chosen.record.round, 3)}


def test_metrics_hold_no_time_and_are_equal_in_two_places(tmp_path):
    experiment = spiral()
    for place in ("a", "b"):
        run(experiment, out=tmp_path / place)
    one, two = (contents(run_folder(experiment, tmp_path / place)) for place in ("a", "b"))
    assert one == two
    assert not any(word in one["metrics.jsonl"] for word in (b"second", b"time", b"host"))


def test_a_finished_run_is_not_repeated(tmp_path):
    experiment = spiral()
    run(experiment, out=tmp_path)
    files = {path: path.stat().st_mtime_ns for path in run_folder(experiment, tmp_path).rglob("*")}
    seen = []
    run(experiment, out=tmp_path, watch=seen.append)
    assert seen == []
    assert files == {path: path.stat().st_mtime_ns for path in run_folder(experiment, tmp_path).rglob("*")}


def test_no_rounds_is_a_run_too(tmp_path):
    experiment = spiral(rounds=0)
    assert run(experiment, out=tmp_path).history == []
    assert finished_run(run_folder(experiment, tmp_path), 0)


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_killed_at_any_write_a_run_resumes_to_the_same_bytes(tmp_path, monkeypatch, participation):
    experiment = spiral(rounds=2, participation=participation)
    run(experiment, out=tmp_path / "whole")
    folder = run_folder(experiment, tmp_path / "broken")
    real, calls, limit = os.replace, 0, 0

    def replace(*paths):
        nonlocal calls
        calls += 1
        if calls > limit:
            raise Killed
        real(*paths)

    monkeypatch.setattr("protonorm.files.os.replace", replace)
    for limit in range(1, 200):
        calls = 0
        try:
            run(experiment, out=tmp_path / "broken")
        except Killed:
            continue
        break
    assert limit > 5
    assert contents(folder) == contents(run_folder(experiment, tmp_path / "whole"))


def test_kill_9_at_random_moments_and_the_same_command_give_the_same_bytes(tmp_path):
    experiment = spiral(rounds=6, dataset={"name": "spiral", "points": 400}, lr=0.01)
    words = [sys.executable, "-m", "protonorm", "run", "--engine", "serial"]
    plain = experiment.model_dump(mode="json")
    words += [f"{name}={plain[name]}" for name in ("clients", "rounds", "batch_size", "lr")]
    words += [f"{owner}={plain[owner]['name']}" for owner in ("algorithm", "dataset", "partition")]
    words += ["dataset.points=400", "partition.alpha=0.3", "partition.least=4"]
    run(experiment, out=tmp_path / "whole")
    folder = run_folder(experiment, tmp_path / "broken")
    kills, seen = 0, 0
    for _ in range(40):
        process = subprocess.Popen(
            [*words, "--out", str(tmp_path / "broken")], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        while process.poll() is None and kills < 3:
            time.sleep(0.005)
            if (folder / "server.safetensors").exists() and committed(folder) > seen:
                seen = committed(folder) + kills % 2
                time.sleep(0.013 * kills)
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
        process.wait()
        if process.returncode == 0:
            break
    assert kills == 3
    assert process.returncode == 0
    assert contents(folder) == contents(run_folder(experiment, tmp_path / "whole"))


def test_divergence_names_client_round_and_settings_and_keeps_the_last_good_state(tmp_path):
    experiment = spiral(algorithm={"name": "protonorm", "gamma": 1e18}, rounds=5)
    with pytest.raises(pn.Diverged, match=r"client \d.*round 2.*Round 1 is kept.*algorithm.gamma=1e\+18"):
        run(experiment, out=tmp_path)
    record = read_run(run_folder(experiment, tmp_path))
    assert len(record.rounds) == 1
    assert record.failure.round == 2
    with pytest.raises(pn.Diverged):  # again, from the kept state
        run(experiment, out=tmp_path)


def test_trained_clients_predict(tmp_path):
    experiment = spiral(rounds=2)
    result = run(experiment, out=tmp_path)
    client, data = result.clients[3], result.population.dataset
    part = result.population.parts[3].test
    for rule in ("nearest-global", "nearest-local", "logits", "joint"):
        right = float((client.predict(data.inputs[part], rule) == data.labels[part]).mean())
        assert right == result.accuracy(rule, "clients")[-1, 3]
    with pytest.raises(ValueError, match="no rule 'nearest'"):
        client.predict(data.inputs[part], "nearest")


def test_history_as_arrays_and_as_a_frame(tmp_path):
    result = run(spiral(), out=tmp_path)
    assert result.accuracy("logits").shape == (3,)
    assert result.accuracy("nearest-global", "clients").shape == (3, 6)
    frame = result.frame()
    assert len(frame) == 3 * 4
    assert set(frame["rule"]) == {"nearest-global", "nearest-local", "logits", "joint"}


def test_the_number_of_processes_is_checked_and_asks_for_processes(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"^workers must be a whole number of at least 1, got -1\.$"):
        run(spiral(), tmp_path, engine=None, workers=-1)
    task, population = build(spiral())
    monkeypatch.setattr("protonorm.session.running.cores", lambda: 1)
    assert [choose_engine(task, population, None, workers) for workers in (None, 1, 2)] == [
        "serial",
        "serial",
        "processes",
    ]
    monkeypatch.setattr("protonorm.session.running.cores", lambda: 8)
    assert [choose_engine(task, population, None, workers) for workers in (None, 1)] == ["serial", "serial"]
    assert choose_engine(task, population, "processes", 1) == "processes"


@pytest.mark.parametrize(
    ("settings", "cores", "chosen"),
    [
        ({"rounds": 5}, 2, "serial"),  # 5 × 30000 × 50 µs are 7.5 seconds: half of them are fewer than the start takes
        ({"rounds": 40}, 2, "processes"),  # 60 seconds, of which two processes save 30
        ({"rounds": 40}, 1, "serial"),
        ({"rounds": 40, "participation": 0.1}, 2, "serial"),  # 6 seconds
        ({"rounds": 5, "epochs": (1, 15)}, 2, "processes"),  # on the average 8 epochs
        ({"rounds": 8}, 8, "processes"),  # 12 seconds, of which 8 processes save 10.5 …
        ({"rounds": 8}, 2, "serial"),  # … and 2 save 6
    ],
)
def test_small_work_stays_in_one_process(monkeypatch, settings, cores, chosen):
    experiment = pn.Experiment(dataset="spiral", clients=10, partition="iid", **settings)
    task, population = build(experiment)
    monkeypatch.setattr("protonorm.session.running.cores", lambda: cores)
    assert choose_engine(task, population, None, cohort=experiment.cohort_size) == chosen


def test_processes_for_an_engine_without_any_are_refused(tmp_path):
    with pytest.raises(ValueError, match="workers must be 1 with the engine serial, which has one process, got 4"):
        run(spiral(), tmp_path, workers=4)
    run(spiral(rounds=1), tmp_path, workers=1)
