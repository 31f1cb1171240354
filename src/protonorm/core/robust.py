"""Robust aggregation rules: folds that limit what a single client can change in the combination of a round.

They keep the contributions of a round. A *vector* is what is judged as a whole: a row of a value whose weight has
leading axes, such as the prototype of a class, or else a whole tensor. A client without a value, whose weight is zero,
has no say in it. As numbers of samples are a client's own claim, a weight counts at most as much as the median of the
others' weights; totals, which are sums, are bounded likewise in length.

Shapes: N contributions, L vectors, P numbers in a vector, Q = P if numbers have weights of their own, else 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, NamedTuple

import torch
from pydantic import AfterValidator
from torch import Tensor

from protonorm.core.combine import ALL, Contribution, Fold, Mean, Sums, check_parts
from protonorm.core.registry import Entry, find
from protonorm.core.types import shown

MEAN = "mean"
COMBINE: dict[str, Entry] = {
    MEAN: Entry("protonorm.core.combine:Mean", "weighted mean, summed as replies arrive"),
    "median": Entry("protonorm.core.robust:Median", "median of each number"),
    "trimmed": Entry("protonorm.core.robust:Trimmed", "mean of each number without a share at both ends: trimmed:0.2"),
    "geometric_median": Entry("protonorm.core.robust:GeometricMedian", "point of least total distance to the vectors"),
    "bounded": Entry("protonorm.core.robust:Bounded", "mean of vectors at most as long as the median of the others"),
    "secure_sum": Entry("protonorm.core.combine:Mean", "mean of masked messages; the server sees sums: secure_sum:3"),
    "cosine": Entry("protonorm.core.robust:Cosine", "bounded, weighted by the cosine to the median direction"),
    "trust": Entry("protonorm.core.robust:Trust", "cosine, weighted by a client's agreement with others in all rows"),
}
DEFAULT_SHARE = 0.2  # of `trimmed` without a number
STEPS, CLOSE = 50, 1e-7  # of Weiszfeld's iteration: largest number, and relative change at which it ends
DEFAULT_LEAST, MOST_MEMBERS = 3, 256  # members of a secure sum, whose masks are as many as their pairs
TURNS = 10  # of the iteration that finds whom to trust
HEARD = 0.5  # trust in others, all together, below which nothing is said of a client
LEAST = 1e-9  # smallest trust, so that a vector of a single client is combined whatever its trust is
LONG = 10.0  # an alarm is given above this ratio of lengths, …
PART, MARGIN = 0.4, 0.15  # … and below this part of the others' cosine, less a margin: first rounds have cosines near 0


class Standing(NamedTuple):
    """Comparison of a client's contribution with those of the others."""

    length: float  # relative to the median length of the others' vectors
    cosine: float  # mean cosine of its vectors to those of the others, each as far as it is trusted
    usual: float = 0.0  # median of the others' cosines

    @property
    def alarm(self) -> str:
        """What is wrong with the contribution; empty if nothing is."""
        if self.length > LONG:
            return f"its numbers are {self.length:.3g} times as large as those of the others"
        apart = f"its numbers point away from those of the others (cosine {self.cosine:.2f}, theirs {self.usual:.2f})"
        return apart * (self.cosine < PART * self.usual - MARGIN)


class Robust(ABC):
    """Fold that keeps the contributions of a round and combines them at the end."""

    def __init__(self) -> None:
        self._kept: list[Contribution] = []

    @abstractmethod
    def center(self, x: Tensor, weight: Tensor) -> Tensor:
        """Combine vectors x (N, L, P), zero where their weights (N, L, Q) are, to (L, P)."""

    def add(self, contribution: Contribution) -> None:
        """Keep a contribution; raise a ValueError for other names, or a scalar weight that is not positive."""
        check_parts(self._kept[0] if self._kept else contribution, contribution)
        self._kept.append(contribution)

    def sums(self) -> Sums:
        """Combine the contributions that were added."""
        if not self._kept:
            return Mean().sums()
        means = {}
        for name, value in self._kept[0].values.items():
            x, weight = self._stacked(name)
            weight = torch.minimum(weight, median_of_others(weight, weight > 0))
            means[name] = self.center(x, weight).reshape(value.shape).to(value.dtype)
        names = [ALL] if isinstance(self._kept[0].weight, Tensor) else list(means)
        weights = {name: torch.stack([by_name(part)[name].double() for part in self._kept]).sum(0) for name in names}
        return Sums(means, weights.get(ALL, weights), {name: self._total(name) for name in self._kept[0].totals})

    def standings(self) -> list[Standing]:
        """Compare each contribution with the others, in the order in which they were added."""
        if not self._kept:
            return []
        size = len(self._kept)
        own, others = torch.zeros(2, size, dtype=torch.float64)
        for x, weight in self._judged():
            length = lengths(x, weight)
            present = (weight > 0).any(2) & (length > 0)  # (N, L); nothing is many times as long as zero
            several = present & (present.sum(0) > 2)  # at least two others say how long is usual
            compared = torch.where(several.any(1, keepdim=True), several, present & (present.sum(0) > 1))
            own += (length.square() * compared).sum(1)
            others += (median_of_others(length, present).square().nan_to_num(posinf=0.0) * compared).sum(1)
        ratio = torch.where(own == others, 1.0, (own / others).sqrt())
        _, cosine = self.agreement()
        usual = median_of_others(cosine, torch.ones(size, dtype=torch.bool)).nan_to_num(posinf=0.0)
        return [Standing(*row) for row in zip(ratio.tolist(), cosine.tolist(), usual.tolist(), strict=True)]

    def agreement(self) -> tuple[Tensor, Tensor]:
        """Return each client's trust t (N,), and its mean cosine (N,) to those that it shares vectors with.

        s_ij is the mean cosine of the vectors that clients i and j both have. From t = 1 on,
        t_i ← max(0, (1 + Σ t_j s_ij)/(1 + Σ t_j)), and the cosine is Σ t_j s_ij/Σ t_j, over the j that i shares any
        with; 1 if these are not trusted.
        """
        size = len(self._kept)
        cosines, shared = torch.zeros(2, size, size, dtype=torch.float64)
        for x, weight in self._judged():
            present = (weight > 0).any(2).double()  # (N, L)
            rows = unit(x).flatten(1)
            cosines += rows @ rows.T
            shared += present @ present.T
        between = (shared > 0).double().fill_diagonal_(0)  # (N, N)
        similar = cosines / shared.clamp(min=1) * between
        trust = torch.ones(size, dtype=torch.float64)
        for _ in range(TURNS):
            trust = ((1 + similar @ trust) / (1 + between @ trust)).clamp(min=LEAST)
        heard = between @ trust
        return trust, torch.where(heard >= HEARD, (similar @ trust) / heard.clamp(min=HEARD), 1.0)

    def _judged(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the vectors that clients are compared by: values with their weights, or totals where there are none."""
        for name in self._kept[0].values:
            yield self._stacked(name)
        for name in () if self._kept[0].values else self._kept[0].totals:
            x = torch.stack([part.totals[name].double() for part in self._kept]).reshape(len(self._kept), 1, -1)
            yield x, x.any(2, keepdim=True).double()

    def _stacked(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the vectors of a value, (N, L, P), and their weights, (N, L, Q), in float64."""
        x = torch.stack([part.values[name].double() for part in self._kept])
        weight = torch.stack([by_name(part)[ALL if isinstance(part.weight, Tensor) else name] for part in self._kept])
        count, rows = len(self._kept), x.shape[1] if weight.ndim > 1 else 1
        if weight.ndim > 2:  # of each number
            weight = weight.reshape(weight.shape + (1,) * (x.ndim - weight.ndim)).expand_as(x)
        x, weight = x.reshape(count, rows, -1), weight.double().reshape(count, rows, -1)
        return torch.where(weight > 0, x, 0.0), weight

    def _total(self, name: str) -> Tensor:
        """Sum a total over the contributions, each at most as long as the median of the others."""
        values = [part.totals[name] for part in self._kept]
        x = torch.stack(values).double().reshape(len(values), 1, -1)
        total = bounded(x, torch.ones_like(x)).sum(0).reshape(values[0].shape)
        return total if values[0].is_floating_point() else total.round().long()


class Trimmed(Robust):
    """Mean of each number without the given share of the clients at both ends, at least one client."""

    def __init__(self, share: float = DEFAULT_SHARE) -> None:
        super().__init__()
        self._share = share

    def center(self, x: Tensor, weight: Tensor) -> Tensor:
        """Average the middle of each number's values; as many are left out that at least one or two remain."""
        count = (weight > 0).sum(0)  # (L, Q)
        trimmed = torch.minimum((self._share * count - 1e-9).ceil().long(), (count - 1).clamp(min=0) // 2)
        ordered = torch.where(weight > 0, x, math.inf).sort(0).values  # (N, L, P)
        rank = torch.arange(len(x)).reshape(-1, 1, 1)
        kept = (rank >= trimmed) & (rank < count - trimmed)
        return torch.where(kept, ordered, 0.0).sum(0) / (count - 2 * trimmed).clamp(min=1)


class Median(Trimmed):
    """Median of each number; of an even number of clients the mean of the two in the middle."""

    def __init__(self) -> None:
        super().__init__(0.5)


class GeometricMedian(Robust):
    """Point of least total distance to the vectors, by Weiszfeld's iteration from the medians."""

    def center(self, x: Tensor, weight: Tensor) -> Tensor:
        """Weight each vector by the inverse of its distance, until the point rests."""
        present = (weight > 0).double()
        point = Median().center(x, weight)
        for _ in range(STEPS):
            distance = lengths(torch.where(present > 0, x - point, 0.0), present)  # (N, L)
            smallest = (distance.amax(0) * 1e-12).clamp(min=1e-30)  # the point may be one of the vectors
            shifted = weighted_mean(x, present / torch.maximum(distance, smallest).unsqueeze(2))
            change, point = lengths((shifted - point).unsqueeze(0)), shifted
            if bool((change <= CLOSE * lengths(shifted.unsqueeze(0))).all()):
                break
        return point


class Bounded(Robust):
    """Weighted mean of vectors whose length is at most the median length of the others."""

    def center(self, x: Tensor, weight: Tensor) -> Tensor:
        """Shorten the longer vectors and average."""
        return weighted_mean(bounded(x, weight), weight)


class Cosine(Robust):
    """Mean of bounded vectors weighted by the cosine to their median direction; opposed ones do not count."""

    def center(self, x: Tensor, weight: Tensor) -> Tensor:
        """Weight by max(cosine, 0); if none is positive, as `bounded`."""
        share = weight * cosines(x, weight).clamp(min=0).unsqueeze(2)
        return weighted_mean(bounded(x, weight), torch.where((share > 0).any(0), share, weight))


class Trust(Robust):
    """Mean of bounded vectors weighted by how far a client agrees with the others in all its vectors, and in each.

    Where two clients alone have a class, nothing else says which of them lies.
    """

    def sums(self) -> Sums:
        """Combine the contributions; totals of clients with an alarm do not count."""
        if self._kept:
            self._trust, _ = self.agreement()
            self._sound = torch.tensor([not one.alarm for one in self.standings()])
        return super().sums()

    def center(self, x: Tensor, weight: Tensor) -> Tensor:
        """Weight by the square of the trust, and by max(cosine, 0) to the mean direction of those that are trusted."""
        weight = weight * self._trust.square().reshape(-1, 1, 1)
        middle = unit(weighted_mean(unit(x), weight).unsqueeze(0))  # (1, L, P)
        share = weight * (unit(x) * middle).sum(2, keepdim=True).clamp(min=0)
        return weighted_mean(bounded(x, weight), torch.where((share > 0).any(0), share, weight))

    def _total(self, name: str) -> Tensor:
        kept, self._kept = self._kept, [part for part, sound in zip(self._kept, self._sound, strict=True) if sound]
        try:
            return super()._total(name) if self._kept else torch.zeros_like(kept[0].totals[name])
        finally:
            self._kept = kept


def by_name(contribution: Contribution) -> Mapping[str, Tensor]:
    """Return the weights of a contribution by name."""
    return {ALL: contribution.weight} if isinstance(contribution.weight, Tensor) else contribution.weight


def weighted_mean(x: Tensor, weight: Tensor) -> Tensor:
    """Average x (N, L, P) with weights (N, L, Q); zero where these are."""
    total = weight.sum(0)
    mean: Tensor = (x * weight).sum(0) / torch.where(total > 0, total, 1.0)
    return mean


def lengths(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the root mean square (N, L) of the numbers of x (N, L, P) that have a weight (N, L, Q)."""
    count = x.shape[2] if weight is None or weight.shape[2] == 1 else (weight > 0).sum(2).clamp(min=1)
    length: Tensor = torch.linalg.vector_norm(x, dim=2) / (count**0.5)
    return length


def bounded(x: Tensor, weight: Tensor) -> Tensor:
    """Shorten vectors (N, L, P) to the median length of the others."""
    length = lengths(x, weight)
    limit = median_of_others(length, (weight > 0).any(2))
    return x * torch.where(length > limit, limit / length, 1.0).unsqueeze(2)


def unit(x: Tensor) -> Tensor:
    """Return vectors (N, L, P) at length 1; zero stays zero."""
    directions: Tensor = x / torch.linalg.vector_norm(x, dim=2, keepdim=True).clamp(min=1e-300)
    return directions


def cosines(x: Tensor, weight: Tensor) -> Tensor:
    """Return the cosine (N, L) of each vector to the median of all directions; 1 if that is zero."""
    directions = unit(x)
    median = Median().center(directions, weight)
    size = torch.linalg.vector_norm(median, dim=1)  # (L,)
    return torch.where(size > 1e-9, (directions * median).sum(2) / size.clamp(min=1e-9), 1.0)


def median_of_others(values: Tensor, present: Tensor) -> Tensor:
    """Return for each of (N, …) the median of the others along the first axis that are there; inf without others."""
    count = present.sum(0)  # (…)
    ordered, order = torch.where(present, values, math.inf).sort(dim=0, stable=True)
    rank = order.argsort(dim=0)
    low, high = (((count - less).clamp(min=0) // 2).expand_as(rank) for less in (2, 1))  # places among the others
    middle = [ordered.gather(0, (at + (at >= rank)).clamp(max=len(values) - 1)) for at in (low, high)]
    return torch.where(count > 1, (middle[0] + middle[1]) / 2, math.inf)


def check_rule(rule: str) -> str:
    """Return a rule in full, such as trimmed:0.2; raise ValueError if there is none of that name or number."""
    name, _, number = rule.partition(":")
    find(COMBINE, name, "combination")
    if name == "secure_sum":
        least = int(number or DEFAULT_LEAST) if (number or "0").isdecimal() else 0
        if not 2 <= least <= MOST_MEMBERS:
            raise ValueError(f"combine must be secure_sum:LEAST with 2 to {MOST_MEMBERS} members, got {shown(rule)}.")
        return f"{name}:{least}"
    if name != "trimmed":
        if number:
            raise ValueError(f"combine={name} must stand without a number, got {shown(rule)}.")
        return name
    try:
        share = float(number or DEFAULT_SHARE)
    except ValueError:
        share = math.nan
    if not 0 < share < 0.5:
        raise ValueError(f"combine must be trimmed:SHARE with a share above 0 and below 0.5, got {shown(rule)}.")
    return f"{name}:{share:g}"


Rule = Annotated[str, AfterValidator(check_rule)]


def fold_of(rule: str) -> Callable[[], Fold]:
    """Return the factory of a rule's folds."""
    name, _, number = check_rule(rule).partition(":")
    fold: Callable[..., Fold] = COMBINE[name].load()
    return (lambda: fold(float(number))) if number and name == "trimmed" else fold


def least_members(rule: str) -> int:
    """Return the smallest number of members of a rule such as secure_sum:3; 0 for other rules."""
    name, _, number = check_rule(rule).partition(":")
    return int(number) if name == "secure_sum" else 0
