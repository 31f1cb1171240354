"""Data, network and training of a single client in a deployment."""

from __future__ import annotations

import hashlib
import secrets
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.config.components import build
from protonorm.config.experiment import check_device
from protonorm.core.node import Client
from protonorm.core.task import Task
from protonorm.core.training import (
    Training,
    check_augmentation,
    checked_optimiser,
    describe_outgoing,
    refuse_augmentation,
)
from protonorm.data.dataset import Dataset
from protonorm.data.features import with_trunks
from protonorm.data.own.datasets import Folder, HuggingFace, OwnFiles
from protonorm.data.partitions import ClientIndex, Parts
from protonorm.data.splits import count_validating, own_part, split_by_content
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.keys import check_private
from protonorm.deployment.settings import ClientSettings
from protonorm.federation.population import SimulatedPopulation
from protonorm.files import append, make_folder
from protonorm.models import is_frozen
from protonorm.models.choose import Choice, Recipe, chosen, named, networks
from protonorm.models.lowering import check_compile
from protonorm.runs.states import FolderStore

SECRET = "client.secret"
TRAIN, SEED = 0.75, 1  # default training share and split seed, as in a simulation


class OwnSite(SimulatedPopulation):
    """Population of the single client that runs on this machine."""

    def __init__(
        self, task: Task, id: int, data: Dataset, index: ClientIndex, recipe: Recipe, training: Training, name: str = ""
    ) -> None:
        """Create the site; the features of frozen trunks are computed unless they are stored."""
        validation_counts, fill = None, not training.protect.per_sample
        if training.split == "content":
            keys = data.content_keys()
            validation_counts = [count_validating(index.train, keys, training.validation, fill=fill)]
        if not fill and [len(index.train)] == validation_counts:
            raise ValueError(f"The data {data.name} have no sample that trains: give more samples, or a larger train.")
        names = [name] if name else None
        (recipe, *_), features = _with_trunks(task, recipe, data)
        parts = Parts.of([index], validation_counts)
        super().__init__(task, data, parts, [recipe], training, names, first=id, features=features)
        self.id = id
        self.check_networks()

    def by_terms(self, terms: Agreement) -> OwnSite:
        """Return the same site under amended terms; its random numbers go on."""
        site = copy(self)
        site.task = replace(terms.task, seed=self.task.seed)
        return site

    def client(self, round: int) -> Client:
        """Return the client in a round; its models keep the weights that were loaded last."""
        return self.site(self.id).client(round)

    def fresh_client(self) -> Client:
        """Return the client with newly initialised networks."""
        return self.site(self.id).fresh_client()


def _with_trunks(task: Task, recipe: Recipe, data: Dataset) -> tuple[list[Recipe], dict[str, NDArray[np.float32]]]:
    """Compute the features of a client's samples; raise ValueError for trunks that are not those agreed on."""
    shared = task.shared_network if isinstance(task.shared_network, Recipe) else None
    second = shared if shared and shared.trunk and task.algorithm.auxiliary else None
    recipes, features = with_trunks([recipe, *([second] if second else [])], data.inputs)
    if task.algorithm.auxiliary and shared and (shared.trunk is None) != (recipes[0].trunk is None):
        raise ValueError(
            f"The network must have a frozen trunk if the shared {shared.name} has, got {recipes[0].name}."
        )
    agreed = [trunk.digest for trunk in task.trunks]
    if agreed and (recipes[0].trunk is None or recipes[0].trunk.digest not in agreed):
        raise ValueError(
            f"The network must have one of the frozen trunks of the agreement, with equal weights and preprocessing: "
            f"{', '.join(trunk.name for trunk in task.trunks)}; got {recipes[0].name}."
        )
    if second and recipes[1].trunk != second.trunk:
        raise ValueError(f"The weights or the preprocessing of {second.name} here are others than those agreed on.")
    return recipes, features


def own_samples(
    data: Any,
    agreement: Agreement,
    id: int,
    train: float = TRAIN,
    by_content: float | None = None,  # share of the training part that validates, if contents decide
    *,
    fill: bool = True,  # whether there is always a sample that trains
) -> tuple[Dataset, ClientIndex]:
    """Load samples from folder:PATH, npz:PATH, table:PATH and so on, or from a Dataset, labelled as in the agreement.

    An existing train/test split is kept; otherwise samples are split by their content, or at random with the random
    numbers that a simulation uses for the client of this id.
    """
    source = build("dataset", data)
    own: Dataset = source.dataset() if isinstance(source, OwnFiles) else source.load()
    split = source.opened().arrays.split if isinstance(source, OwnFiles) else own.split
    if own.clients not in (None, 1):
        raise ValueError(f"{own.name} has the samples of {own.clients} clients; a site has those of one.")
    labels = agreement.class_numbers(own.classes, f"The data {own.name}")[own.labels]
    classes = tuple(agreement.classes)
    samples = replace(own, labels=labels, classes=classes, owner=None, split=None, client_names=None)
    if split is not None and not split.any():
        split = None  # every sample is for training, which is not a split
    agreed, actual = agreement.task.input, samples.spec
    if agreed is not None and actual != agreed:  # only shared networks require it
        raise ValueError(
            f"The data {own.name} must have samples of shape {agreed.shape} and type {agreed.type} by the agreement, "
            f"got {actual.shape} and {actual.type}.{_resizing(source, agreed.shape, actual.shape)}"
        )
    indices = np.arange(len(labels))
    if by_content is None:
        return samples, own_part(indices, split, train, [SEED, id])
    return samples, split_by_content(indices, samples.content_keys(), train, by_content, split, fill=fill)


def _resizing(source: Any, agreed: tuple[int, ...], actual: tuple[int, ...]) -> str:
    """Return which options of `deploy client` give pictures the agreed shape; "" if none do."""
    if not isinstance(source, Folder | HuggingFace) or not len(agreed) == len(actual) == 3:
        return ""
    if agreed[0] != agreed[1] or agreed[2] not in (1, 3):
        return ""
    sizes = [f"--size {agreed[0]}"] if agreed[:2] != actual[:2] else []
    sizes += [f"--channels {agreed[2]}"] if agreed[2] != actual[2] else []
    return f" {' '.join(sizes)} of `protonorm deploy client` makes them so." if sizes else ""


def make_site(
    agreement: Agreement,
    id: int,
    data: Any,
    model: Any = None,
    training: Training | None = None,
    *,
    name: str = "",
    secret: str = "",
) -> OwnSite:
    """Build a client's site from its data and network; raise ValueError if they do not fit the agreement.

    Random numbers are drawn from the agreement's seed and the client's secret, so that nobody else knows its first
    weights and batches; without a secret, or if the agreement is reproducible, from the seed alone, as in a simulation.
    `model` is a network's name, or file.py:function on this machine. Every client chooses its own, unless the
    method needs a shared network.
    """
    training, task = training or Training(), agreement.task
    if secret and not agreement.reproducible:
        digest = hashlib.sha256(f"{task.seed} {secret}".encode()).digest()
        task = replace(task, seed=int.from_bytes(digest))
    check_noise(agreement, training)
    check_device(training.device)
    check_compile(training.compile, training.device)
    checked_optimiser(training.optimiser)
    by_content = training.validation if training.split == "content" else None
    fill = not training.protect.per_sample
    own, index = own_samples(data, agreement, id, training.train, by_content=by_content, fill=fill)
    check_augmentation(training.augment, own.inputs.shape[1:])
    width, classes = agreement.feature_dim, task.num_classes
    item = _network(agreement, model, own)
    if is_frozen(item):
        refuse_augmentation(named(item), training.augment)
    recipe = Recipe(item, own.shape, width, classes, training.lowered, device=training.device)
    return OwnSite(task, id, own, index, recipe, training, name)


def check_noise(agreement: Agreement, training: Training) -> None:
    """Raise ValueError if a client adds a share of noise that the others do not add, or not the share agreed on."""
    agreed, own = agreement.noise, describe_outgoing(training.protect)
    if own != agreed and (agreed is not None or training.protect.shared_length is not None):
        raise ValueError(f"protect must be as agreed on for a secure sum, {agreed or 'without colluding'}, got {own}.")


def own_site(agreement: Agreement, id: int, own: ClientSettings, secret: str) -> OwnSite:
    """Build the site that a client's settings describe."""
    return make_site(agreement, id, own.data, own.model, own.training, name=own.name, secret=secret)


def own_secret(folder: Path) -> str:
    """Return the secret of a client's random numbers, which is drawn once and stays in its folder."""
    path = folder / SECRET
    if not path.is_file():
        make_folder(folder)
        append(path, secrets.token_hex(32).encode() + b"\n")
    check_private(path)
    return path.read_text().strip()


def open_store(folder: Path, agreement: Agreement, name: str = "") -> FolderStore:
    """Open the store of a client's states for an agreement and its amendments; others are not touched."""
    own = folder / agreement.root[:16] / name
    make_folder(own)
    return FolderStore(own, agreement.root)


def _network(agreement: Agreement, name: Any, data: Dataset) -> Any:
    """Choose the client's network: the shared network if the method needs one, else the client's own."""
    shared = agreement.shared_network if agreement.task.algorithm.needs_shared_network else None
    choice: Choice = chosen(name if name is not None else shared or networks(chosen(data.models))[0], "model")
    items = networks(choice)
    if len(items) != 1:
        raise ValueError(f"model must name one network, as a client has one, got {name}, which means {len(items)}.")
    if shared is not None and items[0] != shared:
        raise ValueError(f"All clients have the network {shared} by the agreement; this one has {name}.")
    return items[0]
