"""Heads that the server shares with all clients: a single linear layer, at any position in a client's head.

A client's head may also have parameter-free layers that are the identity in evaluation mode, such as dropout.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear as linear_function

from protonorm.algorithms.parts.messages import Received
from protonorm.algorithms.parts.training import descend
from protonorm.core import Client, Server, SplitModel, Step, Task
from protonorm.tensors import Tensors, floats, prefixed, snapshot, strip_prefix

SCALES = (0.01, 1.0, 100.0)  # scales of random features for which a head is compared with its linear layer
TOLERANCE = 1e-3  # of that comparison, relative to the largest logit


class SharedHead(Received):
    """Method whose clients receive a head, a single linear layer, from the server."""

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Raise if the head is more than a single linear layer."""
        check_linear(model, task)

    def init_server(self, server: Server) -> Step:
        """Create the initial head of all clients."""
        head = initial_head(server)
        return Step(head, head)

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Replace the client's head by the received head."""
        return replace_head(state, message)


def train_head(
    state: Tensors, loss: Callable[[Tensor, Tensor], Tensor], batches: Iterable[tuple[Tensor, Tensor]], server: Server
) -> Step:
    """Train the server's head by SGD on a loss of its logits (B, K) and the targets of a batch."""
    head = linear(strip_prefix(state, "head"))
    optimiser = torch.optim.SGD(head.parameters(), server.lr)
    mean = descend(lambda vectors, targets: loss(head(vectors), targets), batches, optimiser, server)
    tensors = snapshot("head", head)
    return Step(tensors, tensors, {"head.loss": mean})


def initial_head(server: Server) -> Tensors:
    """Create the server's initial head: head.weight (K, d), and head.bias (K,) if the clients' heads have one."""
    return snapshot("head", nn.Linear(server.feature_dim, server.num_classes, bias=server.head_bias))


def head_of(state: Tensors) -> Tensors:
    """Extract the head from a model's state: head.weight (K, d), and head.bias (K,) if there is one."""
    return prefixed("head", _layer(strip_prefix(state, "model.head")))


def replace_head(state: Tensors, message: Tensors) -> Tensors:
    """Replace a client's head by the server's."""
    received, own = strip_prefix(message, "head"), _layer(strip_prefix(state, "model.head"))
    if _shapes(received) != _shapes(own):
        shapes = f"this client's has {_shapes(own)} and the shared one {_shapes(received)}"
        raise ValueError(f"Heads are shared, so that all must have one form, but {shapes}.")
    names = [name for name in floats(state) if name.startswith("model.head.")]
    return state | {name: received[name.rpartition(".")[2]] for name in names}


def linear(head: Tensors) -> nn.Linear:
    """Build the layer of weight (K, d), and bias (K,) if there is one."""
    classes, width = head["weight"].shape
    layer = nn.Linear(width, classes, bias="bias" in head)
    layer.load_state_dict(head)
    return layer


def check_one_layer(model: SplitModel, task: Task) -> None:
    """Raise if a network's head has parameters other than those of a single linear layer, or another bias setting."""
    if ("bias" in _layer(model.head.state_dict())) != task.head_bias:
        raise ValueError("Heads are shared, so that either all or none must have a bias, but some do.")


@torch.no_grad()
def check_linear(model: SplitModel, task: Task) -> None:
    """Raise if a network's head is more than a linear layer: the server trains that layer alone."""
    check_one_layer(model, task)
    head, generator = floats(model.head.state_dict()), torch.Generator().manual_seed(0)
    parameters = {name: torch.randn(value.shape, generator=generator).to(value) for name, value in head.items()}
    layer = _layer(parameters)
    weight = layer["weight"]  # (K, d)
    scales = torch.tensor(SCALES).unsqueeze(1)
    z = (scales * torch.randn(len(SCALES), weight.shape[1], generator=generator)).to(weight)  # (3, d)
    training = model.head.training
    logits = functional_call(model.head.eval(), parameters, (z,))
    model.head.train(training)
    expected = linear_function(z, weight, layer.get("bias"))  # (3, K)
    limit = TOLERANCE * expected.abs().amax(dim=1, keepdim=True)
    if logits.shape != expected.shape or not bool(((logits - expected).abs() <= limit).all()):
        raise ValueError(
            "The server trains heads as linear layers, so that each must be one and nothing else, "
            "but one has a nonlinearity or another layer that changes its logits."
        )


def _layer(head: Tensors) -> Tensors:
    """Return the linear layer of a head: weight (K, d), and bias (K,) if there is one."""
    names = sorted(floats(head))
    layer = {name.rpartition(".")[2]: head[name] for name in names}
    if len(layer) < len(names) or set(layer) not in ({"weight"}, {"weight", "bias"}) or layer["weight"].ndim != 2:
        listing = ", ".join(names) or "none"
        raise ValueError(f"Heads are shared, so that each must have the parameters of one linear layer, got {listing}.")
    return layer


def _shapes(layer: Tensors) -> str:
    return " and ".join(f"{name} {tuple(layer[name].shape)}" for name in sorted(layer, reverse=True))
