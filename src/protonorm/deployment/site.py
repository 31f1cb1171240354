"""Data, network and training of a single client in a deployment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protonorm.config.components import build
from protonorm.config.experiment import check_device
from protonorm.core.model import SplitModel
from protonorm.core.node import Client
from protonorm.core.protocols import PopulationFacts
from protonorm.core.randomness import Purpose, seeded
from protonorm.core.samples import Samples, view
from protonorm.core.task import Task
from protonorm.core.training import Training, check_augmentation
from protonorm.data.dataset import Dataset
from protonorm.data.own.datasets import OwnFiles
from protonorm.data.partitions import ClientIndex, own_part
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.settings import ClientSettings
from protonorm.federation.population import hold_out, make_client
from protonorm.files import make_folder
from protonorm.models.choose import Choice, Recipe, chosen, networks
from protonorm.runs.states import FolderStore

TRAIN, SEED = 0.75, 1  # default training share and split seed, as in a simulation


@dataclass(frozen=True)
class OwnSamples:
    """A client's samples, with labels numbered as in the agreement."""

    dataset: Dataset
    index: ClientIndex  # training and test samples

    @classmethod
    def of(cls, data: Any, agreement: Agreement, id: int, train: float = TRAIN, seed: int = SEED) -> OwnSamples:
        """Load samples from folder:PATH, npz:PATH, table:PATH and so on, or from a Dataset.

        An existing train/test split is kept; otherwise samples are split at random, with the random numbers that a
        simulation uses for the client of this id.
        """
        source = build("dataset", data)
        found: Dataset = source.dataset() if isinstance(source, OwnFiles) else source.load()
        split = source.opened().arrays.split if isinstance(source, OwnFiles) else found.split
        if found.clients not in (None, 1):
            raise ValueError(f"{found.name} has the samples of {found.clients} clients; a site has those of one.")
        numbers = agreement.class_numbers(found.classes, f"The data {found.name}")
        whole = replace(found, labels=numbers[found.labels], classes=tuple(agreement.classes), owner=None, split=None)
        whole = replace(whole, client_names=None)
        if split is not None and not split.any():
            split = None  # every sample is for training, which is not a split
        _refuse_other_input(agreement, whole)
        return cls(whole, own_part(np.arange(len(whole.labels)), split, train, [seed, id]))


class OwnSite:
    """Population of the single client that runs on this machine."""

    def __init__(
        self, task: Task, id: int, samples: OwnSamples, recipe: Recipe, training: Training, name: str = ""
    ) -> None:
        self.task, self.id, self.name = task, id, name
        self.samples, self.recipe, self.training = samples, recipe, training
        self._check_network()

    def __len__(self) -> int:
        """Return 1, the number of clients on this machine."""
        return 1

    def site(self, id: int) -> OwnSite:
        """Return this site; raise ValueError for any other client id."""
        if id != self.id:
            raise ValueError(f"Client {id} does not live here; this is client {self.id}.")
        return self

    def facts(self) -> PopulationFacts:
        """Count the client's samples of each class, (1, K), in training, validation and test."""
        train, validation = hold_out(self.samples.index.train, self.training.validation)
        counts = [self._count(part) for part in (train, validation, self.samples.index.test)]
        return PopulationFacts(counts[0], counts[1], counts[2], (self.recipe.name,))

    def client(self, round: int) -> Client:
        """Return the client in a round; its models keep the weights that were loaded last."""
        return self._client(round, *self._workspace)

    def fresh_client(self) -> Client:
        """Return the client with newly initialised networks.

        They are drawn from the client's own random stream, unless all clients start from the same weights.
        """
        return self._client(0, *self._made("main", self.training.stream(self.id)))

    def _made(self, purpose: Purpose, stream: int) -> tuple[SplitModel, SplitModel | None]:
        with seeded(self.task.seed, 0, stream, purpose):
            return self.recipe(), self._second() if self.task.algorithm.auxiliary else None

    @cached_property
    def _workspace(self) -> tuple[SplitModel, SplitModel | None]:
        return self._made("workspace", self.id)

    def _second(self) -> SplitModel:
        """Build the network that all clients share, on this client's device."""
        shared = self.task.shared_network
        assert isinstance(shared, Recipe)
        return replace(shared, lowered=self.recipe.lowered, device=self.recipe.device)()

    def _client(self, round: int, model: SplitModel, auxiliary: SplitModel | None) -> Client:
        train, validation = hold_out(self.samples.index.train, self.training.validation)
        parts = tuple(self._part(index) for index in (train, validation, self.samples.index.test))
        return make_client(self.training, self.task, self.id, round, (model, auxiliary), parts, self.name)

    def _part(self, index: NDArray[np.int64]) -> Samples:
        inputs, labels = self._arrays
        return Samples(inputs, labels, view(index).to(inputs.device))

    @cached_property
    def _arrays(self) -> tuple[torch.Tensor, torch.Tensor]:
        data, device = self.samples.dataset, self.training.device
        return view(data.inputs).to(device), view(data.labels).to(device)

    def _count(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.bincount(self.samples.dataset.labels[index], minlength=self.task.num_classes)
        return found[None]

    @torch.no_grad()
    def _check_network(self) -> None:
        """Run two training samples through the network, so that an incompatible network fails at start-up."""
        self.training.protect.check(self.task)
        with seeded(self.task.seed, 0, self.id, "template"):
            model = self.recipe().eval()
        batch, _ = self._part(self.samples.index.train[[0, -1]]).batch(torch.arange(2), self.training.device)
        self.recipe.check(model, batch)
        self.task.algorithm.check_network(model, self.task)


def make_site(
    agreement: Agreement, id: int, data: Any, model: Any = None, training: Training | None = None, *, name: str = ""
) -> OwnSite:
    """Build a client's site from its data and network; raise ValueError if they do not fit the agreement.

    `model` is a network's name, or file.py:function on this machine. Every client chooses its own, unless the
    method needs a shared network.
    """
    training, task = training or Training(), agreement.task
    check_device(training.device)
    samples = OwnSamples.of(data, agreement, id, training.train)
    check_augmentation(training.augment, samples.dataset.inputs.shape[1:])
    item = _network(agreement, model, samples.dataset)
    shape, lowered = samples.dataset.shape, training.lowered
    recipe = Recipe(item, shape, agreement.feature_dim, task.num_classes, lowered, device=training.device)
    return OwnSite(task, id, samples, recipe, training, name)


def own_site(agreement: Agreement, id: int, own: ClientSettings) -> OwnSite:
    """Build the site that a client's settings describe."""
    return make_site(agreement, id, own.data, own.model, own.training, name=own.name)


def open_store(folder: Path, agreement: Agreement) -> FolderStore:
    """Open the store of a client's states for an agreement; states of other agreements are not touched."""
    own = folder / agreement.digest[:16]
    make_folder(own)
    return FolderStore(own, agreement.digest)


def _network(agreement: Agreement, wanted: Any, data: Dataset) -> Any:
    """Choose the client's network: the shared network if the method needs one, else the client's own."""
    shared = agreement.shared_network if agreement.task.algorithm.needs_shared_network else None
    choice: Choice = chosen(wanted if wanted is not None else shared or networks(chosen(data.models))[0], "model")
    found = networks(choice)
    if len(found) != 1:
        raise ValueError(f"model={wanted} means {len(found)} networks; a client has one: name it.")
    if shared is not None and found[0] != shared:
        raise ValueError(f"All clients have the network {shared} by the agreement; this one has {wanted}.")
    return found[0]


def _refuse_other_input(agreement: Agreement, data: Dataset) -> None:
    """Raise ValueError if samples do not have the agreed shape and type; only shared networks require them."""
    wanted = agreement.task.input
    found = data.spec
    if wanted is not None and found != wanted:
        raise ValueError(
            f"The data {data.name} have samples of shape {found.shape} and type {found.type}; "
            f"by the agreement they have {wanted.shape} and {wanted.type}."
        )
