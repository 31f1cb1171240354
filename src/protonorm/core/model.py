"""A network cut at its decision layer, and how one is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn


class SplitModel(nn.Module):
    """A network cut at its decision layer: `features` gives (B, d), `head` makes logits (B, K) of that.

    Clients with different networks agree on d alone. `pn.split` makes one of any module.
    """

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features  # f_i: x -> (B, d)
        self.head = head  # g_i: (B, d) -> (B, K)
        self.width = 1.0  # r, the share of the channels that its kind has at most
        self.at_width: Callable[[float], SplitModel] | None = None  # makes one at another width, if there are any

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch to its logits (B, K)."""
        logits: Tensor = self.head(self.features(x))
        return logits


class NetworkRecipe(Protocol):
    """Everything needed to make one network: calling it gives a new one with random weights."""

    @property
    def name(self) -> str:
        """The network's name, as in the setting `models`."""

    def __call__(self) -> SplitModel:
        """Make the network, with weights drawn from torch's random numbers."""

    def describe(self) -> Any:
        """Describe it in plain data, for records and digests."""
