"""Client and server as seen by an algorithm: data, networks and settings of a round."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from protonorm.core.combine import Fold, Mean
from protonorm.core.model import SplitModel, Trunk
from protonorm.core.own_code import load_own, own_name
from protonorm.core.own_failures import call_failure
from protonorm.core.samples import Samples, augmentation
from protonorm.core.training import Training
from protonorm.errors import Diverged
from protonorm.tensors import Tensors, kept_copy, restore, strip_prefix, to_cpu

Loss = Callable[[Tensor, Tensor], Tensor]  # (logits (B, K) or inputs, labels (B,)) -> loss

DEFAULT_TRAINING = Training()
COMMON = "common"  # part of the samples that tests all clients alike
OPTIMISER = "optimiser"  # prefix of the states of optimisers in a client's state, where they are kept
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
    local_steps: float | None = None  # batches of a round in place of epochs; below 1 a share of an epoch
    common: Samples | None = None  # samples of nobody that test all clients alike, if there are any
    memory: "OptimiserMemory | None" = None  # states of optimisers, where they are kept between rounds

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
        parts |= {} if self.common is None else {COMMON: self.common}
        if name not in parts:
            raise ValueError(f"There is no part {name!r} of a client's samples; known: {', '.join(parts)}.")
        return parts[name]

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches (x, y) of each epoch, or of as many epochs as `local_steps` need.

        A last batch that is not full is yielded if the training part fills none, or with `last_batch="keep"`.
        """
        size, change = len(self.train), augmentation(self.training.augment)
        smallest = 2 if self.training.last_batch == "keep" or size < self.batch_size else self.batch_size
        of_epoch = 1 if size == 1 else size // self.batch_size + (size % self.batch_size >= smallest)
        left = of_epoch * self.epochs
        if self.local_steps is not None and of_epoch:
            left = int(self.local_steps) or max(1, int(self.local_steps * of_epoch + 0.5))
        while left:
            order = torch.randperm(size) if self.training.shuffle else torch.arange(size)
            if size == 1:
                order = order.repeat(2)  # batch norm needs two rows; two equal rows give the same mean loss
            for positions in order.to(self.train.index.device, non_blocking=True).split(self.batch_size):
                if left and len(positions) >= smallest:  # batch norm cannot train on a single row
                    left -= 1
                    yield self.train.batch(positions, self.device, change)

    def fit(
        self,
        loss: Loss,
        *modules: nn.Module,
        clip: float | None = None,
        second: torch.optim.Optimizer | None = None,
    ) -> float:
        """Train modules for the client's epochs with an optimiser, which is new unless its state is kept.

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
        optimisers = [optimiser] if second is None else [optimiser, second]
        if self.memory is not None:
            self.memory.restore(optimisers, self.label)
        for module in modules:
            module.train()
        total, count = torch.zeros((), device=self.device), 0
        for x, y in self.batches():
            if settings.compile == "graphs":
                torch.compiler.cudagraph_mark_step_begin()
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
        if self.memory is not None:
            self.memory.keep(optimisers)
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


class OptimiserMemory:
    """States of a client's optimisers after the round before and after this one, by call of `fit` in a round."""

    def __init__(self, before: Tensors) -> None:
        self._before, self.after = before, Tensors()
        self._calls = 0

    def restore(self, optimisers: Sequence[torch.optim.Optimizer], whose: str) -> None:
        """Load the states that the same call had after the round before; those of a first round stay new."""
        for position, optimiser in enumerate(optimisers):
            state: dict[int, dict[str, Tensor]] = {}
            for name, value in strip_prefix(self._before, f"{self._calls}.{position}").items():
                number, _, kind = name.partition(".")
                state.setdefault(int(number), {})[kind] = kept_copy(value).clone()
            plain = optimiser.state_dict()
            shapes = [weight.shape for group in optimiser.param_groups for weight in group["params"]]
            for index, tensor in ((index, tensor) for index, of in state.items() for tensor in of.values()):
                if index >= len(shapes) or (tensor.ndim and tensor.shape != shapes[index]):
                    raise ValueError(f"optimiser_state must be new where weights change, as those of {whose} do.")
            optimiser.load_state_dict(plain | {"state": state})

    def keep(self, optimisers: Sequence[torch.optim.Optimizer]) -> None:
        """Copy the states of a call after its training to the CPU, where states are kept."""
        for position, optimiser in enumerate(optimisers):
            for number, values in optimiser.state_dict()["state"].items():
                for kind, value in values.items():
                    if isinstance(value, Tensor):
                        self.after[f"{self._calls}.{position}.{number}.{kind}"] = to_cpu(value)
                    elif value is not None:
                        name = f"{type(optimiser).__name__}, whose {kind} is a {type(value).__name__}"
                        raise ValueError(f"optimiser_state must be new with {name}: only tensors are kept.")
        self._calls += 1


def make_optimiser(
    name: Any, weights: Sequence[nn.Parameter], lr: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Create an optimiser without state of earlier rounds; β and ε of Adam are its authors'.

    `name` is that of a known one, or a user's function of weights and learning rate.
    """
    if not isinstance(name, str) or ".py:" in name:
        return _make_own(load_own(name, "optimiser") if isinstance(name, str) else name, weights, lr)
    if name == "sgd":
        return torch.optim.SGD(weights, lr, momentum, weight_decay=weight_decay, fused=True)
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[name](weights, lr, weight_decay=weight_decay, fused=True)


def _make_own(make: Callable[..., Any], weights: Sequence[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Create an optimiser by a user's function or class; raise ValueError with the failing line."""
    try:
        optimiser = make(weights, lr)
    except Exception as error:
        raise ValueError(f"The optimiser {own_name(make)} cannot be made: {call_failure(error, make)}") from error
    if not isinstance(optimiser, torch.optim.Optimizer):
        expected = "expected a torch.optim.Optimizer"
        raise ValueError(f"The optimiser {own_name(make)} gives a {type(optimiser).__name__}; {expected}.")
    return optimiser
