"""Intervals, tests and verdicts, as plain functions of numbers. Does not import torch.

Gains are accuracies of a method minus those of a reference, as fractions: a list of runs (seeds), each with a number
for every client.
"""

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Verdict = Literal["better", "worse", "practically equal", "not distinguishable"]

CONFIDENCE = 0.95
RESAMPLES = 2000  # bootstrap resamples
SEED = 0  # of the bootstrap and of drawn sign flips: the same runs always give the same interval
FEWEST = 6  # minimum runs of a sign-flip test: with five, no p-value is below 1/16
EXACT = 20  # maximum runs for which all 2^S flips are enumerated
DRAWS = 10_000  # random flips for more runs
CHUNK = 1_000_000  # maximum numbers in memory during the bootstrap
ROUNDING = 1e-9  # sums that differ by less than this share of all gains count as equal


class Interval(NamedTuple):
    """Interval that covers the true value in 95 of 100 experiments, if its assumptions hold."""

    low: float
    high: float

    @property
    def half(self) -> float:
        """Half of its width."""
        return (self.high - self.low) / 2


def padded(rows: Sequence[Sequence[float] | Numbers], fill: float = 0.0) -> Numbers:
    """Stack rows of different lengths into one array (n, longest); `fill` stands at their ends."""
    return np.array(list(zip_longest(*rows, fillvalue=fill)), float).T.copy()


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return Student's t-interval of the mean over runs; None for a single run."""
    if len(values) < 2:
        return None
    from scipy.special import stdtrit  # slow to import, and not needed for one run

    numbers = np.asarray(values, float)
    error = float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    half = float(stdtrit(len(numbers) - 1, (1 + CONFIDENCE) / 2)) * error
    mean = float(numbers.mean())
    return Interval(mean - half, mean + half)


def spread(values: Sequence[float]) -> Interval | None:
    """Return what tables and bands show of runs: the range of two, the interval of the mean of more; None for one."""
    return Interval(min(values), max(values)) if len(values) == 2 else mean_interval(values)


def bootstrap_interval(gains: Sequence[Numbers], weights: Sequence[Numbers] | None = None) -> Interval | None:
    """Return the percentile interval of the mean gain, over runs and clients; None below two runs or two clients."""
    if len(gains) < 2 or min(map(len, gains)) < 2:
        return None
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(bootstrap_means(gains, weights), [tail, 100 - tail])
    return Interval(float(low), float(high))


def bootstrap_means(gains: Sequence[Numbers], weights: Sequence[Numbers] | None = None) -> Numbers:
    """Resample runs, then clients inside each, both with replacement; return the mean over runs of each resample (B,).

    Weights apply to the mean inside a run: with test samples as weights it is the difference of pooled accuracies.
    """
    sizes = np.array(list(map(len, gains)))  # (S,) clients of each run
    values, shares = padded(gains), padded(weights or list(map(np.ones, sizes)))  # (S, M)
    random = np.random.default_rng(SEED)
    picked = random.integers(len(gains), size=(RESAMPLES, len(gains)))  # (B, S) runs
    means = []
    for runs in np.array_split(picked, math.ceil(RESAMPLES * values.size / CHUNK)):  # to bound memory
        limits, rows = sizes[runs][..., None], runs[..., None]  # (b, S, 1)
        drawn = random.integers(limits, size=(*runs.shape, values.shape[1]))  # (b, S, M) clients
        counted = np.where(np.arange(values.shape[1]) < limits, shares[rows, drawn], 0.0)
        means.append(((counted * values[rows, drawn]).sum(-1) / counted.sum(-1)).mean(-1))
    return np.concatenate(means)


def sign_flip(gains: Sequence[float]) -> float | None:
    """Return the two-sided p-value of the sign-flip test of the runs' mean gains (S,); None below six runs."""
    numbers = np.asarray(gains, float)
    if len(numbers) < FEWEST:
        return None
    least = abs(float(numbers.sum())) - ROUNDING * float(np.abs(numbers).sum())
    if len(numbers) > EXACT:
        signs = np.random.default_rng(SEED).choice([-1.0, 1.0], size=(DRAWS, len(numbers)))
        return float((np.count_nonzero(np.abs(signs @ numbers) >= least) + 1) / (DRAWS + 1))
    sums = np.zeros(1)
    for gain in numbers:
        sums = np.concatenate([sums + gain, sums - gain])  # finally all 2^S
    return float(np.mean(np.abs(sums) >= least))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple testing by Holm's step-down: the smallest times m, the next times m − 1."""
    numbers = np.asarray(p_values, float)
    order = np.argsort(numbers, kind="stable")
    steps = np.maximum.accumulate(numbers[order] * np.arange(len(numbers), 0, -1))
    corrected = np.empty_like(numbers)
    corrected[order] = np.minimum(steps, 1.0)
    return [float(p) for p in corrected]


def verdict(interval: Interval, margin: float = 0.0) -> Verdict:
    """Return the verdict of an interval of the mean gain; gains up to the margin count as zero."""
    if interval.low > margin:
        return "better"
    if interval.high < -margin:
        return "worse"
    return "practically equal" if -margin <= interval.low and interval.high <= margin else "not distinguishable"


def share_a_seed(seeds: Sequence[int]) -> bool:
    """Return whether runs share a seed: they are then not independent, and have neither interval nor test."""
    return len(set(seeds)) < len(seeds)
