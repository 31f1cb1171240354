"""The rule `joint`: the sum of the log-probabilities of all classifiers of a client.

Scores of different rules have different scales, so each rule has a temperature T that maximises the likelihood of the
client's validation samples; the sum then has a temperature too, so that it is a calibrated probability. The code uses
the inverse temperature 1/T, called sharpness. Without validation samples all temperatures are 1.
"""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

JOINT = "joint"
FLATTEST, SHARPEST = 1e-3, 1e6  # bounds of 1/T times the largest difference of scores: their order is preserved
PRECISION = 1e-8  # relative, of 1/T
SMALLEST = 1e-30  # of differences: smaller ones count as zero, and larger ones than its inverse as invalid
FEW = 2**18  # largest number of values fitted in a single batch
STEPS = 80  # upper limit; few are needed

Sharpness = dict[str, float]  # 1/T of each rule, and of their sum under `joint`


def joint_scores(scores: Mapping[str, Tensor], sharpness: Mapping[str, float]) -> Tensor:
    """Compute the sum of log-probabilities (n, K) of rules, given scores (n, K) and 1/T; a missing T is 1."""
    logs = [_logs(scores[rule], sharpness.get(rule, 1.0)) for rule in _ordered(scores)]  # bit-identical sums
    return sharpness.get(JOINT, 1.0) * torch.stack(logs).sum(0)


def _ordered(rules: Iterable[str]) -> list[str]:
    """Sort rules, with those of prototypes first: sums of records keep their last bits."""
    return sorted(rules, key=lambda rule: rule.removeprefix("nearest-"))


def _logs(scores: Tensor, sharpness: float) -> Tensor:
    """Compute log p (n, K) of scores; zeros for a row without a finite score, which carries no information."""
    return (sharpness * scores.double()).log_softmax(1).nan_to_num(nan=0.0, neginf=-math.inf)


def fit_experts(scores: Mapping[str, Tensor], y: Tensor) -> tuple[Sharpness, Tensor]:
    """Fit 1/T of each rule to its scores (n, K) of validation samples with labels (n,), then that of the sum.

    Args:
        scores: Scores (n, K) by rule.
        y: Labels (n,).

    Returns:
        1/T of each rule and of the sum, in single precision as in records; and cross-fitted joint scores (n, K) of the
        same samples: even samples are scored with the fit to odd ones, and vice versa.
    """
    rules, even = _ordered(scores), torch.arange(len(y)) % 2 == 0
    rows = torch.stack([torch.ones_like(even), ~even, even])  # (3, n): the samples of each fit
    found = _fit_to_each(torch.stack([scores[rule].double() for rule in rules]), y, rows)  # (3, E)
    sums = torch.stack([joint_scores(scores, dict(zip(rules, one, strict=True))) for one in found.tolist()])
    last = fit_sharpness(sums, y, rows)  # (3,)
    crossed = torch.where(even.unsqueeze(1), last[1] * sums[1], last[2] * sums[2])
    return dict(zip([*rules, JOINT], [*found[0].float().tolist(), float(last[0].float())], strict=True)), crossed


def _fit_to_each(scores: Tensor, y: Tensor, rows: Tensor) -> Tensor:
    """Fit scores (E, n, K) to each subset of samples (R, n): 1/T (R, E), in a single batch unless it is too large."""
    if rows.shape[0] * scores.numel() > FEW:
        return torch.stack([fit_sharpness(scores, y, one) for one in rows])
    chosen = rows.repeat_interleave(len(scores), 0)
    return fit_sharpness(scores.repeat(len(rows), 1, 1), y, chosen).view(len(rows), -1)


def fit_sharpness(scores: Tensor, y: Tensor, rows: Tensor) -> Tensor:
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
    """Find each u (E,) at which the mean score under softmax(u·s) equals `wanted`, averaged over usable samples."""
    u = s.new_ones(len(s))
    low, high, done = FLATTEST * u, SHARPEST * u, torch.zeros_like(u, dtype=torch.bool)
    for _ in range(STEPS):
        p = (u.view(-1, 1, 1) * s).softmax(2)
        mean = (p * finite).sum(2)  # (E, n)
        slope = ((mean - wanted) * usable).sum(1)
        bend = (((p * finite.square()).sum(2) - mean.square()) * usable).sum(1)
        low, high = u.where(slope < 0, low), high.where(slope < 0, u)
        step = u - slope / bend
        after = step.where((step > low) & (step < high), (low * high).sqrt())  # also if the step is NaN
        near = (after - u).abs() <= PRECISION * u
        u, done = u.where(done, after), done | near
        if bool(done.all()):
            break
    return u
