"""Who takes part in a round, who is evaluated after it, and when it counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from protonorm.core.randomness import SERVER, seeded


@dataclass(frozen=True)
class Policy:
    """Who takes part in a round, who is evaluated, and when a round counts."""

    clients: int  # M
    cohort_size: int
    evaluate: Literal["all", "cohort"] = "all"
    evaluate_every: int = 1  # rounds; the last round is always evaluated
    evaluate_all_every: int | None = None  # rounds between evaluations of all, and in the last one, where not always
    quorum: float = 1.0  # share of the cohort that must reply
    retries: int = 2  # further tries of a round without a quorum
    deadline: float | None = None  # seconds that clients have for training in a round
    parts: tuple[str, ...] = ("validation", "test")  # of the clients' samples that are counted
    solo: bool = False  # whether each client federates with itself alone
    client_names: tuple[str, ...] | None = None  # M, for sentences; None: they have numbers alone

    def needed(self, cohort: int) -> int:
        """Count the replies that a round of so many clients needs."""
        return max(1, math.ceil(self.quorum * cohort - 1e-9))

    def label(self, id: int) -> str:
        """Name a client in a sentence."""
        return f"client {self.client_names[id] if self.client_names else id}"

    def asked(self, round: int, rounds: int) -> Literal["all", "cohort", "nobody"]:
        """Say who is evaluated after a round."""
        every = self.evaluate_all_every
        if every is not None and (round % every == 0 or round == rounds):
            return "all"
        return self.evaluate if round % self.evaluate_every == 0 or round == rounds else "nobody"


def draw_cohort(seed: int, round: int, clients: int, size: int) -> list[int]:
    """Choose the clients of a round, without replacement."""
    if size == clients:
        return list(range(clients))
    with seeded(seed, round, SERVER, "cohort"):
        return sorted(np.random.permutation(clients)[:size].tolist())
