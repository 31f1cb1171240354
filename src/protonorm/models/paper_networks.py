"""Networks of the paper's tables, with random weights; from torchvision where it has them."""

from torch import Tensor, nn
from torch.nn.functional import relu

from protonorm.core import SplitModel
from protonorm.models import scaled
from protonorm.models.inputs import count_channels, set_channels
from protonorm.models.libraries import torchvision
from protonorm.models.split import cut

KERNEL, POOL = 5, 2  # of the 4-layer CNN
DROPOUT = 0.2  # of EfficientNet-B0's decision layer


def resnet8(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build ResNet-8: blocks of 64, 128 and 256 channels after a large stem; 256 non-negative features."""
    base = nn.Sequential(
        nn.Conv2d(count_channels(shape, "resnet8"), 64, 7, stride=2, padding=3, bias=False),
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
    """Residual block of two 3×3 convolutions; the shortcut is a 1×1 convolution if shapes differ."""

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


def cnn4(shape: tuple[int, ...], feature_dim: int, num_classes: int, width: float = 1.0) -> SplitModel:
    """Build the 4-layer CNN: two 5×5 convolutions with ReLU and pooling; 512 non-negative features."""
    first, second = scaled(32, width), scaled(64, width)
    base = nn.Sequential(
        *(nn.Conv2d(count_channels(shape, "cnn4"), first, KERNEL), nn.ReLU(), nn.MaxPool2d(POOL)),
        *(nn.Conv2d(first, second, KERNEL), nn.ReLU(), nn.MaxPool2d(POOL)),
        *(nn.Flatten(), nn.Linear(second * _side(shape[1]) * _side(shape[2]), 512), nn.ReLU()),
    )
    return cut(base, "head", 512, feature_dim, num_classes)


def _side(pixels: int) -> int:
    """Return the side after both convolutions and poolings: 32 to 5, 64 to 13."""
    for _ in range(2):
        pixels = (pixels - KERNEL + 1) // POOL
    return pixels


def mobilenet_v2(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build MobileNetV2: 1280 features from 0 to 6; its dropout is in the base, before the reduction to d."""
    return _cut_at("mobilenet_v2", "classifier.1", 1280, shape, feature_dim, num_classes)


def shufflenet_v2(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build ShuffleNetV2 ×1.0: 1024 non-negative features."""
    return _cut_at("shufflenet_v2_x1_0", "fc", 1024, shape, feature_dim, num_classes)


def efficientnet_b0(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build EfficientNet-B0: 1280 features, at most slightly negative; its dropout is in the head."""
    model = _cut_at("efficientnet_b0", "classifier", 1280, shape, feature_dim, num_classes)
    model.head = nn.Sequential(nn.Dropout(DROPOUT), model.head)
    return model


def resnet18(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build ResNet-18 with the stem for large images, as the authors did; 512 non-negative features."""
    return _cut_at("resnet18", "fc", 512, shape, feature_dim, num_classes)


def _cut_at(
    name: str, layer: str, width: int, shape: tuple[int, ...], feature_dim: int, num_classes: int
) -> SplitModel:
    """Build a network of torchvision and cut it at a layer with L inputs."""
    count = count_channels(shape, name)
    network = getattr(torchvision().models, name)(weights=None)
    set_channels(network, count)
    owner, _, attribute = layer.rpartition(".")
    setattr(network.get_submodule(owner), attribute, nn.Identity())
    return cut(network, layer, width, feature_dim, num_classes)
