"""The types that everything speaks: what a node has, what it remembers, what it says, and what an algorithm is."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from protonorm.data.dataset import Samples
from protonorm.errors import Diverged
from protonorm.geometry.prototypes import class_sums, means_of
from protonorm.tensors import Tensors, snapshot, under

SERVER = -1  # the server's node number; clients count from 0
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class SplitModel(nn.Module):
    """A network cut at its decision layer."""

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features  # f_i: x -> (B, d)
        self.head = head  # g_i: (B, d) -> (B, K)

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch to its logits (B, K)."""
        logits: Tensor = self.head(self.features(x))
        return logits


class Step(NamedTuple):
    """What a node has after it acted."""

    state: Tensors  # what it remembers; never leaves it
    message: Tensors  # what it says to the other side
    metrics: dict[str, float] = {}  # what it reports to the log
    figures: Tensors = {}  # arrays it leaves in the run's record, for the figures


class Reply(NamedTuple):
    """What reaches the server from one client in a round."""

    id: int
    message: Tensors
    metrics: dict[str, float]
    evaluation: Tensors  # counts over the test part, see evaluation.py


@dataclass(frozen=True)
class Client:
    """What a client has."""

    id: int
    round: int
    rounds: int
    model: SplitModel  # a workspace: its weights are those last loaded
    auxiliary: SplitModel | None  # the small shared network of the methods that have one
    train: Samples
    test: Samples
    num_classes: int  # K
    feature_dim: int  # d
    lr: float
    momentum: float
    weight_decay: float
    epochs: int
    batch_size: int  # B
    shuffle: bool
    device: str
    precision: str = "float32"  # of the networks' products; weights and sums stay float32

    def load(self, state: Tensors) -> SplitModel:
        """Put the remembered weights into the model."""
        self.model.load_state_dict(under(state, "model"))
        return self.model

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Cut the training part into full batches, or into a smaller one where it does not fill any."""
        size = len(self.train)
        for _ in range(self.epochs):
            order = torch.randperm(size) if self.shuffle else torch.arange(size)
            if size == 1:
                order = order.repeat(2)  # batch norm needs two rows; two equal ones give the same mean loss
            for positions in order.to(self.train.index.device).split(self.batch_size):
                if len(positions) == self.batch_size or size < self.batch_size:
                    yield self.train.batch(positions, self.device)

    def fit(self, loss: Callable[[Tensor, Tensor], Tensor], *modules: nn.Module, clip: float | None = None) -> float:
        """Train the modules on the loss of each batch with plain SGD; return the mean loss.

        `clip` bounds the gradient norm of each module.
        """
        groups = [[weight for weight in module.parameters() if weight.requires_grad] for module in modules]
        weights = [weight for group in groups for weight in group]
        optimiser = torch.optim.SGD(weights, self.lr, self.momentum, weight_decay=self.weight_decay, fused=True)
        scaler = torch.amp.GradScaler(torch.device(self.device).type, enabled=self.precision == "float16")
        for module in modules:
            module.train()
        total, count = torch.zeros((), device=self.device), 0
        for x, y in self.batches():
            optimiser.zero_grad()
            with self.computing():
                value = loss(x, y)
            scaler.scale(value).backward()
            if clip is not None:
                scaler.unscale_(optimiser)
                for group in groups:
                    nn.utils.clip_grad_norm_(group, clip)
            scaler.step(optimiser)
            scaler.update()
            total += value.detach()
            count += 1
        mean = float(total) / count  # the first wait for the device
        if not np.isfinite(mean):
            raise Diverged(
                f"The training loss of client {self.id} became {mean} in round {self.round} (lr = {self.lr:g})."
            )
        if weights and not bool(torch.stack([weight.isfinite().all() for weight in weights]).all()):
            raise Diverged(f"The weights of client {self.id} are not finite after round {self.round}.")
        return mean

    def computing(self) -> torch.autocast:
        """Let networks compute in the client's precision inside."""
        kind, precision = torch.device(self.device).type, PRECISIONS[self.precision]
        return torch.autocast(kind, precision, enabled=self.precision != "float32")

    @torch.no_grad()
    def class_means(self, model: SplitModel) -> Tensors:
        """Average the features of each class over the whole training part (Eq. 2), in evaluation mode."""
        model.eval()
        sums = torch.zeros(self.num_classes, self.feature_dim, dtype=torch.float64, device=self.device)
        counts = torch.zeros(self.num_classes, dtype=torch.int64, device=self.device)
        for x, y in self.train.sweep(device=self.device):
            with self.computing():
                z = model.features(x)
            more, seen = class_sums(z, y, self.num_classes)
            sums += more
            counts += seen
        classes, means = means_of(sums, counts)
        if not bool(means.isfinite().all()):
            raise Diverged(f"The features of client {self.id} are not finite after round {self.round}.")
        return {"classes": classes.cpu(), "prototypes": means.float().cpu()}  # (K_i,), (K_i, d)


@dataclass(frozen=True)
class Server:
    """What the server has."""

    round: int  # 0 before the first
    rounds: int
    num_classes: int  # K
    feature_dim: int  # d
    model: SplitModel | None  # the clients' network where all have the same, freshly initialised
    auxiliary: SplitModel | None
    lr: float
    batch_size: int


class Algorithm(ABC):
    """A federated method: pure functions from (state, message) to (state, message).

    A method is a frozen dataclass; its fields are the paper's hyper-parameters.
    """

    heterogeneous: ClassVar[bool] = True  # whether clients may have different networks
    auxiliary: ClassVar[bool] = False  # whether clients share a small network beside their own
    rules: ClassVar[tuple[str, ...]] = ("logits",)  # prediction rules it reports
    headline: ClassVar[str] = "logits"  # the rule of its single number

    def adapted(self, dataset: str) -> Self:
        """Fill in defaults that depend on the data set."""
        return self

    def init_server(self, server: Server) -> Step:
        """Begin: what the server remembers and says before the first round."""
        return Step({}, {})

    def init_client(self, client: Client) -> Tensors:
        """Begin: what a client remembers, its model freshly initialised."""
        return snapshot("model", client.model)

    @abstractmethod
    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train on a client's data, given what it remembers and what the server said."""

    @abstractmethod
    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Join what the round's clients said, given in the order of their numbers."""

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors | None:
        """Take over the shared model parts of a message; None for a method that shares none."""
        return None

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score the classes (B, K) under each rule: the largest wins, −inf never does. The model is loaded."""
        return {"logits": client.model(x)}


@contextmanager
def seeded(seed: int, round: int, node: int) -> Iterator[None]:
    """Draw everything inside from (seed, round, node), and leave the outer random state as it was."""
    words = np.random.SeedSequence([seed, round, node + 1]).generate_state(3)
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(int(words[0]) << 32 | int(words[1]))
        random.seed(int(words[2]))
        np.random.seed(words[2])
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one torch thread: the number of threads changes the bits of sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
