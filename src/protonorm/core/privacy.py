"""Differential privacy of what a client sends: the owner's step that adds noise to sums over its samples.

Noise is drawn from the operating system's randomness and never from a seed, so a protected run cannot be repeated bit
by bit.

What is covered: class sums of features, from which prototypes follow, and second moments of unit features. A sample
x̃ = (u, κ) with ‖u‖ ≤ 1 adds x̃x̃ᵀ to the Gram matrix and x̃ to one column of the moments. Off-diagonal entries of the
Gram matrix occur twice and are sent once, with noise of 1/√2 the width, so that the change is measured by the Frobenius
norm of the whole matrix: Δ² = (1 + κ²)² + (1 + κ²) for each trunk, against 6 with the constant 1 that methods append.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from protonorm.core.noise import (
    STEPS,
    discrete_gaussian,
    epsilon_of_zcdp,
    noise_for,
    quantised,
)
from protonorm.core.settings import dataclass
from protonorm.core.training import Outgoing
from protonorm.core.types import STRICT, Positive, Share, Whole

if TYPE_CHECKING:
    from protonorm.core.model import SplitModel
    from protonorm.core.node import Client
    from protonorm.core.task import Task
    from protonorm.tensors import Tensors

HALF = 2  # 1/κ
CONSTANT = 1 / HALF  # κ, in place of the 1 that methods append to features
SMOOTH = 8  # least width of a share of noise
AT_ONCE = 2**20  # samples whose products are summed in float64 without rounding
PROTOTYPES, MOMENTS = {"classes", "prototypes"}, {"gram", "moments", "noise"}


@dataclass(frozen=True, config=STRICT)
class Gaussian(Outgoing):
    """Step that sends noisy class sums instead of prototypes, or noisy second moments: (ε, δ)-differential privacy.

    With `bounds=samples`, one sample more or less changes the sums by at most C. That holds only if the features do
    not depend on the samples: networks whose features are trained on them are refused. With `bounds=message` the whole
    message is clipped, and any change of the samples changes it by at most 2C, whatever network computed it. All K
    rows are sent, so that absent classes do not show, and no loss is told.
    """

    epsilon: Positive = 8.0  # ε, ceiling of the privacy loss of all releases, at which a deployed client stops
    delta: Share = 1e-5  # δ
    noise: Positive | None = None  # σ, relative to the largest change; None: the least for which all rounds fit into ε
    clip: Positive = 1.0  # C, largest norm of a sample's features, or of the whole message
    bounds: Literal["samples", "message"] = "samples"  # what is clipped
    colluding: Whole | None = None  # c, members of a secure sum that may add no noise: each of n adds σ²/(n − c).
    # None: each adds all of it

    private: ClassVar[bool] = True

    @property
    def per_sample(self) -> bool:
        """Whether single samples are clipped, not the message."""
        return self.bounds == "samples"

    @property
    def shared_length(self) -> float | None:
        """C, if the members of a secure sum share the noise."""
        return None if self.colluding is None else self.clip

    def among(self, members: int) -> Outgoing:
        """Return the step of a member of a secure sum, which adds its share of the noise."""
        if self.colluding is None:
            return self
        if members <= self.colluding:
            raise ValueError(f"A secure sum must have more than {self.colluding} members, got {members}.")
        return Shared(self, members - self.colluding)

    def sigma(self, task: Task) -> float:
        """Return the noise multiplier σ."""
        return noise_for(self.epsilon, self.delta, self.releases(task)) if self.noise is None else self.noise

    def releases(self, task: Task) -> int:
        """Return the number of messages of a client that tell of its samples: one if they are second moments."""
        return 1 if sends_moments(task) else task.rounds

    def told(self, spent: float) -> dict[str, float]:
        """Return ε and δ of a total privacy loss ρ, and the ceiling."""
        return {"epsilon": epsilon_of_zcdp(spent, self.delta), "delta": self.delta, "ceiling": self.epsilon}

    def spends(self, task: Task) -> float:
        """Return ρ, the zCDP privacy loss of one release."""
        return 1 / (2 * self.sigma(task) ** 2)

    def refusal(self, spent: float) -> str:
        """Return why there must be no release that brings the privacy loss to ρ = `spent`; empty if it may be."""
        if (epsilon := epsilon_of_zcdp(spent, self.delta)) <= self.epsilon * (1 + 1e-9):
            return ""
        return f"Another message would bring its privacy loss to ε = {epsilon:.3g}; its owner allows {self.epsilon:g}."

    def check(self, task: Task) -> None:
        """Raise ValueError for methods whose clients send anything but prototypes or second moments."""
        if self.colluding is not None and self.colluding >= task.least_members:
            raise ValueError(
                f"protect.colluding must be below the least number of members of combine=secure_sum:LEAST, "
                f"got {self.colluding} with combine={task.combine}."
            )
        name, sent = type(task.algorithm).__name__, fields_of(task)
        if sends_moments(task):
            if self.bounds != "samples" or self.clip != 1:
                raise ValueError(f"protect.bounds and protect.clip must be left out for {name}, of unit features.")
        elif sent != PROTOTYPES:
            others = ", ".join(sorted(sent - PROTOTYPES)) or "nothing"
            raise ValueError(
                f"protect=gaussian must be for a method whose clients send prototypes or second moments alone, which "
                f"its privacy covers, but those of {name} send {others}."
            )
        elif self.colluding is not None and any(part.name.startswith("total.") for part in task.layout.parts):
            raise ValueError(
                f"protect.colluding must be left out for {name} with these settings: beside the sums it adds up "
                "numbers of each message, which has a share of the noise alone."
            )

    def check_rounds(self, task: Task) -> None:
        """Raise ValueError if not all rounds of a simulation fit into the ceiling."""
        if reason := self.refusal(self.releases(task) * self.spends(task)):
            raise ValueError(f"protect.epsilon must cover all {self.releases(task)} messages of a client. {reason}")

    def check_network(self, task: Task, model: SplitModel) -> None:
        """Raise ValueError if features are trained on the samples, and only these are clipped."""
        if self.bounds == "samples" and not sends_moments(task) and not is_fixed(model.features):
            raise ValueError(
                "protect=gaussian needs features that are not trained, because a network trained on a sample changes "
                "the features of all others: give a frozen network, or protect.bounds=message, which costs far more."
            )

    def apply(self, task: Task, client: Client, message: Tensors) -> Tensors:
        """Return noisy second moments, or noisy sums of all classes; the longest sum is scaled to length C."""
        if sends_moments(task):
            return self.noisy_moments(task, client) if message else {}
        rows = self.noisy_sums(task, client, message).double()
        classes = torch.arange(client.num_classes)
        longest = rows.norm(dim=1).max().clamp(min=1.0)
        return {"classes": classes, "prototypes": (rows * (self.clip / longest)).float()}

    def noisy_sums(self, task: Task, client: Client, message: Tensors, honest: int = 1) -> Tensor:
        """Return what is released, (K, d): integers, STEPS of which are C; with the share of one of `honest`."""
        shape = (client.num_classes, client.feature_dim)
        if self.bounds == "samples":
            self.check_network(task, client.model)
            sums, change = self._class_sums(client), STEPS
        else:
            rows = torch.zeros(shape, dtype=torch.float64)
            rows[message["classes"]] = message["prototypes"].double()
            sums, change = quantised(rows.reshape(1, -1), self.clip).reshape(shape), 2 * STEPS
        return sums + noise(share_of(self.sigma(task) * change, honest), shape)

    def noisy_moments(self, task: Task, client: Client, honest: int = 1, dtype: torch.dtype = torch.float32) -> Tensors:
        """Return noisy second moments of each trunk, and the variance of an off-diagonal entry of the Gram matrix."""
        points, y = task.algorithm.points_of(client), one_hot(client.train.labels, client.num_classes)
        change = math.sqrt(len(points)) * moments_change()
        sent: Tensors = {}
        for name, x in points.items():
            gram, moments = exact_moments(x[:, :-1], y)
            wide, narrow = (
                share_of(self.sigma(task) * change * STEPS * x, honest) for x in (STEPS, STEPS / math.sqrt(2))
            )
            size = len(gram)
            rows, columns = torch.triu_indices(size, size)
            drawn = torch.where(rows == columns, noise(wide, rows.shape), noise(narrow, rows.shape))
            scale = torch.ones(size, dtype=torch.float64)
            scale[-1] = HALF  # the constant is 1 in messages
            triangle = (gram[rows, columns] + drawn) / STEPS**2 * scale[rows] * scale[columns]
            sent[f"gram.{name}"] = triangle.to(dtype)
            noisy = moments + noise(share_of(self.sigma(task) * change * STEPS, honest), moments.shape)
            sent[f"moments.{name}"] = (noisy / STEPS * scale.unsqueeze(1)).to(dtype)
            sent[f"noise.{name}"] = torch.tensor((narrow / STEPS**2) ** 2)
        return sent

    @torch.no_grad()
    def _class_sums(self, client: Client) -> Tensor:
        """Sum the quantised features (K, d) of the training part by class."""
        sums = torch.zeros(client.num_classes, client.feature_dim, dtype=torch.int64)
        client.model.eval()
        for x, y in client.train.sweep(device=client.device):
            with client.autocast():
                features = client.model.features(x)
            sums.index_add_(0, y.cpu(), quantised(features.double().cpu(), self.clip))
        return sums


class Shared(Outgoing):
    """Step of a member of a secure sum, which adds the share of one of `honest` members to exact sums."""

    def __init__(self, step: Gaussian, honest: int) -> None:
        self._step, self._honest = step, honest

    def apply(self, task: Task, client: Client, message: Tensors) -> Tensors:
        """Return integers in fixed point: nothing is rounded or scaled after the noise is added."""
        if sends_moments(task):
            return self._step.noisy_moments(task, client, self._honest, torch.float64) if message else {}
        sums = self._step.noisy_sums(task, client, message, self._honest).double()
        return {"classes": torch.arange(client.num_classes), "prototypes": sums / STEPS}


def share_of(width: float, honest: int) -> int:
    """Return the width of the noise that each of so many members adds, whose sum has at least the given width.

    The sum of discrete Gaussians of width 8 or more differs from a discrete Gaussian by less than 10⁻²⁵⁰ (Kairouz, Liu
    and Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning", ICML 2021).
    """
    return math.ceil(width) if honest == 1 else max(SMOOTH, math.ceil(width / math.sqrt(honest)))


def fields_of(task: Task) -> set[str]:
    """Return the kinds of tensors that a method's clients send: their names up to the first dot."""
    return {name.partition(".")[0] for slot in task.schema.up for form in slot for name in form}


def sends_moments(task: Task) -> bool:
    """Return whether a method's clients send second moments of their features, once, and nothing else."""
    return fields_of(task) == MOMENTS


def moments_change() -> float:
    """Return Δ, the largest change of second moments by one sample more or less."""
    size = 1 + CONSTANT**2
    return math.sqrt(size**2 + size)


def exact_moments(features: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return integers: the Gram matrix (P, P), in which STEPS² is 1, and the moments (P, K), in which STEPS is 1."""
    unit = quantised(features.double(), 1.0)
    x = torch.cat([unit, torch.full((len(unit), 1), STEPS // HALF)], 1).double()
    parts = list(zip(x.split(AT_ONCE), y.double().split(AT_ONCE), strict=True))
    gram = torch.stack([(a.T @ a).long() for a, _ in parts]).sum(0)  # below 2⁵³, so that float64 is exact
    return gram, torch.stack([(a.T @ b).long() for a, b in parts]).sum(0)


def noise(width: int, shape: tuple[int, ...]) -> Tensor:
    """Return integers of discrete Gaussian noise."""
    return torch.from_numpy(discrete_gaussian(width, math.prod(shape))).reshape(shape)


def is_fixed(features: nn.Module) -> bool:
    """Return whether training leaves a network as it is: nothing is learned, and no statistics of batches are kept."""
    training = features.training
    layers = [layer for layer in features.train().modules() if layer.training]
    stateful = [layer for layer in layers if getattr(layer, "running_mean", None) is not None]
    features.train(training)
    return not any(weight.requires_grad for weight in features.parameters()) and not stateful
