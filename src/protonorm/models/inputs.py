"""Input shapes of networks: (C, H, W) for images, (D,) for vectors, (L, V) for L tokens of a vocabulary of size V."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

SMALLEST = 16  # pixels of an image's side
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, RGB, for values from 0 to 1


def vector_length(shape: tuple[int, ...], name: str) -> int:
    """Return the length D of a vector shape (D,); raise ValueError for other shapes."""
    _check(len(shape) == 1, name, "vectors (D,)", shape)
    return shape[0]


def token_count(shape: tuple[int, ...], name: str) -> int:
    """Return the vocabulary size V of a token shape (L, V); raise ValueError for other shapes."""
    _check(len(shape) == 2, name, "tokens (L, V), texts of L tokens of V different ones", shape)
    return shape[1]


def random_batch(count: int, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
    """Draw random samples of a shape: values from N(0, 1), or uniform tokens (count, L)."""
    if len(shape) == 2:
        return torch.randint(shape[1], (count, shape[0]), generator=generator)
    return torch.randn(count, *shape, generator=generator)


def count_channels(shape: tuple[int, ...], name: str) -> int:
    """Return the channels of an image shape (C, H, W); raise ValueError for other shapes and small images."""
    fits = len(shape) == 3 and min(shape[1:]) >= SMALLEST
    _check(fits, name, f"pictures (C, H, W) of at least {SMALLEST}×{SMALLEST} pixels", shape)
    return shape[0]


def _check(fits: bool, name: str, expected: str, shape: tuple[int, ...]) -> None:
    if not fits:
        raise ValueError(f"The network {name!r} takes {expected}, but the data set has samples of shape {shape}.")


def set_channels(network: nn.Module, count: int) -> None:
    """Adapt a network's first convolution to `count` channels; new weights have the old standard deviation."""
    stem = next(layer for layer in network.modules() if isinstance(layer, nn.Conv2d))
    if stem.in_channels == count:
        return
    spread = float(stem.weight.detach().std())
    stem.in_channels = count
    stem.weight = nn.Parameter(torch.empty(stem.out_channels, count, *stem.kernel_size))
    nn.init.normal_(stem.weight, std=spread)


class Normalise(nn.Module):
    """Layer that normalises images by channel, to be placed before a pretrained network.

    Networks receive images as values p from −1 to 1. This layer returns ((p + 1)/2 − mean)/std. Images with a single
    channel are repeated to as many channels as there are means. The layer has no parameters and is not in the state:
    clients neither train nor send it. It is exported with the network.

    Args:
        mean: Mean of each channel for values from 0 to 1, as documented by torchvision and timm; ImageNet's by default.
        std: Standard deviation of each channel, likewise.

    Raises:
        ValueError: `mean` and `std` differ in length, are empty or not finite, or `std` is not positive.

    ```python
    import protonorm as pn
    from torch import nn

    network = nn.Sequential(pn.Normalise(), nn.Conv2d(3, 8, 3))  # in place of the convolution: a pretrained network
    ```
    """

    scale: Tensor  # (C, 1, 1)
    shift: Tensor  # (C, 1, 1)

    def __init__(self, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean or not all(map(math.isfinite, (*mean, *std))) or min(std) <= 0:
            values = f"mean={tuple(mean)} and std={tuple(std)}"
            raise ValueError(f"mean and std must have a number for each channel, those of std above 0, got {values}.")
        centre, spread = torch.tensor([mean, std], dtype=torch.float64)[:, :, None, None]  # (C, 1, 1) each
        self.register_buffer("scale", (0.5 / spread).float(), persistent=False)
        self.register_buffer("shift", ((0.5 - centre) / spread).float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise images (B, C, H, W) or (B, 1, H, W) to (B, C, H, W)."""
        if x.shape[1] not in (1, len(self.scale)):
            raise ValueError(f"The pictures have {x.shape[1]} channels; expected {len(self.scale)}, or 1.")
        return x * self.scale + self.shift
