"""Building blocks of messages: vectors by class, heads, sample counts, networks; and their averages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import nn

from protonorm.core import (
    Additive,
    Contribution,
    Field,
    Form,
    Schema,
    Server,
    Slot,
    Step,
    Sums,
    Task,
    slots_like,
)
from protonorm.tensors import Tensors, floats, snapshot

SAMPLES = 2**31  # upper bound of a client's samples: sums of the counts of 2**31 clients fit into int64
EXAMPLES: Slot = ({"num_examples": Field((), torch.int64, least=1, below=SAMPLES)},)  # training samples, n_i


def make_schema(
    task: Task, up: tuple[Slot, ...], down: tuple[Slot, ...], ranks: Mapping[str, int] | None = None
) -> Schema:
    """Create a schema with the task's K and d, where K_i (a client's classes) and K' (known classes) are at most K."""
    classes = task.num_classes
    exact = {"K": classes, "d": task.feature_dim}
    return Schema(up, down, exact, {"K_i": classes, "K'": classes, **(ranks or {})})


def class_vectors(count: str, name: str = "prototypes", width: str = "d") -> dict[str, Field]:
    """Describe vectors of distinct classes: classes (count,) and the vectors (count, width)."""
    return {"classes": Field((count,), torch.int64, least=0, below="K", distinct=True), name: Field((count, width))}


def class_counts(count: str, least: int, below: int | None = SAMPLES) -> Form:
    """Describe a client's numbers of samples by class, (count,); a server's sums have no upper bound."""
    return {"counts": Field((count,), torch.int64, least=least, below=below, some=True)}


def head_slots(task: Task) -> tuple[Slot, ...]:
    """Describe a shared head: weight (K, d), and bias (K,) if the task's heads have one."""
    weight, bias = {"head.weight": Field(("K", "d"))}, {"head.bias": Field(("K",))}
    return ((weight,), (bias,)) if task.head_bias else ((weight,),)


Buffers = Literal["averaged", "local"]  # batch norm's running statistics: averaged like weights, or each client's own


def shared(name: str, module: nn.Module, buffers: Buffers) -> Tensors:
    """Copy the tensors that a module shares, prefixed `name.`: all floating tensors, or parameters only.

    A parameter shared by several layers has several names in a state, and therefore in a message.
    """
    whole = floats(snapshot(name, module))
    if buffers == "averaged":
        return whole
    return {key: whole[key] for key, _ in module.named_parameters(prefix=name, remove_duplicate=False)}


def model_schema(task: Task, buffers: Buffers) -> Schema:
    """Create the schema in which both sides send the model and clients add their numbers of samples."""
    model = slots_like(shared("model", task.template, buffers))
    return Schema(up=(*model, EXAMPLES), down=model)


def by_examples(reply: Tensors) -> Contribution:
    """Weight a reply's floating tensors by its number of samples, or by 1 if it has none: Σ n_i w_i / Σ n_i."""
    return Contribution(floats(reply), reply.get("num_examples", torch.tensor(1)))


class Averaged(Additive):
    """Method whose server publishes the average of the clients' tensors."""

    def contribution(self, server: Server, state: Tensors, reply: Tensors) -> Contribution:
        """Weight the tensors of a reply by its number of samples n_i; without it all replies have equal weight."""
        return by_examples(reply)

    def conclude(self, server: Server, state: Tensors, sums: Sums) -> Step:
        """Publish the averages: w = Σ n_i w_i / Σ n_i."""
        return Step(sums.means, sums.means)
