"""Models that are averaged: what clients and server send, and how the server averages it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from torch import nn

from protonorm.algorithms.parts.messages import EXAMPLES
from protonorm.core import Schema, Task, slots_like
from protonorm.tensors import Tensors, floats, snapshot, weighted_mean

Buffers = Literal["averaged", "local"]  # batch norm's running statistics: averaged like weights, or each client's own


def shared(name: str, module: nn.Module, buffers: Buffers) -> Tensors:
    """Copy what a module shares under `name.`: all its floating tensors, or its parameters alone.

    A parameter that several layers share has several names in a state, and so in a message.
    """
    whole = floats(snapshot(name, module))
    if buffers == "averaged":
        return whole
    return {key: whole[key] for key, _ in module.named_parameters(prefix=name, remove_duplicate=False)}


def model_schema(task: Task, buffers: Buffers) -> Schema:
    """Both sides send the model; clients add their numbers of samples."""
    model = slots_like(shared("model", task.template, buffers))
    return Schema(up=(*model, EXAMPLES), down=model)


def average_by_examples(replies: Iterable[Tensors]) -> Tensors:
    """Average the floating tensors of replies by the clients' numbers of samples: w = Σ n_i w_i / Σ n_i."""
    return weighted_mean((float(reply["num_examples"]), floats(reply)) for reply in replies)
