"""Give pictures the means and deviations that a pretrained network was trained with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pictures, red, green, blue, from 0 to 1


class Normalise(nn.Module):
    """Normalise pictures by channel as a pretrained network expects them; put it before that network.

    Networks here get pictures as numbers p from −1 to 1. This gives ((p + 1)/2 − mean)/std, in which `mean` and `std`
    are of numbers from 0 to 1, as torchvision and timm print them; ImageNet's if none are given. Pictures with one
    channel become as many equal channels as there are means.

    ```python
    import protonorm as pn
    from torch import nn

    network = nn.Sequential(pn.Normalise(), nn.Conv2d(3, 8, 3))  # in place of the convolution: a pretrained network
    ```

    It learns nothing and is in no state: clients neither train nor send it. It is exported with the network.
    """

    scale: Tensor  # (C, 1, 1)
    shift: Tensor  # (C, 1, 1)

    def __init__(self, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean or not all(map(math.isfinite, (*mean, *std))) or min(std) <= 0:
            raise ValueError(
                f"mean={tuple(mean)} and std={tuple(std)} are refused: expected a number for each channel, "
                "those of std above 0."
            )
        centre, spread = torch.tensor([mean, std], dtype=torch.float64)[:, :, None, None]  # (C, 1, 1) each
        self.register_buffer("scale", (0.5 / spread).float(), persistent=False)
        self.register_buffer("shift", ((0.5 - centre) / spread).float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W), or (B, 1, H, W), to (B, C, H, W)."""
        if x.shape[1] not in (1, len(self.scale)):
            raise ValueError(f"The pictures have {x.shape[1]} channels; expected {len(self.scale)}, or 1.")
        return x * self.scale + self.shift
