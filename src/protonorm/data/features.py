"""Features of frozen trunks, computed once for each sample and kept as memory-mapped copies beside those of data sets.

A copy is identified by the content of the inputs and the trunk's digest, so it serves every partition, seed and
method. It holds the features of the whole data set: which samples a client has changes from one partition to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protonorm.core.model import Trunk
from protonorm.core.progress import report
from protonorm.core.randomness import cores, one_thread
from protonorm.core.samples import as_input, view
from protonorm.data.access import require_room
from protonorm.data.dataset import Inputs, content_hash
from protonorm.data.mapped import open_copy, short_hash
from protonorm.data.prepared import Arrays, data_root
from protonorm.models.choose import Recipe, explained
from protonorm.models.frozen import IDENTITY, FrozenNetwork, TrunkNetwork

Features = NDArray[np.float32]  # (N, D)
BATCH = 16  # pictures whose maps fit into a core's cache; the last bits of features depend on it
NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class _Source:
    """Inputs of a data set, compared by their content."""

    sha256: str
    inputs: Inputs = field(compare=False, repr=False)


def with_trunks(recipes: Sequence[Recipe], inputs: Inputs) -> tuple[list[Recipe], dict[str, Features]]:
    """Return recipes with their trunks, and the features (N, D) of all inputs by the trunks' digests."""
    features: dict[str, Features] = {}
    completed = []
    for recipe in recipes:
        if frozen := FrozenNetwork.of(recipe.network):
            frozen.check_shape(recipe.shape)
            digest = frozen.digest
            if digest not in features:
                features[digest] = open_features(frozen, inputs, recipe.device)
            trunk = Trunk(frozen.trunk_name, digest, features[digest].shape[1])
            recipe = replace(recipe, network=frozen.name, trunk=trunk)
        completed.append(recipe)
    return completed, features


def open_features(frozen: FrozenNetwork, inputs: Inputs, device: str = "cpu") -> Features:
    """Map the features of inputs; compute them if there is no copy, or a damaged one."""
    if frozen.source == IDENTITY:
        return np.asarray(inputs, np.float32)
    sha256 = content_hash(np.array([*inputs.shape, inputs.dtype.num]), inputs)
    return _open(data_root(), frozen, frozen.digest, _Source(sha256, inputs), torch.device(device).type)


@lru_cache(maxsize=8)  # limits checks to one per copy
def _open(root: Path, frozen: FrozenNetwork, digest: str, source: _Source, kind: str) -> Features:
    name = f"features-{short_hash(source.sha256, digest, kind)}"

    def read() -> Arrays:
        return Arrays(compute(frozen, source.inputs, kind), NONE, NONE.astype(np.int8), ("",))

    features: Features = open_copy(root, name, f"{source.sha256} {digest} {kind} {BATCH}", read).arrays.images  # type: ignore[assignment]
    return features


def compute(frozen: FrozenNetwork, inputs: Inputs, device: str = "cpu") -> Features:
    """Compute the features (N, D) of inputs with all cores.

    Every batch is computed by one thread, and the last is filled up, so that neither the number of cores nor the other
    samples of a data set change the bits of a sample's features.
    """
    trunk, rows = frozen.load().to(device), view(inputs).split(BATCH)
    description = f"Computing features of {frozen.trunk_name}"
    with one_thread(), explained(frozen.trunk_name, inputs.shape[1:]):
        first = _full(trunk, rows[0])
        require_room(4 * len(inputs) * first.shape[1], "The features", "fewer samples are needed")
        features: Features = np.empty((len(inputs), first.shape[1]), np.float32)
        pool = ThreadPoolExecutor(cores() if device == "cpu" else 1)
        try:
            report(description, 0, len(inputs))
            done = 0
            for batch in pool.map(partial(_full, trunk), rows):
                features[done : done + len(batch)] = batch
                done += len(batch)
                report(description, done, len(inputs))
        finally:
            pool.shutdown(cancel_futures=True)
    if not np.isfinite(features).all():
        raise ValueError(f"{frozen.trunk_name} gives features that are NaN or infinite.")
    return features


def _full(trunk: TrunkNetwork, stored: Tensor) -> Tensor:
    """Compute the features (B, D) of at most BATCH inputs, in a batch that repeated inputs fill up."""
    repeated = stored[-1:].expand(BATCH - len(stored), *stored.shape[1:])
    return features_of(trunk, torch.cat([stored, repeated]))[: len(stored)]


@torch.no_grad()
def features_of(trunk: TrunkNetwork, stored: Tensor) -> Tensor:
    """Compute the features (B, D) of a batch of stored inputs, on the CPU."""
    device = next((weight.device for weight in trunk.parameters()), torch.device("cpu"))
    features = trunk(as_input(stored.to(device)))
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(stored):
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"it gives {shape} for {len(stored)} samples; expected features ({len(stored)}, D).")
    return features.float().cpu()
