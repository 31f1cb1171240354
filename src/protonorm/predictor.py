"""A trained client as it leaves its run: what it takes to predict, in a folder of two files.

client.json            algorithm, network, shape of the inputs, d, classes; nothing in it is executed
client.safetensors     state.*: weights and local prototypes; message.*: what the server said last, global prototypes
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protonorm.core import Algorithm, Client, one_thread
from protonorm.data.dataset import as_input, at_once
from protonorm.files import pretty, replace
from protonorm.tensors import Tensors, encode, prefixed

ABOUT, WEIGHTS = "client.json", "client.safetensors"


@dataclass(frozen=True)
class Predictor:
    """A client that has trained, and may have left its run."""

    about: dict[str, Any]  # plain data: classes, input, …
    algorithm: Algorithm
    client: Client  # a workspace: its weights are those last loaded
    state: Tensors
    message: Tensors  # what the server said last

    @property
    def classes(self) -> tuple[str, ...]:
        """Name the classes, K."""
        return tuple(self.about["classes"])

    @property
    def rule(self) -> str:
        """Name the rule that is used if none is given: the method's headline."""
        return "logits" if self.algorithm.headline == "received" else self.algorithm.headline

    def predict(self, x: NDArray[Any], rule: str | None = None) -> NDArray[np.int64]:
        """Predict the classes (n,) of pictures (n, H, W, C) as uint8, or of vectors (n, D)."""
        scores = self.scores(x)
        if (wanted := rule or self.rule) not in scores:
            raise ValueError(f"There is no rule {wanted!r} here; known: {', '.join(scores)}.")
        best: NDArray[np.int64] = scores[wanted].argmax(1)
        return best

    def sureness(self, x: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """Give the softmax of the scores (n, K) under each rule; how sure a rule is, not how often it is right."""
        return {rule: torch.from_numpy(value).double().softmax(1).numpy() for rule, value in self.scores(x).items()}

    @torch.no_grad()
    def scores(self, x: NDArray[Any]) -> dict[str, NDArray[np.float32]]:
        """Score the classes (n, K) under each rule: the largest wins."""
        inputs = self._checked(x)
        with one_thread():
            found = self._scores(self.state, inputs)
            received = self.algorithm.receive(self.client, self.state, self.message)
            if received is not None:
                found["received"] = self._scores(received, inputs)["logits"]
        return {rule: value.numpy() for rule, value in found.items()}

    def save(self, path: str | Path) -> Path:
        """Write the client into a folder of its own."""
        folder = Path(path)
        if folder.is_file():
            raise ValueError(f"{folder} is a file; a client is saved into a folder.")
        folder.mkdir(parents=True, exist_ok=True)
        content = encode(prefixed("state", self.state) | prefixed("message", self.message), "protonorm client")
        replace(folder / WEIGHTS, content)
        replace(folder / ABOUT, pretty(self.about | {"sha256": hashlib.sha256(content).hexdigest()}))
        return folder

    def _scores(self, state: Tensors, inputs: torch.Tensor) -> Tensors:
        self.client.load(state).eval()
        parts = [
            self.algorithm.scores(self.client, state, self.message, as_input(rows.to(self.client.device)))
            for rows in inputs.split(at_once(inputs))
        ]
        return {rule: torch.cat([part[rule] for part in parts]).float().cpu() for rule in parts[0]}

    def _checked(self, x: NDArray[Any]) -> torch.Tensor:
        """Refuse inputs that are not of the kind the client was trained on."""
        shape, kind = tuple(self.about["input"]["shape"]), self.about["input"]["type"]
        if x.shape[1:] != shape or str(x.dtype) != kind or not len(x):
            raise ValueError(
                f"The inputs have shape {x.shape} and type {x.dtype}; "
                f"expected (n, {', '.join(map(str, shape))}) of type {kind}."
            )
        return torch.from_numpy(np.array(x))
