"""Small records, written as runs write them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from protonorm.core.types import InputSpec
from protonorm.runs.provenance import versions
from protonorm.runs.run import Population
from protonorm.runs.schema import FORMAT, Accuracy, Distances, ExperimentInfo, RunInfo, Traffic
from protonorm.runs.states import Checkpoint
from protonorm.runs.writer import RoundOutcome, RunWriter

CLASSES = ["cat", "dog", "emu"]
COUNTS = Population(
    train=np.array([[3, 1, 0], [0, 2, 2]]),
    validation=np.array([[1, 0, 0], [0, 0, 1]]),
    test=np.array([[1, 1, 0], [0, 1, 1]]),
)


def info(rounds: int = 3, seed: int = 0, **more: Any) -> RunInfo:
    experiment = {
        "algorithm": {"name": "protonorm", "gamma": 300.0},
        "dataset": {"name": "fashion"},
        "partition": {"name": "dirichlet", "alpha": 0.1, "seed": 1},
        "models": "light",
        "feature_dim": 2,
        "clients": 2,
        "rounds": rounds,
        "seed": seed,
    }
    return RunInfo(
        format=FORMAT,
        key="key",
        experiment=ExperimentInfo.model_validate(experiment),
        changed={},
        rules=["nearest-global", "logits"],
        headline="nearest-global",
        networks=["plain", "dense"],
        classes=CLASSES,
        input=InputSpec(shape=[28, 28, 1], type="uint8"),
        versions=versions(),
        **more,
    )


def describe(writer: RunWriter, rounds: int = 3) -> None:
    writer.describe(info(rounds), COUNTS)


def resumed(writer: RunWriter) -> None:
    writer.resume()


def outcome(round: int, figures: dict[str, torch.Tensor] | None = None, validation: float = 0.5) -> RoundOutcome:
    """Client 0 has 1 of 2 right, client 1 has 2 of 2, under both rules."""
    right = {"pooled": 0.75, "mean": 0.75, "worst": 0.5, "p10": 0.55}
    line = {
        "round": round,
        "cohort": "all",
        "lost": {},
        "evaluated": "all",
        "metrics": {"loss": 1.0 / round},
        "rules": {"nearest-global": Accuracy(**right), "logits": Accuracy(**right)},
        "validation": {rule: Accuracy(**right | {"mean": validation}) for rule in ("nearest-global", "logits")},
        "unseen": 0.0,
        "bytes": Traffic(up=8, down=8),
        "floats": Traffic(up=2, down=2),
        "server": {},
        "prototypes": Distances(min=1.0, mean=1.0, max=1.0),
    }
    arrays = {"test.support.clients": np.array([2, 2]), "test.support.classes": np.array([1, 2, 1])}
    for rule in ("nearest-global", "logits"):
        found = {"clients": np.array([1, 2]), "classes": np.array([1, 1, 1])}
        arrays |= {f"test.correct.{unit}.{rule}": values for unit, values in found.items()}
    arrays |= {"margins": np.array([0.5, 0.25]), "margins.classes": np.array([0, 2])}
    return RoundOutcome(line, arrays, {"round": 0.1}, figures or {})


def commit(
    writer: RunWriter,
    round: int,
    trained: list[int],
    message: dict[str, torch.Tensor] | None = None,
    figures: dict[str, torch.Tensor] | None = None,
    validation: float = 0.5,
) -> None:
    """Commit a round; clients that trained in it have states full of its number."""
    for id, last in enumerate(trained):
        if last == round:
            writer.store.save(id, round, {"w": torch.full((2,), float(round))})
    point = Checkpoint(round, {"s": torch.tensor(round)}, message or {"m": torch.tensor(-round)}, trained)
    writer.commit(point, outcome(round, figures, validation))
    for id, last in enumerate(trained):
        writer.store.keep_only(id, last, writer.chosen)


def record(folder: Path, rounds: int = 3, done: int | None = None) -> Path:
    """Write a whole record of two clients and three classes."""
    message = {"classes": torch.tensor([0, 2]), "prototypes": torch.tensor([[1.0, 0.0], [0.0, 1.0]])}
    with RunWriter(folder, "key") as writer:
        describe(writer, rounds)
        resumed(writer)
        for round in range(1, (rounds if done is None else done) + 1):
            figures = {"alignment.distances": torch.ones(2, 3)} if round == 1 else None
            commit(writer, round, [round, round], message, figures)
    return folder
