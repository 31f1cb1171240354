"""How the reported round is chosen: as the paper printed it, or on samples that are held out. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Literal

from protonorm.analysis.statistics import mean_interval
from protonorm.core.registry import nearest


@dataclass(frozen=True)
class Protocol:
    """What is held out, which round is reported, and what ± is."""

    name: str
    validation: float  # share of a client's training part that is held out
    by: Literal["validation", "test"]  # how the reported round is chosen
    sentence: str  # what it means for the numbers
    spread_is: str  # what ± is

    @property
    def is_optimistic(self) -> bool:
        """Tell whether the reported round is chosen by looking at what it reports."""
        return self.by == "test"

    def spread(self, numbers: Sequence[float]) -> float | None:
        """Give what stands behind ± for the numbers of seeds; None for a single one."""
        if len(numbers) < 2:
            return None
        interval = None if self.is_optimistic else mean_interval(numbers)
        return interval.half if interval else stdev(numbers)


PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "paper",
            0.0,
            "test",
            "Nothing is held out for validation, and the best test round is reported, as in the authors' program. It "
            "is chosen by looking at what it reports, so that it is optimistic.",
            "the standard deviation",
        ),
        Protocol(
            "validated",
            0.1,
            "validation",
            "A tenth of each client's training part is held out, which the paper's clients train on too. The reported "
            "round is chosen on it, once, under the method's headline rule; the test part decides nothing. The best "
            "test round stands beside, marked best*: it is chosen by looking at what it reports, so that it is "
            "optimistic.",
            "half of the 95 % interval of the mean (Student's t)",
        ),
    )
}


def find_protocol(name: str) -> Protocol:
    """Look a protocol up, or refuse it with the nearest valid one."""
    if name not in PROTOCOLS:
        raise ValueError(f"Unknown protocol {name!r}; {nearest(name, PROTOCOLS)}")
    return PROTOCOLS[name]
