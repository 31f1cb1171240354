"""A trained client, in its run or out of it: what it takes to predict.

An exported client is a folder of two files:
client.json            algorithm, network, inputs, d, classes; nothing in it is executed
client.safetensors     state.*: weights and local prototypes; message.*: what the server said last, global prototypes
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, MinLen
from numpy.typing import NDArray
from pydantic import ConfigDict

from protonorm.core.algorithm import Algorithm
from protonorm.core.node import Client
from protonorm.core.randomness import one_thread
from protonorm.core.samples import as_input, evaluation_batch, view
from protonorm.files import BLANK, checksum, make_folder, parse_json, replace, seal, sealed
from protonorm.models.memory import lacks_memory
from protonorm.runs.schema import Component, InputInfo, Network, Part, Whole
from protonorm.tensors import Tensors, encode, prefixed

FORMAT = 3
INFO, WEIGHTS = "client.json", "client.safetensors"


class ClientInfo(Part):
    """What a trained client is, in plain data."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: int
    client: Whole
    run: str
    round: Whole  # the round after which it was as it is here: what the server said last is of that round
    trained: Whole  # the last round it trained in
    algorithm: Component
    headline: str
    network: Network
    feature_dim: Annotated[int, Ge(1)]
    input: InputInfo
    classes: Annotated[list[str], MinLen(1)]
    lowered: bool  # whether layers take their CPU forms: their last bits differ
    precision: Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class TrainedClient:
    """A client that has trained."""

    info: ClientInfo
    algorithm: Algorithm = field(repr=False)
    client: Client = field(repr=False)  # a workspace: its weights are those last loaded
    state: Tensors = field(repr=False)
    message: Tensors = field(repr=False)  # what the server said last

    @property
    def id(self) -> int:
        """Give the client's number."""
        return self.info.client

    @property
    def classes(self) -> tuple[str, ...]:
        """Name the classes, K."""
        return tuple(self.info.classes)

    @property
    def rule(self) -> str:
        """Name the rule that is used if none is given: the method's headline, of the model as trained."""
        return "logits" if self.info.headline == "received" else self.info.headline

    def predict(self, x: NDArray[Any], rule: str | None = None) -> NDArray[np.int64]:
        """Predict the classes (n,) of pictures (n, H, W, C) as uint8, or of vectors (n, D)."""
        scores = self.scores(x)
        if (wanted := rule or self.rule) not in scores:
            raise ValueError(f"There is no rule {wanted!r} here; known: {', '.join(scores)}.")
        best: NDArray[np.int64] = scores[wanted].argmax(1)
        return best

    def confidence(self, x: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """Give the softmax of the scores (n, K) under each rule: how sure a rule is, not how often it is right."""
        return {rule: torch.from_numpy(value).double().softmax(1).numpy() for rule, value in self.scores(x).items()}

    @torch.no_grad()
    def scores(self, x: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """Score the classes (n, K) under each rule: the largest wins."""
        inputs = self._checked(x)
        try:
            with one_thread():
                found = self._scores(self.state, inputs)
                received = self.algorithm.receive(self.client, self.state, self.message)
                if received is not None:
                    found["received"] = self._scores(received, inputs)["logits"]
        except (LookupError, TypeError, RuntimeError) as error:
            if lacks_memory(error):
                raise
            what = f"{type(error).__name__}: {error}"
            raise ValueError(f"Client {self.id} cannot predict with what it remembers and was told: {what}") from error
        return {rule: value.numpy() for rule, value in found.items()}

    @torch.no_grad()
    def features(self, x: NDArray[Any] | None = None) -> NDArray[np.float64]:
        """Give the features (n, d) of inputs; of the client's own test samples if none are given."""
        client = self.client
        with one_thread():
            model = client.load(self.state).eval()
            batches = (one for one, _ in client.test.sweep(device=client.device)) if x is None else self._batches(x)
            parts = [model.features(batch).double().cpu() for batch in batches]
        return torch.cat(parts).numpy()

    def save(self, path: str | Path) -> Path:
        """Write the client into a folder of its own, for `load_client`; what is not a client is left as it is."""
        folder = Path(path)
        if folder.is_file():
            raise ValueError(f"{folder} is a file; a client is saved into a folder.")
        refuse_foreign(folder)
        make_folder(folder)
        tensors = prefixed("state", self.state) | prefixed("message", self.message)
        content = seal(encode(tensors, f"{STAMP} {BLANK}"), STAMP)
        replace(folder / WEIGHTS, content)
        plain = self.info.model_dump(mode="json") | {"weights": checksum(content)}
        replace(folder / INFO, sealed(plain, pretty=True))
        return folder

    def _scores(self, state: Tensors, inputs: torch.Tensor) -> Tensors:
        client = self.client
        client.load(state).eval()
        parts = []
        for rows in inputs.split(evaluation_batch(inputs)):
            with client.autocast():
                parts.append(self.algorithm.scores(client, state, self.message, as_input(rows.to(client.device))))
        return {rule: torch.cat([part[rule] for part in parts]).double().cpu() for rule in parts[0]}

    def _batches(self, x: NDArray[Any]) -> list[torch.Tensor]:
        inputs = self._checked(x)
        return [as_input(rows.to(self.client.device)) for rows in inputs.split(evaluation_batch(inputs))]

    def _checked(self, x: NDArray[Any]) -> torch.Tensor:
        """Refuse inputs that are not of the kind the client was trained on."""
        shape, kind = tuple(self.info.input.shape), self.info.input.type
        if x.shape[1:] != shape or str(x.dtype) != kind or not len(x):
            raise ValueError(
                f"The inputs have shape {x.shape} and type {x.dtype}; "
                f"expected (n, {', '.join(map(str, shape))}) of type {kind}."
            )
        return view(x)


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder in which files of our names are not ours."""
    held = [folder / name for name in (INFO, WEIGHTS) if (folder / name).exists()]
    if not held:
        return
    try:
        found = parse_json((folder / INFO).read_bytes(), folder / INFO)
    except (OSError, ValueError):
        found = {}
    if not {"format", "client", "weights", "checksum"} <= found.keys():
        raise ValueError(f"{held[0]} exists and is not of an exported client; it is left as it is.")


STAMP = "protonorm client 0"
