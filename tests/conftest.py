import os
import random

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from protonorm.engines import processes
from tests import warm

settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_random_numbers():
    """Begin every test with the same random numbers, in whatever order tests are run."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _runs_elsewhere(tmp_path, monkeypatch):
    """Keep every run of a test, and its data, in the test's own folder."""
    monkeypatch.setenv("PROTONORM_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PROTONORM_DATA", str(tmp_path / "data"))


NEW_INTERPRETER = processes.start_worker


@pytest.fixture(scope="session", autouse=True)
def _warm_workers():
    """Fork the workers of engines from one process that has imported torch; `cold_workers` are new interpreters."""
    if not warm.POSSIBLE:
        yield
        return
    processes.start_worker = warm.NURSERY.start_worker
    yield
    processes.start_worker = NEW_INTERPRETER
    warm.NURSERY.close()


@pytest.fixture
def cold_workers(monkeypatch):
    """Start workers as users do; for tests of how they start, and of how they end."""
    monkeypatch.setattr(processes, "start_worker", NEW_INTERPRETER)


@pytest.fixture
def on_standin(monkeypatch):
    """Make the device of tests one that experiments may name."""
    from tests import standin

    monkeypatch.setattr("protonorm.config.experiment.check_device", lambda name: None)
    standin.device()
    standin.moved.clear()
    with torch.autograd.set_multithreading_enabled(False):  # torch's threads are of the devices it knew at first
        yield
