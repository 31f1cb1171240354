"""Runs on a local cluster of two actors: the same bits, whatever is lost on the way."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import protonorm as pn
from protonorm.core import Order
from protonorm.core.frames import pack, unpack
from protonorm.core.own_code import without_own_code
from protonorm.core.progress import listening
from protonorm.core.task import ByClient, Lost
from protonorm.engines import balance
from protonorm.engines.ray import engine as module
from protonorm.engines.ray.cluster import connect, spare_actors
from protonorm.engines.ray.crew import Crew
from protonorm.engines.ray.engine import Ray
from protonorm.engines.serial import Deadline, Serial
from protonorm.errors import Failed
from protonorm.runs.states import FolderStore
from protonorm.session.build import build
from protonorm.tensors import encode
from tests.engines.ray.nodes import end, name_of, processes, wait_for
from tests.engines.test_processes import OWN, WORDS, alive
from tests.support import contents, pictures, run, run_folder, spiral

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture
def engine(tmp_path):
    """Six clients on two actors, whose second copies of states are in a folder."""
    (tmp_path / "states").mkdir()
    made = Ray(*build(spiral()), FolderStore(tmp_path / "states", "key"), workers=2)
    yield made
    made.close()


@pytest.fixture
def serial(tmp_path):
    (tmp_path / "serial").mkdir()
    return Serial(*build(spiral()), FolderStore(tmp_path / "serial", "key"))


def orders(round=1, trained=0, clients=6):
    return [Order(id, round, trained) for id in range(clients)]


def bits(answers):
    return [(one.id, encode(one.message), dict(one.metrics)) for one in answers]


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def pids(engine):
    return [member.facts["pid"] for member in engine.crew.members.values()]


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid))


def same_as_serial(experiment, tmp_path, **options):
    run(experiment, tmp_path / "ray", engine="ray", workers=2, **options)
    run(experiment, tmp_path / "serial")
    one, other = (contents(run_folder(experiment, tmp_path / name)) for name in ("ray", "serial"))
    assert one == other


def test_states_are_on_the_nodes_and_their_second_copies_are_the_files_of_serial(engine, serial, tmp_path):
    assert bits(engine.train(orders(), {})) == bits(serial.train(orders(), {}))
    assert files(tmp_path / "states") == files(tmp_path / "serial")
    held = [member.holds for member in engine.crew.members.values()]
    assert sorted(id for one in held for id in one) == list(range(6))
    assert all(held)  # both actors have clients
    for one in (engine, serial):
        one.commit(1, range(6))
    assert bits(engine.train(orders(2, 1), {})) == bits(serial.train(orders(2, 1), {}))
    for one in (engine, serial):
        one.commit(2, [0, 1, 2])  # the replies of the others were refused
    assert files(tmp_path / "states") == files(tmp_path / "serial")
    assert sorted(files(tmp_path / "states")) == [f"{id}.{1 + (id < 3)}.safetensors" for id in range(6)]


def test_a_secure_sum_has_the_bits_of_serial(tmp_path):
    """Actors are told the members of a round, whose masks cancel: not by which actor each is computed."""
    same_as_serial(spiral(combine="secure_sum", clients=4, rounds=2), tmp_path)
    records = (
        run_folder(spiral(combine="secure_sum", clients=4, rounds=2), tmp_path / "ray") / "metrics.jsonl"
    ).read_text()
    assert "burned" not in records


@pytest.mark.long
def test_nodes_drop_what_the_committed_round_has_replaced(engine):
    folders = [Path(tempfile.gettempdir()) / member.facts["folders"][1] for member in engine.crew.members.values()]
    list(engine.train(orders(), {}))
    engine.commit(1, range(6))
    list(engine.train(orders(2, 1), {}))
    held = {path.name for folder in folders for path in folder.glob("*.safetensors")}
    assert held == {f"{id}.{round}.safetensors" for id in range(6) for round in (1, 2)}
    engine.commit(2, [0, 1, 2])
    all_of_them = [Order(id, 2, 1 + (id < 3)) for id in range(6)]
    list(engine.evaluate(all_of_them, {}, ("test",)))  # after which the actors have obeyed
    held = {path.name for folder in folders for path in folder.glob("*.safetensors")}
    assert held == {f"{id}.{1 + (id < 3)}.safetensors" for id in range(6)}
    assert all(folder.stat().st_mode & 0o077 == 0 for folder in folders)


@pytest.mark.long
def test_an_order_that_comes_twice_is_answered_with_the_same_bits(engine):
    """At least once is what a cluster promises: nobody trains on his own result."""
    ray, message = connect(2), pack({}, {})
    member = next(iter(engine.crew.members.values()))

    def act(order):
        header = {"verb": "train", "order": order, "message": 1, "own": False}
        told, tensors, file = unpack(ray.get(member.handle.act.remote(pack(header), message)))
        assert "error" not in told
        return encode(tensors), file

    first = act([0, 1, 0])
    assert act([0, 1, 0]) == first
    second = act([0, 2, 1])
    assert second != first
    assert act([0, 2, 1]) == second
    assert act([0, 1, 0]) == first


def test_a_state_is_sent_only_where_it_is_lacking(engine, serial, monkeypatch):
    """To nobody, unless an actor has lost it or the client goes to another actor."""
    sent = []
    monkeypatch.setattr(balance, "reassign", lambda parts, _: parts)  # everybody stays
    real = FolderStore.copy_out
    monkeypatch.setattr(FolderStore, "copy_out", lambda *one: sent.append(one[1:]) or real(*one))
    list(engine.train(orders(), {}))
    engine.commit(1, range(6))
    list(engine.evaluate(orders(1, 1), {}, ("test",)))
    assert not sent
    member = next(iter(engine.crew.members.values()))
    folder = Path(tempfile.gettempdir()) / member.facts["folders"][1]
    gone = sorted(member.holds)[0]
    (folder / f"{gone}.1.safetensors").unlink()  # a cleaner of temporary files has been there
    list(serial.train(orders(), {}))
    serial.commit(1, range(6))
    assert bits(engine.train(orders(2, 1), {})) == bits(serial.train(orders(2, 1), {}))
    assert sent == [(gone, 1)]
    engine.commit(2, range(6))
    serial.commit(2, range(6))
    mine = [[id for id in range(6) if id in member.holds] for member in engine.crew.members.values()]
    monkeypatch.setattr(balance, "reassign", lambda parts, _: parts[::-1])  # everybody moves
    assert bits(engine.train(orders(3, 2), {})) == bits(serial.train(orders(3, 2), {}))
    assert sorted(sent[1:]) == [(id, 2) for id in range(6)]
    engine.commit(3, range(6))
    assert [[id for id in range(6) if id in one.holds] for one in engine.crew.members.values()] == mine[::-1]
    list(engine.evaluate(orders(3, 3), {}, ("test",)))  # after which the actors have obeyed
    for one, clients in zip(engine.crew.members.values(), mine[::-1], strict=True):
        found = (Path(tempfile.gettempdir()) / one.facts["folders"][1]).glob("*.safetensors")
        assert sorted(path.name for path in found) == [f"{id}.3.safetensors" for id in clients]  # nothing of the others


@pytest.mark.long
@linux
@pytest.mark.parametrize("verb", ["train", "evaluate"])
def test_an_actor_that_is_killed_in_the_middle_of_a_call_changes_nothing(engine, serial, verb, tmp_path):
    """What it owed is asked of the other one, from the second copies; later it has a successor."""
    list(engine.train(orders(), {}))
    list(serial.train(orders(), {}))
    for one in (engine, serial):
        one.commit(1, range(6))
    victim, other = pids(engine)
    if verb == "train":
        answers = engine.train(orders(2, 1), {})
        expected = bits(serial.train(orders(2, 1), {}))
    else:
        answers = engine.evaluate(orders(1, 1), {}, ("test",))
        expected = [(one.id, encode(one.counts)) for one in serial.evaluate(orders(1, 1), {}, ("test",))]
    first = next(answers)
    kill(victim)
    found = [first, *answers]
    assert (bits(found) if verb == "train" else [(one.id, encode(one.counts)) for one in found]) == expected
    assert files(tmp_path / "states") == files(tmp_path / "serial")
    assert other in pids(engine)
    wait_for(lambda: list(engine.evaluate(orders(1, 1), {}, ("test",))) and len(pids(engine)) == 2)
    assert victim not in pids(engine)


@pytest.mark.long
@linux
@pytest.mark.parametrize(("killed", "begins"), [(2, True), (99, False)])
def test_an_actor_that_is_killed_while_it_starts_is_replaced(serial, tmp_path, monkeypatch, killed, begins):
    """Some may be; if all of them are, the run ends in a sentence."""
    hired, real = [], Crew._new

    def new(self, node):
        hired.append(real(self, node))
        if len(hired) <= killed:
            self.ray.kill(hired[-1])
        return hired[-1]

    monkeypatch.setattr(Crew, "_new", new)
    connect(2)
    spare_actors("of other settings")  # ends those of earlier tests, which would be taken
    (tmp_path / "states").mkdir()
    store = FolderStore(tmp_path / "states", "key")
    if not begins:
        with pytest.raises(Failed, match=r"^An actor did not begin.*: .*killed"):
            Ray(*build(spiral()), store, workers=2)
        assert len(hired) <= 8
        return
    engine = Ray(*build(spiral()), store, workers=2)
    try:
        assert len(hired) == 4
        assert bits(engine.train(orders(), {})) == bits(serial.train(orders(), {}))
    finally:
        engine.close()


def test_all_actors_may_be_killed_at_once(engine, serial):
    answers = engine.train(orders(), {})
    first = next(answers)
    for pid in pids(engine):
        kill(pid)
    assert bits([first, *answers]) == bits(serial.train(orders(), {}))


@pytest.mark.long
@linux
def test_an_actor_that_is_refused_in_the_middle_of_a_run_is_told_of_and_replaced(engine, serial, monkeypatch, recwarn):
    """A node may come to a cluster with other versions than those that were there at the start."""
    here = engine.crew._versions
    monkeypatch.setattr(engine.crew, "_versions", here | {"torch": "1.0"})
    victim, other = pids(engine)
    answers = engine.train(orders(), {})
    first = next(answers)
    kill(victim)
    assert bits([first, *answers]) == bits(serial.train(orders(), {}))
    wait_for(lambda: list(engine.evaluate(orders(), {}, ("test",))) and engine.crew._hired > 4)
    (told,) = (str(one.message) for one in recwarn)  # once, however often it is tried
    assert re.search(
        r"other versions than this machine: torch \S+ instead of 1\.0\..* given up; the run goes on\.$", told
    )
    monkeypatch.setattr(engine.crew, "_versions", here)
    wait_for(lambda: list(engine.evaluate(orders(), {}, ("test",))) and len(pids(engine)) == 2)
    assert other in pids(engine)


DEADLY = "import os; client.id == 3 and client.round > 1 and os._exit(7); model = client.load(state)"


@pytest.mark.long
def test_a_client_that_ends_its_actors_is_lost_and_the_others_are_not(tmp_path, capfd):
    path = tmp_path / "own_deadly.py"
    path.write_text(OWN.replace("model = client.load(state)", DEADLY))
    experiment = spiral(algorithm=f"{path}:Noisy", quorum=0.5, rounds=2)
    record = run(experiment, tmp_path, engine="ray", workers=2).run.rounds[-1]
    assert list(record.lost) == ["3"]
    assert "3 actors ended while it was at work, the last on node " in record.lost["3"]
    assert not "".join(capfd.readouterr()).strip()  # Ray does not print what we tell


@pytest.mark.long
def test_who_is_late_is_lost_and_may_come_back(engine, serial):
    """Again and again, with the same actors."""
    before, expected = pids(engine), bits(serial.train(orders(), {}))
    for _ in range(4):
        replies = list(engine.train(orders(), {}, deadline=0.0))
        assert all(isinstance(one, Lost) for one in replies)
        assert replies[0].reason == "it had not replied after 0 seconds"
        assert bits(engine.train(orders(), {})) == expected
    assert pids(engine) == before


@pytest.mark.long
def test_orders_that_are_late_are_not_given(engine, monkeypatch):
    """What nobody waits for any more would only keep the next call waiting."""
    limit = Deadline(5.0)
    limit.end = time.monotonic() - 1
    call = module.Call({"verb": "train"}, {}, lambda *_: None, limit)
    engine.orders.give(call, Order(0, 1, 0))
    assert not engine.orders.pending
    assert engine.orders.receive(call) == {0: Lost(0, "it had not replied after 5 seconds")}
    given = []
    monkeypatch.setattr(engine.orders, "give", lambda call, order: given.append(order))
    assert all(isinstance(one, Lost) for one in engine.train(orders(), {}, deadline=0.0))
    assert not given


@pytest.mark.long
def test_an_actor_has_few_orders_at_once(engine, monkeypatch):
    """With one at a time, each of the two actors has one order of three."""
    monkeypatch.setattr(module, "DEPTH", 1)
    answers = engine.train(orders(), {})
    seen = [(next(answers).id, len(engine.orders.pending)) for _ in range(6)]
    assert [id for id, _ in seen] == list(range(6))
    assert max(count for _, count in seen) <= 2


@pytest.mark.long
def test_a_message_goes_to_an_actor_once_and_each_client_may_have_its_own(engine, serial):
    import torch

    message = {"classes": torch.arange(6), "prototypes": torch.ones(6, 2)}
    list(engine.train(orders(), {}))
    list(serial.train(orders(), {}))
    put = []
    real, engine.orders._ray = engine.orders._ray, type("Counting", (), {})()
    for name in ("wait", "get", "exceptions"):
        setattr(engine.orders._ray, name, getattr(real, name))
    engine.orders._ray.put = lambda content: put.append(content) or real.put(content)
    one = list(engine.evaluate(orders(1, 1), message, ("test",)))
    assert len(put) == 1
    assert bits(engine.train(orders(2, 1), message)) == bits(serial.train(orders(2, 1), message))
    assert len(put) == 1  # the same message serves both verbs
    alone = ByClient(dict.fromkeys(range(6), message))
    two = list(engine.evaluate(orders(1, 1), alone, ("test",)))
    three = list(serial.evaluate(orders(1, 1), message, ("test",)))
    assert [encode(a.counts) for a in one] == [encode(b.counts) for b in two] == [encode(c.counts) for c in three]


@pytest.mark.long
def test_an_actor_that_sends_what_nobody_can_use_is_replaced(engine, serial, monkeypatch):
    real, spoilt = module.unpack, []

    def unpack_badly(content):
        if len(spoilt) < 1:
            spoilt.append(content)
            return real(content[:20])
        return real(content)

    monkeypatch.setattr(module, "unpack", unpack_badly)
    assert bits(engine.train(orders(), {})) == bits(serial.train(orders(), {}))
    assert spoilt


@pytest.mark.parametrize("algorithm", ["protonorm", "heterofl"])
def test_whole_runs_have_the_bytes_of_serial(tmp_path, algorithm):
    """Two forms of messages; `tests/contract` has all methods with `make test-long`."""
    same_as_serial(spiral(algorithm=algorithm), tmp_path)


def test_rounds_of_an_asynchronous_server_have_the_bytes_of_serial(tmp_path):
    """Late clients are given the messages that they began with, others the last one."""
    late = {"delay": "lognormal:10,1", "stragglers": 0.3, "dropout": 0.1, "asynchronous": True, "staleness": 2}
    experiment = spiral(algorithm="fedavg", models="mlp_small", rounds=5, system=late)

    def stop(round):
        if round.number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path / "ray", engine="ray", workers=2, watch=stop)
    same_as_serial(experiment, tmp_path)
    assert max(
        record.server["simulated.staleness"] for record in pn.load_run(experiment.key, out=tmp_path / "ray").history
    )


def test_divergence_on_a_node_is_told_as_in_serial(tmp_path):
    experiment = spiral(algorithm={"name": "protonorm", "gamma": 1e18})
    with pytest.raises(pn.Diverged, match=r"client \d.*Round 1 is kept"):
        run(experiment, tmp_path, engine="ray", workers=2)


@pytest.mark.long
def test_own_data_partitions_and_settings_travel(tmp_path):
    settings = {"models": ["plain", "dense"], "feature_dim": 4, "clients": 3, "rounds": 2, "lr": (0.01, 0.02)}
    same_as_serial(pn.Experiment.of({"dataset": pictures([0, 1, 2] * 30, 3), **settings}), tmp_path)


def test_own_code_travels_as_the_text_of_its_file(tmp_path):
    """A node that has another file of this name uses what was sent; what goes wrong is told by the user's own path."""
    path = tmp_path / "own_noisy.py"
    path.write_text("# coding: latin-1\n# caf\xe9\n" + OWN, encoding="latin-1")
    same_as_serial(spiral(algorithm={"name": f"{path}:Noisy", "weight": 0.5}), tmp_path)
    wrong = tmp_path / "own_wrong.py"
    wrong.write_text(OWN.replace("model = client.load(state)", "model = client.load(state); client.nonsense"))
    with pytest.raises(Failed, match=rf"{wrong}, line \d+, in local_update: AttributeError"):
        run(spiral(algorithm=f"{wrong}:Noisy"), tmp_path, engine="ray", workers=2)


@pytest.mark.long
def test_own_code_does_not_travel_where_it_is_forbidden(tmp_path):
    path = tmp_path / "own_noisy.py"
    path.write_text(OWN)
    experiment = spiral(algorithm=f"{path}:Noisy")
    wanted = "own_noisy.py must not be imported: importing it would execute it"
    with without_own_code(), pytest.raises(ValueError, match=wanted):
        run(experiment, tmp_path, engine="ray", workers=2)


@pytest.mark.long
def test_progress_tells_of_actors_and_of_clients_that_are_pending(engine):
    heard = []
    with listening(lambda *one: heard.append(one)):
        list(engine.train(orders(), {}))
    assert heard[0][0] == "Training on 2 actors, clients that have answered"
    assert heard[-1][1:] == (6, 6)


@pytest.mark.long
def test_nothing_is_left_on_the_node_after_a_run_nor_after_a_broken_one(engine, monkeypatch, tmp_path):
    members = list(engine.crew.members.values())
    folders = [Path(tempfile.gettempdir()) / name for member in members for name in member.facts["folders"]]
    assert len(set(folders)) == 3  # one for the node, one for each actor
    assert all(folder.is_dir() for folder in folders)
    next(engine.train(orders(), {}))
    engine.close()
    assert not any(folder.exists() for folder in folders)


def rounds_of(folder):
    path = folder / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def start(folder, out, *words):
    """Start a command of its own session, in a folder of its own, without what is set for this process's cluster."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    words = [*WORDS, *words, "--engine", "ray", "--workers", "1", "--out", str(out)]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "protonorm", "run", *words],
        cwd=folder,
        env=environment | {"TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.mark.long
@linux
def test_a_driver_that_is_killed_goes_on_where_it_was_and_its_cluster_ends(tmp_path):
    experiment = spiral(rounds=40)
    folder = run_folder(experiment, tmp_path / "runs")
    driver = start(tmp_path, tmp_path / "runs", "rounds=40")
    try:
        wait_for(lambda: driver.poll() is not None or rounds_of(folder) >= 2)
        driver.kill()
        driver.communicate()
        assert 2 <= rounds_of(folder) < 40
        run(experiment, tmp_path / "runs", engine="ray", workers=2)
        wait_for(lambda: not [name for name in map(name_of, processes(driver.pid)) if "Agent" not in name])
    finally:
        end(driver)  # Ray's agents take up to a minute to see that they are alone
    run(experiment, tmp_path / "whole")
    assert contents(folder) == contents(run_folder(experiment, tmp_path / "whole"))


@pytest.mark.long
@linux
def test_a_raylet_that_is_killed_ends_the_command_in_a_sentence(tmp_path):
    """Ray ends the process itself, at its next word to the raylet; what it has done is resumed."""
    experiment = spiral(rounds=40)
    folder = run_folder(experiment, tmp_path / "runs")
    driver = start(tmp_path, tmp_path / "runs", "rounds=40")
    try:
        wait_for(lambda: driver.poll() is not None or rounds_of(folder) >= 2)
        (raylet,) = (pid for pid in processes(driver.pid) if name_of(pid).endswith("/raylet"))
        os.kill(raylet, signal.SIGKILL)
        _, said = driver.communicate(timeout=120)
    finally:
        end(driver)
    assert driver.returncode == 1, said
    assert said.splitlines()[-1] == (
        "protonorm: The Ray cluster of this process has ended: its raylet was ended by signal 9, perhaps for lack of "
        "memory. Finished rounds are kept; the same command goes on from there."
    )
    assert 2 <= rounds_of(folder) < 40
    run(experiment, tmp_path / "runs")
    run(experiment, tmp_path / "whole")
    assert contents(folder) == contents(run_folder(experiment, tmp_path / "whole"))


@pytest.mark.long
@linux
def test_ctrl_c_leaves_nothing_behind_and_nothing_in_the_current_folder_is_executed(tmp_path):
    """Ray would let actors look for modules in the folder in which the command was given. It says nothing itself."""
    for name in ("torch", "random", "safetensors", "numpy", "filelock"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})\n")
    driver = start(tmp_path, tmp_path / "runs", "rounds=100000")
    folder = run_folder(spiral(rounds=100000), tmp_path / "runs")
    try:
        wait_for(lambda: driver.poll() is not None or rounds_of(folder) >= 2)
        os.killpg(driver.pid, signal.SIGINT)
        _, said = driver.communicate(timeout=120)
    finally:
        end(driver)
    assert driver.returncode == 130, said
    assert [line for line in said.splitlines() if "Starting actors" not in line and folder.name not in line] == [
        "protonorm: Stopped. Finished rounds are kept; the same command goes on from there."
    ]
    wait_for(lambda: not processes(driver.pid))
    assert not list(tmp_path.glob("protonorm-*"))
    assert not (tmp_path / "executed").exists()
