"""Aggregation of the clients' replies: weighted values are averaged, totals are summed.

Every average of a method goes through `Server.combine`, so another rule (a median, a trimmed mean, a norm bound) can
replace the mean in all methods at once.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from protonorm.tensors import Tensors

Weights = Tensor | Mapping[str, Tensor]  # a single weight for all values, or a weight per value name
ALL = ""  # key of the weight shared by all values


class Contribution(NamedTuple):
    """Contribution of one client's reply to the sums of a round.

    All tensors are dense, and their shapes are known before the round. A weight has the leading axes of its values:
    () weights a whole value, (K,) each of K rows. It is zero where the client has no value.
    """

    values: Tensors  # v, averaged: Σ w·v / Σ w
    weight: Weights  # w ≥ 0
    totals: Tensors = {}  # summed without weights


class Sums(NamedTuple):
    """Combined contributions of a round; empty if there were none."""

    means: Tensors  # Σ w·v / Σ w, in the values' dtypes; zero where the weights are zero
    weight: Weights  # Σ w, float64
    totals: Tensors  # float64, or int64 for integers

    def weight_of(self, name: str) -> Tensor:
        """Return the summed weight of a value."""
        return self.weight[name] if isinstance(self.weight, Mapping) else self.weight


class Fold(Protocol):
    """Interface of aggregation rules, which receive contributions incrementally."""

    def add(self, contribution: Contribution) -> None:
        """Add the contribution of a reply."""

    def sums(self) -> Sums:
        """Return the combination of all added contributions."""


class Mean:
    """Weighted mean, accumulated in float64; contributions are not stored."""

    def __init__(self) -> None:
        self._sums: Tensors = {}
        self._weights: Tensors = {}
        self._totals: Tensors = {}
        self._types: dict[str, torch.dtype] = {}
        self._shared = True  # whether a single weight applies to all values

    def add(self, contribution: Contribution) -> None:
        """Add w·v, w and the totals; raise a ValueError for other names, or a scalar weight that is not positive."""
        values, weight, totals = contribution
        by_name = weight if isinstance(weight, Mapping) else {ALL: weight}
        check_parts(Contribution(self._sums, weight, self._totals) if self._weights else contribution, contribution)
        if not self._weights:
            self._shared = not isinstance(weight, Mapping)
            self._types = {name: value.dtype for name, value in values.items()}
            self._sums, self._weights, self._totals = _zeros(values), _zeros(by_name), _zeros(totals, dtype=torch.int64)
        for name, value in by_name.items():
            self._weights[name] += value
        for name, value in values.items():
            own = by_name[ALL if self._shared else name]
            if own.ndim:
                self._sums[name].addcmul_(value.double(), over(own.double(), value))
            else:
                self._sums[name].add_(value, alpha=float(own))
        for name, value in totals.items():
            self._totals[name] += value

    def sums(self) -> Sums:
        """Divide the sums by their weights."""
        means = {
            name: divided(value, self._weights[ALL if self._shared else name]).to(self._types[name])
            for name, value in self._sums.items()
        }
        none = torch.zeros((), dtype=torch.float64)
        return Sums(means, self._weights.get(ALL, none) if self._shared else self._weights, self._totals)


def combine(contributions: Iterable[Contribution], fold: Fold) -> Sums:
    """Add contributions to a fold in order and return their combination."""
    for contribution in contributions:
        fold.add(contribution)
    return fold.sums()


def scaled(contribution: Contribution, factor: float) -> Contribution:
    """Multiply the weights of a contribution; totals that are no whole numbers are multiplied as well."""
    values, weight, totals = contribution
    less = (
        weight.double() * factor if isinstance(weight, Tensor) else {k: w.double() * factor for k, w in weight.items()}
    )
    return Contribution(values, less, {k: v * factor if v.is_floating_point() else v for k, v in totals.items()})


def check_parts(first: Contribution, other: Contribution) -> None:
    """Raise ValueError for other names than the first contribution's, or a scalar weight that is not positive."""
    if different := (first.values.keys() ^ other.values.keys()) | (first.totals.keys() ^ other.totals.keys()):
        raise ValueError(f"The parts of an average differ in {', '.join(sorted(different))}.")
    for value in [other.weight] if isinstance(other.weight, Tensor) else other.weight.values():
        if not value.ndim and not 0 < float(value) < float("inf"):
            raise ValueError(f"The weights of an average must be finite and above zero, but one is {float(value)}.")


def over(weight: Tensor, value: Tensor) -> Tensor:
    """Return a weight with trailing axes of length 1, so that it broadcasts over a value."""
    return weight.reshape(weight.shape + (1,) * (value.ndim - weight.ndim))


def divided(sums: Tensor, weight: Tensor) -> Tensor:
    """Divide sums by their weights; the result is zero where the weight is zero."""
    return sums / over(torch.where(weight > 0, weight, 1.0), sums)


def _zeros(tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float64) -> Tensors:
    """Return float64 zeros of the tensors' shapes; those of integers have the type `whole`."""
    kinds = {name: torch.float64 if value.is_floating_point() else dtype for name, value in tensors.items()}
    return {name: torch.zeros_like(value, dtype=kinds[name]) for name, value in tensors.items()}
