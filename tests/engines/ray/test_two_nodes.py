"""A cluster of two nodes on this machine that share no folder: each has its own home and temporary folder."""

import subprocess
import sys
from pathlib import Path

import pytest

import protonorm as pn
from protonorm.files import Scratch
from tests.engines.ray.nodes import Cluster, end, processes, wait_for
from tests.support import contents, run, run_folder

pytestmark = [pytest.mark.long, pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")]

SETTINGS = {"dataset": {"name": "fashion", "samples": 600}, "models": "light", "clients": 20, "rounds": 2}
SETTINGS |= {"partition": {"name": "dirichlet", "alpha": 0.5, "least": 6}, "batch_size": 16}
WORDS = ["dataset=fashion", "dataset.samples=600", "models=light", "clients=20", "partition=dirichlet"]
WORDS += ["partition.alpha=0.5", "partition.least=6", "batch_size=16"]


@pytest.fixture(scope="module")
def cluster():
    with Scratch(Path("/tmp")) as scratch:  # names of sockets are short
        made = Cluster(scratch.folder)
        yield made
        made.close()
        assert not [pid for node in made.nodes for pid in processes(node.pid)]


def start(cluster, out, *words):
    command = [sys.executable, "-m", "protonorm", "run", *WORDS, *words, "--engine", "ray", "--out", str(out)]
    return subprocess.Popen(
        command,
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_twenty_clients_on_two_nodes_have_the_bits_of_one_process(cluster, tmp_path):
    driver = start(cluster, tmp_path / "ray", "rounds=2")
    _, said = driver.communicate()
    assert driver.returncode == 0, said
    experiment = pn.Experiment.of(SETTINGS)
    run(experiment, tmp_path / "serial")
    one, other = (contents(run_folder(experiment, tmp_path / name)) for name in ("ray", "serial"))
    assert one == other
    for number in (0, 1):
        assert not list(cluster.temporary(number).glob("protonorm-*"))


def test_a_node_that_is_lost_in_the_middle_of_a_run_changes_nothing(cluster, tmp_path):
    """Both nodes have clients; then one is gone with its states, and the other one goes on from the second copies."""
    driver = start(cluster, tmp_path / "ray", "rounds=4")
    experiment = pn.Experiment.of(SETTINGS | {"rounds": 4})
    folder = run_folder(experiment, tmp_path / "ray")
    states = [cluster.temporary(number) for number in (0, 1)]

    def both_at_work():
        return rounds_of(folder) >= 1 and all(list(one.glob("protonorm-*/*.safetensors")) for one in states)

    try:
        wait_for(lambda: driver.poll() is not None or both_at_work())
        cluster.kill(1)
        assert driver.poll() is None
        _, said = driver.communicate(timeout=300)
    finally:
        end(driver)
    assert driver.returncode == 0, said
    run(experiment, tmp_path / "serial")
    assert contents(folder) == contents(run_folder(experiment, tmp_path / "serial"))
    assert not list(cluster.temporary(0).glob("protonorm-*"))


def rounds_of(folder):
    path = folder / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0
