"""ResNet-8 of the paper's heterogeneous family: three residual blocks behind the stem of the large ResNets."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from protonorm.core import SplitModel
from protonorm.models.cut import cut
from protonorm.models.pictures import channels


def resnet8(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build one block each of 64, 128 and 256 channels: 256 features, none negative."""
    base = nn.Sequential(
        nn.Conv2d(channels(shape, "resnet8"), 64, 7, stride=2, padding=3, bias=False),
        *(nn.BatchNorm2d(64), nn.ReLU(inplace=True)),  # 16×16 from 32×32
        nn.MaxPool2d(3, stride=2, padding=1),
        Block(64, 64, stride=1),  # 8×8
        Block(64, 128, stride=2),
        Block(128, 256, stride=2),  # 2×2
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )
    for layer in base.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return cut(base, "head", 256, feature_dim, num_classes)


class Block(nn.Module):
    """Two 3×3 convolutions, and the input they add to, itself convolved where shapes differ."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs)),
            nn.ReLU(inplace=True),
            *(nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if (inputs, stride) != (outputs, 1):
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C', H/stride, W/stride)."""
        return relu(self.residual(x) + self.shortcut(x))
