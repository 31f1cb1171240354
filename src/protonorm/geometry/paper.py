"""Algorithm 1 of the paper: momentum on the whole force, decaying rate, normalisation after every move."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from protonorm.geometry.energy import field, force_of, project
from protonorm.geometry.points import unit

STOPS = ("change", "rounding", "tangential")
WARM_UP = {"change": 0, "rounding": 10}  # the authors' code compares forces only from its iteration 11 on


@dataclass(frozen=True)
class Schedule:
    """How Algorithm 1 moves and when it stops."""

    eta: float = 0.1  # η, Eq. 12
    mu: float = 0.9  # μ, Eq. 12
    decay: float = 0.95  # factor on η
    decay_every: int = 10  # updates between two decays
    first_decay: int = 1  # updates before the first decay: 1 as the authors' code, 10 as the paper
    steps: int = 500  # T
    epsilon: float = 1e-4  # ε
    patience: int = 10  # consecutive iterations that must agree
    stop: str = "change"

    def __post_init__(self) -> None:
        """Refuse what makes no schedule."""
        for name, low, high in (("eta", 0, math.inf), ("decay", 0, 1), ("epsilon", 0, math.inf)):
            value = getattr(self, name)
            if not (math.isfinite(value) and low < value <= high):
                limit = "a finite number above 0" if high == math.inf else "above 0 and at most 1"
                raise ValueError(f"{name} must be {limit}, not {value}.")
        if not 0 <= self.mu < 1:
            raise ValueError(f"mu must be at least 0 and below 1, not {self.mu}.")
        for name in ("decay_every", "first_decay", "steps", "patience"):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ValueError(f"{name} must be a whole number, at least 1, not {count!r}.")
        if self.stop not in STOPS:
            raise ValueError(f"Unknown stop {self.stop!r}; known: {', '.join(STOPS)}.")

    def rate(self, t: int) -> float:
        """Give η of update t = 0, 1, …: η·decay^⌈t/10⌉ with first_decay = 1, η·decay^⌊t/10⌋ with first_decay = 10."""
        decays = 0 if t < self.first_decay else 1 + (t - self.first_decay) // self.decay_every
        return self.eta * self.decay**decays


def updates(points: Tensor, s: float, schedule: Schedule) -> Iterator[Tensor]:
    """Follow Algorithm 1 from unit points (K, d), update by update."""
    velocity = torch.zeros_like(points)
    previous, calm = math.inf, 0
    for t in range(schedule.steps):
        force = force_of(field(points, s), s)  # Eq. 11
        strength = float(force.norm(dim=1).mean())
        if not math.isfinite(strength):
            raise ValueError(f"Two prototypes are too close for s = {s}: their force overflows. Use method 'descent'.")
        if schedule.stop == "tangential" and float(project(points, force).norm(dim=1).max()) < schedule.epsilon:
            return
        velocity.mul_(schedule.mu).add_(force, alpha=schedule.rate(t))  # Eq. 12
        points = unit(points + velocity)  # Eq. 13, 14
        yield points
        calm = calm + 1 if t > WARM_UP.get(schedule.stop, t) and agree(strength, previous, schedule) else 0
        if calm == schedule.patience:
            return
        previous = strength


def agree(strength: float, previous: float, schedule: Schedule) -> bool:
    """Compare two mean forces, as the stop rule has it."""
    if schedule.stop == "rounding":
        return round(strength / schedule.epsilon) == round(previous / schedule.epsilon)
    return abs(strength - previous) < schedule.epsilon
