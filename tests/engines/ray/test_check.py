"""`protonorm cluster check`, on a local cluster: what it finds out, and what it says."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from protonorm.cli.app import app
from protonorm.data.prepared import Arrays, write_prepared
from protonorm.engines.ray import check, crew
from protonorm.errors import Failed
from tests.engines.test_processes import WORDS
from tests.support import run, spiral


def call(*words):
    return CliRunner().invoke(app, ["cluster", "check", *words])


@pytest.mark.long
def test_a_cluster_that_can_run_the_experiment_is_told_so(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (80, 16, 16, 3), dtype=np.uint8)
    write_prepared(tmp_path / "cifar10.npz", Arrays(images, np.arange(80) % 4, np.zeros(80, np.int8), tuple("abcd")))
    words = ["dataset=cifar10", f"dataset.root={tmp_path}", "models=plain", "feature_dim=8", "clients=4", "epochs=50"]
    done = call(*words, "partition=iid", "--engine", "ray:num_cpus=2")
    lines = done.stdout.splitlines()
    assert done.exit_code == 0, done.output
    node = re.search(r"Node (\S+ \(\w{6}\)) has \d+ cores and 0 GPUs: room for \d+ actors?\.", lines[1])[1]
    assert re.fullmatch(
        r"A cluster of \d+ cores was started on this machine, for RAY_ADDRESS names no other one.", lines[0]
    )
    assert lines[2].startswith(f"Node {node} has the same versions as this machine: python 3.")
    assert re.fullmatch(  # 80 · 16 · 16 · 3 bytes of pictures; labels and parts are in memory
        rf"Node {re.escape(node)} has found 61.4 kB of the data at their path, with the right checksum; "
        rf"1.35 kB of the data are sent to node {re.escape(node)} once a run, where .* are free\.",
        lines[3],
    )
    assert re.match(rf"Node {re.escape(node)} took .* s and \d+ MB of memory for a dry step, one epoch of", lines[4])
    assert "and there is memory for " in lines[4]
    assert lines[5] == "The dry step has the same bits on all of these nodes and on this machine."
    assert lines[6] == "The cluster can run this experiment."


@pytest.mark.long
def test_other_bits_are_a_problem(monkeypatch):
    monkeypatch.setattr(check, "_bits_here", lambda *_: "others")
    done = call(*WORDS, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert not found["ok"]
    problem, verdict = [one["text"] for one in found["findings"] if not one["ok"]]
    assert verdict == "The cluster cannot run this experiment as it is: see 1 problem above."
    assert re.match(r"The dry step has other bits on node \S+ \(\w{6}\) than on this machine", problem)


@pytest.mark.long
def test_other_versions_are_a_problem_for_the_check_and_for_a_run(monkeypatch, tmp_path):
    real = crew.versions_here()
    monkeypatch.setattr(crew, "versions_here", lambda: real | {"torch": "1.0"})
    there = re.escape(real["torch"])
    said = rf"Node \S+ \(\w{{6}}\) has other versions than this machine: torch {there} instead of 1.0\."
    done = call(*WORDS)
    assert done.exit_code == 1
    assert re.search(said, done.stderr)
    assert "The cluster cannot run" in done.stderr
    with pytest.raises(Failed, match=said):
        run(spiral(), tmp_path, engine="ray", workers=2)
    monkeypatch.setattr(crew, "versions_here", lambda: real | {"source": "abc"})
    with pytest.raises(Failed, match=r"protonorm \S+, but with other source files \(\w{12} instead of abc\)"):
        run(spiral(), tmp_path, engine="ray", workers=2)


@pytest.mark.long
def test_no_room_and_no_memory_are_problems(monkeypatch):
    done = call(*WORDS, "--engine", "ray:num_cpus=64")
    assert done.exit_code == 1
    assert "No node has room for an actor with 64 cores and 0 GPUs." in done.stderr
    monkeypatch.setattr(check, "_dry_step", lambda *_: (0.1, 10**15, "bits"))
    monkeypatch.setattr(check, "_bits_here", lambda *_: "bits")
    done = call(*WORDS)
    assert done.exit_code == 1
    assert re.search(r"but there is memory for 1 of 2 such actors only", done.stderr)


def test_what_is_no_cluster_is_refused():
    done = call(*WORDS, "--engine", "serial")
    assert done.exit_code == 2
    assert "--engine must be ray for a cluster, got serial." in done.stderr
    done = call("--rounds", "5")
    assert "Settings are words without dashes: rounds=" in done.stderr
