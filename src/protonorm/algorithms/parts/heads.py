"""Heads that a server gives to all clients: one linear layer, wherever in a client's head it stands.

A client's head may have layers without parameters beside it that do nothing in evaluation mode, such as dropout.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import linear as linear_function

from protonorm.core import Server, SplitModel, Task
from protonorm.tensors import Tensors, floats, prefixed, snapshot, under

SCALES = (0.01, 1.0, 100.0)  # of random features for which a head is compared with its linear layer
TOLERANCE = 1e-3  # of that comparison, relative to the largest logit


def first_head(server: Server) -> Tensors:
    """Draw the head that the server begins with: head.weight (K, d), and head.bias (K,) if the clients' have one."""
    return snapshot("head", nn.Linear(server.feature_dim, server.num_classes, bias=server.head_bias))


def said_head(state: Tensors) -> Tensors:
    """Take the head out of a model's state: head.weight (K, d), and head.bias (K,) if there is one."""
    return prefixed("head", _layer(under(state, "model.head")))


def take_head(state: Tensors, message: Tensors) -> Tensors:
    """Put the server's head in the place of a client's own."""
    received, own = under(message, "head"), _layer(under(state, "model.head"))
    if _shapes(received) != _shapes(own):
        raise ValueError(
            f"Heads are shared, so that all must have one form, but this client's has {_shapes(own)} "
            f"and the shared one {_shapes(received)}."
        )
    names = [name for name in floats(state) if name.startswith("model.head.")]
    return state | {name: received[name.rpartition(".")[2]] for name in names}


def linear(head: Tensors) -> nn.Linear:
    """Make the layer of weight (K, d), and bias (K,) if there is one."""
    classes, width = head["weight"].shape
    layer = nn.Linear(width, classes, bias="bias" in head)
    layer.load_state_dict(head)
    return layer


def check_one_layer(model: SplitModel, task: Task) -> None:
    """Refuse a network whose head has other parameters than those of one linear layer, of the form that all share."""
    if ("bias" in _layer(model.head.state_dict())) != task.head_bias:
        raise ValueError(
            "Heads are shared, so that all must have one form, but some networks have a head with a bias and others "
            "one without."
        )


@torch.no_grad()
def check_linear(model: SplitModel, task: Task) -> None:
    """Refuse a network whose head is more than its linear layer: the server trains that layer and nothing beside it."""
    check_one_layer(model, task)
    head, generator = floats(model.head.state_dict()), torch.Generator().manual_seed(0)
    drawn = {name: torch.randn(value.shape, generator=generator).to(value) for name, value in head.items()}
    layer = _layer(drawn)
    weight = layer["weight"]  # (K, d)
    scales = torch.tensor(SCALES).unsqueeze(1)
    z = (scales * torch.randn(len(SCALES), weight.shape[1], generator=generator)).to(weight)  # (3, d)
    training = model.head.training
    found = functional_call(model.head.eval(), drawn, (z,))
    model.head.train(training)
    expected = linear_function(z, weight, layer.get("bias"))  # (3, K)
    limit = TOLERANCE * expected.abs().amax(dim=1, keepdim=True)
    if found.shape != expected.shape or not bool(((found - expected).abs() <= limit).all()):
        raise ValueError(
            "The server trains heads as linear layers, so that each must be one and nothing else, "
            "but one has a nonlinearity or another layer that changes its logits."
        )


def _layer(head: Tensors) -> Tensors:
    """Find the one linear layer of a head: weight (K, d), and bias (K,) if there is one."""
    names = sorted(floats(head))
    layer = {name.rpartition(".")[2]: head[name] for name in names}
    if len(layer) < len(names) or set(layer) not in ({"weight"}, {"weight", "bias"}) or layer["weight"].ndim != 2:
        raise ValueError(
            f"Heads are shared, so that each must have one linear layer and no other parameters, "
            f"but one has {', '.join(names) or 'none'}."
        )
    return layer


def _shapes(layer: Tensors) -> str:
    return " and ".join(f"{name} {tuple(layer[name].shape)}" for name in sorted(layer, reverse=True))
