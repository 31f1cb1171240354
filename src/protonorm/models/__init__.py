"""The networks and the families that clients choose from; these tables are also the tables of contents."""

from typing import NamedTuple

from protonorm.registry import Entry


class Family(NamedTuple):
    """Networks for the clients: client i takes number i mod n."""

    models: tuple[str, ...]
    feature_dim: int  # d, unless the experiment says otherwise
    summary: str


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
    "mlp": Entry(
        "protonorm.models.mlp:mlp",
        "five fully connected layers, of 16, 8, 4, d and K units",
        {"input": "vectors", "parameters": "0.2 k"},
    ),
}

FAMILIES: dict[str, Family] = {
    "light": Family(("plain", "residual", "depthwise", "dense"), 128, "four kinds of small networks, quick on a CPU"),
    "mlp": Family(("mlp",), 2, "one small network for points in the plane"),
}
