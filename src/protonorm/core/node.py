"""What a client has, and what the server has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from protonorm.core.model import SplitModel
from protonorm.core.samples import Samples
from protonorm.core.training import Loss, augmentation, make_optimiser
from protonorm.errors import Diverged
from protonorm.tensors import Tensors, restore

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Client:
    """What a client has in one round: an algorithm's methods are given one.

    Samples are asked for in batches: `client.train.sweep()` goes through them in order as (x, y), `batches` as training
    does. All randomness inside an algorithm's methods is seeded by the run's seed, the round and the client.
    """

    id: int  # its number, from 0
    round: int  # this one, from 1; 0 before the first
    rounds: int  # R, how many there will be
    model: SplitModel  # a workspace: its weights are those last loaded
    auxiliary: SplitModel | None  # the small shared network of the methods that have one
    train: Samples  # to train on
    validation: Samples  # held out of the training samples; rounds and settings are chosen on it
    test: Samples  # to be tested on; an algorithm leaves it alone
    num_classes: int  # K
    feature_dim: int  # d
    lr: float = 0.01  # the learning rate in this round
    momentum: float = 0.0  # of SGD
    weight_decay: float = 0.0  # of the optimiser
    epochs: int = 1  # passes over the training part in a round
    batch_size: int = 32  # B
    shuffle: bool = True  # whether each pass has another order
    device: str = "cpu"  # where the networks are
    precision: str = "float32"  # of the networks' products; weights and sums stay float32
    optimiser: str = "sgd"  # sgd, adam or adamw
    label_smoothing: float = 0.0  # share of each label that all classes get alike
    clip: float | None = None  # bound of the norm of all gradients together
    augment: str = "none"  # what is done to pictures in the batches that train
    name: str = ""  # that of its folder or file; nothing if it has a number alone

    @property
    def label(self) -> str:
        """Name the client in a sentence."""
        return f"client {self.name or self.id}"

    def load(self, state: Tensors) -> SplitModel:
        """Put the remembered weights, `model.*` of a state, into the model, and give it."""
        restore("model", self.model, state, self.label)
        return self.model

    def part(self, name: str) -> Samples:
        """Find a part of the client's samples by its name: train, validation or test."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        if name not in parts:
            raise ValueError(f"There is no part {name!r} of a client's samples; known: {', '.join(parts)}.")
        return parts[name]

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Cut the training part into full batches, or into one smaller batch where it does not fill any."""
        size, change = len(self.train), augmentation(self.augment)
        for _ in range(self.epochs):
            order = torch.randperm(size) if self.shuffle else torch.arange(size)
            if size == 1:
                order = order.repeat(2)  # batch norm needs two rows; two equal ones give the same mean loss
            for positions in order.to(self.train.index.device).split(self.batch_size):
                if len(positions) == self.batch_size or size < self.batch_size:
                    yield self.train.batch(positions, self.device, change)

    def fit(
        self,
        loss: Loss,
        *modules: nn.Module,
        clip: float | None = None,
        second: torch.optim.Optimizer | None = None,
    ) -> float:
        """Train the modules on the loss of each batch with a new optimiser; return the mean loss.

        `clip` bounds the gradient norm of each module; after that the client's own bounds that of all together.
        A `second` optimiser, which has parameters of its own, takes its step after each of the first.
        """
        groups = [[weight for weight in module.parameters() if weight.requires_grad] for module in modules]
        weights = [weight for group in groups for weight in group]
        optimiser = make_optimiser(self.optimiser, weights, self.lr, self.momentum, self.weight_decay)
        for module in modules:
            module.train()
        total, count = torch.zeros((), device=self.device), 0
        for x, y in self.batches():
            optimiser.zero_grad()
            if second is not None:
                second.zero_grad()
            with self.autocast():
                value = loss(x, y)
            value.backward()
            if clip is not None:
                for group in groups:
                    nn.utils.clip_grad_norm_(group, clip)
            if self.clip is not None:
                nn.utils.clip_grad_norm_(weights, self.clip)
            optimiser.step()
            if second is not None:
                second.step()
            total += value.detach()
            count += 1
        mean = float(total) / count  # the first wait for the device
        self._check_finite(mean, weights)
        return mean

    def cross_entropy(self, logits: Tensor, y: Tensor) -> Tensor:
        """Give the mean cross-entropy of logits (B, K) and labels (B,), smoothed as the client's settings say."""
        return cross_entropy(logits, y, label_smoothing=self.label_smoothing)

    def autocast(self) -> torch.autocast:
        """Let networks compute in the client's precision inside."""
        kind, precision = torch.device(self.device).type, PRECISIONS[self.precision]
        return torch.autocast(kind, precision, enabled=self.precision != "float32")

    def _check_finite(self, loss: float, weights: list[nn.Parameter]) -> None:
        if not np.isfinite(loss):
            raise Diverged(f"The training loss of {self.label} became {loss} in round {self.round} (lr = {self.lr:g}).")
        if weights and not bool(torch.stack([weight.isfinite().all() for weight in weights]).all()):
            raise Diverged(f"The weights of {self.label} are not finite after round {self.round}.")


@dataclass(frozen=True)
class Server:
    """What the server has in one round: no data, and no client's network."""

    round: int  # 0 before the first
    rounds: int  # R, how many there will be
    num_classes: int  # K
    feature_dim: int  # d
    model: SplitModel | None = None  # newly initialised before round 1, where all clients have the same network
    auxiliary: SplitModel | None = None  # likewise, where clients share a second network
    head_bias: bool = True  # whether the clients' heads have a bias
    lr: float = 0.01  # of what a server trains: the first client's
    batch_size: int = 32  # likewise
