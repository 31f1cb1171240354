"""What each client trains, validates and tests on: splits that data give, by content or at random, and wrong labels."""

import re
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from protonorm.data.dataset import Dataset
from protonorm.data.partitions import (
    ClientIndex,
    DataPartition,
    Index,
    Partition,
    Parts,
    check_shares,
    group_by_class,
    split_share,
)

NOISE = re.compile(r"(symmetric|pair):(0?\.\d+|1|1\.0*)(?::(0?\.\d+|1|1\.0*))?")  # kind, rate, share of clients


def parts_of(
    data: Dataset,
    clients: int,
    how: Partition,
    train: float,
    split: str = "random",
    validation: float = 0.0,
    common_test: str | float = "none",
) -> Parts:
    """Return each client's part: the samples it owns, or those that the partition assigns to it.

    Samples of the common test are set aside first: the official test samples, or a share of each class.
    """
    given, count = data.split, len(data.labels)
    common = np.zeros(count, bool) if common_test == "none" else _common_samples(data, common_test, how.seed)
    if data.owner is not None:
        order = np.argsort(data.owner, kind="stable")
        shares = np.split(order, np.bincount(data.owner).cumsum()[:-1])
    elif isinstance(how, DataPartition):
        shares, given = how.shares(data, clients)
        shares = check_shares([share[~common[share]] for share in check_shares(shares, clients, count)], clients, count)
    else:
        rest = np.flatnonzero(~common)
        shares = [rest[share] for share in check_shares(how.assign(data.labels[rest], clients), clients, len(rest))]
    if given is not None:
        for id, share in enumerate(shares):
            if (given[share] > 0).all():
                raise ValueError(f"Client {id} has no sample to train on.")
    tests_all = None if common_test == "none" else np.flatnonzero(common)
    if split == "random":
        halves = [own_part(share, given, train, [how.seed, id]) for id, share in enumerate(shares)]
        return Parts.of(halves, common=tests_all)
    keys = data.content_keys()
    parts = [split_by_content(share, keys, train, validation, given) for share in shares]
    return Parts.of(parts, [count_validating(part.train, keys, validation) for part in parts], tests_all)


def _common_samples(data: Dataset, common_test: str | float, seed: int) -> NDArray[np.bool_]:
    """Return which samples (N,) test all clients; raise a ValueError if there are none, or if clients own the data."""
    if data.owner is not None:
        raise ValueError("common_test must be none for data that belong to clients already.")
    if isinstance(common_test, str):
        if data.official is None:
            where = f"which {data.name} does not have, or not among dataset.samples"
            raise ValueError(f"common_test=official needs an official test split, {where}; common_test=0.1 takes some.")
        return data.official
    common = np.zeros(len(data.labels), bool)
    random = np.random.default_rng([seed, len(data.labels)])
    for members in group_by_class(data.labels):
        common[random.permutation(members)[: int(common_test * len(members) + 0.5)]] = True
    if not common.any():
        raise ValueError(f"common_test must be a larger share: {common_test:g} of each class is no sample.")
    return common


def own_part(share: Index, split: NDArray[np.int8] | None, train: float, seed: list[int]) -> ClientIndex:
    """Split a client's samples as the data specify, or at random if any of them is undecided."""
    if split is None or (split[share] < 0).any():
        return split_share(share, train, seed)
    shuffled = np.random.default_rng(seed).permutation(share)
    return ClientIndex(shuffled[split[shuffled] == 0], shuffled[split[shuffled] > 0])


def split_by_content(
    share: Index,
    keys: NDArray[np.uint64],
    train: float,
    validation: float,
    split: NDArray[np.int8] | None = None,
    *,
    fill: bool = True,
) -> ClientIndex:
    """Split a client's samples by the hash of each, so that others that come or go do not move it.

    With two numbers in [0, 1) from a sample's hash (the upper and the lower half of its bits), it is for testing if
    the first is at least `train`, else for validation, at the end of the training part, if the second is below
    `validation`. The smallest hash always trains, the largest of several tests. A split that the data specify stays.
    Without `fill` no hash trains that would not otherwise, so that a sample less never makes another one train.
    """
    share = share[np.argsort(keys[share], kind="stable")]
    if split is not None and not (split[share] < 0).any():
        testing = split[share] > 0
    else:
        testing = (keys[share] >> np.uint64(32)) / 2.0**32 >= train
        testing[:1], testing[-1:] = testing[:1] & (not fill), len(share) > 1 or not fill
    training = share[~testing]
    validating = _validates(training, keys, validation, fill=fill)
    return ClientIndex(np.concatenate([training[~validating], training[validating]]), share[testing])


def count_validating(training: Index, keys: NDArray[np.uint64], validation: float, *, fill: bool = True) -> int:
    """Count the validation samples of a training part that was split by content."""
    return int(_validates(training, keys, validation, fill=fill).sum())


def _validates(training: Index, keys: NDArray[np.uint64], validation: float, *, fill: bool) -> NDArray[np.bool_]:
    """Return which training samples validate: with `fill` not the one with the smallest hash."""
    validating: NDArray[np.bool_] = (keys[training] & np.uint64(2**32 - 1)) / 2.0**32 < validation
    if fill:
        validating[keys[training].argmin()] = False
    return validating


def _check_noise(value: str) -> str:
    if value != "none" and not NOISE.fullmatch(value):
        raise ValueError("label_noise must be none, symmetric:RATE or pair:RATE, and perhaps :SHARE of the clients")
    return value


LabelNoise = Annotated[str, AfterValidator(_check_noise)]


def noisy_labels(labels: NDArray[np.int64], classes: int, parts: Parts, noise: str, seed: int) -> NDArray[np.int64]:
    """Return labels (N,) with wrong ones among those that clients train and validate on; test labels stay.

    symmetric:0.4 replaces each label with probability 0.4 by another class, drawn uniformly, pair:0.4 by the next one,
    symmetric:0.4:0.5 those of half of the clients, drawn at random.
    """
    match = NOISE.fullmatch(noise)
    if match is None:
        return labels
    kind, rate, share = match[1], float(match[2]), float(match[3] or 1)
    noisy = labels.copy()
    chosen = np.random.default_rng([seed, len(parts)]).permutation(len(parts))[: round(share * len(parts))]
    for id in chosen.tolist():
        train, random = parts[id].train, np.random.default_rng([seed, id, 1])
        steps = random.integers(1, classes, len(train)) if kind == "symmetric" else np.ones(len(train), np.int64)
        noisy[train] = np.where(random.random(len(train)) < rate, (labels[train] + steps) % classes, labels[train])
    return noisy
