"""Networks cut out of a wider one: which channels a narrower network has, cutting them out, averaging what overlaps.

Both have the same layers. A layer of C channels gives ⌈rC⌉ of them that lie side by side, the last being followed by
the first; the next layer has the columns of these. d and K are the same at every width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from protonorm.core import Client, Field, Schema, Slot, SplitModel, Task, slots_like
from protonorm.tensors import Tensors, snapshot

HEAD = "model.head."
NARROWEST = 1e-6  # of all widths: a layer has one channel
Place = tuple[Tensor, ...]  # rows, or rows and columns, of a tensor
Pixels = Mapping[str, int]  # columns of a layer for each channel of the layer before, if not one
FIRST: Pixels = {}  # never changed; of the first channels the columns are the first ones, whatever their pixels


class Part(NamedTuple):
    """What a client says of the whole model."""

    weight: float
    weights: Tensors  # model.* of its width
    classes: Tensor | None = None  # (K_i,) of which it trained the head's rows; None for all


def part_of(reply: Tensors) -> Part:
    """Read what a client says of the whole model; without a number of samples it weighs one."""
    weights = {name: value for name, value in reply.items() if name.startswith("model.")}
    return Part(float(reply.get("num_examples", 1)), weights, reply.get("classes"))


def own_classes(client: Client) -> Tensor:
    """List the classes (K_i,) that a client has samples of."""
    return client.train.class_counts(client.num_classes).nonzero().flatten()


CLASSES: Slot = ({"classes": Field(("K_i",), torch.int64, least=0, below="K", distinct=True)},)  # that a client has


@dataclass(frozen=True)
class WidthSchema(Schema):
    """What may be said of one model at several widths: the tensors of a reply have to be those of one width."""

    template: SplitModel | None = field(default=None, compare=False, repr=False)  # the widest

    def check_up(self, message: Tensors, owner: str) -> None:
        """Refuse what a client may not say, and parts of different widths."""
        super().check_up(message, owner)
        if self.template is None or self.template.at_width is None:
            return  # there is one width, and all shapes are exact
        whole = shapes_at(self.template, 1.0)
        axes = ((size, full) for name in whole for size, full in zip(message[name].shape, whole[name], strict=True))
        width = min(size / full for size, full in axes)  # any r of these sizes ⌈rC⌉ is at most that, and has the same
        for name, shape in shapes_at(self.template, width).items():
            if tuple(message[name].shape) != shape:
                raise ValueError(
                    f"{owner} holds {name} of shape {tuple(message[name].shape)}; expected {shape}, "
                    f"as the others are of a network of width {width:g}."
                )


def width_schema(task: Task, *own: Slot) -> Schema:
    """The server sends the whole model, a client a part of it, of which the head has all rows, and perhaps more."""
    model = task.template
    whole = parameters(model)
    narrow = {name for name in whole if model.at_width is not None and not name.startswith(HEAD)}
    part = tuple(
        ({name: Field(tuple(value.shape), value.dtype, up_to=name in narrow)},) for name, value in whole.items()
    )
    known = {"K": task.num_classes}
    return WidthSchema((*part, *own), slots_like(whole), known, {"K_i": task.num_classes}, template=model)


@lru_cache(maxsize=16)  # it is asked for every reply
def shapes_at(model: SplitModel, width: float) -> dict[str, tuple[int, ...]]:
    """List the shapes of a network's parameters, under `model.`, at another width, and remember them."""
    return shapes(model, width)


def shapes(model: SplitModel, width: float) -> dict[str, tuple[int, ...]]:
    """List the shapes of a network's parameters, under `model.`, at another width; no weight is drawn."""
    assert model.at_width is not None
    with torch.device("meta"):
        narrow = model.at_width(width)
    return {name: tuple(weight.shape) for name, weight in narrow.named_parameters("model", remove_duplicate=False)}


def parameters(model: nn.Module) -> Tensors:
    """Copy a model's parameters under `model.`; the statistics of batch norm stay with the client."""
    whole = snapshot("model", model)
    return {name: whole[name] for name, _ in model.named_parameters(prefix="model", remove_duplicate=False)}


def pixels(model: SplitModel) -> Pixels:
    """Count the columns that each layer has for a channel of the layer before; behind a flattening they are pixels.

    They are all columns of a network whose layers have one channel each.
    """
    if model.at_width is None:
        return {}
    return {name: shape[1] for name, shape in shapes(model, NARROWEST).items() if len(shape) > 1}


def cut(whole: Tensors, like: Mapping[str, Tensor], turn: int = 0, pixels: Pixels = FIRST) -> Tensors:
    """Cut tensors of the shapes of `like` out of a whole model."""
    found = {}
    for name, place in places(whole, like, turn, pixels).items():
        value = whole[name]
        for axis, index in enumerate(place):
            value = value.index_select(axis, index)
        found[name] = value
    return found


def places(
    whole: Mapping[str, Tensor], like: Mapping[str, Tensor], turn: int = 0, pixels: Pixels = FIRST
) -> dict[str, Place]:
    """Find the rows, and columns, of each tensor of a whole model that a narrower one has."""
    found: dict[str, Place] = {}
    for name, value in whole.items():
        size, part = value.shape, like[name].shape
        rows = window(size[0], part[0], 1, turn)
        found[name] = (rows,) if len(size) == 1 else (rows, window(size[1], part[1], pixels.get(name, 1), turn))
    return found


def window(size: int, part: int, pixels: int, turn: int) -> Tensor:
    """List the positions of a part's channels, of some pixels each, among all: the first ones, moved down by `turn`."""
    if size == part:
        return torch.arange(size)
    channels = size // pixels
    kept = (torch.arange(part // pixels) - turn) % channels
    return (kept.unsqueeze(1) * pixels + torch.arange(pixels)).flatten()


def average_parts(whole: Tensors, parts: Iterable[Part], turn: int = 0, pixels: Pixels = FIRST) -> Tensors:
    """Average each number over the clients that have it, a head's rows over those that have the class.

    What nobody has stays as it is.
    """
    sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in whole.items()}
    totals = {name: torch.zeros(value.shape[:2], dtype=torch.float64) for name, value in whole.items()}
    for weight, weights, classes in parts:
        for name, place in places(whole, weights, turn, pixels).items():
            value = weights[name].double()
            if classes is not None and name.startswith(HEAD):
                place, value = (classes, *place[1:]), value[classes]
            at = place if len(place) == 1 else (place[0].unsqueeze(1), place[1])
            sums[name][at] += weight * value
            totals[name][at] += weight
    return {name: _mean(value, sums[name], totals[name]) for name, value in whole.items()}


def _mean(before: Tensor, sums: Tensor, totals: Tensor) -> Tensor:
    held = totals.reshape(totals.shape + (1,) * (sums.ndim - totals.ndim))
    return torch.where(held > 0, sums / torch.where(held > 0, held, 1.0), before).to(before.dtype)


class OwnClasses(nn.Module):
    """A head whose logits of classes that the client lacks are 0 while it trains, and −∞ when it predicts."""

    absent: Tensor  # (K,)

    def __init__(self, head: nn.Module, classes: Tensor, num_classes: int) -> None:
        super().__init__()
        self.head = head
        self.register_buffer("absent", torch.ones(num_classes, dtype=torch.bool).index_fill(0, classes, False))

    def forward(self, z: Tensor) -> Tensor:
        """Map features (B, d) to logits (B, K)."""
        logits: Tensor = self.head(z)
        return logits.masked_fill(self.absent, 0.0 if self.training else -torch.inf)
