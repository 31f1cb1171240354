"""Networks split at the decision layer, and the interface of network factories."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

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


Network = TypeVar("Network", bound=nn.Module)


def keep_trained(network: Network) -> Network:
    """Keep only what is trained in a network's state; for networks with pre-trained weights that stay as they are.

    Parameters with `requires_grad=False` are then neither stored in clients' states nor sent, so they must be equal
    whenever the network is built: read from a file, not drawn at random. Buffers are kept.

    Args:
        network: Network whose parameters are frozen already, such as one with LoRA matrices beside its layers.

    Returns:
        The same network.
    """
    for module in network.modules():
        frozen = [name for name, weight in module.named_parameters(recurse=False) if not weight.requires_grad]
        module.register_state_dict_post_hook(partial(_leave_out, frozen))
        module.register_load_state_dict_pre_hook(partial(_put_back, frozen))
    return network


def _leave_out(names: list[str], module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name in names:
        del state[prefix + name]


def _put_back(names: list[str], module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    state.update({prefix + name: getattr(module, name) for name in names})


class NetworkRecipe(Protocol):
    """Network factory: calling it returns a new network with random weights."""

    @property
    def name(self) -> str:
        """Name of the network, as in the setting `models`."""

    def __call__(self) -> SplitModel:
        """Build the network, with weights drawn from torch's global generator."""

    def describe(self) -> Any:
        """Return a JSON-compatible description, for records and digests."""
