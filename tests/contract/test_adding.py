"""Adding an algorithm touches its file, a line of the table, its test and its page: shown in a copy of the project."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

ALGORITHM = '''"""Nudge: the server tells how many samples there are, and clients weigh their loss by their share.

server remembers: nothing
server says:      samples (); nothing before the first round
client remembers: model.*
client says:      samples ()
"""

from __future__ import annotations


import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import cross_entropy

from protonorm.core import Additive, Client, Contribution, Field, Schema, Server, Step, Sums, Task, optional
from protonorm.core.types import STRICT, NonNegative
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class Nudge(Additive):
    """Train alone, a little more where there are more samples."""

    weight: NonNegative = 0.5  # of the share

    def schema(self, task: Task) -> Schema:
        """Both sides say one number."""
        samples = {"samples": Field((), torch.int64, least=1, below=2**31)}
        return Schema(up=((samples,),), down=(optional(samples),))

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with (1 + weight·share)·CE."""
        model, own = client.load(state), torch.tensor(len(client.train))
        share = float(own) / float(message.get("samples", own))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return (1 + self.weight * share) * cross_entropy(model(x), y)

        mean = client.fit(loss, model)
        return Step(snapshot("model", model), {"samples": own}, {"loss": mean})

    def contribution(self, server: Server, state: Tensors, reply: Tensors) -> Contribution:
        """Add up the samples."""
        return Contribution({}, torch.tensor(1), reply)

    def conclude(self, server: Server, state: Tensors, sums: Sums) -> Step:
        """Say how many there are."""
        return Step({}, dict(sums.totals))
'''

LINES = {  # of the two tables of methods
    "_METHODS = {": '    "nudge": ("Nudge", "any", "a number", "-"),',
    "_SUMMARIES = {": '    "nudge": "a number",',
}

COVERED = [
    *("test_it_is_pure", "test_it_relies_on_nothing", "test_all_that_is_said_fits", "test_what_does_not_fit"),
    *("test_worker_processes_give", "test_resumed_on_other", "test_a_client_with_one_class", "test_bytes_are_those"),
    *("test_exchanging_the_test_part", "test_a_client_computes_the_same", "test_every_hyper_parameter"),
    *(
        "test_the_record_says",
        "test_the_floating_numbers",
        "test_more_batches_wait",
        "test_training_lowers",
        "test_no_server_holds_more_replies",
    ),
]


@pytest.mark.long
def test_a_new_algorithm_is_covered_by_its_registration_alone(tmp_path):
    """One new file and a line in each of two tables; all contract tests find it, and nothing else is touched."""
    for part in ("src", "tests", "experiments", "benchmarks", "docs"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for part in ("pyproject.toml", "README.md", "mkdocs.yml"):
        shutil.copy(ROOT / part, tmp_path / part)
    package = tmp_path / "src" / "protonorm" / "algorithms"
    (package / "nudge.py").write_text(ALGORITHM)
    table = (package / "__init__.py").read_text()
    for begins, line in LINES.items():
        assert table.count(begins) == 1
        table = table.replace(begins, f"{begins}\n{line}")
    (package / "__init__.py").write_text(table)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-vv", "-p", "no:cacheprovider", "tests/contract", "-k", "nudge"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    passed = {line.split("::")[1].split("[")[0] for line in done.stdout.splitlines() if " PASSED" in line}
    missing = [name for name in COVERED if not any(one.startswith(name) for one in passed)]
    assert not missing
    listed = subprocess.run(
        [
            sys.executable,
            "-c",
            "import protonorm as pn; print(pn.Nudge().weight, pn.Experiment(algorithm='nudge').key)",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout.startswith("0.5 nudge-fashion-seed0-")


METRIC = '''"""The share of wrong answers."""

import math
from typing import ClassVar

from protonorm.metrics.base import Metric


class ErrorRate(Metric):
    """One minus accuracy."""

    title: ClassVar[str] = "error"
    meaning: ClassVar[str] = "the share of wrong answers"

    def of_client(self, counts, support):
        """Divide the wrong answers by all."""
        return 1 - counts["correct"].sum() / support.sum() if support.any() else math.nan
'''

STEP = '''"""Replies without information."""

from protonorm.core.training import Outgoing
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT


@dataclass(frozen=True, config=STRICT)
class Zeros(Outgoing):
    """Send zeros in place of prototypes."""

    def apply(self, task, client, message):
        """Replace the prototypes."""
        return message | {"prototypes": 0 * message["prototypes"]}
'''

RUN = """
import protonorm as pn
experiment = pn.Experiment(dataset={"name": "spiral", "points": 60}, clients=4, rounds=1, protect="SETTING",
                           algorithm="fedproto")
result = pn.run(experiment, out="runs", engine="serial")
METHOD
"""

ADDED = {
    "a metric": (
        "metrics/error_rate.py",
        METRIC,
        "metrics/__init__.py",
        (
            "METRICS: dict[str, Entry] = {",
            '    "error_rate": Entry("protonorm.metrics.error_rate:ErrorRate", "wrong"),',
        ),
        "none",
        'rule = result.history[0].rules["logits"]; assert abs(rule.metrics["error_rate"] + rule.mean - 1) < 1e-5'
        '; assert "error_rate" in result.frame("client").columns',
    ),
    "an outgoing step": (
        "core/zeros.py",
        STEP,
        "core/training.py",
        ("OUTGOING: dict[str, Entry] = {", '    "zeros": Entry("protonorm.core.zeros:Zeros", "zeros"),'),
        "zeros",
        "assert result.run.rounds[0].prototypes is None or result.run.rounds[0].prototypes.max == 0",
    ),
}


@pytest.mark.parametrize("kind", sorted(ADDED))
def test_a_metric_and_an_outgoing_step_are_one_file_and_one_line(tmp_path, kind):
    file, text, table, (before, line), setting, check = ADDED[kind]
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    package = tmp_path / "src" / "protonorm"
    (package / file).write_text(text)
    known = (package / table).read_text()
    assert before in known
    (package / table).write_text(known.replace(before, f"{before}\n{line}", 1))
    done = subprocess.run(
        [sys.executable, "-c", RUN.replace("SETTING", setting).replace("METHOD", check)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
