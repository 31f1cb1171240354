"""EfficientNet-Lite 0 to 2 without classifier, as published for TensorFlow: MBConv blocks without squeeze-excitation.

Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019. Parameters are in the
order of the published weights, and batch normalisation is folded into the convolutions once these are loaded.
"""

import math
from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.functional import pad, relu6
from torch.nn.utils.fusion import fuse_conv_bn_eval

WIDTH = 1280  # D, number of features
STEM = 32  # output channels of the first convolution, at every scale
SCALES = {"efficientnet_lite0": (1.0, 1.0), "efficientnet_lite1": (1.0, 1.1), "efficientnet_lite2": (1.1, 1.2)}
# factor of the expansion, output channels, number of blocks, stride of the first, kernel size
STAGES = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)  # fmt: skip
EPSILON = 1e-3  # of batch normalisation


class Convolution(nn.Module):
    """Convolution with TensorFlow's padding, batch normalisation, and optionally ReLU6."""

    def __init__(
        self, channels: int, out: int, kernel: int, stride: int = 1, *, deep: bool = False, relu: bool = True
    ) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, out, kernel, stride, groups=channels if deep else 1, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(out, eps=EPSILON)
        self.relu = relu
        if stride == 1:
            self.convolution.padding = (kernel // 2, kernel // 2)

    def fold(self) -> None:
        """Fold the normalisation into the convolution."""
        assert isinstance(self.norm, nn.BatchNorm2d)
        self.convolution, self.norm = fuse_conv_bn_eval(self.convolution.eval(), self.norm.eval()), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C', ⌈H/stride⌉, ⌈W/stride⌉)."""
        kernel, stride = self.convolution.kernel_size[0], self.convolution.stride[0]
        if stride > 1:  # the end has the larger part of the padding
            height, width = (max(0, (math.ceil(n / stride) - 1) * stride + kernel - n) for n in x.shape[2:])
            x = pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        maps: Tensor = self.norm(self.convolution(x))
        return relu6(maps) if self.relu else maps


class Block(nn.Sequential):
    """Expansion, depthwise convolution and projection; the input is added where shapes agree."""

    def __init__(self, channels: int, out: int, factor: int, kernel: int, stride: int) -> None:
        inner = channels * factor
        super().__init__(
            *([Convolution(channels, inner, 1)] if factor > 1 else []),
            Convolution(inner, inner, kernel, stride, deep=True),
            Convolution(inner, out, 1, relu=False),
        )
        self.shortcut = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C', ⌈H/stride⌉, ⌈W/stride⌉)."""
        maps = x
        for layer in self:
            maps = layer(maps)
        return x + maps if self.shortcut else maps


class EfficientNetLite(nn.Module):
    """Network that maps images (B, 3, H, W) in −1 … 1 to the means of its last maps, (B, 1280)."""

    def __init__(self, name: str) -> None:
        super().__init__()
        width, depth = SCALES[name]
        layers: list[nn.Module] = [Convolution(3, channels := STEM, 3, 2)]
        for number, (factor, base, count, stride, kernel) in enumerate(STAGES):
            blocks = count if number in (0, len(STAGES) - 1) else math.ceil(count * depth)
            for block in range(blocks):
                layers.append(Block(channels, _scaled(base, width), factor, kernel, stride if block == 0 else 1))
                channels = _scaled(base, width)
        self.layers = nn.Sequential(*layers, Convolution(channels, WIDTH, 1))

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Load published weights, by their order; raise ValueError if they do not fit. Then fold the normalisation."""
        state = self.state_dict()
        values = [value for name, value in weights.items() if not name.startswith(("_fc.", "classifier."))]
        if [value.shape for value in state.values()] != [value.shape for value in values]:
            raise ValueError("the weights are not those of this network")
        self.load_state_dict(dict(zip(state, values, strict=True)))
        for layer in list(self.modules()):
            if isinstance(layer, Convolution):
                layer.fold()

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to features (B, 1280)."""
        maps: Tensor = self.layers(x)
        return maps.mean((2, 3))


def _scaled(channels: int, width: float) -> int:
    """Return scaled channels, rounded to a multiple of 8 that is at least nine tenths of them."""
    exact = channels * width
    rounded = max(8, int(exact + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * exact else rounded
