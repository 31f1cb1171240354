import os
import random

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

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
