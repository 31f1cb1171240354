"""States that rest in a folder: which of them are dropped, and how many stay in memory."""

import torch

from protonorm.core import Order
from protonorm.engines.serial import Host
from protonorm.runs.states import FolderStore, StateCache
from protonorm.session.build import build
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
