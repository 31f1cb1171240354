"""Very many classes: memory and disk stay bounded."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, resource, sys
from pathlib import Path
import numpy as np
import torch
import protonorm as pn
from protonorm.core import SERVER, seeded
from protonorm.core.task import Task
from protonorm.federation.evaluation import prototype_shape
from protonorm.geometry.alignment import Schedule
from protonorm.runs.states import Checkpoint
from protonorm.runs.writer import RunWriter
from protonorm.runs.run import Population
from tests.runs.records import info, outcome

torch.set_num_threads(1)
K, d, clients = int(sys.argv[1]), 64, 5
method = pn.ProtoNorm(gamma=100.0, schedule=Schedule(steps=2))
task = Task(method, tuple(map(str, range(K))), d, 1, 0)
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
replies = ({"classes": torch.arange(K), "prototypes": torch.randn(K, d)} for _ in range(clients))
with seeded(0, 1, SERVER):
    step = method.aggregate(task.server(1), {}, replies)
shape, arrays = prototype_shape(step.message)
folder = Path(sys.argv[2])
with RunWriter(folder, "key") as writer:
    counts = Population(*(np.ones((2, K), np.int64) for _ in range(3)))
    names = [str(k) for k in range(K)]
    writer.describe(info().model_copy(update={"classes": names}), counts)
    writer.resume()
    made = outcome(1, step.figures)
    writer.commit(Checkpoint(1, step.state, step.message, [1, 1]), made._replace(arrays=arrays))
disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"peak": 1024 * peak, "grown": 1024 * (peak - start), "disk": disk}))
"""


def measured(classes, folder):
    command = [sys.executable, "-c", SCRIPT, str(classes), str(folder)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_memory_and_disk_of_a_round_grow_with_classes_not_with_their_pairs(tmp_path):
    """1,000 classes have 499,500 pairs: 4 MB for each step, if all were kept; 3 numbers are."""
    found = measured(1000, tmp_path / "run")
    assert found["disk"] < 2e6
    assert found["grown"] < 400e6


@pytest.mark.long
def test_ten_thousand_classes_need_less_than_four_gigabytes_and_fifty_megabytes_on_disk(tmp_path):
    found = measured(10_000, tmp_path / "run")
    sys.stdout.write(f"\n{found['peak'] / 1e9:.2f} GB in memory, {found['disk'] / 1e6:.1f} MB on disk\n")
    assert found["disk"] < 50e6
    assert found["peak"] < 4e9
