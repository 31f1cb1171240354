"""The rule `joint`: the sum of the log-probabilities of all classifiers of a client.

Scores of different rules have different scales, so each rule has a temperature T that maximises the likelihood of the
client's validation samples; the sum then has a temperature too, so that it is a calibrated probability. The code uses
the inverse temperature 1/T, called sharpness. Without validation samples all temperatures are 1.
"""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from protonorm.geometry.temperature import fit_inverse_temperature

JOINT = "joint"
FEW = 2**18  # largest number of values fitted in a single batch

Sharpness = dict[str, float]  # 1/T of each rule, and of their sum under `joint`


def joint_scores(scores: Mapping[str, Tensor], temperatures: Mapping[str, float]) -> Tensor:
    """Compute the sum of log-probabilities (n, K) of rules, given scores (n, K) and 1/T; a missing T is 1."""
    logs = [_logs(scores[rule], temperatures.get(rule, 1.0)) for rule in _ordered(scores)]  # bit-identical sums
    return temperatures.get(JOINT, 1.0) * torch.stack(logs).sum(0)


def _ordered(rules: Iterable[str]) -> list[str]:
    """Sort rules, with those of prototypes first: sums of records keep their last bits."""
    return sorted(rules, key=lambda rule: rule.removeprefix("nearest-"))


def _logs(scores: Tensor, inverse: float) -> Tensor:
    """Compute log p (n, K) of scores; zeros for a row without a finite score, which carries no information."""
    return (inverse * scores.double()).log_softmax(1).nan_to_num(nan=0.0, neginf=-math.inf)


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
    fits = _fit_to_each(torch.stack([scores[rule].double() for rule in rules]), y, rows)  # (3, E)
    sums = torch.stack([joint_scores(scores, dict(zip(rules, fit, strict=True))) for fit in fits.tolist()])
    joint = fit_inverse_temperature(sums, y, rows)  # (3,)
    cross_fitted = torch.where(even.unsqueeze(1), joint[1] * sums[1], joint[2] * sums[2])
    return dict(zip([*rules, JOINT], [*fits[0].float().tolist(), float(joint[0].float())], strict=True)), cross_fitted


def _fit_to_each(scores: Tensor, y: Tensor, rows: Tensor) -> Tensor:
    """Fit scores (E, n, K) to each subset of samples (R, n): 1/T (R, E), in a single batch unless it is too large."""
    if rows.shape[0] * scores.numel() > FEW:
        return torch.stack([fit_inverse_temperature(scores, y, samples) for samples in rows])
    subsets = rows.repeat_interleave(len(scores), 0)
    return fit_inverse_temperature(scores.repeat(len(rows), 1, 1), y, subsets).view(len(rows), -1)
