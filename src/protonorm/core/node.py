"""Client and server as seen by an algorithm: data, networks and settings of a round."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from protonorm.core.combine import Fold, Mean
from protonorm.core.model import SplitModel, Trunk
from protonorm.core.samples import Samples, augmentation
from protonorm.core.training import Training
from protonorm.errors import Diverged
from protonorm.tensors import Tensors, restore

Loss = Callable[[Tensor, Tensor], Tensor]  # (logits (B, K) or inputs, labels (B,)) -> loss

DEFAULT_TRAINING = Training()
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Client:
    """Data, networks and settings of a client in one round; passed to an algorithm's methods.

    Samples are read in batches: `client.train.sweep()` yields them in order as (x, y), `batches` as in training.
    All randomness inside an algorithm's methods is seeded by the run's seed, the round and the client.
    """

    id: int  # client id, from 0
    round: int  # current round, from 1; 0 before the first
    rounds: int  # R, total number of rounds
    model: SplitModel  # workspace; has the weights that were loaded last
    auxiliary: SplitModel | None  # small shared network, for methods that use it
    train: Samples  # training part
    validation: Samples  # held out of the training samples, for the choice of rounds and settings
    test: Samples  # test part; algorithms must not use it
    num_classes: int  # K
    feature_dim: int  # d
    lr: float = 0.01  # learning rate in this round
    epochs: int = 1  # passes over the training part in a round
    batch_size: int = 32  # B
    training: Training = DEFAULT_TRAINING  # all other training settings, such as optimiser and clip
    name: str = ""  # name of the client's folder or file; empty if it only has an id

    @property
    def label(self) -> str:
        """Name of the client in messages."""
        return f"client {self.name or self.id}"

    @property
    def device(self) -> str:
        """Device of the networks."""
        return self.training.device

    def load(self, state: Tensors) -> SplitModel:
        """Load the weights `model.*` of a state into the model and return the model."""
        restore("model", self.model, state, self.label)
        return self.model

    def part(self, name: str) -> Samples:
        """Return a part of the samples by name: train, validation or test; raise a ValueError for others."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        if name not in parts:
            raise ValueError(f"There is no part {name!r} of a client's samples; known: {', '.join(parts)}.")
        return parts[name]

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches (x, y) of each epoch.

        A last batch that is not full is yielded if the training part fills none, or with `last_batch="keep"`.
        """
        size, change = len(self.train), augmentation(self.training.augment)
        smallest = 2 if self.training.last_batch == "keep" or size < self.batch_size else self.batch_size
        for _ in range(self.epochs):
            order = torch.randperm(size) if self.training.shuffle else torch.arange(size)
            if size == 1:
                order = order.repeat(2)  # batch norm needs two rows; two equal rows give the same mean loss
            for positions in order.to(self.train.index.device, non_blocking=True).split(self.batch_size):
                if len(positions) >= smallest:  # batch norm cannot train on a single row
                    yield self.train.batch(positions, self.device, change)

    def fit(
        self,
        loss: Loss,
        *modules: nn.Module,
        clip: float | None = None,
        second: torch.optim.Optimizer | None = None,
    ) -> float:
        """Train modules with a new optimiser for the client's epochs.

        Args:
            loss: Function of a batch and its labels (B,) that returns the loss.
            *modules: Modules to train.
            clip: Bound of the gradient norm of each module, applied before the client's own bound on all modules.
            second: Further optimiser with its own parameters, stepped after each step of the first.

        Returns:
            The mean loss over all batches.

        Raises:
            Diverged: The mean loss or a weight is not finite.
        """
        groups = [[weight for weight in module.parameters() if weight.requires_grad] for module in modules]
        weights = [weight for group in groups for weight in group]
        settings = self.training
        optimiser = make_optimiser(settings.optimiser, weights, self.lr, settings.momentum, settings.weight_decay)
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
            if settings.clip is not None:
                nn.utils.clip_grad_norm_(weights, settings.clip)
            optimiser.step()
            if second is not None:
                second.step()
            total += value.detach()
            count += 1
        mean = float(total) / count  # the first synchronisation with the device
        if not np.isfinite(mean):
            raise Diverged(f"The training loss of {self.label} became {mean} in round {self.round} (lr = {self.lr:g}).")
        if weights and not bool(torch.stack([weight.isfinite().all() for weight in weights]).all()):
            raise Diverged(f"The weights of {self.label} are not finite after round {self.round}.")
        return mean

    def cross_entropy(self, logits: Tensor, y: Tensor) -> Tensor:
        """Compute the mean cross-entropy of logits (B, K) and labels (B,), with the client's label smoothing."""
        return cross_entropy(logits, y, label_smoothing=self.training.label_smoothing)

    def autocast(self) -> torch.autocast:
        """Return a context manager in which networks compute in the client's precision."""
        kind, precision = torch.device(self.device).type, self.training.precision
        return torch.autocast(kind, PRECISIONS[precision], enabled=precision != "float32")


@dataclass(frozen=True)
class Server:
    """Sizes, networks and settings of the server in one round; it has no data and no client's network."""

    round: int  # current round, from 1; 0 before the first
    rounds: int  # R, total number of rounds
    num_classes: int  # K
    feature_dim: int  # d
    model: SplitModel | None = None  # newly initialised before round 1, if all clients have the same network
    auxiliary: SplitModel | None = None  # likewise, if clients share a second network
    head_bias: bool = True  # whether the clients' heads have a bias
    lr: float = 0.01  # learning rate of server-side training: the first client's
    batch_size: int = 32  # batch size of server-side training: the first client's
    combine: Callable[[], Fold] = Mean  # factory of the fold that aggregates the clients' contributions
    trunks: tuple[Trunk, ...] = ()  # different frozen trunks of the clients' networks and of the shared network


def make_optimiser(
    name: str, weights: Sequence[nn.Parameter], lr: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Create an optimiser without state of earlier rounds; β and ε of Adam are its authors'."""
    if name == "sgd":
        return torch.optim.SGD(weights, lr, momentum, weight_decay=weight_decay, fused=True)
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[name](weights, lr, weight_decay=weight_decay, fused=True)
