"""Differential privacy of what a client sends: noise on integers, and the accounting of what has been spent.

Noise is drawn from the operating system's randomness and never from a seed, so a protected run cannot be repeated bit
by bit. The privacy loss is that of the discrete Gaussian (Canonne, Kamath and Steinke, "The Discrete Gaussian for
Differential Privacy", NeurIPS 2020): R releases of noise multiplier σ satisfy zCDP with ρ = R/(2σ²).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from protonorm.core.settings import dataclass
from protonorm.core.training import Outgoing
from protonorm.core.types import STRICT, Positive, Share

if TYPE_CHECKING:
    from protonorm.core.model import SplitModel
    from protonorm.core.node import Client
    from protonorm.core.task import Task
    from protonorm.tensors import Tensors

STEPS = 2**16  # integers per clipping norm C, to which numbers are rounded before noise is added
HALVINGS = 100  # of an interval, in the search for a root
LARGEST = 1e6  # σ and ε that are searched


@dataclass(frozen=True, config=STRICT)
class Gaussian(Outgoing):
    """Step that sends noisy class sums instead of prototypes, with (ε, δ)-differential privacy.

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

    private: ClassVar[bool] = True

    def sigma(self, task: Task) -> float:
        """Return the noise multiplier σ."""
        return noise_for(self.epsilon, self.delta, task.rounds) if self.noise is None else self.noise

    def spends(self, task: Task) -> float:
        """Return ρ, the zCDP privacy loss of one release."""
        return 1 / (2 * self.sigma(task) ** 2)

    def refusal(self, spent: float) -> str:
        """Return why there must be no release that brings the privacy loss to ρ = `spent`; empty if it may be."""
        if (epsilon := epsilon_of_zcdp(spent, self.delta)) <= self.epsilon * (1 + 1e-9):
            return ""
        return f"Another message would bring its privacy loss to ε = {epsilon:.3g}; its owner allows {self.epsilon:g}."

    def check(self, task: Task) -> None:
        """Raise ValueError for methods whose clients send anything but prototypes."""
        name = type(task.algorithm).__name__
        sent = {name for slot in task.schema.up for form in slot for name in form}
        if sent != {"classes", "prototypes"}:
            others = ", ".join(sorted(sent - {"classes", "prototypes"})) or "nothing"
            raise ValueError(
                f"protect=gaussian must be for a method whose clients send prototypes alone, which its privacy covers, "
                f"but those of {name} send {others}."
            )

    def check_rounds(self, task: Task) -> None:
        """Raise ValueError if not all rounds of a simulation fit into the ceiling."""
        if reason := self.refusal(task.rounds * self.spends(task)):
            raise ValueError(f"protect.epsilon must cover all {task.rounds} rounds. {reason}")

    def check_network(self, model: SplitModel) -> None:
        """Raise ValueError if features are trained on the samples, and only these are clipped."""
        if self.bounds == "samples" and not is_fixed(model.features):
            raise ValueError(
                "protect=gaussian needs features that are not trained, because a network trained on a sample changes "
                "the features of all others: give a frozen network, or protect.bounds=message, which costs far more."
            )

    def apply(self, task: Task, client: Client, message: Tensors) -> Tensors:
        """Return noisy sums of all classes, scaled so that the longest row has the length C."""
        rows = self.noisy_sums(task, client, message).double()
        longest = rows.norm(dim=1).max().clamp(min=1.0)
        classes = torch.arange(client.num_classes)
        return {"classes": classes, "prototypes": (rows * (self.clip / longest)).float()}

    def noisy_sums(self, task: Task, client: Client, message: Tensors) -> Tensor:
        """Return what is released, (K, d): integers, STEPS of which are C."""
        shape = (client.num_classes, client.feature_dim)
        if self.bounds == "samples":
            self.check_network(client.model)
            sums, change = self._class_sums(client), STEPS
        else:
            rows = torch.zeros(shape, dtype=torch.float64)
            rows[message["classes"]] = message["prototypes"].double()
            sums, change = quantised(rows.reshape(1, -1), self.clip).reshape(shape), 2 * STEPS
        width = math.ceil(self.sigma(task) * change)
        return sums + torch.tensor(discrete_gaussian(width, sums.numel())).reshape(shape)

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


def is_fixed(features: nn.Module) -> bool:
    """Return whether training leaves a network as it is: nothing is learned, and no statistics of batches are kept."""
    training = features.training
    layers = [layer for layer in features.train().modules() if layer.training]
    stateful = [layer for layer in layers if getattr(layer, "running_mean", None) is not None]
    features.train(training)
    return not any(weight.requires_grad for weight in features.parameters()) and not stateful


def quantised(x: Tensor, clip: float) -> Tensor:
    """Clip rows (n, d) to a norm and round them towards zero to integers (n, d) of norm ≤ STEPS, exactly."""
    x = x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) / clip
    numbers = (x * (STEPS / x.norm(dim=1, keepdim=True).clamp(min=1.0))).long()
    for _ in range(2):  # rounding of the norm may leave it too large by little; then by nothing
        too_long = numbers.square().sum(dim=1, keepdim=True) > STEPS**2
        numbers = torch.where(too_long, numbers - numbers.sign(), numbers)
    too_long = numbers.square().sum(dim=1, keepdim=True) > STEPS**2
    return torch.where(too_long, 0, numbers)


def discrete_gaussian(width: int, count: int) -> list[int]:
    """Draw integers with probabilities proportional to exp(−x²/(2 width²)), exactly."""
    numbers: list[int] = []
    scale, square = width + 1, width * width
    while len(numbers) < count:
        x = _laplace(scale)
        if _happens((abs(x) * scale - square) ** 2, 2 * square * scale * scale):
            numbers.append(x)
    return numbers


def _laplace(scale: int) -> int:
    """Draw an integer with probability proportional to exp(−|x|/scale)."""
    while True:
        below = secrets.randbelow(scale)
        if not _happens(below, scale):
            continue
        size = below
        while _happens(1, 1):
            size += scale
        negative = secrets.randbelow(2)
        if size or not negative:
            return -size if negative else size


def _happens(numerator: int, denominator: int) -> bool:
    """Return true with probability exp(−numerator/denominator)."""
    while numerator > denominator:
        if not _happens(1, 1):
            return False
        numerator -= denominator
    number = 1
    while secrets.randbelow(denominator * number) < numerator:
        number += 1
    return number % 2 == 1


def delta_of(epsilon: float, mu: float) -> float:
    """Return δ at which continuous Gaussian noise with Σ 1/σ² = μ² is (ε, δ)-private, exactly (Balle and Wang, 2018).

    δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).
    """
    first, second = torch.special.log_ndtr(
        torch.tensor([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu], dtype=torch.float64)
    ).tolist()
    return math.exp(first) * -math.expm1(min(0.0, epsilon + second - first))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the least ε at which continuous Gaussian noise with Σ 1/σ² = μ² is (ε, δ)-private."""
    return least(lambda epsilon: delta_of(epsilon, mu) <= delta)


def sigma_of(epsilon: float, delta: float, rounds: int = 1) -> float:
    """Return the least σ at which so many releases with continuous Gaussian noise are (ε, δ)-private."""
    return least(lambda sigma: delta_of(epsilon, math.sqrt(rounds) / max(sigma, 1e-9)) <= delta)


def epsilon_of_zcdp(rho: float, delta: float) -> float:
    """Return ε at which ρ-zCDP is (ε, δ)-private: the minimum of ρα + ln(1 − 1/α) − ln(αδ)/(α − 1) over α > 1."""

    def value(log: float) -> float:
        excess = math.exp(log)  # α − 1
        return rho * (1 + excess) + math.log(excess / (1 + excess)) - (math.log(delta) + math.log1p(excess)) / excess

    low, high = -20.0, 40.0
    for _ in range(HALVINGS):
        third = (high - low) / 3
        low, high = (low, high - third) if value(low + third) < value(high - third) else (low + third, high)
    return max(0.0, value((low + high) / 2))


def noise_for(epsilon: float, delta: float, rounds: int) -> float:
    """Return the least σ at which so many releases with discrete Gaussian noise are (ε, δ)-private."""
    return least(lambda sigma: epsilon_of_zcdp(rounds / (2 * max(sigma, 1e-9) ** 2), delta) <= epsilon)


def least(holds: Callable[[float], bool]) -> float:
    """Return the least number for which a condition holds, given that it holds for all larger ones."""
    low, high = 0.0, LARGEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
