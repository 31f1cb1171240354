"""Which engine is meant, what actors get, and what is refused in a sentence before anything begins."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from protonorm.engines import choice
from protonorm.engines.balance import Placement
from protonorm.engines.choice import ActorSettings, read_engine
from protonorm.engines.ray import cluster
from protonorm.engines.ray.crew import other_versions
from protonorm.errors import Failed
from tests.support import run, spiral


def test_settings_stand_behind_the_name():
    assert read_engine("serial") == ("serial", {})
    assert read_engine("ray") == ("ray", {})
    assert read_engine("ray:num_gpus=0.5,num_cpus=2") == ("ray", {"num_gpus": 0.5, "num_cpus": 2.0})


def test_versions_differ_by_name_and_by_source_files():
    here = {"protonorm": "1.0", "torch": "2.13", "source": "abc"}
    assert other_versions(here, here) == []
    assert other_versions({}, {"torch": "2.13"}) == ["torch unknown instead of 2.13"]
    assert other_versions(here | {"source": "xyz"}, here) == [
        "protonorm 1.0, but with other source files (xyz instead of abc)"
    ]
    assert other_versions(here | {"source": "xyz", "protonorm": "1.1", "torch": "2.5"}, here) == [
        "protonorm 1.1 instead of 1.0",
        "torch 2.5 instead of 2.13",
    ]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("rey", "Unknown engine 'rey'; did you mean 'ray'"),
        ("serial:num_cpus=1", "The engine serial has no settings, got 'serial:num_cpus=1'"),
        ("ray:num_cpus", "must be field=value, got 'num_cpus' in 'ray:num_cpus'"),
        ("ray:", "must be field=value"),
        ("ray:cpus=1", "The engine ray has no setting 'ray:cpus'; did you mean 'num_cpus'"),
        ("ray:num_cpus=-1", "num_cpus must be greater than or equal to 0, got -1"),
        ("ray:num_cpus=many", "num_cpus must be a valid number, got 'many'"),
        ("ray:num_gpus=1.5", "num_gpus above 1 must be a whole number, got 1.5"),
        ("ray:num_cpus=0", "num_cpus and num_gpus must not both be 0"),
    ],
)
def test_what_is_no_engine_is_refused_in_a_sentence(word, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        read_engine(word)


def test_without_ray_a_sentence_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"not installed: pip install '\.\[ray\]' in a checkout"):
        run(spiral(), tmp_path, engine="ray")
    assert not list(tmp_path.iterdir())


def test_actors_are_counted_by_what_each_gets():
    """Of 4 cores and 2 GPUs: 4 with a core each; 2 with 2 cores each; 4 with half a GPU and a core; 1 with 2 GPUs."""
    assert ActorSettings().fit(4, 2) == 4
    assert ActorSettings(num_cpus=2).fit(4, 2) == 2
    assert ActorSettings(num_gpus=0.5).fit(4, 2) == 4
    assert ActorSettings(num_gpus=0.5, num_cpus=0.1).fit(4, 2) == 4
    assert ActorSettings(num_gpus=2).fit(4, 2) == 1
    assert ActorSettings(num_gpus=1).fit(4, 0) == 0
    with pytest.raises(ValueError, match="device must be cpu where actors have no GPU, got cuda"):
        ActorSettings().check_device("cuda")
    ActorSettings(num_gpus=1).check_device("cuda")
    ActorSettings().check_device("cpu")


def test_clients_are_placed_by_cost_stay_and_leave_an_actor_that_is_gone():
    """Samples 5, 4, 3, 3: the first goes to actor 7, then 4 to 9, 3 to 9 (4 < 5), 3 to 7 (5 < 7): as told by hand."""
    found = Placement([3, 5, 4, 3], 1)
    found.balance(range(4), [7, 9])
    loads = {7: 0, 9: 0}
    assert [found.actor_of(id, loads) for id in range(4)] == [9, 7, 9, 7]
    assert found.actor_of(1, {9: 3, 11: 2}) == 11  # to whom least was given
    assert found.actor_of(0, {9: 3, 11: 2}) == 9
    for id, seconds in ((0, 1.0), (1, 8.0), (2, 1.0), (3, 1.0)):
        found.note(id, seconds)
    found.commit(range(4))
    found.balance(range(4), [9, 11])  # 8 seconds on the one; so client 3, whose actor is gone, goes to the other
    assert [found.actor_of(id, {9: 0, 11: 0}) for id in range(4)] == [9, 11, 9, 9]


def test_who_takes_part_later_is_placed_beside_those_who_are_there():
    """Four clients of 4 samples on two actors; two new ones of 4 go to one each, and nobody moves."""
    found = Placement([4] * 6, 1)
    found.balance(range(4), [1, 2])
    before = [found.actor_of(id, {1: 0, 2: 0}) for id in range(4)]
    found.balance(range(6), [1, 2])
    assert [found.actor_of(id, {1: 0, 2: 0}) for id in range(4)] == before
    assert sorted(found.actor_of(id, {1: 0, 2: 0}) for id in (4, 5)) == [1, 2]


def test_an_address_that_is_of_no_use_is_refused(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(ValueError, match="start the command on a machine of the cluster"):
        cluster.connect(1)
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ValueError, match="needs Linux or macOS"):
        cluster.connect(1)


def test_an_address_at_which_nobody_answers_is_told_at_once(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{taken.getsockname()[1]}")  # where nobody listens
        with pytest.raises(Failed, match="Nothing answers at 127.0.0.1:.*, which RAY_ADDRESS names"):
            cluster._join(None, os.environ["RAY_ADDRESS"])


def test_what_ray_says_in_many_lines_is_told_in_one():
    said = "The actor died because of an error raised in its creation task, \x1b[36mray::Actor.__init__()\x1b[39m\n"
    said += (
        "  File x\n\x1b[31mModuleNotFoundError: No module named 'protonorm'\x1b[39m\nThe actor did so because of this."
    )
    assert cluster.reason(RuntimeError(said)) == "ModuleNotFoundError: No module named 'protonorm'"
    assert cluster.reason(RuntimeError("It died.\n\tpid: 3\nThe actor is dead because it was killed.\n")) == (
        "The actor is dead because it was killed"
    )
    assert cluster.reason(RuntimeError("")) == "RuntimeError"


class Slow:
    """A Ray that does not start in time, so many times."""

    def __init__(self, times, said="The current node timed out during startup."):
        self.times, self.said, self.folders = times, said, []

    def init(self, *, _temp_dir, **_):
        self.folders.append(Path(_temp_dir).parent)
        if len(self.folders) <= self.times:
            raise RuntimeError(self.said)

    def shutdown(self):
        pass


@pytest.mark.parametrize(("slow", "tries"), [(Slow(1), 2), (Slow(9), 3), (Slow(9, "There is no memory."), 1)])
def test_a_cluster_that_does_not_start_in_time_is_started_again(slow, tries, monkeypatch):
    monkeypatch.setattr(cluster, "_local", [])
    monkeypatch.setattr(cluster, "_options", dict)
    before = dict(os.environ)
    if slow.times == 1:
        cluster._start(slow, 2)
        cluster._local.pop().scratch.remove()
    else:
        with pytest.raises(Failed, match="No Ray cluster can be started on this machine: "):
            cluster._start(slow, 2)
    assert len(slow.folders) == tries
    assert not any(folder.exists() for folder in slow.folders)
    assert dict(os.environ) == before


def test_sockets_have_room_in_the_temporary_folder(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/var/folders/" + "x" * 40)
    assert str(cluster.short_folder()) == "/tmp"
    monkeypatch.setattr("tempfile.tempdir", "/scratch")
    assert str(cluster.short_folder()) == "/scratch"
    assert (
        cluster.SOCKETS + len("/protonorm-abcdefgh/r/session_2026-11-16_13-33-36_719088_4194304/sockets/plasma_store")
        == 107
    )


def test_ray_is_imported_by_nobody_who_does_not_ask_for_it():
    code = (
        "import sys, protonorm.engines.choice, protonorm.session.running, protonorm.cli.app; "
        "import protonorm.engines.ray.engine, protonorm.engines.ray.check; "
        "protonorm.engines.choice.read_engine('ray'); sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
