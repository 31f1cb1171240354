"""Models that are averaged: what methods that share weights say, and how the server joins it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from torch import nn

from protonorm.geometry.prototypes import INTEGERS
from protonorm.tensors import Tensors, floats, snapshot, weighted_mean

Buffers = Literal["averaged", "local"]  # batch norm's running statistics: averaged like weights, or each client's own


def shared(name: str, module: nn.Module, buffers: Buffers) -> Tensors:
    """Copy what a module shares under `name.`: all its floating tensors, or its parameters alone."""
    whole = floats(snapshot(name, module))
    if buffers == "averaged":
        return whole
    return {key: whole[key] for key, _ in module.named_parameters(prefix=name)}


def average_by_examples(state: Tensors, replies: Iterable[Tensors]) -> Tensors:
    """Average the clients' models by their numbers of samples: w = Σ n_i w_i / Σ n_i."""
    return weighted_mean((_examples(reply), fitting(floats(reply), state)) for reply in replies)


def fitting(model: Tensors, like: Tensors) -> Tensors:
    """Let a client's tensors by if their names and shapes are those of the server's, which may have none yet."""
    found, wanted = ({name: tuple(value.shape) for name, value in each.items()} for each in (model, like or model))
    wrong = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    if wrong:
        raise ValueError(
            f"A client's model does not fit the server's: the shape of {wrong[0]} is {found.get(wrong[0])}, "
            f"expected {wanted.get(wrong[0])}."
        )
    return model


def _examples(reply: Tensors) -> float:
    examples = reply["num_examples"]
    if examples.ndim or examples.dtype not in INTEGERS or examples < 1:
        raise ValueError(f"A client's num_examples must be one whole number above zero, not {examples.tolist()}.")
    return float(examples)
