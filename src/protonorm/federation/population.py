"""Clients of a simulation: a data set partitioned over clients, and a workspace for each kind of network."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

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
from protonorm.core.training import Training, own
from protonorm.data.dataset import Dataset
from protonorm.data.partitions import Parts, count_classes
from protonorm.models.choose import Recipe

ROOM = 0.5  # share of a device's free memory that samples may occupy


class SimulatedPopulation:
    """Population of simulated clients, created on request."""

    def __init__(
        self,
        task: Task,
        dataset: Dataset,
        parts: Parts,
        networks: Sequence[Recipe],
        training: Training,
        client_names: Sequence[str] | None = None,  # M; None: clients have numbers only
        first: int = 0,  # id of the first client: in a deployment that of the only one
    ) -> None:
        self.task, self.dataset, self.parts, self.training, self.first = task, dataset, parts, training, first
        self.client_names = None if client_names is None else tuple(client_names)
        self.networks = tuple(networks)
        self._workspaces: dict[tuple[Recipe, str], SplitModel] = {}

    def __len__(self) -> int:
        return len(self.parts)

    def site(self, id: int) -> "SimulatedSite":
        """Return the site of a client."""
        last = self.first + len(self) - 1
        if not self.first <= id <= last:
            raise ValueError(f"There is no client {id}; the population has clients {self.first} to {last}.")
        return SimulatedSite(self, id)

    def recipe(self, id: int) -> Recipe:
        """Return a client's network recipe."""
        return self.networks[id % len(self.networks)]

    def facts(self) -> PopulationFacts:
        """Count the samples of each client by part and class."""
        first, middle = self.parts.cuts[:-1:2], self.parts.cuts[1::2]  # (M,) starts of training and test parts
        kept = middle - held_out(middle - first, self.training.validation)
        cuts = np.append(np.stack([first, kept, middle], axis=1).ravel(), self.parts.cuts[-1])  # (3M + 1,)
        counts = count_classes(self.dataset.labels[self.parts.index], cuts, self.dataset.num_classes)
        train, validation, test = counts.reshape(len(self), 3, -1).transpose(1, 0, 2)  # (M, K) each
        return PopulationFacts(train, validation, test, tuple(recipe.name for recipe in self.networks))

    def samples(self, index: NDArray[np.int64]) -> Samples:
        """Return a view of samples of the data set on the device of the networks."""
        inputs, labels = self._arrays
        return Samples(inputs, labels, view(index).to(inputs.device))

    def workspace(self, recipe: Recipe, role: str) -> SplitModel:
        """Return the shared network of a kind and role, into which clients load their weights in turn."""
        if (recipe, role) not in self._workspaces:
            self._workspaces[recipe, role] = recipe()
        return self._workspaces[recipe, role]

    @torch.no_grad()
    def check_networks(self) -> None:
        """Pass two training samples through each network, so that mismatches are raised before the run starts."""
        self.training.protect.check(self.task)
        self.task.check_combine()
        batch, _ = self.samples(self.parts[0].train[[0, -1]]).batch(torch.arange(2))
        for recipe in dict.fromkeys(self.networks):
            with seeded(self.task.seed, 0, 0, "template"):
                model = recipe().eval()
            recipe.check(model, batch.to(self.training.device))
            self.training.protect.check_network(model)
            self.task.algorithm.check_network(model, self.task)

    @cached_property
    def _arrays(self) -> tuple[Tensor, Tensor]:
        """Copy the samples to the device of the networks, once for all clients, if they fit."""
        inputs, labels, device = view(self.dataset.inputs), view(self.dataset.labels), self.training.device
        if torch.device(device).type == "cuda" and inputs.nbytes > ROOM * torch.cuda.mem_get_info(device)[0]:
            return inputs, labels  # batches are copied as they are used
        return inputs.to(device), labels.to(device)


@dataclass(frozen=True)
class SimulatedSite:
    """Site of a simulated client."""

    population: SimulatedPopulation
    id: int

    def client(self, round: int) -> Client:
        """Return the client of a round; its networks contain the weights loaded last."""
        population, task = self.population, self.population.task
        with seeded(task.seed, round, self.id, "workspace"):  # the workspace may be initialised here
            model = population.workspace(population.recipe(self.id), "model")
            auxiliary = population.workspace(self._second(), "auxiliary") if task.algorithm.auxiliary else None
        return self._client(round, model, auxiliary)

    def fresh_client(self) -> Client:
        """Return the client with new networks, drawn from its own random stream unless all clients start alike."""
        task = self.population.task
        with seeded(task.seed, 0, self.population.training.stream(self.id)):
            model = self.population.recipe(self.id)()
            auxiliary = self._second()() if task.algorithm.auxiliary else None
        return self._client(0, model, auxiliary)

    def _second(self) -> Recipe:
        """Return the recipe of the second network, which runs where the client's own does."""
        recipe, own = self.population.task.shared_network, self.population.recipe(self.id)
        assert isinstance(recipe, Recipe)
        return replace(recipe, lowered=own.lowered, device=own.device)

    def _client(self, round: int, model: SplitModel, auxiliary: SplitModel | None) -> Client:
        population, training, task = self.population, self.population.training, self.population.task
        place = self.id - population.first
        part = population.parts[place]
        train, validation = map(population.samples, hold_out(part.train, training.validation))
        return Client(
            self.id,
            round,
            task.rounds,
            model,
            auxiliary,
            train,
            validation,
            population.samples(part.test),
            num_classes=task.num_classes,
            feature_dim=task.feature_dim,
            lr=training.lr_in(round, task.rounds, self.id),
            epochs=own(training.epochs, self.id),
            batch_size=own(training.batch_size, self.id),
            training=training,
            name=population.client_names[place] if population.client_names else "",
        )


def hold_out(train: NDArray[np.int64], share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split a client's training part (n,), which is in random order, into training and validation samples."""
    kept = len(train) - int(held_out(np.array(len(train)), share))
    return train[:kept], train[kept:]


def held_out(sizes: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """Count the validation samples of training parts of given sizes (M,): ⌈share·n⌉, at most n − 1."""
    held: NDArray[np.int64] = np.ceil(share * sizes - 1e-9).astype(np.int64)
    return np.minimum(held, sizes - 1)
