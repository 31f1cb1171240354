"""Networks split at the decision layer, and the interface of network factories."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn


class Trunk(NamedTuple):
    """Frozen pre-trained part of a network: its features of a sample are computed once, and stored."""

    name: str  # as in the setting `models`, such as frozen:efficientnet_lite0
    digest: str  # SHA-256 of its weights and preprocessing; equal for all parties that have this trunk
    width: int  # D, number of features


class SplitModel(nn.Module):
    """Network split at its decision layer: `features` returns (B, d), `head` maps these to logits (B, K).

    Clients with different networks only need the same d. `pn.split` builds a split model from any module.

    Args:
        features: Base network f_i, which maps a batch to features (B, d).
        head: Decision layer g_i, which maps features (B, d) to logits (B, K).
    """

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features  # f_i: x -> (B, d)
        self.head = head  # g_i: (B, d) -> (B, K)
        self.width = 1.0  # r, fraction of the full number of channels
        self.at_width: Callable[[float], SplitModel] | None = None  # None if not scalable
        self.trunk: Trunk | None = None  # None if the network reads the samples themselves
        self.columns = slice(None)  # columns of the input (B, …) that belong to the trunk

    def trunk_features(self, x: Tensor) -> Tensor:
        """Return the features (B, D) of the trunk, which the input of a network with a frozen trunk holds."""
        return x[:, self.columns]

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits (B, K) of a batch."""
        logits: Tensor = self.head(self.features(x))
        return logits


class NetworkRecipe(Protocol):
    """Network factory: calling it returns a new network with random weights."""

    @property
    def name(self) -> str:
        """Name of the network, as in the setting `models`."""

    def __call__(self) -> SplitModel:
        """Build the network, with weights drawn from torch's global generator."""

    def describe(self) -> Any:
        """Return a JSON-compatible description, for records and digests."""
