"""What an experiment's nodes have: built once in every process that plays some of them."""

from __future__ import annotations

from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protonorm.core import Client, Server, SplitModel, seeded
from protonorm.data.dataset import Dataset, Samples, view
from protonorm.data.given import parts_of
from protonorm.data.partition import Part
from protonorm.experiment import Experiment
from protonorm.models.choose import Network, named, network, networks
from protonorm.models.lowering import laid_out

Value = TypeVar("Value")

ROOM = 0.5  # share of a device's free memory that samples may take


class Setup:
    """Data, its partition, and one workspace for each network."""

    def __init__(self, experiment: Experiment, dataset: Dataset | None = None, parts: list[Part] | None = None) -> None:
        """Load and deal out the data, unless both are given."""
        self.experiment = experiment
        self.dataset: Dataset = dataset or experiment.dataset.load()
        self.parts = parts or parts_of(self.dataset, experiment.clients, experiment.partition, experiment.train)
        self._workspaces: dict[object, SplitModel] = {}

    @cached_property
    def class_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Count each client's samples of each class in both parts: two (M, K) arrays."""
        labels, classes = self.dataset.labels, self.dataset.num_classes
        train = np.stack([np.bincount(labels[part.train], minlength=classes) for part in self.parts])
        test = np.stack([np.bincount(labels[part.test], minlength=classes) for part in self.parts])
        return train, test

    def client(self, id: int, round: int) -> Client:
        """Give client `id` what it has; the weights in its models are those last loaded."""
        with seeded(self.experiment.seed, round, id):  # a workspace may be built now: not from the caller's randomness
            return self._client(id, round, self._workspaces)

    def fresh_client(self, id: int) -> Client:
        """Give client `id` newly initialised networks, drawn from its own randomness."""
        with seeded(self.experiment.seed, 0, id):
            return self._client(id, 0, {})

    def _client(self, id: int, round: int, workspaces: dict[object, SplitModel]) -> Client:
        experiment, part = self.experiment, self.parts[id]
        choice = networks(experiment.models)

        def workspace(item: str | Network, role: str) -> SplitModel:
            if (item, role) not in workspaces:
                workspaces[item, role] = self._build(item)
            return workspaces[item, role]

        return Client(
            id=id,
            round=round,
            rounds=experiment.rounds,
            model=workspace(choice[id % len(choice)], "model"),
            auxiliary=workspace(choice[0], "auxiliary") if experiment.algorithm.auxiliary else None,
            train=self._samples(part.train),
            test=self._samples(part.test),
            num_classes=self.dataset.num_classes,
            feature_dim=self._feature_dim,
            lr=own(experiment.lr, id),
            momentum=experiment.momentum,
            weight_decay=experiment.weight_decay,
            epochs=own(experiment.epochs, id),
            batch_size=own(experiment.batch_size, id),
            shuffle=experiment.shuffle,
            device=experiment.device,
            precision=experiment.precision,
        )

    def server(self, round: int) -> Server:
        """Give the server what it has; the networks are there before round 1, newly initialised."""
        experiment, algorithm = self.experiment, self.experiment.algorithm
        first = networks(experiment.models)[0]
        return Server(
            round=round,
            rounds=experiment.rounds,
            num_classes=self.dataset.num_classes,
            feature_dim=self._feature_dim,
            model=None if algorithm.heterogeneous or round else self._build(first),
            auxiliary=self._build(first) if algorithm.auxiliary and not round else None,
            lr=own(experiment.lr, 0),
            batch_size=own(experiment.batch_size, 0),
        )

    @torch.no_grad()
    def rehearse(self) -> None:
        """Send two samples through each network, so that one that does not fit is refused before anything begins."""
        batch, _ = Samples.of(self.dataset, np.array([0, -1]) % len(self.dataset.labels)).batch(torch.arange(2))
        wanted = [(2, self._feature_dim), (2, self.dataset.num_classes)]
        for item in dict.fromkeys(networks(self.experiment.models)):
            model = self._build(item).eval()
            try:
                z = model.features(batch.to(self.experiment.device))
                found = [tuple(z.shape), tuple(model.head(z).shape)]
            except RuntimeError as error:
                raise ValueError(
                    f"The network {named(item)} does not take samples of shape {self.dataset.shape}: {error}"
                ) from error
            if found != wanted:
                raise ValueError(
                    f"The network {named(item)} gives features {found[0]} and logits {found[1]} for two samples; "
                    f"expected {wanted[0]} and {wanted[1]}."
                )

    @property
    def _feature_dim(self) -> int:
        assert self.experiment.feature_dim is not None  # resolved when the experiment was made
        return self.experiment.feature_dim

    def _build(self, item: str | Network) -> SplitModel:
        model = network(item, self.dataset.shape, self._feature_dim, self.dataset.num_classes)
        return laid_out(model, lowered=self.experiment.lowered).to(self.experiment.device)

    def _samples(self, index: NDArray[np.int64]) -> Samples:
        inputs, labels = self._arrays
        return Samples(inputs, labels, view(index).to(inputs.device))

    @cached_property
    def _arrays(self) -> tuple[Tensor, Tensor]:
        """Lay the samples where networks compute, once for all clients, if there is room for them."""
        inputs, labels, device = view(self.dataset.inputs), view(self.dataset.labels), self.experiment.device
        if torch.device(device).type == "cuda" and inputs.nbytes > ROOM * torch.cuda.mem_get_info(device)[0]:
            return inputs, labels  # batches travel one by one
        return inputs.to(device), labels.to(device)


def own(value: Value | tuple[Value, ...], id: int) -> Value:
    """Find a client's value of a setting that may differ between clients."""
    return value[id % len(value)] if isinstance(value, tuple) else value
