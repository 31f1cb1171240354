"""A simulation's clients: one data set, assigned to many owners, and one workspace for each kind of network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protonorm.core.model import SplitModel
from protonorm.core.node import Client
from protonorm.core.protocols import PopulationFacts
from protonorm.core.randomness import seeded
from protonorm.core.samples import Samples, view
from protonorm.core.task import Task
from protonorm.core.training import CONSTANT, LrSchedule
from protonorm.data.dataset import Dataset
from protonorm.data.partitions.base import Parts, count_classes
from protonorm.models.choose import Recipe

Value = TypeVar("Value")

ROOM = 0.5  # share of a device's free memory that samples may take


@dataclass(frozen=True)
class Training:
    """How clients train; a tuple gives client i its value number i mod n."""

    validation: float = 0.0  # share of the training part that is held out
    lr: float | tuple[float, ...] = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    epochs: int | tuple[int, ...] = 1
    batch_size: int | tuple[int, ...] = 32
    shuffle: bool = True
    device: str = "cpu"
    precision: str = "float32"
    optimiser: str = "sgd"
    lr_schedule: LrSchedule = CONSTANT
    label_smoothing: float = 0.0
    clip: float | None = None
    augment: str = "none"
    start: str = "own"  # weights of clients' own networks before round 1: each its own, or equal for equal networks

    def stream(self, id: int) -> int:
        """Say whose random numbers a client's first weights are drawn from."""
        return 0 if self.start == "equal" else id

    def client(
        self,
        task: Task,
        id: int,
        round: int,
        networks: tuple[SplitModel, SplitModel | None],  # its own, and the second one that clients share
        samples: tuple[Samples, ...],  # train, validation, test
        name: str = "",
    ) -> Client:
        """Put together what a client has in a round."""
        train, validation, test = samples
        return Client(
            id=id,
            round=round,
            rounds=task.rounds,
            model=networks[0],
            auxiliary=networks[1],
            train=train,
            validation=validation,
            test=test,
            num_classes=task.num_classes,
            feature_dim=task.feature_dim,
            lr=own(self.lr, id) * self.lr_schedule.factor(round, task.rounds),
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            epochs=own(self.epochs, id),
            batch_size=own(self.batch_size, id),
            shuffle=self.shuffle,
            device=self.device,
            precision=self.precision,
            optimiser=self.optimiser,
            label_smoothing=self.label_smoothing,
            clip=self.clip,
            augment=self.augment,
            name=name,
        )


class SimulatedPopulation:
    """Clients made when they are asked for."""

    def __init__(
        self,
        task: Task,
        dataset: Dataset,
        parts: Parts,
        networks: Sequence[Recipe],
        training: Training,
        client_names: Sequence[str] | None = None,  # M; None: they have numbers alone
    ) -> None:
        self.task, self.dataset, self.parts, self.training = task, dataset, parts, training
        self.client_names = None if client_names is None else tuple(client_names)
        self.networks = tuple(networks)
        self._workspaces: dict[tuple[Recipe, str], SplitModel] = {}

    def __len__(self) -> int:
        """Count the clients, M."""
        return len(self.parts)

    def site(self, id: int) -> SimulatedSite:
        """Make the site of a client."""
        if not 0 <= id < len(self):
            raise ValueError(f"There is no client {id}; the population has clients 0 to {len(self) - 1}.")
        return SimulatedSite(self, id)

    def recipe(self, id: int) -> Recipe:
        """Find a client's network."""
        return self.networks[id % len(self.networks)]

    def facts(self) -> PopulationFacts:
        """Count who holds what."""
        first, middle = self.parts.cuts[:-1:2], self.parts.cuts[1::2]  # (M,) where training and test parts begin
        kept = middle - held_out(middle - first, self.training.validation)
        cuts = np.append(np.stack([first, kept, middle], axis=1).ravel(), self.parts.cuts[-1])  # (3M + 1,)
        counts = count_classes(self.dataset.labels[self.parts.index], cuts, self.dataset.num_classes)
        train, validation, test = counts.reshape(len(self), 3, -1).transpose(1, 0, 2)  # (M, K) each
        return PopulationFacts(train, validation, test, tuple(recipe.name for recipe in self.networks))

    def samples(self, index: NDArray[np.int64]) -> Samples:
        """Look at samples of the data set where networks compute."""
        inputs, labels = self._arrays
        return Samples(inputs, labels, view(index).to(inputs.device))

    def workspace(self, recipe: Recipe, role: str) -> SplitModel:
        """Give the one network of a kind into which clients load their weights in turn."""
        if (recipe, role) not in self._workspaces:
            self._workspaces[recipe, role] = recipe()
        return self._workspaces[recipe, role]

    @torch.no_grad()
    def check_networks(self) -> None:
        """Send two training samples through each network: one that does not fit is refused before anything begins."""
        batch, _ = self.samples(self.parts[0].train[[0, -1]]).batch(torch.arange(2))
        for recipe in dict.fromkeys(self.networks):
            with seeded(self.task.seed, 0, 0, "template"):
                model = recipe().eval()
            recipe.check(model, batch.to(self.training.device))
            self.task.algorithm.check_network(model, self.task)

    @cached_property
    def _arrays(self) -> tuple[Tensor, Tensor]:
        """Lay the samples where networks compute, once for all clients, if there is room for them."""
        inputs, labels, device = view(self.dataset.inputs), view(self.dataset.labels), self.training.device
        if torch.device(device).type == "cuda" and inputs.nbytes > ROOM * torch.cuda.mem_get_info(device)[0]:
            return inputs, labels  # batches travel one by one
        return inputs.to(device), labels.to(device)


@dataclass(frozen=True)
class SimulatedSite:
    """One client of a simulation."""

    population: SimulatedPopulation
    id: int

    def client(self, round: int) -> Client:
        """Give what the client has in a round; the weights in its models are those last loaded."""
        population, task = self.population, self.population.task
        with seeded(task.seed, round, self.id, "workspace"):  # a workspace may be built now
            model = population.workspace(population.recipe(self.id), "model")
            auxiliary = population.workspace(self._second(), "auxiliary") if task.algorithm.auxiliary else None
        return self._client(round, model, auxiliary)

    def fresh_client(self) -> Client:
        """Give the client with newly initialised networks, drawn from its own stream unless all begin alike."""
        task = self.population.task
        with seeded(task.seed, 0, self.population.training.stream(self.id)):
            model = self.population.recipe(self.id)()
            auxiliary = self._second()() if task.algorithm.auxiliary else None
        return self._client(0, model, auxiliary)

    def _second(self) -> Recipe:
        recipe = self.population.task.shared_network
        assert isinstance(recipe, Recipe)
        return recipe

    def _client(self, round: int, model: SplitModel, auxiliary: SplitModel | None) -> Client:
        population, training = self.population, self.population.training
        part = population.parts[self.id]
        train, validation = hold_out(part.train, training.validation)
        samples = tuple(population.samples(index) for index in (train, validation, part.test))
        name = population.client_names[self.id] if population.client_names else ""
        return training.client(population.task, self.id, round, (model, auxiliary), samples, name)


def hold_out(train: NDArray[np.int64], share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Hold samples out of a client's training part (n,), which is in a random order."""
    kept = len(train) - int(held_out(np.array(len(train)), share))
    return train[:kept], train[kept:]


def held_out(sizes: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """Count the samples that are held out of training parts of so many, (M,): ⌈share·n⌉, but never the last."""
    held: NDArray[np.int64] = np.ceil(share * sizes - 1e-9).astype(np.int64)
    return np.minimum(held, sizes - 1)


def own(value: Value | tuple[Value, ...], id: int) -> Value:
    """Find a client's value of a setting that may differ between clients."""
    return value[id % len(value)] if isinstance(value, tuple) else value
