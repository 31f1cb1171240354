"""Calibration: the inverse temperature 1/T, called sharpness, that makes scores probabilities."""

import math

import torch
from torch import Tensor

FLATTEST, SHARPEST = 1e-3, 1e6  # bounds of 1/T times the largest difference of scores: their order is preserved
PRECISION = 1e-8  # relative, of 1/T
SMALLEST = 1e-30  # of differences: smaller ones count as zero, and larger ones than its inverse as invalid
STEPS = 80  # upper limit; few are needed


def fit_inverse_temperature(scores: Tensor, y: Tensor, rows: Tensor) -> Tensor:
    """Find the 1/T (E,) that maximises the likelihood of labels (n,) under softmax(scores/T), scores (E, n, K).

    Only the samples selected by `rows` (n,) or (E, n) count.

    An additional sample, whose label is uniform over all classes, keeps 1/T finite where every prediction is correct.
    The mean of −log p is convex in 1/T: Newton steps, with bisection where they leave the bracket. Samples whose class
    a rule does not know (−∞) carry no information on T. Without usable samples T is 1.
    """
    true = y.expand(len(scores), -1).unsqueeze(2)  # (E, n, 1)
    invalid = (scores.isnan() | (scores == math.inf)).any(2)  # (E, n)
    usable = scores.gather(2, true).squeeze(2).isfinite() & ~invalid & rows
    s = scores.double().masked_fill(~usable.unsqueeze(2), 0.0)
    finite_scores = s.isfinite()  # (E, n, K)
    highest, lowest = s.amax(2, keepdim=True), s.masked_fill(~finite_scores, math.inf).amin(2, keepdim=True)
    spread = (highest - lowest).flatten(1).amax(1) if len(y) else s.new_zeros(len(s))  # (E,)
    separable = (spread > SMALLEST) & (spread < 1 / SMALLEST)
    spread = spread.where(separable, spread.new_ones(()))
    s = (s - highest) / spread.view(-1, 1, 1)  # from −1 to 0, and −∞
    finite = s.masked_fill(~finite_scores, 0.0)
    share = 1 / (usable.sum(1, keepdim=True) + 1)  # (E, 1)
    target = (1 - share) * finite.gather(2, true).squeeze(2) + share * finite.sum(2) / finite_scores.sum(2)  # (E, n)
    return (_roots(s, finite, target, usable) / spread).where(separable, spread.new_ones(()))


def _roots(s: Tensor, finite: Tensor, target: Tensor, usable: Tensor) -> Tensor:
    """Find each u (E,) at which the mean score under softmax(u·s) equals `wanted`, averaged over usable samples."""
    u = s.new_ones(len(s))
    low, high, done = FLATTEST * u, SHARPEST * u, torch.zeros_like(u, dtype=torch.bool)
    for _ in range(STEPS):
        p = (u.view(-1, 1, 1) * s).softmax(2)
        mean = (p * finite).sum(2)  # (E, n)
        slope = ((mean - target) * usable).sum(1)
        bend = (((p * finite.square()).sum(2) - mean.square()) * usable).sum(1)
        low, high = u.where(slope < 0, low), high.where(slope < 0, u)
        step = u - slope / bend
        after = step.where((step > low) & (step < high), (low * high).sqrt())  # also if the step is NaN
        converged = (after - u).abs() <= PRECISION * u
        u, done = u.where(done, after), done | converged
        if bool(done.all()):
            break
    return u
