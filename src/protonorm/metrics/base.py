"""Base class of metrics: counted at the clients, summed at the server, finished for the table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Integers = NDArray[np.int64]
Numbers = NDArray[np.float64]
Counts = Mapping[str, NDArray[Any]]  # by name, without the rule


class Count(NamedTuple):
    """Shape and type of a named count."""

    shape: tuple[int | str, ...] = ()  # "K" stands for the number of classes
    dtype: str = "float64"  # or int64

    def sizes(self, num_classes: int) -> tuple[int, ...]:
        """Return the shape for a number of classes."""
        return tuple(num_classes if size == "K" else int(size) for size in self.shape)


class Answers(NamedTuple):
    """Batch of predictions under a rule."""

    scores: Tensor  # (B, K)
    labels: Tensor  # (B,)
    predicted: Tensor  # (B,)
    correct: Tensor  # (B,) 1 or 0
    log_probabilities: Tensor | None  # (B, K) float64, for rules whose scores are probabilities


class Metric(ABC):
    """Measure of the predictions under a rule.

    Clients count `support`, `correct` and `predicted`, each (K,), for every metric; `counts` declares the additional
    counts of a metric, which are sent and summed under `NAME.RULE`.
    """

    title: ClassVar[str]  # column heading
    meaning: ClassVar[str]  # explanation of the value over all clients, a single line
    share: ClassVar[bool] = True  # whether it lies between 0 and 1 and is shown in per cent
    probabilities: ClassVar[bool] = False  # whether it needs a rule whose scores are probabilities
    counts: ClassVar[Mapping[str, Count]] = {}

    def count(self, answers: Answers, counts: dict[str, Tensor]) -> None:
        """Add a batch to the metric's counts in place, at the client."""
        del answers, counts  # correct and predicted suffice

    def check(self, counts: Mapping[str, Tensor], support: Tensor, rule: str) -> None:
        """Raise a ValueError for counts that are impossible for `support` (K,) samples, at the server."""
        del counts, support, rule

    @abstractmethod
    def of_client(self, counts: Counts, support: Integers) -> float:
        """Return a client's value; NaN without samples."""

    def finish(self, clients: Numbers, sums: Counts, samples: int) -> float | None:
        """Return the value over all clients; by default the mean of the clients' values.

        Args:
            clients: (M,) Values of the clients; NaN for clients without a value.
            sums: The metric's counts, summed over the clients that have them.
            samples: Number of samples of these clients.
        """
        del sums, samples
        known = clients[~np.isnan(clients)]
        return float(known.mean()) if len(known) else None
