"""Settings of local training, shared by experiments, clients and the owners of deployed clients.

Defaults are the paper's: plain SGD, constant learning rate, no augmentation. The setting `protect` selects the step
that processes a reply before it leaves the client, a class with an entry in `OUTGOING`: in a simulation that of the
experiment, in a deployment that of the client's owner. The server has no influence on it. Does not need torch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from annotated_types import Ge, Lt, MinLen
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, model_validator

from protonorm.core.own_code import fingerprint, load_own, name_missing, own_name
from protonorm.core.own_failures import wrong_arguments
from protonorm.core.registry import Entry, find
from protonorm.core.settings import dataclass, validated
from protonorm.core.types import STRICT, BatchSize, Below1, Count, Fraction, NonNegative, Positive, Share, Whole, shown

if TYPE_CHECKING:
    from protonorm.core.model import SplitModel
    from protonorm.core.node import Client
    from protonorm.core.task import Task
    from protonorm.tensors import Tensors

Value = TypeVar("Value")
LocalSteps = Count | Share
PerClient = Annotated[Sequence[Value], MinLen(1), AfterValidator(tuple)]  # client i uses value i mod n
Course = Literal["constant", "cosine", "step", "exponential"]
Augmentation = Literal["none", "flip", "crop+flip"]
Precision = Literal["float32", "bfloat16"]
Metrics = Literal["usual", "ranking"]
Compile = bool | Literal["graphs"]

OUTGOING: dict[str, Entry] = {
    "none": Entry("protonorm.core.training:Unchanged", "replies leave as they are"),
    "minimum_count": Entry("protonorm.core.training:MinimumCount", "classes with few samples are not sent"),
    "gaussian": Entry("protonorm.core.privacy:Gaussian", "differential privacy: noisy class sums are sent"),
}
OPTIMISERS = ("sgd", "adam", "adamw")
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
            value, default = getattr(self, field), type(self).__dataclass_fields__[field].default
            if self.name not in users and value != default:
                reason = f"{self.name} does not use it, only {' and '.join(users)}"
                raise ValueError(f"lr_schedule.{field} must be left out, got {value:g}: {reason}.")
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
        elapsed = number - self.warmup - 1  # t
        if self.name == "cosine":
            angle = math.pi * min(elapsed / max(rounds - self.warmup, 1), 1)
            return self.floor + (1 - self.floor) * (1 + math.cos(angle)) / 2
        if self.name == "step":
            return float(self.decay ** (elapsed // self.every))
        return float(self.decay ** (elapsed / self.every)) if self.name == "exponential" else 1.0


class Outgoing(ABC):
    """Step between training and transport, applied last to a reply on the client's machine."""

    private: ClassVar[bool] = False  # whether it claims privacy: metrics are not told then, and releases are counted

    @property
    def per_sample(self) -> bool:
        """Whether a claim of privacy rests on samples whose features do not depend on each other."""
        return False

    @property
    def shared_length(self) -> float | None:
        """Length of the longest row of a sum of noisy messages, if the members of a secure sum share the noise."""
        return None

    def among(self, members: int) -> Outgoing:
        """Return the step of a member of a secure sum over so many."""
        del members
        return self

    def check(self, task: Task) -> None:
        """Raise ValueError if the step does not cover the replies of the task's method."""
        del task

    def check_rounds(self, task: Task) -> None:
        """Raise ValueError if a simulation has more rounds than the step allows."""
        del task

    def check_network(self, task: Task, model: SplitModel) -> None:
        """Raise ValueError if the step does not cover messages that are computed with the network."""
        del task, model

    def spends(self, task: Task) -> float:
        """Return the privacy loss of one release, as ρ of zCDP."""
        return 0.0

    def releases(self, task: Task) -> int:
        """Return the number of messages of a client that tell of its samples."""
        return task.rounds

    def told(self, spent: float) -> dict[str, float]:
        """Return measures of a total privacy loss ρ, for the audit trail."""
        return {}

    def refusal(self, spent: float) -> str:
        """Return why a total privacy loss ρ is not allowed; empty if it is."""
        return ""

    @abstractmethod
    def apply(self, task: Task, client: Client, message: Tensors) -> Tensors:
        """Return the message to send, given the client's reply."""


@dataclass(frozen=True, config=STRICT)
class Unchanged(Outgoing):
    """Step that leaves replies unchanged."""

    def apply(self, task: Task, client: Client, message: Tensors) -> Tensors:
        """Return the message unchanged."""
        return message


@dataclass(frozen=True, config=STRICT)
class MinimumCount(Outgoing):
    """Step that removes classes with fewer training samples than a minimum.

    The mean feature of a class with a single sample is that sample's feature.
    """

    least: Count = 5  # minimum number of training samples of a class that is sent

    def check(self, task: Task) -> None:
        """Raise ValueError for methods whose clients send anything but vectors by class."""
        fields = {name: field for slot in task.schema.up for form in slot for name, field in form.items()}
        if others := sorted(name for name, field in fields.items() if field.shape[:1] != ("K_i",)):
            raise ValueError(
                f"protect=minimum_count is for methods whose clients send vectors by class and nothing else, "
                f"but those of {type(task.algorithm).__name__} send {others[0]}."
            )

    def apply(self, task: Task, client: Client, message: Tensors) -> Tensors:
        """Return the message with the rows of the classes that have enough samples."""
        if "classes" not in message:
            return message
        sufficient = client.train.class_counts(client.num_classes)[message["classes"]] >= self.least  # (K_i,)
        return {name: value[sufficient] for name, value in message.items()}


def make_outgoing(value: Any) -> Outgoing:
    """Create a step from a name or from a mapping of name and settings; return a step unchanged."""
    if isinstance(value, Outgoing):
        return value
    settings = dict(value) if isinstance(value, Mapping) else {"name": value}
    if not isinstance(name := settings.pop("name", None), str):
        raise ValueError(f"protect must be one of {', '.join(OUTGOING)}, got {shown(value)}.")
    step: Outgoing = validated(find(OUTGOING, name, "protection").load(), settings, f"protect {name}", "protect.")
    return step


def describe_outgoing(step: Outgoing) -> dict[str, Any]:
    """Return a JSON-compatible description of a step: its name and settings."""
    target = f"{type(step).__module__}:{type(step).__qualname__}"
    name = next((name for name, entry in OUTGOING.items() if entry.target == target), target)
    settings = asdict(step)  # type: ignore[call-overload]
    return {"name": name} | {key: value for key, value in settings.items() if (key, value) != ("colluding", None)}


def make_schedule(value: Any) -> LrSchedule:
    """Create a schedule from a name or from its settings."""
    settings = {"name": value} if isinstance(value, str) else value
    return validated(LrSchedule, settings, "lr_schedule", "lr_schedule.")


def checked_optimiser(value: Any) -> Any:
    """Return an optimiser's name, or a user's function or class that makes one; raise ValueError for others."""
    if isinstance(value, str) and ".py:" in value:
        value = load_own(value, "optimiser")
    if isinstance(value, str):
        name_missing(value, "optimiser")
    if value not in OPTIMISERS and not (callable(value) and hasattr(value, "__qualname__")):
        names = ", ".join(OPTIMISERS)
        raise ValueError(f"optimiser must be {names}, file.py:NAME or a function (weights, lr), got {shown(value)}.")
    if callable(value) and (wrong := wrong_arguments(value, ("weights", "lr"))):
        raise ValueError(f"{wrong} An optimiser is made for a list of weights and a learning rate.")
    return value


def describe_optimiser(value: Any) -> Any:
    """Return an optimiser as plain data: its name, and the fingerprint of a user's function or class."""
    return value if isinstance(value, str) else {"name": own_name(value), "source": fingerprint(value)}


class Training(BaseModel):
    """Settings of local training; for a list of `epochs`, `batch_size` or `lr`, client i uses value i mod n."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    epochs: Count | PerClient[Count] = Field(default=1, description="local epochs a round")
    batch_size: BatchSize | PerClient[BatchSize] = Field(default=32, description="samples of a batch, B")
    lr: Positive | PerClient[Positive] = Field(default=0.01, description="learning rate of the clients' SGD")
    momentum: Below1 = Field(default=0.0, description="of the clients' SGD")
    weight_decay: NonNegative = Field(default=0.0, description="of the clients' optimiser")
    local_steps: LocalSteps | PerClient[LocalSteps] | None = Field(
        default=None, description="batches a round in place of epochs; below 1 a share of an epoch"
    )
    optimiser: Annotated[
        Literal["sgd", "adam", "adamw"] | Any, AfterValidator(checked_optimiser), PlainSerializer(describe_optimiser)
    ] = Field(
        default="sgd", description="of the clients: sgd, adam, adamw, or file.py:function (weights, lr) of your own"
    )
    optimiser_state: Literal["new", "kept"] = Field(
        default="new", description="of the clients' optimisers at a round's start: new, or kept from the round before"
    )
    lr_schedule: Annotated[Any, AfterValidator(make_schedule)] = Field(
        default="constant", description="the learning rate over the rounds, and its settings"
    )
    label_smoothing: Below1 = Field(default=0.0, description="share of each label that is uniform over all classes")
    clip: Positive | None = Field(default=None, description="bound of the norm of all of a client's gradients together")
    augment: Augmentation = Field(default="none", description="of training pictures: flip, or crop and flip")
    start: Literal["own", "equal"] = Field(
        default="own",
        description="of clients' own networks: weights of their own before round 1, or equal for equal networks",
    )
    shuffle: bool = Field(default=True, description="new batches each epoch; the authors' code keeps one order")
    last_batch: Literal["drop", "keep"] = Field(
        default="drop", description="an epoch's last batch if it is not full: left out as in the authors' code, or kept"
    )
    protect: Annotated[Any, AfterValidator(make_outgoing), PlainSerializer(describe_outgoing)] = Field(
        default="none", description="what the owner does to replies before they leave the client"
    )
    split: Literal["random", "content"] = Field(
        default="random", description="of each client's samples: at random, or by their content, so that it stays"
    )
    train: Share = Field(default=0.75, description="share of a client's samples to train on; the others test")
    validation: Below1 = Field(default=0.1, description="share of the training part that chooses rounds and settings")
    metrics: Metrics = Field(
        default="usual", description="beside accuracy: usual, or ranking: AUROC, AUPRC and sensitivity as well"
    )
    device: str = Field(default="cpu", description="where to compute: cpu, cuda, cuda:1")
    precision: Precision = Field(default="float32", description="of the networks' products: float32 or bfloat16")
    lowering: bool = Field(default=True, description="exact forms of convolutions that a CPU computes faster")
    compile: Compile = Field(default=False, description="train networks in code that torch compiles; graphs: on CUDA")

    @model_validator(mode="after")
    def _refuse_unused_settings(self) -> Self:
        own_one = self.optimiser not in OPTIMISERS
        name = "an optimiser of your own" if own_one else self.optimiser
        if self.momentum and self.optimiser != "sgd":
            raise ValueError(f"momentum must be 0 with {name}, got {self.momentum:g}: it is for sgd alone.")
        if self.weight_decay and own_one:
            raise ValueError(f"weight_decay must be 0 with {name}, which has its own, got {self.weight_decay:g}.")
        if self.optimiser_state == "kept" and self.optimiser == "sgd" and not self.momentum:
            raise ValueError("optimiser_state must be new with sgd and momentum=0, which has no state, got 'kept'.")
        if self.local_steps is not None and self.epochs != 1:
            raise ValueError(f"epochs must be left out with local_steps, which take their place, got {self.epochs}.")
        if self.local_steps is not None and not self.shuffle:
            raise ValueError("shuffle must be true with local_steps: the same batches would be used in every round.")
        return self

    @property
    def training(self) -> Training:
        """Training settings only, without the fields of a subclass."""
        return Training.model_construct(**{name: getattr(self, name) for name in Training.model_fields})

    @property
    def lowered(self) -> bool:
        """Whether networks use layers optimised for the CPU."""
        return self.lowering and self.device == "cpu"

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


def refuse_augmentation(network: str, augment: str) -> None:
    """Raise ValueError if augmentation is set for a network with a frozen trunk."""
    if augment != "none":
        raise ValueError(
            f"augment must be none with {network}, whose features of each picture are computed once, got {augment}."
        )


def check_augmentation(augment: str, shape: Sequence[int]) -> None:
    """Raise ValueError if augmentation is set for samples that are not images (H, W, C)."""
    if augment != "none" and len(shape) != 3:
        raise ValueError(f"augment must be none for samples of shape {tuple(shape)}, no pictures, got {augment}.")
