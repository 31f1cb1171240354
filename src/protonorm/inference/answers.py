"""Answers of a trained client: the recommended one, how sure it is, and what each rule says."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

PROTOTYPE_RULES = ("global", "local")  # their scores are ‖z‖² − ‖z − c‖²


class RuleAnswers(NamedTuple):
    """What one rule says of n inputs."""

    classes: NDArray[np.int64]  # (n,)
    confidence: Numbers  # (n,): the softmax of its scores at its answer
    margin: Numbers | None  # (n,): how much nearer its prototype is than the second nearest; of prototype rules alone


class Answers(NamedTuple):
    """The recommended answers to n inputs, and those of all rules."""

    rule: str  # the recommended one
    classes: NDArray[np.int64]  # (n,): its answers
    probability: Numbers | None  # (n,): of them, by the rule with probabilities; None for a method without one
    rules: dict[str, RuleAnswers]

    @property
    def agree(self) -> NDArray[np.bool_]:
        """Tell of each input whether all rules give the recommended answer, (n,)."""
        same: NDArray[np.bool_] = np.all([one.classes == self.classes for one in self.rules.values()], axis=0)
        return same


def answers_of(
    rule: str, probability: str, scores: dict[str, Numbers], confidence: dict[str, Numbers], lengths: Numbers | None
) -> Answers:
    """Make answers of scores and their softmax (n, K) by rule; `lengths` ‖z‖² (n,) where rules are by prototypes."""
    rules = {}
    for name, score in scores.items():
        best = score.argmax(1)
        sure = np.take_along_axis(confidence[name], best[:, None], 1)[:, 0]
        squared = None if lengths is None or name not in PROTOTYPE_RULES else lengths[:, None] - score  # (n, K)
        rules[name] = RuleAnswers(best, sure, None if squared is None else margins(squared))
    chosen = rule if rule in rules else next(iter(rules))
    classes, shares = rules[chosen].classes, confidence.get(probability)
    likely = None if shares is None else np.take_along_axis(shares, classes[:, None], 1)[:, 0]
    return Answers(chosen, classes, likely, rules)


def margins(squared: Numbers) -> Numbers:
    """Give 1 − d₁/d₂ (n,) of squared distances (n, K) to prototypes: 0 halfway between two, 1 on one of them.

    A class without a prototype is infinitely far.
    """
    if squared.shape[1] < 2:
        return np.ones(len(squared))
    first, second = np.sqrt(np.maximum(np.partition(squared, 1, axis=1)[:, :2], 0.0)).T
    apart = second > 0
    return np.where(apart, 1 - np.divide(first, second, out=np.zeros_like(first), where=apart), 0.0)
