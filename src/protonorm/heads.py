"""Heads that a server gives to all clients: one linear layer, wherever in a client's head it stands.

A client's head may have layers without parameters beside it that are silent in a test, such as dropout.
"""

from __future__ import annotations

from torch import nn

from protonorm.core import Server
from protonorm.tensors import Tensors, alike, floats, prefixed, snapshot, under


def first_head(server: Server) -> Tensors:
    """Take the head that the server begins with, that of the first network: head.weight (K, d), head.bias (K,)."""
    assert server.auxiliary is not None
    return said_head(snapshot("model", server.auxiliary))


def said_head(state: Tensors) -> Tensors:
    """Say the head of a model: head.weight (K, d), and head.bias (K,) if there is one."""
    return prefixed("head", _layer(under(state, "model.head")))


def take_head(state: Tensors, message: Tensors) -> Tensors:
    """Put the server's head in the place of a client's own."""
    head = alike(under(message, "head"), _layer(under(state, "model.head")), "The server's head")
    names = [name for name in floats(state) if name.startswith("model.head.")]
    return state | {name: head[name.rpartition(".")[2]] for name in names}


def linear(head: Tensors) -> nn.Linear:
    """Make the layer of weight (K, d), and bias (K,) if there is one."""
    classes, width = head["weight"].shape
    layer = nn.Linear(width, classes, bias="bias" in head)
    layer.load_state_dict(head)
    return layer


def _layer(head: Tensors) -> Tensors:
    """Find the one linear layer of a head."""
    names = sorted(floats(head))
    layer = {name.rpartition(".")[2]: head[name] for name in names}
    if len(layer) < len(names) or set(layer) not in ({"weight"}, {"weight", "bias"}) or layer["weight"].ndim != 2:
        raise ValueError(
            f"Heads are shared, so that each must have one linear layer and no other parameters, "
            f"but one has {', '.join(names) or 'none'}."
        )
    return layer
