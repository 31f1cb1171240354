"""Six spiral arms: the toy data on which two-dimensional features and prototypes can be drawn."""

from __future__ import annotations

from typing import Literal

import numpy as np

from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count, NonNegative, Seed
from protonorm.data.access import require_room
from protonorm.data.dataset import Dataset

ARMS = 6
WORKING = 64  # bytes of memory that a point takes while it is computed


@dataclass(frozen=True, config=STRICT)
class Spiral:
    """Points (r sin ω, r cos ω) of six arms k = 0 … 5, with r from 1 to 10."""

    form: Literal["linear", "paper"] = "linear"
    # "linear": ω from kπ/3 to (k+1)π/3 plus noise from U[0, 0.5), which separates the arms as the paper's figure does;
    # "paper": the printed formula, ω from kπ/3 to 2kπ/3 plus noise from N(0, 1), which mixes them
    points: Count = 5000  # of each arm
    noise: NonNegative = 1.0  # times the noise of the form; 0 for none
    seed: Seed = 1

    def load(self) -> Dataset:
        """Compute the points, arm after arm."""
        require_room(WORKING * ARMS * self.points, f"dataset.points={self.points}", "fewer points are needed.")
        random = np.random.default_rng(self.seed)
        size = (ARMS, self.points)
        arm = np.arange(ARMS)[:, None]  # k
        along = np.linspace(0, 1, self.points)  # (i − 1)/(n − 1)
        turn, shift = (1, random.uniform(0, 0.5, size)) if self.form == "linear" else (arm, random.normal(size=size))
        omega = (arm + turn * along) * np.pi / 3 + self.noise * shift  # (6, n)
        radius = 1 + 9 * along
        points = np.stack([radius * np.sin(omega), radius * np.cos(omega)], axis=-1)  # (6, n, 2)
        return Dataset(
            name="spiral",
            inputs=points.reshape(-1, 2).astype(np.float32),
            labels=np.repeat(np.arange(ARMS), self.points),
            classes=tuple(f"arm {k}" for k in range(ARMS)),
        )
