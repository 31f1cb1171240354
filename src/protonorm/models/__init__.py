"""The networks, and the families that clients choose from; these tables import none of them."""

from typing import NamedTuple

from protonorm.core.registry import Entry


class Family(NamedTuple):
    """Networks for the clients: client i takes number i mod n."""

    models: tuple[str, ...]
    feature_dim: int  # d, unless the experiment says otherwise
    summary: str

    @property
    def details(self) -> dict[str, str]:
        """Give the further columns of `protonorm list`."""
        return {"networks": ", ".join(self.models), "d": str(self.feature_dim)}


MODELS: dict[str, Entry] = {
    "plain": Entry(
        "protonorm.models.light:plain",
        "convolutions one after the other",
        {"input": "pictures from 16×16", "parameters": "118 k"},
    ),
    "residual": Entry(
        "protonorm.models.light:residual",
        "convolutions with shortcuts that are added",
        {"input": "pictures from 16×16", "parameters": "176 k"},
    ),
    "depthwise": Entry(
        "protonorm.models.light:depthwise",
        "each channel by itself, then all channels of a point",
        {"input": "pictures from 16×16", "parameters": "64 k"},
    ),
    "dense": Entry(
        "protonorm.models.light:dense",
        "each layer reads what all before it found",
        {"input": "pictures from 16×16", "parameters": "144 k"},
    ),
    "resnet8": Entry(
        "protonorm.models.paper_networks:resnet8",
        "ResNet-8 of the paper",
        {"input": "pictures from 16×16", "parameters": "1238 k"},
    ),
    "mobilenet_v2": Entry(
        "protonorm.models.paper_networks:mobilenet_v2",
        "MobileNetV2 of the paper, from torchvision",
        {"input": "pictures from 16×16", "parameters": "2229 k"},
    ),
    "shufflenet_v2": Entry(
        "protonorm.models.paper_networks:shufflenet_v2",
        "ShuffleNetV2 ×1.0 of the paper, from torchvision",
        {"input": "pictures from 16×16", "parameters": "1259 k"},
    ),
    "efficientnet_b0": Entry(
        "protonorm.models.paper_networks:efficientnet_b0",
        "EfficientNet-B0 of the paper, from torchvision",
        {"input": "pictures from 16×16", "parameters": "4013 k"},
    ),
    "resnet18": Entry(
        "protonorm.models.paper_networks:resnet18",
        "ResNet-18 of the paper's homogeneous table, from torchvision",
        {"input": "pictures from 16×16", "parameters": "11182 k"},
    ),
    "cnn4": Entry(
        "protonorm.models.paper_networks:cnn4",
        "4-layer CNN of the paper's homogeneous table",
        {"input": "pictures from 16×16", "parameters": "879 k"},
    ),
    "mlp": Entry(
        "protonorm.models.mlp:mlp",
        "five fully connected layers, of 16, 8, 4, d and K units",
        {"input": "vectors", "parameters": "0.2 k"},
    ),
    "mlp_small": Entry(
        "protonorm.models.tabular:mlp_small",
        "two hidden layers of 64 units",
        {"input": "vectors", "parameters": "13 k"},
    ),
    "mlp_wide": Entry(
        "protonorm.models.tabular:mlp_wide",
        "one hidden layer of 512 units",
        {"input": "vectors", "parameters": "68 k"},
    ),
    "text_mean": Entry(
        "protonorm.models.text:text_mean",
        "the mean of what stands for the tokens, and one hidden layer",
        {"input": "tokens", "parameters": "271 k"},
    ),
    "text_cnn": Entry(
        "protonorm.models.text:text_cnn",
        "convolutions over three and five tokens, and the largest of each",
        {"input": "tokens", "parameters": "294 k"},
    ),
}

FAMILIES: dict[str, Family] = {
    "light": Family(("plain", "residual", "depthwise", "dense"), 128, "four kinds of small networks, quick on a CPU"),
    "paper": Family(
        ("resnet8", "mobilenet_v2", "shufflenet_v2", "efficientnet_b0"),
        512,
        "the four networks of the paper's tables 1, 2",
    ),
    "cnn": Family(("cnn4",), 512, "the 4-layer CNN of the paper's table 3"),
    "resnet18": Family(("resnet18",), 512, "the ResNet-18 of the paper's table 3"),
    "mlp": Family(("mlp",), 2, "one small network for points in the plane"),
    "tabular": Family(("mlp_small", "mlp_wide"), 64, "a small and a wide network for vectors, such as rows of tables"),
    "text": Family(("text_mean", "text_cnn"), 64, "two small networks for tokens"),
}
