"""How clients train, beside the loss: the optimiser, the learning rate over the rounds, and changed pictures.

What is usual here is the paper's: plain SGD, one learning rate for all rounds, pictures as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Literal, Self, get_args

import torch
from annotated_types import Ge, Lt
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn.functional import pad

from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count, Fraction, Whole

Loss = Callable[[Tensor, Tensor], Tensor]  # of logits (B, K) and labels (B,), or of a batch and its labels
Optimiser = Literal["sgd", "adam", "adamw"]
Augmentation = Literal["none", "flip", "crop+flip"]
Course = Literal["constant", "cosine", "step", "exponential"]

MARGIN = 8  # of a picture's side, the part by which `crop` may move it: 4 pixels of 32
USED_BY = {"floor": ("cosine",), "decay": ("step", "exponential"), "every": ("step", "exponential")}


@dataclass(frozen=True, config=STRICT)
class LrSchedule:
    """The learning rate over the rounds, as a factor on the rate that is given."""

    name: Course = "constant"
    warmup: Whole = 0  # w, the first rounds, in which the rate rises evenly
    floor: Annotated[float, Ge(0), Lt(1)] = 0.0  # f, the factor that `cosine` falls towards
    decay: Fraction = 0.5  # the factor of `step` and `exponential` …
    every: Count = 10  # … for so many rounds: all at once, or a little each round

    @model_validator(mode="after")
    def _refuse_what_is_not_used(self) -> Self:
        for field, users in USED_BY.items():
            value, usual = getattr(self, field), type(self).__dataclass_fields__[field].default
            if self.name not in users and value != usual:
                others = " and ".join(users)
                raise ValueError(
                    f"lr_schedule.{field}={value:g} is refused: {self.name} does not use it; it is for {others}."
                )
        return self

    @property
    def depends_on_rounds(self) -> bool:
        """Tell whether the rate of a round depends on how many rounds there will be."""
        return self.name == "cosine"

    def factor(self, round: int, rounds: int) -> float:
        """Give the factor of round r = 1 … R; before round 1 it is that of round 1.

        While r ≤ w it is r/(w + 1). After that, with t = r − w − 1 and T = R − w:
        cosine f + (1 − f)(1 + cos(πt/T))/2, step decay^⌊t/every⌋, exponential decay^(t/every).
        """
        number = max(round, 1)
        if number <= self.warmup:
            return number / (self.warmup + 1)
        since = number - self.warmup - 1  # t
        if self.name == "cosine":
            turn = math.pi * min(since / max(rounds - self.warmup, 1), 1)
            return self.floor + (1 - self.floor) * (1 + math.cos(turn)) / 2
        if self.name == "step":
            return float(self.decay ** (since // self.every))
        return float(self.decay ** (since / self.every)) if self.name == "exponential" else 1.0


CONSTANT = LrSchedule()  # the paper's


def make_optimiser(
    name: str, weights: Sequence[nn.Parameter], lr: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Make an optimiser that remembers nothing of earlier rounds; β and ε of Adam are its authors'."""
    if name == "sgd":
        return torch.optim.SGD(weights, lr, momentum, weight_decay=weight_decay, fused=True)
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[name](weights, lr, weight_decay=weight_decay, fused=True)


def check_augmentation(augment: str, shape: Sequence[int]) -> None:
    """Refuse to change samples that are no pictures (H, W, C)."""
    if augment != "none" and len(shape) != 3:
        raise ValueError(
            f"augment={augment} is refused: it changes pictures, but the data set has samples of shape {tuple(shape)}; "
            "expected augment=none."
        )


def augmentation(name: str) -> Callable[[Tensor], Tensor] | None:
    """Find what changes a batch of stored pictures; None where they stay as they are."""
    if name not in get_args(Augmentation):
        raise ValueError(f"augment={name!r} is refused: expected {', '.join(get_args(Augmentation))}.")
    return None if name == "none" else partial(augmented, moved=name == "crop+flip")


def augmented(pictures: Tensor, *, moved: bool) -> Tensor:
    """Mirror each picture of a batch (B, H, W, C) with a chance of one half, and move it if wanted; the rest is black.

    A picture moves by up to an eighth of its side, as if cut out of one with such a margin. All is drawn on the CPU.
    """
    count, height, width, _ = pictures.shape
    above, beside = (height // MARGIN, width // MARGIN) if moved else (0, 0)
    mirrored = torch.rand(count, 1) < 0.5  # (B, 1)
    rows, columns = torch.arange(height).expand(count, -1), torch.arange(width).expand(count, -1)  # (B, H), (B, W)
    columns = torch.where(mirrored, columns.flip(1), columns)
    if moved:
        rows = rows + torch.randint(2 * above + 1, (count, 1))
        columns = columns + torch.randint(2 * beside + 1, (count, 1))
        pictures = pad(pictures, (0, 0, beside, beside, above, above))  # (B, H + 2a, W + 2b, C)
    each = torch.arange(count).to(pictures.device)[:, None, None]
    return pictures[each, rows.to(pictures.device)[:, :, None], columns.to(pictures.device)[:, None, :]]
