import io
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import protonorm as pn
from protonorm.core import Lost, Order, Reply
from protonorm.core.task import ByClient
from protonorm.engines import processes as module
from protonorm.engines.handover import obstacle
from protonorm.engines.processes import Processes
from protonorm.engines.worker import Worker
from protonorm.errors import Failed
from protonorm.runs.layout import committed
from protonorm.runs.states import FolderStore
from protonorm.session.build import build
from tests.support import contents, pictures, run, run_folder, spiral

WORDS = ["dataset=spiral", "dataset.points=60", "partition=dirichlet", "partition.alpha=0.3", "partition.least=4"]
WORDS += ["clients=6", "batch_size=8", "lr=0.05"]


def children(pid):
    """List the processes that a process started (Linux)."""
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def start(out, *words):
    command = [sys.executable, "-m", "protonorm", "run", *WORDS, *words, "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@linux
def test_killed_three_times_and_resumed_with_other_workers_gives_the_same_bytes(tmp_path):
    experiment = spiral(rounds=40)
    folder = run_folder(experiment, tmp_path)
    for kill, workers in enumerate((2, 1, 2, 1)):
        process = start(tmp_path, "rounds=40", "--engine", "processes", "--workers", str(workers))
        if kill < 3:
            wait_for(lambda goal=10 * kill + 1: (folder / "server.safetensors").exists() and committed(folder) >= goal)
            workers_of_it = children(process.pid)
            assert len(workers_of_it) == workers
            process.kill()
            process.communicate()
            wait_for(lambda ids=workers_of_it: not any(map(alive, ids)), 10)  # workers end when the parent dies
        else:
            process.communicate()
            assert process.returncode == 0
    run(experiment, out=tmp_path / "whole")
    assert contents(folder) == contents(run_folder(experiment, tmp_path / "whole"))


@linux
def test_a_worker_that_dies_is_replaced_and_the_bytes_are_the_same(tmp_path):
    experiment = spiral(rounds=30)
    folder = run_folder(experiment, tmp_path)
    process = start(tmp_path, "rounds=30", "--engine", "processes", "--workers", "2")
    for goal in (2, 10):
        wait_for(lambda goal=goal: (folder / "server.safetensors").exists() and committed(folder) >= goal)
        os.kill(children(process.pid)[0], signal.SIGKILL)
    _, text = process.communicate(timeout=120)
    assert process.returncode == 0, text
    run(experiment, out=tmp_path / "whole")
    assert contents(folder) == contents(run_folder(experiment, tmp_path / "whole"))


@linux
def test_workers_that_die_again_and_again_end_the_run_in_a_sentence(tmp_path):
    """A client whose code ends its process: tried three times, then the run stops and keeps what it has."""
    path = tmp_path / "own_deadly.py"
    path.write_text(
        OWN.replace(
            "model = client.load(state)", "import os; client.round > 1 and os._exit(7); model = client.load(state)"
        )
    )
    with pytest.raises(pn.TooFewReplies, match="Round 2 .*its worker process ended with code 7.*It was tried 3 times"):
        run(spiral(algorithm=f"{path}:Noisy"), out=tmp_path, engine="processes", workers=2)


def test_a_message_is_sent_once_to_a_worker_not_once_for_each_verb(tmp_path, monkeypatch):
    task, population = build(spiral())
    store = FolderStore(tmp_path, "key")
    frames = []
    real = module.write_frame

    def write(stream, header, tensors=None):
        frames.append(header.get("verb"))
        real(stream, header, tensors)

    monkeypatch.setattr(module, "write_frame", write)
    message = {"classes": torch.arange(6), "prototypes": torch.ones(6, 2)}
    engine = Processes(task, population, store, workers=2)
    try:
        frames.clear()
        list(engine.train([Order(id, 1, 0) for id in range(6)], {}))
        list(engine.evaluate([Order(id, 1, 1) for id in range(6)], message, ("test",)))
        list(engine.train([Order(id, 2, 1) for id in range(6)], message))
        assert sorted(frames) == sorted(["message", "train"] * 2 + ["message", "evaluate"] * 2 + ["train"] * 2)
        single = ByClient(dict.fromkeys(range(6), message))
        one, other = (
            list(engine.evaluate([Order(id, 2, 2) for id in range(6)], said, ("test",))) for said in (single, message)
        )
        assert [a.counts["test.correct.nearest-global"].tolist() for a in one] == [
            b.counts["test.correct.nearest-global"].tolist() for b in other
        ]
    finally:
        engine.close()


@pytest.mark.parametrize("deadline", [None, 0.0])
def test_few_orders_are_under_way_at_a_time(tmp_path, monkeypatch, deadline):
    """With one order for each of two workers at a time, no more than four are ahead; late ones are not even sent."""
    monkeypatch.setattr("protonorm.engines.processes.AHEAD", 1)
    task, population = build(spiral(clients=12))
    engine = Processes(task, population, FolderStore(tmp_path, "key"), workers=2)
    sent, answered, ahead = [], 0, []
    real = engine.pool.send

    def send(number, header, tensors=None):
        sent.extend(order.id for order in header.get("orders", ()))
        ahead.append(len(sent) - answered)
        real(number, header, tensors)

    monkeypatch.setattr(engine.pool, "send", send)
    try:
        for answer in engine.train([Order(id, 1, 0) for id in range(12)], {}, deadline):
            assert answer.id == answered
            assert isinstance(answer, Lost if deadline == 0.0 else Reply)
            answered += 1
    finally:
        engine.close()
    assert answered == 12
    assert sorted(sent) == ([] if deadline == 0.0 else list(range(12)))
    assert max(ahead, default=0) <= 4


def test_a_cohort_is_shared_out_among_workers_whoever_had_its_clients(tmp_path):
    """All of a cohort lay with one worker: half of it goes to the other."""
    task, population = build(spiral(partition="iid"))
    engine = Processes(task, population, FolderStore(tmp_path, "key"), workers=2)

    try:
        cohort = engine.assigned[0]
        assert len(cohort) == 3
        list(engine.train([Order(id, 1, 0) for id in sorted(cohort)], {}))
        assert sorted(len(set(part) & set(cohort)) for part in engine.assigned) == [1, 2]
        assert sorted(id for part in engine.assigned for id in part) == list(range(6))
    finally:
        engine.close()


def test_nothing_lists_the_folder_of_clients_in_a_round(tmp_path, monkeypatch):
    seen = []
    real = Path.glob

    def glob(self, *arguments, **options):
        if self.name == "clients":
            seen.append(self)
        return real(self, *arguments, **options)

    monkeypatch.setattr(Path, "glob", glob)
    counts = []
    for rounds in (2, 6):
        seen.clear()
        result = run(spiral(rounds=rounds), out=tmp_path / str(rounds))
        counts.append(len(seen))
        kept = {rounds, result.run.chosen.record.round}
        held = (run_folder(spiral(rounds=rounds), tmp_path / str(rounds)) / "clients").iterdir()
        assert {path.name for path in held} == {f"{id}.{round}.safetensors" for id in range(6) for round in kept}
    assert counts[0] == counts[1]  # only at the beginning and at the end


def test_divergence_in_a_worker_is_told_as_in_serial(tmp_path):
    experiment = spiral(algorithm={"name": "protonorm", "gamma": 1e18})
    with pytest.raises(pn.Diverged, match=r"client \d.*Round 1 is kept"):
        run(experiment, out=tmp_path, engine="processes", workers=2)


@pytest.mark.usefixtures("cold_workers")
def test_own_data_partition_and_settings_travel(tmp_path):
    experiment = pn.Experiment(
        dataset=pictures([0, 1, 2] * 30, 3),
        models=["plain", "dense"],
        feature_dim=4,
        clients=3,
        rounds=2,
        lr=(0.01, 0.02),
        start="equal",
    )
    run(experiment, out=tmp_path / "a")
    run(experiment, out=tmp_path / "b", engine="processes", workers=2)
    assert contents(run_folder(experiment, tmp_path / "a")) == contents(run_folder(experiment, tmp_path / "b"))


OWN = """
from dataclasses import dataclass
from protonorm import Algorithm, Schema, Step
from protonorm.tensors import snapshot
from torch.nn.functional import cross_entropy

@dataclass(frozen=True)
class Noisy(Algorithm):
    weight: float = 1.0

    def schema(self, task):
        return Schema()

    def local_update(self, client, state, message):
        print("this must not get between the frames")
        model = client.load(state)
        loss = client.fit(lambda x, y: self.weight * cross_entropy(model(x), y), model)
        return Step(snapshot("model", model), {}, {"loss": loss})

    def aggregate(self, server, state, replies):
        return Step({}, {})
"""


@pytest.mark.usefixtures("cold_workers")
def test_an_own_algorithm_from_a_file_runs_in_workers_even_if_it_prints(tmp_path):
    path = tmp_path / "own_noisy.py"
    path.write_text(OWN)
    experiment = spiral(algorithm={"name": f"{path}:Noisy", "weight": 0.5})
    key = experiment.key
    assert obstacle(*build(experiment)) is None
    run(experiment, out=tmp_path / "a")
    run(experiment, out=tmp_path / "b", engine="processes", workers=2)
    assert contents(run_folder(experiment, tmp_path / "a")) == contents(run_folder(experiment, tmp_path / "b"))
    path.write_text(OWN.replace("self.weight *", "2 * self.weight *"))
    sys.modules.pop("protonorm_own_own_noisy")
    assert (
        spiral(algorithm={"name": f"{path}:Noisy", "weight": 0.5}).key != key == experiment.key
    )  # other code, other run


def test_what_cannot_leave_the_process_runs_in_it_and_a_sentence_says_why(tmp_path):
    @dataclass(frozen=True)
    class Inner(pn.Local.__mro__[1]):
        def schema(self, task):
            return pn.Schema()

        def local_update(self, client, state, message):
            return pn.Local().local_update(client, state, message)

        def aggregate(self, server, state, replies):
            return pn.Step({}, {})

    experiment = spiral(algorithm=Inner())
    with pytest.warns(UserWarning, match="one after the other: .*Inner is defined inside a function"):
        run(experiment, out=tmp_path, engine="processes")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(spiral(algorithm=Inner(), seed=1), out=tmp_path, engine="serial")


def test_arrays_are_written_once_for_all_workers_that_start_together(tmp_path, monkeypatch):
    """Some map them while others start: they must not be written again."""
    written = []
    real = module.hand_over
    monkeypatch.setattr(module, "hand_over", lambda *told: written.append(1) or real(*told))
    engine = Processes(*build(spiral()), FolderStore(tmp_path, "key"), workers=3)
    try:
        assert len(written) == 1
        for number in (0, 1):
            engine.pool.replace(number, "was ended")
        assert len(written) == 2
        assert all(isinstance(one, Reply) for one in engine.train([Order(id, 1, 0) for id in range(6)], {}))
        wait_for(lambda: list(engine.evaluate([Order(0, 1, 1)], {}, ("test",))) and engine.pool._scratch is None)
    finally:
        engine.close()


def test_orders_that_are_late_are_not_begun(tmp_path, monkeypatch):
    """What nobody waits for any more would only keep the next call waiting."""
    trained, sent = [], []
    host = SimpleNamespace(train=lambda order, message: trained.append(order.id) or Reply(order.id, {}, {}, 0.0))
    worker = Worker(host, io.BytesIO())
    for end in (time.monotonic() - 1, time.monotonic() + 600):
        worker.handle({"verb": "train", "call": 1, "end": end, "orders": [[0, 1, 0], [1, 1, 0]]}, {})
    worker.handle({"verb": "train", "call": 2, "orders": [[2, 1, 0]]}, {})
    assert trained == [0, 1, 2]

    engine = Processes(*build(spiral()), FolderStore(tmp_path, "key"), workers=2)
    real = engine.pool.send
    monkeypatch.setattr(engine.pool, "send", lambda *frame: sent.append(frame[1]) or real(*frame))
    try:
        before = time.monotonic()
        list(engine.train([Order(id, 1, 0) for id in range(6)], {}, 600.0))
        list(engine.train([Order(id, 1, 0) for id in range(6)], {}))
    finally:
        engine.close()
    first, second = ([one for one in sent if one.get("call") == call] for call in (1, 2))
    assert all(before + 600 <= one["end"] <= time.monotonic() + 600 for one in first)
    assert not any("end" in one for one in second)


def test_an_own_file_that_is_edited_while_the_command_runs_is_told(tmp_path):
    """Workers would import the new text, while the key, and what this process executes, are those of the old one."""
    path = tmp_path / "own_edited.py"
    path.write_text(OWN)
    experiment = spiral(algorithm=f"{path}:Noisy")
    assert experiment.key
    path.write_text(OWN.replace("self.weight *", "2 * self.weight *"))
    with pytest.raises(ValueError, match=r"^own_edited\.py was changed since it was imported here"):
        run(experiment, out=tmp_path, engine="processes", workers=2)


def test_what_goes_wrong_in_a_worker_before_it_begins_is_told(tmp_path, monkeypatch):
    path = tmp_path / "own_choosy.py"
    path.write_text("import os\nassert 'OWN_CHOOSY' not in os.environ, 'not in this place'\n" + OWN)
    experiment = spiral(algorithm=f"{path}:Noisy")
    monkeypatch.setenv("OWN_CHOOSY", "1")
    with pytest.raises(ValueError, match="own_choosy.py.*not in this place"):
        run(experiment, out=tmp_path, engine="processes", workers=2)


def test_numbers_of_numpy_are_metrics_like_others(tmp_path):
    path = tmp_path / "own_numpy.py"
    path.write_text(
        "import numpy as np\n" + OWN.replace('{"loss": loss}', '{"loss": np.float32(0.5), "n": np.int64(3)}')
    )
    experiment = spiral(algorithm=f"{path}:Noisy", rounds=1)
    found = run(experiment, out=tmp_path, engine="processes", workers=2).run.rounds[0]
    assert found.metrics == {"loss": 0.5, "n": 3.0}


@pytest.mark.usefixtures("cold_workers")
def test_a_worker_gone_before_it_began_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("protonorm.engines.processes.sys.executable", "/bin/false")
    with pytest.raises(Failed, match="did not start: it ended with code 1"):
        run(spiral(), out=tmp_path, engine="processes", workers=1)


def test_a_run_has_one_torch_thread_and_they_are_as_before_after_it(tmp_path):
    """More threads would add up in another order."""
    torch.set_num_threads(2)
    seen = []
    run(spiral(rounds=2), out=tmp_path, watch=lambda _: seen.append(torch.get_num_threads()))
    assert (seen, torch.get_num_threads()) == ([1, 1], 2)


@linux
def test_workers_execute_nothing_that_lies_in_the_current_folder(tmp_path):
    """A torch.py, random.py or safetensors.py there is a file like others; command and workers leave it alone."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name in ("torch", "random", "safetensors", "protonorm_own", "queue", "numpy"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})\n")
    script = Path(sys.executable).with_name("protonorm")
    command = [str(script)] if script.exists() else [sys.executable, "-P", "-m", "protonorm"]
    words = [*WORDS, "rounds=1", "--engine", "processes", "--workers", "2", "--out", str(tmp_path / "runs")]
    done = subprocess.run([*command, "run", *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()


def test_the_folder_of_arrays_is_gone_once_workers_have_mapped_it_and_that_of_a_killed_process_at_the_next_start(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    abandoned, foreign = tmp_path / "tmp" / "protonorm-abandon1", tmp_path / "tmp" / "other-folder"
    for folder in (abandoned, foreign):
        folder.mkdir()
        (folder / "lock").touch()
        (folder / "inputs.npy").write_bytes(b"private")
    task, population = build(spiral())
    engine = Processes(task, population, FolderStore(tmp_path, "key"), workers=1)
    try:
        assert [path.name for path in (tmp_path / "tmp").iterdir()] == ["other-folder"]
    finally:
        engine.close()
