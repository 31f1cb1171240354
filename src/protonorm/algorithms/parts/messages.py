"""Building blocks of methods that exchange models: the forms of their messages, and the averages of them."""

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from protonorm.core import Additive, Algorithm, Client, Contribution, Server, SplitModel, Step, Sums, Task
from protonorm.core.schema import Field, Form, Schema, Slot, slots_like
from protonorm.tensors import Tensors, floats, snapshot

SAMPLES = 2**31  # upper bound of a client's samples: sums of the counts of 2**31 clients fit into int64
EXAMPLES: Slot = ({"num_examples": Field((), torch.int64, least=1, below=SAMPLES)},)  # training samples, n_i

Weighting = Literal["samples", "clients"]  # of an average: by n_i, or equal


def make_schema(task: Task, up: tuple[Slot, ...], down: tuple[Slot, ...]) -> Schema:
    """Create a schema with the task's K and d, where K_i (a client's classes) and K' (known classes) are at most K."""
    classes = task.num_classes
    return Schema(up, down, {"K": classes, "d": task.feature_dim}, {"K_i": classes, "K'": classes})


def examples_slots(weighting: Weighting) -> tuple[Slot, ...]:
    """Describe the number of samples that a client adds if the average is weighted by it."""
    return (EXAMPLES,) if weighting == "samples" else ()


def examples(client: Client, weighting: Weighting = "samples") -> Tensors:
    """Return a client's number of training samples n_i if the average is weighted by it."""
    return {"num_examples": torch.tensor(len(client.train))} if weighting == "samples" else {}


def class_indices(count: str) -> Field:
    """Describe distinct classes (count,)."""
    return Field((count,), torch.int64, least=0, below="K", distinct=True)


def class_vectors(count: str, name: str = "prototypes", width: str = "d") -> dict[str, Field]:
    """Describe vectors of distinct classes: classes (count,) and the vectors (count, width)."""
    return {"classes": class_indices(count), name: Field((count, width))}


def class_counts(count: str, least: int, below: int | None = SAMPLES) -> Form:
    """Describe a client's numbers of samples by class, (count,); a server's sums have no upper bound."""
    return {"counts": Field((count,), torch.int64, least=least, below=below, some=True)}


def head_slots(task: Task) -> tuple[Slot, ...]:
    """Describe a shared head: weight (K, d), and bias (K,) if the task's heads have one."""
    weight, bias = {"head.weight": Field(("K", "d"))}, {"head.bias": Field(("K",))}
    return ((weight,), (bias,)) if task.head_bias else ((weight,),)


Buffers = Literal["averaged", "local"]  # batch norm's running statistics: averaged like weights, or each client's own


def shared(name: str, module: nn.Module, buffers: Buffers) -> Tensors:
    """Copy what a module shares under `name.`: all floating tensors or all parameters, under each of their names."""
    tensors = floats(snapshot(name, module))
    if buffers == "averaged":
        return tensors
    return {key: tensors[key] for key, _ in module.named_parameters(prefix=name, remove_duplicate=False)}


class Averaged(Additive):
    """Method whose server publishes the average of the clients' tensors."""

    def contribution(self, server: Server, state: Tensors, reply: Tensors) -> Contribution:
        """Weight the tensors of a reply by its number of samples n_i; without it all replies have equal weight."""
        return Contribution(floats(reply), reply.get("num_examples", torch.tensor(1)))

    def conclude(self, server: Server, state: Tensors, sums: Sums) -> Step:
        """Publish the averages: w = Σ n_i w_i / Σ n_i."""
        return Step(sums.means, sums.means)


class Received(Algorithm):
    """Method whose clients take over model parts, measured as received and, after local training, as `logits`."""

    rules: ClassVar[tuple[str, ...]] = ("received", "logits", "joint")
    headline: ClassVar[str] = "received"

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Replace the shared parts of the state by those received."""
        return state | message


class AveragedModel(Received, Averaged):
    """Method whose clients train the average of their models, whole or in part (`sent`)."""

    if TYPE_CHECKING:
        buffers: Buffers  # a field of the method

    heterogeneous: ClassVar[bool] = False

    def schema(self, task: Task) -> Schema:
        """Return the schema: both sides send the model; clients add their numbers of samples."""
        model = slots_like(self.sent(task.template))
        return Schema(up=(*model, EXAMPLES), down=model)

    def init_server(self, server: Server) -> Step:
        """Create the initial model of all clients."""
        assert server.model is not None
        model = self.sent(server.model)
        return Step(model, model)

    def sent(self, model: SplitModel) -> Tensors:
        """Copy what is shared of a model: all of it by default."""
        return shared("model", model, self.buffers)

    def trained(self, client: Client, model: SplitModel, loss: float) -> Step:
        """Return the state and reply of a client with a trained model."""
        return Step(snapshot("model", model), self.sent(model) | examples(client), {"loss": loss})


class AveragedFeatures(AveragedModel):
    """Method whose clients train the average of their features, each under a head of its own."""

    def sent(self, model: SplitModel) -> Tensors:
        """Copy the features of a model, which are shared."""
        return shared("model.features", model.features, self.buffers)


class TwoNetworks(Algorithm):
    """Method whose clients share a second network besides their own, with which they predict too."""

    auxiliary: ClassVar[bool] = True
    rules: ClassVar[tuple[str, ...]] = ("logits", "shared", "joint")

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score with the own model, and with the average second network if that is available."""
        own = {"logits": client.model(x)}
        return own if client.auxiliary is None else own | {"shared": self.second(client, state, message)(x)}

    @abstractmethod
    def second(self, client: Client, state: Tensors, message: Tensors) -> SplitModel:
        """Load the average second network for prediction."""


def second_network(node: Client | Server) -> SplitModel:
    """Return the second network of a client, or of the server before round 1."""
    if node.auxiliary is None:
        raise ValueError("The method predicts with two networks, but of the second one no more than its name is known.")
    return node.auxiliary
