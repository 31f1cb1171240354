"""Algorithm 1 of the paper: momentum on the whole force, decaying rate, normalisation after every move."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from pydantic import Strict
from torch import Tensor

from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Below1, Count, Fraction, Positive
from protonorm.geometry.points import unit
from protonorm.geometry.sphere.energy import force_field, force_of, project

WARM_UP = {"change": 0, "rounding": 10}  # the authors' code compares forces only from its iteration 11 on
FOUR_DECIMALS = 1e-4  # what the authors' code rounds the mean force to

Updates = Annotated[Count, Strict()]  # a number of updates; neither true nor 2.0


@dataclass(frozen=True, config=STRICT)
class Schedule:
    """How Algorithm 1 moves and when it stops."""

    eta: Positive = 0.1  # η, Eq. 12
    mu: Below1 = 0.9  # μ, Eq. 12
    decay: Fraction = 0.95  # factor on η …
    decay_every: Updates = 10  # … after so many updates
    first_decay: Updates = 1  # updates before the first decay: 1 as the authors' code, 10 as the paper
    steps: Updates = 500  # T, the most updates
    epsilon: Positive = 1e-5  # ε of "change" and "tangential"
    patience: Updates = 10  # consecutive iterations that must agree
    stop: Literal["change", "rounding", "tangential"] = "change"  # "rounding" to four decimals is the authors' code

    def rate(self, t: int) -> float:
        """Give η of update t = 0, 1, …: η·decay^⌈t/10⌉ with first_decay = 1, η·decay^⌊t/10⌋ with first_decay = 10."""
        decays = 0 if t < self.first_decay else 1 + (t - self.first_decay) // self.decay_every
        return self.eta * self.decay**decays

    def agree(self, strength: float, previous: float) -> bool:
        """Compare the mean lengths of the forces in two consecutive iterations."""
        if self.stop == "rounding":
            return round(strength / FOUR_DECIMALS) == round(previous / FOUR_DECIMALS)
        return abs(strength - previous) < self.epsilon


DEFAULT_SCHEDULE = Schedule()


def updates(points: Tensor, s: float, schedule: Schedule) -> Iterator[Tensor]:
    """Follow Algorithm 1 from unit points (K, d), update by update."""
    velocity = torch.zeros_like(points)
    previous, calm = math.inf, 0
    for t in range(schedule.steps):
        force = force_of(force_field(points, s), s)  # Eq. 11
        strength = float(force.norm(dim=1).mean())
        if not math.isfinite(strength):
            raise ValueError(f"Two prototypes are too close for s = {s}: their force overflows. Use method 'descent'.")
        if schedule.stop == "tangential" and float(project(points, force).norm(dim=1).max()) < schedule.epsilon:
            return
        velocity.mul_(schedule.mu).add_(force, alpha=schedule.rate(t))  # Eq. 12
        points = unit(points + velocity)  # Eq. 13, 14
        yield points
        calm = calm + 1 if t > WARM_UP.get(schedule.stop, t) and schedule.agree(strength, previous) else 0
        if calm == schedule.patience:
            return
        previous = strength
