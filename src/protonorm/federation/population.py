"""Clients of a simulation: a data set partitioned over clients, and a workspace for each kind of network."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protonorm.core.model import SplitModel, Trunk
from protonorm.core.node import Client
from protonorm.core.randomness import seeded
from protonorm.core.samples import Samples, view
from protonorm.core.task import PopulationFacts, Task
from protonorm.core.training import Training, own
from protonorm.data.dataset import Dataset
from protonorm.data.partitions import Parts, count_classes
from protonorm.models.choose import Recipe
from protonorm.models.lowering import compile_features

ROOM = 0.5  # share of a device's free memory that samples may occupy


def free_memory(device: str) -> float:
    """Return the free bytes of a GPU; infinite for the CPU."""
    return torch.cuda.mem_get_info(device)[0] if torch.device(device).type == "cuda" else math.inf


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
        features: Mapping[str, NDArray[np.float32]] | None = None,  # (N, D) by the digest of a frozen trunk
    ) -> None:
        self.task, self.dataset, self.parts, self.training, self.first = task, dataset, parts, training, first
        self.client_names = None if client_names is None else tuple(client_names)
        self.networks = tuple(networks)
        self.features = dict(features or {})
        self._workspaces: dict[tuple[Recipe, str], SplitModel] = {}
        self._tensors: dict[str, Tensor] = {}  # by digest of a trunk, or inputs and labels

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
        validating = self.parts.validating
        end = middle - (held_out(middle - first, self.training.validation) if validating is None else validating)
        cuts = np.append(np.stack([first, end, middle], axis=1).ravel(), self.parts.cuts[-1])  # (3M + 1,)
        counts = count_classes(self.dataset.labels[self.parts.index], cuts, self.dataset.num_classes)
        train, validation, test = counts.reshape(len(self), 3, -1).transpose(1, 0, 2)  # (M, K) each
        return PopulationFacts(train, validation, test, tuple(recipe.name for recipe in self.networks))

    def second(self, id: int) -> Recipe:
        """Return the recipe of a client's second network, which runs where its own does."""
        recipe, own = self.task.shared_network, self.recipe(id)
        assert isinstance(recipe, Recipe)
        start = own.trunk.width if own.trunk and own.trunk != recipe.trunk else 0
        return replace(recipe, lowered=own.lowered, device=own.device, start=start)

    def samples(self, index: NDArray[np.int64], id: int) -> Samples:
        """Return a view of samples, or of their features, on the device of the networks, for a client.

        If the trunks of the two networks differ, the columns of the second follow those of the first.
        """
        own, second = self.recipe(id).trunk, self.second(id).trunk if self.task.algorithm.auxiliary else None
        inputs, labels = self._tensor(own), self._placed("labels", self.dataset.labels)
        further = self._tensor(second) if second and second != own else None
        return Samples(inputs, labels, view(index).to(inputs.device), further)

    def workspace(self, recipe: Recipe, role: str) -> SplitModel:
        """Return the shared network of a kind and role, into which clients load their weights in turn."""
        if (recipe, role) not in self._workspaces:
            self._workspaces[recipe, role] = model = recipe()
            if self.training.compile:
                compile_features(model, graphs=self.training.compile == "graphs")
        return self._workspaces[recipe, role]

    @torch.no_grad()
    def check_networks(self) -> None:
        """Pass two training samples through each network, so that mismatches are raised before the run starts."""
        self.training.protect.check(self.task)
        self.task.check_combine()
        for position, recipe in enumerate(self.networks):
            if recipe in self.networks[:position]:
                continue
            id = next((id for id in range(self.first, self.first + len(self)) if self.recipe(id) == recipe), self.first)
            batch, _ = self.samples(self.parts[0].train[[0, -1]], id).batch(torch.arange(2))
            with seeded(self.task.seed, 0, 0, "template"):
                model = recipe().eval()
            recipe.check(model, batch.to(self.training.device))
            self.training.protect.check_network(self.task, model)
            self.task.algorithm.check_network(model, self.task)

    def _tensor(self, trunk: Trunk | None) -> Tensor:
        """Return the features of a trunk, or the inputs of the data set."""
        return (
            self._placed("inputs", self.dataset.inputs)
            if trunk is None
            else self._placed(trunk.digest, self.features[trunk.digest])
        )

    def _placed(self, name: str, array: NDArray[Any]) -> Tensor:
        """Copy an array to the device of the networks, once for all clients, if it fits."""
        if name not in self._tensors:
            tensor, device = view(array), self.training.device
            is_large = tensor.nbytes > ROOM * free_memory(device)
            self._tensors[name] = tensor if is_large else tensor.to(device)  # batches of a large one are copied
        return self._tensors[name]


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
            auxiliary = (
                population.workspace(population.second(self.id), "auxiliary") if task.algorithm.auxiliary else None
            )
        return self._client(round, model, auxiliary)

    def fresh_client(self) -> Client:
        """Return the client with new networks, drawn from its own random stream unless all clients start alike."""
        population, task = self.population, self.population.task
        with seeded(task.seed, 0, population.training.stream(self.id)):
            model = population.recipe(self.id)()
            auxiliary = population.second(self.id)() if task.algorithm.auxiliary else None
        return self._client(0, model, auxiliary)

    def _client(self, round: int, model: SplitModel, auxiliary: SplitModel | None) -> Client:
        population, training, task = self.population, self.population.training, self.population.task
        position = self.id - population.first
        part = population.parts[position]
        validating = None if population.parts.validating is None else int(population.parts.validating[position])
        indices = (*split_validation(part.train, training.validation, validating), part.test)
        train, validation, test = (population.samples(index, self.id) for index in indices)
        return Client(
            self.id,
            round,
            task.rounds,
            model,
            auxiliary,
            train,
            validation,
            test,
            num_classes=task.num_classes,
            feature_dim=task.feature_dim,
            lr=training.lr_in(round, task.rounds, self.id),
            epochs=own(training.epochs, self.id),
            batch_size=own(training.batch_size, self.id),
            training=training,
            local_steps=None if training.local_steps is None else own(training.local_steps, self.id),
            name=population.client_names[position] if population.client_names else "",
            common=None if population.parts.common is None else population.samples(population.parts.common, self.id),
        )


def split_validation(
    train: NDArray[np.int64], share: float, validating: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split a client's training part (n,), in random order: the last samples validate, a share of them or so many."""
    kept = len(train) - (int(held_out(np.array(len(train)), share)) if validating is None else validating)
    return train[:kept], train[kept:]


def held_out(sizes: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """Count the validation samples of training parts of given sizes (M,): ⌈share·n⌉, at most n − 1."""
    validating: NDArray[np.int64] = np.ceil(share * sizes - 1e-9).astype(np.int64)
    return np.minimum(validating, sizes - 1)
