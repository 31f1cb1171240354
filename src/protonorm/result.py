"""What a run gives: its history as arrays, and its trained clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from protonorm.core import one_thread
from protonorm.experiment import Experiment
from protonorm.history import Run, stamp
from protonorm.predictor import Predictor
from protonorm.record import States
from protonorm.saved import portrait
from protonorm.setup import Setup
from protonorm.tensors import Tensors, load, under

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Result:
    """A finished run."""

    experiment: Experiment
    run: Run

    @property
    def history(self) -> list[dict[str, Any]]:
        """Give the metrics of every round, as recorded."""
        return self.run.history

    @property
    def rounds(self) -> NDArray[np.int64]:
        """Number the rounds (R,)."""
        return np.array([line["round"] for line in self.history], dtype=np.int64)

    def accuracy(self, rule: str | None = None, of: str = "pooled") -> NDArray[np.float64]:
        """Give a rule's accuracy (R,), or (R, M) for of="clients", (R, K) for of="classes"; NaN where there is none."""
        rule = rule or self.run.about["headline"]
        width = {"clients": len(self.run.about["networks"]), "classes": len(self.run.about["classes"])}.get(of)
        empty = np.full(width or (), np.nan)
        values = [line["rules"].get(rule) for line in self.history]
        return np.array([empty if value is None else np.array(value[of], dtype=np.float64) for value in values])

    def summary(self, rule: str | None = None) -> dict[str, Any] | None:
        """Condense the rounds: best, last, and the mean of each client's own best."""
        return self.run.summary(rule)

    def frame(self) -> pandas.DataFrame:
        """Give one row a round and rule as a pandas frame; needs pandas."""
        import pandas

        return pandas.DataFrame(
            {"round": line["round"], "loss": line["loss"], "rule": rule}
            | {name: value[name] if value else None for name in ("pooled", "mean", "worst")}
            for line in self.history
            for rule, value in line["rules"].items()
        )

    @cached_property
    def clients(self) -> Sequence[TrainedClient]:
        """Load the trained clients."""
        setup = Setup(self.experiment)
        folder, key, done = self.run.folder, self.experiment.key, len(self.history)
        held = load(folder / "server.safetensors", stamp(key, "server", done)) if done else {}
        trained = held["trained"].tolist() if done else [0] * self.experiment.clients
        states = States(folder, key)
        message = under(held, "message")
        return [TrainedClient(setup, id, states, round, message, self.run.about) for id, round in enumerate(trained)]


@dataclass(frozen=True)
class TrainedClient:
    """A client after its last round."""

    setup: Setup
    id: int
    states: States
    trained: int  # the last round it trained in
    message: Tensors  # what the server said last
    about: dict[str, Any]  # of the run

    @cached_property
    def state(self) -> Tensors:
        """Read what the client remembers."""
        if not self.trained:
            raise ValueError(f"Client {self.id} has not trained yet: it was in no round's cohort.")
        return self.states.load(self.id, self.trained)

    @cached_property
    def predictor(self) -> Predictor:
        """Give what it takes to predict."""
        client = self.setup.client(self.id, self.trained)
        about = portrait(self.about | {"input": self.setup.dataset.form}, self.id, self.trained)
        return Predictor(about, self.setup.experiment.algorithm, client, self.state, self.message)

    def predict(self, x: NDArray[Any], rule: str | None = None) -> NDArray[np.int64]:
        """Predict the classes (n,) of pictures (n, H, W, C) as uint8, or of vectors (n, D)."""
        return self.predictor.predict(x, rule)

    @torch.no_grad()
    def features(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Give the features (n, d) of the client's test samples, and their classes (n,)."""
        client = self.setup.client(self.id, self.trained)
        with one_thread():
            model = client.load(self.state).eval()
            parts = [model.features(x).double().cpu() for x, _ in client.test.sweep(device=client.device)]
        return torch.cat(parts).numpy(), client.test.labels.numpy()

    def save(self, path: str | Path) -> Path:
        """Write the client into a folder of its own, for `load_client`."""
        return self.predictor.save(path)
