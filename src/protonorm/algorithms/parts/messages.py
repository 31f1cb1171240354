"""The pieces that schemas are put together from: vectors by class, heads, numbers of samples, networks."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from protonorm.core import Field, Form, Schema, Slot, Task

EXAMPLES: Slot = ({"num_examples": Field((), torch.int64, least=1)},)  # a client's number of training samples, n_i


def make_schema(
    task: Task, up: tuple[Slot, ...], down: tuple[Slot, ...], ranks: Mapping[str, int] | None = None
) -> Schema:
    """Make a schema in which K and d are the task's, and K_i (one client's classes) and K' (known ones) at most K."""
    classes = task.num_classes
    exact = {"K": classes, "d": task.feature_dim}
    return Schema(up, down, exact, {"K_i": classes, "K'": classes, **(ranks or {})})


def class_vectors(count: str, name: str = "prototypes", width: str = "d") -> dict[str, Field]:
    """Describe vectors of different classes: classes (count,) and the vectors (count, width)."""
    return {"classes": Field((count,), torch.int64, least=0, below="K", distinct=True), name: Field((count, width))}


def class_counts(count: str, least: int) -> Form:
    """Describe numbers of samples by class, (count,)."""
    return {"counts": Field((count,), torch.int64, least=least, some=True)}


def head_slots(task: Task) -> tuple[Slot, ...]:
    """Describe a head that all share: weight (K, d), and bias (K,) if the task's heads have one."""
    weight, bias = {"head.weight": Field(("K", "d"))}, {"head.bias": Field(("K",))}
    return ((weight,), (bias,)) if task.head_bias else ((weight,),)
