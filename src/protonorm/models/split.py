"""Cut any network at its decision layer; any number of features at the cut becomes d, and nothing is learned."""

from __future__ import annotations

from torch import Tensor, nn

from protonorm.core import SplitModel
from protonorm.models.decision import Linear, find_decision, inputs_of, outputs_of


def split(
    module: nn.Module,
    feature_dim: int,
    num_classes: int,
    *,
    shape: tuple[int, ...] = (3, 32, 32),
    layer: str | None = None,
) -> SplitModel:
    """Cut a network at its last linear layer, or at the one named: what that layer reads becomes d features.

    `feature_dim` is d and `num_classes` K: the head is a new linear layer d → K. `shape` is that of one sample,
    (C, H, W) for pictures. `layer` is a name as in `module.named_modules()`. The module is taken over, not copied; one
    that is refused stays as it was.

    ```python
    import protonorm as pn
    from torch import nn

    network = nn.Sequential(nn.Flatten(), nn.Linear(3072, 200), nn.ReLU(), nn.Linear(200, 1000))
    model = pn.split(network, feature_dim=64, num_classes=10, shape=(3, 32, 32))
    ```
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"{module!r} is not a network: expected an nn.Module.")
    for name, size in {"feature_dim": (feature_dim,), "num_classes": (num_classes,), "shape": shape}.items():
        if not size or not all(isinstance(number, int) and number > 0 for number in size):
            raise ValueError(
                f"{name}={size if name == 'shape' else size[0]} is refused: expected whole numbers from 1."
            )
    found = find_decision(module, tuple(shape), layer)
    tap = Tap(found.layer)
    base = Base(_replace(module, found.layer, tap), tap)
    model = cut(base, found.name, inputs_of(found.layer), feature_dim, num_classes)
    return model.to(found.output.device)


def cut(base: nn.Module, layer: str, width: int, feature_dim: int, num_classes: int) -> SplitModel:
    """Join a base that gives L features, the cut, and a new linear head."""
    return SplitModel(nn.Sequential(base, Cut(layer, width, feature_dim)), nn.Linear(feature_dim, num_classes))


class Cut(nn.AdaptiveAvgPool1d):
    """Give the L inputs of a decision layer as d features (B, d).

    Feature i is the mean of inputs floor(iL/d) to ceil((i+1)L/d) − 1: means of neighbours where d < L, which overlap
    unless d divides L, and repeated values where d > L.
    """

    def __init__(self, layer: str, width: int, feature_dim: int) -> None:
        super().__init__(feature_dim)
        self.layer = layer  # the name of the layer that stood here
        self.width = width  # L

    def extra_repr(self) -> str:
        """Say what is averaged to what."""
        return f"{self.layer!r}, {self.width} -> {self.output_size}"


class Tap(nn.Module):
    """Stand in a decision layer's place: keep what it would read, and give zeros where it gave logits.

    So whatever the network does with its logits, it goes on with tensors of the right shape.
    """

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.axis = -1 if isinstance(layer, nn.Linear) else 1  # where the features are
        self.outputs = outputs_of(layer)
        self.kept: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Map (B, …, L) to zeros (B, …, outputs)."""
        self.kept = input
        shape = list(input.shape)
        shape[self.axis] = self.outputs
        return input.new_zeros(shape)

    def take(self) -> Tensor:
        """Give what was kept (B, L), averaged over points or tokens if there are several."""
        kept, self.kept = self.kept, None
        if kept is None:
            raise RuntimeError("The network's decision layer did not run.")
        return kept.movedim(self.axis, -1).flatten(1, -2).mean(1) if kept.ndim > 2 else kept


class Base(nn.Module):
    """A network that gives what its decision layer would read, and nothing else."""

    def __init__(self, network: nn.Module, tap: Tap) -> None:
        super().__init__()
        self.network, self.tap = network, tap

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch to (B, L)."""
        self.network(x)
        return self.tap.take()


def _replace(network: nn.Module, layer: nn.Module, tap: Tap) -> nn.Module:
    """Put the tap in the layer's place, under all names that it has."""
    for name in [name for name, part in network.named_modules(remove_duplicate=False) if part is layer]:
        if not name:
            return tap  # the network is nothing but its decision layer
        owner, _, attribute = name.rpartition(".")
        setattr(network.get_submodule(owner), attribute, tap)
    return network
