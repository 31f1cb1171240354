"""States that rest in a folder: which of them are dropped, and how many stay in memory."""

import pytest
import torch

from protonorm.core import Order
from protonorm.engines.serial import Host
from protonorm.runs.states import FolderStore, StateCache, stray_states
from protonorm.session.build import build
from tests.records import made
from tests.support import spiral


def state(value=0.0):
    return {"w": torch.full((250,), value)}  # a thousand bytes


def held(cache):
    return {id: round for id in range(10) for round in range(10) if cache.get(id, round) is not None}


def test_the_cache_is_bounded_by_bytes_and_the_longest_unused_go_first():
    cache = StateCache(3000)
    for id in range(3):
        cache.put(id, 1, state())
    cache.get(0, 1)
    cache.put(3, 1, state())
    assert held(cache) == {0: 1, 2: 1, 3: 1}
    cache.keep({2, 7})
    assert held(cache) == {2: 1}
    for id in (4, 5):
        cache.put(id, 2, state())
    assert held(cache) == {2: 1, 4: 2, 5: 2}  # what was dropped has left its room


def test_states_of_clients_that_did_not_act_leave_the_memory(tmp_path):
    task, population = build(spiral())
    store = FolderStore(tmp_path, "key")
    acting = Host(task, population, store)
    for id in (0, 1):
        acting.train(Order(id, 1, 0), {})
    acting.evaluate(Order(2, 1, 0), {}, ("test",))
    acting.commit(1, {0, 1})
    assert held(store.cache) == {0: 1, 1: 1, 2: 0}
    acting.train(Order(1, 2, 1), {})
    acting.commit(2, {1})
    assert held(store.cache) == {1: 2}
    assert store.load(0, 1).keys() == store.load(1, 2).keys()  # from the disk


@pytest.mark.parametrize(
    ("saved", "last", "chosen", "kept"),
    [
        ((1, 2, 3), 3, 0, {3}),  # no round is the best yet
        ((1, 2, 3), 3, 2, {2, 3}),
        ((1, 2, 3), 3, 3, {3}),
        ((1, 3), 3, 2, {1, 3}),  # it was lost in round 2, the best one, of which its state is that of round 1
        ((2, 3), 3, 1, {3}),  # it had not trained yet in the best round
        ((1, 2, 3), 2, 1, {1, 2}),  # its reply of round 3 did not count
        ((1, 2, 3), 2, 3, {2}),  # …, and round 3 became the best without it
    ],
)
def test_of_a_client_the_states_of_its_last_and_of_the_best_round_stay(tmp_path, saved, last, chosen, kept):
    """The state of the best round is the newest one that is not after it; another client's is not touched."""
    store = FolderStore(tmp_path, "key")
    for round in saved:
        store.save(4, round, state(float(round)))
    store.save(44, 1, state())
    store.keep_only(4, last, chosen)
    assert {(id, round) for id, round, _ in store.files()} == {(44, 1), *((4, round) for round in kept)}
    assert all(float(store.load(4, round)["w"][0]) == round for round in kept)


@pytest.mark.parametrize(
    ("names", "stray"),
    [
        (("0.1", "1.2"), False),
        (("0.2", "1.2"), True),  # of a reply that did not count
        (("0.1", "1.1", "1.2"), True),  # of the round before
        (("1.2",), False),  # what is missing is not left behind
    ],
)
def test_a_state_of_a_round_in_which_a_client_was_lost_is_one_that_a_kill_left(tmp_path, names, stray):
    """Two rounds of two clients; client 0 was lost in the second, so that its last state is that of the first."""
    run = made(tmp_path / "run", clients=2, rounds=2, lost={2: {0: "it was late"}})
    for name in names:
        (run.folder / "clients" / f"{name}.safetensors").touch()
    assert stray_states(run) is stray


def test_a_process_leaves_alone_what_a_client_has_written_later_in_another(tmp_path):
    """Worker 0 is late with round 2, which does not count; meanwhile the client trains in round 3 with worker 1."""
    one, other = FolderStore(tmp_path, "key"), FolderStore(tmp_path, "key")
    one.save(5, 1, state(1.0))
    one.keep_only(5, 1)
    one, late = FolderStore(tmp_path, "key"), one
    other.load(5, 1)
    one.save(5, 2, state(2.0))
    other.save(5, 3, state(3.0))
    other.keep_only(5, 3)
    one.keep_only(5, 1)  # the commit of round 2, heard at last by a worker that has not looked into the folder yet
    assert {path.name for path in tmp_path.iterdir()} == {"5.3.safetensors"}
    assert late.cache.get(5, 1) is not None
