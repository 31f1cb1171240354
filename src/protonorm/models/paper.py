"""The paper's networks that torchvision has, with random weights, each without its last linear layer."""

from __future__ import annotations

from typing import Any

from torch import nn

from protonorm.core import SplitModel
from protonorm.models.cut import cut
from protonorm.models.pictures import channels, take_channels
from protonorm.models.vision import torchvision

DROPOUT = 0.2  # of EfficientNet-B0's decision layer


def mobilenet_v2(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build MobileNetV2: 1280 features from 0 to 6; its dropout stays in the base, before they become d."""
    network = _network("mobilenet_v2", shape)
    network.classifier[1] = nn.Identity()
    return cut(network, "classifier.1", 1280, feature_dim, num_classes)


def shufflenet_v2(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build ShuffleNetV2 ×1.0: 1024 features, none negative."""
    network = _network("shufflenet_v2_x1_0", shape)
    network.fc = nn.Identity()
    return cut(network, "fc", 1024, feature_dim, num_classes)


def efficientnet_b0(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build EfficientNet-B0: 1280 features, slightly negative at most; its dropout belongs to the head."""
    network = _network("efficientnet_b0", shape)
    network.classifier = nn.Identity()
    model = cut(network, "classifier", 1280, feature_dim, num_classes)
    model.head = nn.Sequential(nn.Dropout(DROPOUT), model.head)
    return model


def resnet18(shape: tuple[int, ...], feature_dim: int, num_classes: int) -> SplitModel:
    """Build ResNet-18 with the stem made for large pictures, as the authors did: 512 features, none negative."""
    network = _network("resnet18", shape)
    network.fc = nn.Identity()
    return cut(network, "fc", 512, feature_dim, num_classes)


def _network(name: str, shape: tuple[int, ...]) -> Any:
    count = channels(shape, name)
    network = getattr(torchvision().models, name)(weights=None)
    take_channels(network, count)
    return network
