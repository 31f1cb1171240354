"""The rule `joint`: all classifiers of a client as one, by the sum of their log-probabilities.

Scores of different rules have different units, so that each has a temperature T of its own, which makes its softmax as
likely as can be on the client's validation samples; then the sum has one, so that it is a probability as well. Here
a temperature is given as 1/T, a rule's sharpness. Without validation samples all temperatures are 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

JOINT = "joint"
FLATTEST, SHARPEST = 1e-3, 1e6  # 1/T times the widest distance of two scores: the order of scores is never lost
PRECISION = 1e-8  # relative, of 1/T
SMALLEST = 1e-30  # of distances: scores that differ by less are equal, by more than its inverse no numbers
FEW = 2**18  # numbers that are fitted in one go
STEPS = 80  # at most; few are needed

Sharpness = dict[str, float]  # 1/T of each rule, and of their sum under `joint`


def joint_scores(scores: Mapping[str, Tensor], sharpness: Mapping[str, float]) -> Tensor:
    """Add up the log-probabilities (n, K) of rules, given their scores (n, K) and 1/T; T is 1 where it is not given."""
    logs = [_logs(scores[rule], sharpness.get(rule, 1.0)) for rule in sorted(scores)]  # one order, so that bits agree
    return sharpness.get(JOINT, 1.0) * torch.stack(logs).sum(0)


def _logs(scores: Tensor, sharpness: float) -> Tensor:
    """Give log p (n, K) of scores; a row that is no distribution, as nobody knows any class, says nothing: zeros."""
    return (sharpness * scores.double()).log_softmax(1).nan_to_num(nan=0.0, neginf=-math.inf)


def fit_experts(scores: Mapping[str, Tensor], y: Tensor) -> tuple[Sharpness, Tensor]:
    """Fit 1/T of each rule to its scores (n, K) of validation samples with labels (n,), then that of the sum.

    Also give joint scores (n, K) of these samples themselves: every other one is answered by those between.
    1/T is given in single precision, as a record has it.
    """
    rules, even = sorted(scores), torch.arange(len(y)) % 2 == 0
    rows = torch.stack([torch.ones_like(even), ~even, even])  # (3, n): what is fitted to
    found = _fit_to_each(torch.stack([scores[rule].double() for rule in rules]), y, rows)  # (3, E)
    sums = torch.stack([joint_scores(scores, dict(zip(rules, one, strict=True))) for one in found.tolist()])
    last = fit_sharpness(sums, y, rows)  # (3,)
    crossed = torch.where(even.unsqueeze(1), last[1] * sums[1], last[2] * sums[2])
    return dict(zip([*rules, JOINT], [*found[0].float().tolist(), float(last[0].float())], strict=True)), crossed


def _fit_to_each(scores: Tensor, y: Tensor, rows: Tensor) -> Tensor:
    """Fit scores (E, n, K) to each choice of samples (R, n): 1/T (R, E), in one go unless they are many."""
    if rows.shape[0] * scores.numel() > FEW:
        return torch.stack([fit_sharpness(scores, y, one) for one in rows])
    chosen = rows.repeat_interleave(len(scores), 0)
    return fit_sharpness(scores.repeat(len(rows), 1, 1), y, chosen).view(len(rows), -1)


def fit_sharpness(scores: Tensor, y: Tensor, rows: Tensor) -> Tensor:
    """Find the 1/T (E,) with which labels (n,) are most likely under softmax(scores/T), scores (E, n, K).

    Only chosen samples, `rows` (n,) or (E, n), count.

    One more sample, whose label is spread over all classes, keeps it finite where every answer is right. The mean of
    −log p is convex in 1/T: Newton's steps, halving where they leave what is known. Samples whose class a rule does
    not know (−∞) tell nothing of T. Without any, T is 1.
    """
    true = y.expand(len(scores), -1).unsqueeze(2)  # (E, n, 1)
    usable = (
        scores.gather(2, true).squeeze(2).isfinite() & ~(scores.isnan() | (scores == math.inf)).any(2) & rows
    )  # (E, n)
    s = scores.double().masked_fill(~usable.unsqueeze(2), 0.0)
    known = s.isfinite()  # (E, n, K)
    highest, lowest = s.amax(2, keepdim=True), s.masked_fill(~known, math.inf).amin(2, keepdim=True)
    spread = (highest - lowest).flatten(1).amax(1) if len(y) else s.new_zeros(len(s))  # (E,)
    apart = (spread > SMALLEST) & (spread < 1 / SMALLEST)
    spread = spread.where(apart, spread.new_ones(()))
    s = (s - highest) / spread.view(-1, 1, 1)  # from −1 to 0, and −∞
    finite = s.masked_fill(~known, 0.0)
    share = 1 / (usable.sum(1, keepdim=True) + 1)  # (E, 1)
    wanted = (1 - share) * finite.gather(2, true).squeeze(2) + share * finite.sum(2) / known.sum(2)  # (E, n)
    return (_roots(s, finite, wanted, usable) / spread).where(apart, spread.new_ones(()))


def _roots(s: Tensor, finite: Tensor, wanted: Tensor, usable: Tensor) -> Tensor:
    """Find each u (E,) at which the mean score under softmax(u·s) is the wanted one, averaged over usable samples."""
    u = s.new_ones(len(s))
    low, high, done = FLATTEST * u, SHARPEST * u, torch.zeros_like(u, dtype=torch.bool)
    for _ in range(STEPS):
        p = (u.view(-1, 1, 1) * s).softmax(2)
        mean = (p * finite).sum(2)  # (E, n)
        slope = ((mean - wanted) * usable).sum(1)
        bend = (((p * finite.square()).sum(2) - mean.square()) * usable).sum(1)
        low, high = u.where(slope < 0, low), high.where(slope < 0, u)
        step = u - slope / bend
        after = step.where((step > low) & (step < high), (low * high).sqrt())  # NaN is not inside
        near = (after - u).abs() <= PRECISION * u
        u, done = u.where(done, after), done | near
        if bool(done.all()):
            break
    return u
