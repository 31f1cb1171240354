"""The tables list without importing what they list."""

import subprocess
import sys

import numpy as np
import pytest

from protonorm.data import DATASETS, PARTITIONS
from protonorm.data.dataset import Dataset
from protonorm.data.published.prepare import SOURCES
from protonorm.data.splits import parts_of
from protonorm.models import FAMILIES


def test_listing_is_light():
    check = "import sys, protonorm.data, protonorm.models; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


IN_THE_PACKAGE = [name for name, entry in DATASETS.items() if name not in SOURCES and "samples" in entry.details]


@pytest.mark.parametrize("name", IN_THE_PACKAGE)
def test_details_are_true(name):
    entry = DATASETS[name]
    data = entry.load()().load()
    assert data.name == name
    assert entry.details["classes"] == str(data.num_classes)
    assert entry.details["samples"] == str(len(data.labels))
    assert entry.details["size"] == "×".join(map(str, data.inputs.shape[1:]))
    assert entry.details["models"] in FAMILIES


@pytest.mark.parametrize("name", DATASETS)
def test_usual_networks_are_a_family(name):
    assert DATASETS[name].details["models"] in FAMILIES


@pytest.mark.parametrize("name", SOURCES)
def test_prepared_sets_have_a_class_of_their_name_and_readers(name):
    assert DATASETS[name].load().name == name
    assert all(callable(source.reader.load()) for source in SOURCES[name])


@pytest.mark.parametrize("name", [name for name in PARTITIONS if name != "index"])  # which needs a path
def test_partitions_have_usual_settings(name):
    labels = np.repeat(np.arange(10), 100)
    data = Dataset("numbers", np.zeros((1000, 1), np.float32), labels, groups=labels % 3)
    assert len(parts_of(data, 5, PARTITIONS[name].load()(), 0.75)) == 5
