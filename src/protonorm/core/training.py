"""Settings of local training, shared by experiments, clients and the owners of deployed clients.

Defaults are the paper's: plain SGD, constant learning rate, no augmentation. Does not need torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from annotated_types import Ge, Lt, MinLen
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_serializer, field_validator, model_validator

from protonorm.core.outgoing import Outgoing, describe_outgoing, make_outgoing
from protonorm.core.settings import dataclass, validated
from protonorm.core.types import STRICT, BatchSize, Below1, Count, Fraction, NonNegative, Positive, Share, Whole

Value = TypeVar("Value")
PerClient = Annotated[Sequence[Value], MinLen(1), AfterValidator(tuple)]  # client i uses value i mod n
Course = Literal["constant", "cosine", "step", "exponential"]
Augmentation = Literal["none", "flip", "crop+flip"]
Precision = Literal["float32", "bfloat16"]

USED_BY = {"floor": ("cosine",), "decay": ("step", "exponential"), "every": ("step", "exponential")}


@dataclass(frozen=True, config=STRICT)
class LrSchedule:
    """Learning-rate schedule over rounds, as a factor of the base rate."""

    name: Course = "constant"
    warmup: Whole = 0  # w, number of initial rounds in which the rate rises linearly
    floor: Annotated[float, Ge(0), Lt(1)] = 0.0  # f, the limit of the factor of `cosine`
    decay: Fraction = 0.5  # factor of `step` and `exponential` …
    every: Count = 10  # … per this number of rounds: applied in one step, or gradually in each round

    @model_validator(mode="after")
    def _refuse_what_is_not_used(self) -> Self:
        for field, users in USED_BY.items():
            value, usual = getattr(self, field), type(self).__dataclass_fields__[field].default
            if self.name not in users and value != usual:
                use = f"{self.name} does not use it, only {' and '.join(users)}"
                raise ValueError(f"lr_schedule.{field} must be left out, got {value:g}: {use}.")
        return self

    @property
    def depends_on_rounds(self) -> bool:
        """Whether the rate of a round depends on the total number of rounds."""
        return self.name == "cosine"

    def factor(self, round: int, rounds: int) -> float:
        """Return the factor of round r = 1 … R; before round 1 it is that of round 1.

        For r ≤ w it is r/(w + 1). Afterwards, with t = r − w − 1 and T = R − w:
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


class Training(BaseModel):
    """Settings of local training; for a list of `epochs`, `batch_size` or `lr`, client i uses value i mod n."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    epochs: Count | PerClient[Count] = Field(default=1, description="local epochs a round")
    batch_size: BatchSize | PerClient[BatchSize] = Field(default=32, description="samples of a batch, B")
    lr: Positive | PerClient[Positive] = Field(default=0.01, description="learning rate of the clients' SGD")
    momentum: Below1 = Field(default=0.0, description="of the clients' SGD")
    weight_decay: NonNegative = Field(default=0.0, description="of the clients' optimiser")
    optimiser: Literal["sgd", "adam", "adamw"] = Field(
        default="sgd", description="of the clients, new in every round: sgd, adam or adamw"
    )
    lr_schedule: Any = Field(default="constant", description="the learning rate over the rounds, and its settings")
    label_smoothing: Below1 = Field(
        default=0.0, description="share of each label that all classes get alike, in the clients' cross-entropies"
    )
    clip: Positive | None = Field(default=None, description="bound of the norm of all of a client's gradients together")
    augment: Augmentation = Field(
        default="none", description="pictures that train: mirrored (flip), and moved (crop+flip)"
    )
    start: Literal["own", "equal"] = Field(
        default="own",
        description="of clients' own networks: weights of their own before round 1, or equal for equal networks",
    )
    shuffle: bool = Field(default=True, description="new batches each epoch; the authors' code keeps one order")
    last_batch: Literal["drop", "keep"] = Field(
        default="drop", description="an epoch's last batch if it is not full: left out as in the authors' code, or kept"
    )
    protect: Any = Field(default="none", description="what the owner does to replies before they leave the client")
    train: Share = Field(default=0.75, description="share of a client's samples to train on; the others test")
    validation: Below1 = Field(
        default=0.1, description="share of the training part held out to choose rounds and settings; 0 for none"
    )
    device: str = Field(default="cpu", description="where to compute: cpu, cuda, cuda:1")
    precision: Precision = Field(default="float32", description="of the networks' products: float32 or bfloat16")
    lowering: bool = Field(default=True, description="exact forms of convolutions that a CPU computes faster")

    @field_validator("lr_schedule")
    @classmethod
    def _build_schedule(cls, value: Any) -> LrSchedule:
        settings = {"name": value} if isinstance(value, str) else value
        return validated(LrSchedule, settings, "lr_schedule", "lr_schedule.")

    @field_validator("protect")
    @classmethod
    def _build_protect(cls, value: Any) -> Outgoing:
        return make_outgoing(value)

    @field_serializer("protect")
    def _describe_protect(self, value: Outgoing) -> dict[str, Any]:
        return describe_outgoing(value)

    @model_validator(mode="after")
    def _refuse_unused_momentum(self) -> Self:
        if self.momentum and self.optimiser != "sgd":
            raise ValueError(
                f"momentum={self.momentum:g} is refused: {self.optimiser} has moments of its own; it is for sgd alone."
            )
        return self

    @property
    def training(self) -> Training:
        """Training settings only, without the fields of a subclass."""
        return Training.model_construct(**{name: getattr(self, name) for name in Training.model_fields})

    @property
    def lowered(self) -> bool:
        """Whether networks use layers optimised for the CPU."""
        return self.lowering and self.device == "cpu" and self.precision == "float32"

    def lr_in(self, round: int, rounds: int, client: int) -> float:
        """Return a client's learning rate in a round."""
        factor: float = self.lr_schedule.factor(round, rounds)
        return own(self.lr, client) * factor

    def stream(self, client: int) -> int:
        """Return the client id whose random stream initialises a client's weights."""
        return 0 if self.start == "equal" else client


def own(value: Value | Sequence[Value], client: int) -> Value:
    """Return a client's value of a setting that may differ between clients."""
    return value[client % len(value)] if isinstance(value, Sequence) else value


def check_augmentation(augment: str, shape: Sequence[int]) -> None:
    """Raise ValueError if augmentation is set for samples that are not images (H, W, C)."""
    if augment != "none" and len(shape) != 3:
        raise ValueError(
            f"augment={augment} is refused: it changes pictures, but the data set has samples of shape {tuple(shape)}; "
            "expected augment=none."
        )
