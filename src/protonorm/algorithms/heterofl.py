"""Methods that train parts of one model, up to a client's width; the server averages what overlaps.

The whole model and its parts have the same layers. Of C channels of a layer, a part of width r has ⌈rC⌉ adjacent ones,
with wrap-around; the next layer has the corresponding columns. d and K are the same at every width. Batch norm
statistics stay with the client: they are reset, averaged over batches, and measured anew.

HeteroFL: clients train the first channels of every layer, up to their width; the server averages overlaps.
Diao, Ding and Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients",
ICLR 2021.
server state:    model.* (parameters of the widest network)
server message:  the same
client state:    model.* of its own width, classes (K_i,)
client message:  model.* (parameters of its own width), classes (K_i,); num_examples () if weighted

FedRolex: narrow clients train a rolling window of the channels of every layer, so that all are trained equally.
Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction", NeurIPS 2022.
server state:    model.* (parameters of the widest network), pixels.* () columns per channel of a layer, if not 1
server message:  model.*
client state:    model.* of its own width, classes (K_i,), turn () the round whose channels it has
client message:  model.* (parameters of its own width), classes (K_i,); num_examples () if weighted

FjORD: clients train the first channels of every layer; their number is drawn per batch, up to the own width.
Horváth et al., "FjORD: Fair and Accurate Federated Learning under heterogeneous targets with Ordered Dropout",
NeurIPS 2021.
server state:    model.* (parameters of the widest network)
server message:  the same
client state:    model.* of its own width
client message:  model.* (parameters of its own width), num_examples ()
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from protonorm.algorithms.parts.heads import check_one_layer
from protonorm.algorithms.parts.messages import Received, Weighting, class_indices, examples, examples_slots, shared
from protonorm.algorithms.parts.training import fit_labels
from protonorm.core import Additive, Client, Contribution, Server, SplitModel, Step, Sums, Task
from protonorm.core.combine import over
from protonorm.core.schema import Field, Schema, Slot, slots_like
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count
from protonorm.tensors import Tensors, prefixed, snapshot, strip_prefix

HEAD = "model.head."
COUNTER = ".num_batches_tracked"  # of each layer, zero until it has statistics
NARROWEST = 1e-6  # a width at which every layer has a single channel
Indices = tuple[Tensor, ...]  # rows, or rows and columns, of a tensor
Pixels = Mapping[str, int]  # columns of a layer per channel of the previous layer, if not 1
FIRST: Pixels = {}  # for the first channels: their columns are the first, independent of pixels


@dataclasses.dataclass(frozen=True)
class WidthSchema(Schema):
    """Schema of a model at several widths: the tensors of a reply must all have the same width."""

    template: SplitModel | None = dataclasses.field(default=None, compare=False, repr=False)  # the widest network

    def check_up(self, message: Tensors, owner: str) -> None:
        """Raise if a client's message violates the schema or mixes parts of different widths."""
        super().check_up(message, owner)
        if self.template is None or self.template.at_width is None:
            return  # a single width: all shapes are exact
        widest = shapes_at(self.template, 1.0)
        axes = ((size, full) for name in widest for size, full in zip(message[name].shape, widest[name], strict=True))
        width = min(size / full for size, full in axes)  # the largest r with these sizes ⌈rC⌉
        for name, shape in shapes_at(self.template, width).items():
            if tuple(message[name].shape) != shape:
                raise ValueError(
                    f"{owner} holds {name} of shape {tuple(message[name].shape)}; expected {shape}, "
                    f"as the others are of a network of width {width:g}."
                )


def width_schema(task: Task, *slots: Slot) -> Schema:
    """Create the schema in which the server sends the whole model, clients a part with all rows of the head."""
    model = task.template
    whole = parameters(model)
    narrow = {name for name in whole if model.at_width is not None and not name.startswith(HEAD)}
    part = tuple(
        ({name: Field(tuple(value.shape), value.dtype, up_to=name in narrow)},) for name, value in whole.items()
    )
    exact = {"K": task.num_classes}
    return WidthSchema((*part, *slots), slots_like(whole), exact, {"K_i": task.num_classes}, template=model)


def shapes(model: SplitModel, width: float) -> dict[str, tuple[int, ...]]:
    """List the shapes of a network's parameters, prefixed `model.`, at another width, without drawing weights."""
    assert model.at_width is not None
    with torch.device("meta"):
        narrow = model.at_width(width)
    return {name: tuple(weight.shape) for name, weight in narrow.named_parameters("model", remove_duplicate=False)}


shapes_at = lru_cache(maxsize=16)(shapes)  # of the widest network: needed for every reply


def parameters(model: nn.Module) -> Tensors:
    """Copy a model's parameters, prefixed `model.`; batch norm statistics stay with the client."""
    return shared("model", model, "local")


def pixels(model: SplitModel) -> Pixels:
    """Count the columns of each layer per channel of the one before, pixels if flattened, at a single channel each."""
    narrow = {} if model.at_width is None else shapes(model, NARROWEST)
    return {name: shape[1] for name, shape in narrow.items() if len(shape) > 1}


def cut(whole: Tensors, like: Mapping[str, Tensor], turn: int = 0, pixels: Pixels = FIRST) -> Tensors:
    """Extract tensors with the shapes of `like` from a whole model."""
    parts = {}
    for name, indices in indices_of(whole, like, turn, pixels).items():
        value = whole[name]
        for axis, index in enumerate(indices):
            value = value.index_select(axis, index)
        parts[name] = value
    return parts


def indices_of(
    whole: Mapping[str, Tensor], like: Mapping[str, Tensor], turn: int = 0, pixels: Pixels = FIRST
) -> dict[str, Indices]:
    """Return the rows, and columns, of each tensor of a whole model that belong to a narrower network."""
    indices: dict[str, Indices] = {}
    for name, value in whole.items():
        size, part = value.shape, like[name].shape
        rows = window(size[0], part[0], 1, turn)
        indices[name] = (rows,) if len(size) == 1 else (rows, window(size[1], part[1], pixels.get(name, 1), turn))
    return indices


def window(size: int, part: int, pixels: int, turn: int) -> Tensor:
    """List the positions of a part's channels, of `pixels` columns each: the first channels, shifted down by `turn`."""
    if size == part:
        return torch.arange(size)
    channels = size // pixels
    kept = (torch.arange(part // pixels) - turn) % channels
    return (kept.unsqueeze(1) * pixels + torch.arange(pixels)).flatten()


class AveragedParts(Received, Additive):
    """Method whose server averages each parameter over the clients that have it, and a head's rows by class."""

    heterogeneous: ClassVar[bool] = False
    widths: ClassVar[bool] = True

    def init_server(self, server: Server) -> Step:
        """Create the initial model of all clients."""
        assert server.model is not None
        model = parameters(server.model)
        return Step(model, model)

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Extract the client's part of the whole model; measure batch norm statistics if there are none yet."""
        return with_statistics(client, state | cut(message, state))

    def contribution(self, server: Server, state: Tensors, reply: Tensors) -> Contribution:
        """Scatter a client's part to the whole model, weighted by n_i or 1; of the head rows of its `classes`."""
        whole, turn, pixels = self.whole(server, state)
        amount, classes = float(reply.get("num_examples", 1)), reply.get("classes")
        values, weights = {}, {}
        for name, indices in indices_of(whole, reply, turn, pixels).items():
            part = reply[name]
            if classes is not None and name.startswith(HEAD):
                indices, part = (classes, *indices[1:]), part[classes]
            grid = indices if len(indices) == 1 else (indices[0].unsqueeze(1), indices[1])
            values[name] = torch.zeros_like(whole[name])
            values[name][grid] = part
            weights[name] = torch.zeros(whole[name].shape[:2], dtype=torch.float64)
            weights[name][grid] = amount
        return Contribution(values, weights)

    def conclude(self, server: Server, state: Tensors, sums: Sums) -> Step:
        """Publish the average; parameters that no client has are unchanged."""
        whole, _, _ = self.whole(server, state)
        model = {
            name: torch.where(over(sums.weight_of(name) > 0, value), sums.means[name], value) if sums.means else value
            for name, value in whole.items()
        }
        return Step(state | model, model)

    def whole(self, server: Server, state: Tensors) -> tuple[Tensors, int, Pixels]:
        """Return the whole model, this round's channel offset of parts, and the columns per channel."""
        return state, 0, FIRST


@contextmanager
def new_statistics(model: nn.Module) -> Iterator[None]:
    """Reset batch norm statistics and average those of all batches inside: the channels may have changed."""
    changed = []
    for layer in model.modules():
        if isinstance(layer, _BatchNorm):
            layer.reset_running_stats()
            changed.append((layer, layer.momentum, layer.register_forward_pre_hook(_plain_average())))
    try:
        yield
    finally:
        for layer, momentum, hook in changed:
            layer.momentum = momentum
            hook.remove()


def _plain_average() -> Callable[[_BatchNorm, object], None]:
    """Create a hook that gives the n-th batch the weight 1/n, counting in Python to avoid synchronisation."""
    numbers = count(1)

    def weigh(layer: _BatchNorm, _: object) -> None:
        layer.momentum = 1 / next(numbers)

    return weigh


@torch.no_grad()
def measure(client: Client, model: nn.Module) -> None:
    """Measure batch norm statistics in a pass over the training part in order; all samples have about equal weight."""
    size = len(client.train)
    order = torch.arange(max(size, 2)) % size  # batch norm needs two rows
    model.train()
    with new_statistics(model):
        for positions in order.tensor_split(max(1, size // client.batch_size)):
            x, _ = client.train.batch(positions, client.device)
            with client.autocast():
                model(x)


def with_statistics(client: Client, state: Tensors) -> Tensors:
    """Measure batch norm statistics of a client that has not trained yet, if it has samples; others have their own."""
    untrained = any(name.endswith(COUNTER) and not int(value) for name, value in state.items())
    if not untrained or not len(client.train):
        return state
    model = client.load(state)
    measure(client, model)
    return state | snapshot("model", model)


class MaskedParts(AveragedParts):
    """Method whose clients may mask the logits of classes that they lack, and say which classes they have."""

    masked: bool  # fields of the method
    weighting: Weighting

    def schema(self, task: Task) -> Schema:
        """Return the schema: the server sends the whole model, clients their parts and classes."""
        return width_schema(task, ({"classes": class_indices("K_i")},), *examples_slots(self.weighting))

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Raise if the head has parameters other than those of a single linear layer."""
        check_one_layer(model, task)

    def init_client(self, client: Client) -> Tensors:
        """Create a network of the client's own width, used until the server's arrives."""
        return snapshot("model", client.model) | {"classes": own_classes(client)}

    def train(self, client: Client, state: Tensors) -> Step:
        """Train the client's part of the whole model with cross-entropy."""
        client.load(state)
        model = self.network(client, state)
        with new_statistics(client.model):
            mean = fit_labels(client, model)
        reply = parameters(client.model) | {"classes": own_classes(client)} | examples(client, self.weighting)
        return Step(state | snapshot("model", client.model), reply, {"loss": mean})

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score with the client's part of the model."""
        return {"logits": self.network(client, state).eval()(x)}

    def network(self, client: Client, state: Tensors) -> SplitModel:
        """Mask the logits of classes that the client lacks in the loaded network."""
        if not self.masked:
            return client.model
        head = OwnClasses(client.model.head, state["classes"], client.num_classes).to(client.device)
        return SplitModel(client.model.features, head)


def own_classes(client: Client) -> Tensor:
    """List the classes (K_i,) of which a client has samples."""
    return client.train.class_counts(client.num_classes).nonzero().flatten()


class OwnClasses(nn.Module):
    """Head whose logits of classes that the client lacks are 0 in training and −∞ in prediction."""

    absent: Tensor  # (K,)

    def __init__(self, head: nn.Module, classes: Tensor, num_classes: int) -> None:
        super().__init__()
        self.head = head
        absent = torch.ones(num_classes, dtype=torch.bool, device=classes.device).index_fill(0, classes, False)
        self.register_buffer("absent", absent)

    def forward(self, z: Tensor) -> Tensor:
        """Map features (B, d) to logits (B, K)."""
        logits: Tensor = self.head(z)
        return logits.masked_fill(self.absent, 0.0 if self.training else -torch.inf)


@dataclass(frozen=True, config=STRICT)
class HeteroFL(MaskedParts):
    """Federated averaging of a model of which narrow clients train a part."""

    masked: bool = True  # whether a client masks the logits of classes that it lacks
    weighting: Weighting = "clients"  # of the average: equal as published, or by n_i

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train the first channels of the whole model with cross-entropy."""
        return self.train(client, state | cut(message, state))


@dataclass(frozen=True, config=STRICT)
class FedRolex(MaskedParts):
    """HeteroFL in which narrow clients train another part of the model in every round."""

    masked: bool = True  # whether a client masks the logits of classes that it lacks
    weighting: Weighting = "clients"  # of the average: equal as published, or by n_i

    def init_server(self, server: Server) -> Step:
        """Create the initial model of all clients, and store the numbers of columns per channel."""
        assert server.model is not None
        model = super().init_server(server).message
        counts = pixels(server.model).items()
        several = {name: torch.tensor(count) for name, count in counts if 1 < count < model[name].shape[1]}
        return Step(model | prefixed("pixels", several), model)

    def init_client(self, client: Client) -> Tensors:
        """Create a network of the client's own width, used until the server's arrives."""
        return super().init_client(client) | {"turn": torch.tensor(0)}

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Extract the client's part of the whole model: the channels trained last, of which it has statistics."""
        part = cut(message, state, int(state["turn"]), pixels(client.model))
        return with_statistics(client, state | part)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train this round's part of the whole model with cross-entropy, and store the round."""
        turn = client.round - 1
        part = cut(message, state, turn, pixels(client.model))
        return self.train(client, state | part | {"turn": torch.tensor(turn)})

    def whole(self, server: Server, state: Tensors) -> tuple[Tensors, int, Pixels]:
        """Return the whole model, this round's offset, which grows by a channel per round, and columns per channel."""
        counts = {name: int(count) for name, count in strip_prefix(state, "pixels").items()}
        return prefixed("model", strip_prefix(state, "model")), server.round - 1, counts


@dataclass(frozen=True, config=STRICT)
class FjORD(AveragedParts):
    """Ordered dropout: a model that works at every width."""

    steps: Count = 5  # widths to draw from: 1/5, 2/5, …, 1, up to the client's own
    distillation: bool = False  # whether the client's whole network is trained too, and teaches the narrower network

    def schema(self, task: Task) -> Schema:
        """Return the schema: the server sends the whole model, clients their parts and numbers of samples."""
        return width_schema(task, *examples_slots("samples"))

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Raise if a network is not available at other widths."""
        if model.at_width is None:
            raise ValueError("FjORD trains a network at several widths, but one of the networks has only one.")

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with cross-entropy at a random width p per batch; with distillation CE(o, y) + CE(o_p, softmax o)."""
        model = client.load(state | cut(message, state))
        masks = self.masks(model)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            mask = masks[np.random.randint(len(masks))]
            weights = {name: weight * mask[name] for name, weight in model.named_parameters()}
            logits: Tensor = functional_call(model, weights, (x,))
            if not self.distillation:
                return client.cross_entropy(logits, y)
            teacher = model(x)
            return client.cross_entropy(teacher, y) + client.cross_entropy(logits, teacher.detach().softmax(dim=1))

        mean = client.fit(loss, model)
        measure(client, model)  # statistics from training mix all widths
        return Step(snapshot("model", model), parameters(model) | examples(client), {"loss": mean})

    def masks(self, model: SplitModel) -> list[Tensors]:
        """Build, for each width up to the model's own, masks that are 1 where a network of that width has weights."""
        assert model.at_width is not None
        widths = [step / self.steps for step in range(1, self.steps + 1) if step / self.steps < model.width]
        result = []
        for width in [*widths, model.width]:
            with torch.device("meta"):  # shapes only: no weights are drawn
                sizes = {name: weight.shape for name, weight in model.at_width(width).named_parameters()}
            masks = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
            for name, size in sizes.items():
                masks[name][tuple(slice(length) for length in size)] = 1.0
            result.append(masks)
        return result
