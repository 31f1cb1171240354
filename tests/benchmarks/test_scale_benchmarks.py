"""The benchmarks of scale on tiny sizes, and their tables. Nothing here is timed."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from benchmarks import capacity, commits, engines, fold, scale
from benchmarks.machine import TreePeak, memory, tree, tree_memory

from protonorm.runs.layout import CLIENTS

PLAIN = {"models": "plain", "feature_dim": 8}

linux = pytest.mark.skipif(memory("VmRSS") is None, reason="this system tells no memory")


def lengths(rows):
    return {len(row) for row in rows}


@linux
def test_memory_of_a_process_is_that_of_its_children_too():
    """A child that holds 50 MB, and one without anything, beside this process."""
    code = "import sys; held = b'x' * {}; print('ready', flush=True); sys.stdin.read()"
    with TreePeak() as peak:
        before = tree_memory(os.getpid())
        children = [
            subprocess.Popen([sys.executable, "-c", code.format(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for size in (50_000_000, 1)
        ]
        for child in children:
            child.stdout.readline()
        assert {child.pid for child in children} <= set(tree(os.getpid()))
        grown = tree_memory(os.getpid()) - before
        for child in children:
            child.communicate()
    assert 50 < grown < 120
    assert peak.megabytes > 0


def test_shards_may_overlap_but_a_client_has_no_sample_twice():
    parts = scale.shards(100, 30)
    assert len(parts) == 30
    assert parts.sizes().tolist() == [[48, 16]] * 30
    assert all(len(set(np.concatenate(part).tolist())) == 64 for part in parts)
    assert len(set(parts.index.tolist())) <= 100 < len(parts.index)


@pytest.mark.long
def test_sizes_take_turns_and_are_run_alone():
    settings = scale.SETTINGS | PLAIN
    found = scale.measure(sizes=(20, 40), rounds=1, settings=settings)
    assert [case["clients"] for case in found["cases"]] == [20, 40]
    for case in found["cases"]:
        assert len(case["seconds"]) == 1
        assert case["record"] > 0
        assert case["states"] > 0
    head, *rows = scale.table(found)
    assert lengths(rows) == {len(head)}
    json.dumps(found, allow_nan=False)


def test_the_table_of_sizes_compares_with_a_hundred_clients():
    """Folder after 100 rounds, 13 of which were run: 1 MB + 87 × 0.1 MB = 9.7 MB."""
    case = {"start": 2.0, "record": 1e6, "states": 4e6, "record a round": 1e5}
    cases = [case | {"clients": 100, "seconds": [2.0], "peak": 500.0}]
    cases += [case | {"clients": 10_000, "seconds": [1.0, 3.0, 2.5], "peak": 600.0}]
    rows = scale.table({"rounds": 10, "cases": cases})
    assert rows[2] == ["10,000", "2.0", "2.50", "1.25×", "600", "1.20×", "1.0", "9.7", "4.0"]


def test_bytes_of_states_are_counted_apart(tmp_path):
    (tmp_path / CLIENTS).mkdir()
    (tmp_path / CLIENTS / "0.1.safetensors").write_bytes(b"123")
    (tmp_path / "metrics.jsonl").write_bytes(b"12345")
    assert scale.folder_bytes(tmp_path, states=True) == 3
    assert scale.folder_bytes(tmp_path, states=False) == 5


def test_engines_take_turns_to_equal_records(monkeypatch):
    monkeypatch.setattr(engines, "WAYS", {name: way for name, way in engines.WAYS.items() if way[0] != "ray"})
    settings = PLAIN | {"dataset": {"name": "fashion", "samples": 160}, "clients": 2}
    found = engines.measure(rounds=1, settings=settings)
    assert found["equal records"]
    assert {name: len(seconds) for name, seconds in found["seconds"].items()} == {"serial": 1, "2 processes": 1}
    json.dumps(found, allow_nan=False)


def test_ratios_of_engines_are_within_a_turn():
    found = {"seconds": {"serial": [4.0, 8.0, 6.0], "2 processes": [2.0, 8.0, 2.0]}, "equal records": False}
    head, *rows = engines.table(found)
    assert "DIFFER" in head[0]
    assert rows == [["serial", "6.00", "1.00×"], ["2 processes", "2.00", "2.00×"]]


def test_an_engine_whose_package_is_missing_is_left_out_and_named(monkeypatch):
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    said = []
    assert "Ray, 2 actors" not in engines.available(said.append)
    assert "needs the package ray" in said[0]


def test_commits_of_the_first_and_of_the_last_rounds():
    found = commits.measure(rounds=4, part=2)
    assert found["first"] > 0
    assert found["last"] > 0
    table = commits.table(
        {"rounds": 9, "part": 2, "first": 0.002, "last": 0.003, "memory": {"first": 200, "last": 210}}
    )
    assert table[2] == ["the last 2", "3.00", "1.50×", "210", "1.05×"]


@linux
def test_memory_does_not_grow_with_the_messages_that_are_folded():
    """Three thousand of 20,480 bytes would be 61 MB; a tenth of a process is more than 20 MB."""
    found = fold.measure(clients=(100, 3000), classes=10, width=512)
    few, many = found["cases"]
    assert many["bytes"] == 3000 * (4 * 10 * 512 + 8 * 10)
    assert many["whole"] <= 1.1 * few["whole"]
    head, *rows = fold.table(found)
    assert lengths(rows) == {len(head)}


def test_what_is_computed_is_marked():
    """Alignment of 8 classes was measured; that of 80 is as many updates: 0.5 s × 4 s / 0.1 s = 20 s."""
    message = {"bytes": 1000, "each": 1e-4, "megabytes": 9.0}
    small = {"K": 8, "d": 2, "message": message, "update": {"each": 0.1, "megabytes": 1.0}}
    small |= {"paper": {"seconds": 4.0, "steps": 30, "megabytes": 11.0}, "auto": None}
    large = {"K": 80, "d": 2, "message": message, "update": {"each": 0.5, "megabytes": 12.0}}
    rows = capacity.table({"clients": [1_000_000], "cases": [small, large]})
    assert rows[1] == ["8", "2", "1,000,000", "≈ 1", "≈ 1", "≈ 100", "4", "–", "11"]
    assert rows[2] == ["80", "2", "1,000,000", "≈ 1", "≈ 1", "≈ 100", "≈ 20", "–", "12"]


def test_a_server_takes_in_messages_and_aligns():
    message = capacity.take_in(5, 4, 2000)
    assert message["bytes"] > 4 * 5 * 4 + 8 * 5
    assert message["messages"] == 2000 // message["bytes"]
    assert capacity.one_update(5, 4)["each"] > 0
    assert capacity.align_once(5, 4, "auto")["steps"] == 1  # K ≤ d + 1 has a closed form
