"""The tables list without importing what they list."""

import subprocess
import sys

import numpy as np
import pytest

from protonorm.data import DATASETS, PARTITIONS
from protonorm.models import FAMILIES


def test_listing_is_light():
    check = "import sys, protonorm.data, protonorm.models; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", DATASETS)
def test_details_are_true(name):
    entry = DATASETS[name]
    data = entry.load()().load()
    assert data.name == name
    assert entry.details["classes"] == str(data.num_classes)
    assert entry.details["samples"] == str(len(data.labels))
    assert entry.details["size"] == "×".join(map(str, data.inputs.shape[1:]))
    assert entry.details["models"] in FAMILIES


@pytest.mark.parametrize("name", PARTITIONS)
def test_partitions_have_usual_settings(name):
    shares = PARTITIONS[name].load()().assign(np.repeat(np.arange(10), 100), 5)
    assert len(shares) == 5
