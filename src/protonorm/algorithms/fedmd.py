"""FedMD: clients tell their logits on public inputs, which everybody has, and learn towards the average of all.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS workshop 2019.

server remembers: nothing
server says:      logits (N, K) on a round's public inputs, round () of which; nothing before the first round
client remembers: model.*
client says:      logits (N, K) on the round's public inputs
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Self

import torch
from annotated_types import Ge
from pydantic import model_validator
from torch import Tensor

from protonorm.algorithms.parts.common_inputs import (
    digest_of_public,
    draw_positions,
    noise,
    read_public,
    same_inputs,
)
from protonorm.algorithms.parts.messages import make_schema
from protonorm.core import Algorithm, Client, Field, Samples, Schema, Server, SplitModel, Step, Task, optional
from protonorm.core.settings import dataclass
from protonorm.core.task import InputSpec
from protonorm.core.types import STRICT, Count, Positive, Seed
from protonorm.tensors import Tensors, snapshot, weighted_mean

ONE_SET = {"fashion", "fashion-mnist"}  # the first is a part of the second


@dataclass(frozen=True, config=STRICT)
class FedMD(Algorithm):
    """Train towards the average logits on public inputs, then on one's own samples."""

    public: str | None = None  # what all clients hold: a data set, NAME or KIND:PATH, or a .npy file of inputs as they
    # are stored, such as (P, H, W, C) bytes; None is noise
    sha256: str | None = None  # of what they hold; None takes what is there
    samples: Count = 1000  # N, public inputs of a round, drawn anew
    digest_lr: Positive = 0.001  # of the Adam that digests the consensus
    digest_batch_size: Annotated[Count, Ge(2)] = 256  # batch norm needs two rows
    seed: Seed = 0  # of the draws, and of the noise

    @model_validator(mode="after")
    def _refuse_what_is_not_used(self) -> Self:
        if self.public is None and self.sha256:
            raise ValueError("sha256 is refused: the public inputs are noise; it is for public=DATASET or FILE.")
        return self

    def adapted(self, dataset: str, networks: Sequence[str]) -> Self:
        """Look at the public inputs."""
        if self.public == dataset or {self.public, dataset} == ONE_SET:
            raise self._refused()
        return self if self.public is None or self.sha256 else replace(self, sha256=digest_of_public(self.public))

    def schema(self, task: Task) -> Schema:
        """Both sides send logits on public inputs, the server from round 1 on, and of which round they are."""
        logits = {"logits": Field((self.samples, "K"))}
        round = {"round": Field((), torch.int64, least=1)}
        return make_schema(task, up=((logits,),), down=(optional(logits | round),))

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Refuse public inputs that do not fit the clients' networks."""
        if task.input is None:
            return
        if self.public is not None:
            read_public(self.public, task.input, self.samples, self.sha256)
        else:
            noise(torch.zeros(0, *task.input.shape, dtype=getattr(torch, task.input.dtype)), 1, self.seed)

    def init_client(self, client: Client) -> Tensors:
        """Begin with the client's own model, if the public inputs are not the data set that its samples are from."""
        if self.public is not None and same_inputs(self.inputs(client), client.train.inputs):
            raise self._refused()
        return super().init_client(client)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Digest the mean absolute error to the last consensus, revisit one's own samples, then tell one's logits."""
        model, public = client.load(state), self.inputs(client)
        if "logits" in message:
            self._digest(client, model, self._chosen(public, int(message["round"])), message["logits"])

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return client.cross_entropy(model(x), y)

        mean = client.fit(loss, model)
        said = {"logits": tell(client, model, self._chosen(public, client.round))}
        return Step(snapshot("model", model), said, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Average the logits, all alike; if nobody answered there is no consensus."""
        mean = weighted_mean((1.0, reply) for reply in replies)
        return Step({}, mean | {"round": torch.tensor(server.round)} if mean else {})

    def inputs(self, client: Client) -> Tensor:
        """Give the public inputs (P, …) as they are stored."""
        if self.public is None:
            return noise(client.train.inputs, self.samples, self.seed)
        like = client.train.inputs
        kind = InputSpec(tuple(like.shape[1:]), str(like.dtype).removeprefix("torch."))
        return read_public(self.public, kind, self.samples, self.sha256)

    def _chosen(self, public: Tensor, round: int) -> Samples:
        """Choose the public inputs of a round; the label of each is its place among them."""
        positions = draw_positions(len(public), self.samples, self.seed, round)
        places = torch.zeros(len(public), dtype=torch.int64)
        places[positions] = torch.arange(self.samples)
        return Samples(public, places, positions)

    def _digest(self, client: Client, model: SplitModel, told: Samples, consensus: Tensor) -> None:
        """Train once through the public inputs of a consensus, with the mean of |o − consensus| over their logits."""
        wanted = consensus.to(client.device)  # (N, K)
        reader = replace(
            client,
            train=told,
            optimiser="adam",
            lr=self.digest_lr,
            weight_decay=0.0,
            epochs=1,
            batch_size=self.digest_batch_size,
            augment="none",
        )
        reader.fit(lambda x, places: digest_loss(model(x), wanted[places]), model)

    def _refused(self) -> ValueError:
        return ValueError(f"public={self.public} is refused: these are the clients' own samples, training and test.")


def digest_loss(logits: Tensor, consensus: Tensor) -> Tensor:
    """Give the mean of |o − consensus| over samples and classes, (B, K) both."""
    return (logits - consensus).abs().mean()


@torch.no_grad()
def tell(client: Client, model: SplitModel, chosen: Samples) -> Tensor:
    """Compute the logits (N, K) of samples in evaluation mode, on the CPU."""
    model.eval()
    found = []
    for x, _ in chosen.sweep(device=client.device):
        with client.autocast():
            found.append(model(x).float().cpu())
    return torch.cat(found)
