"""Batch norm's statistics where they stay with the client: forgotten, averaged over batches, measured anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from protonorm.core import Client
from protonorm.tensors import Tensors, snapshot

COUNTER = ".num_batches_tracked"  # of each layer, zero until it has statistics


@contextmanager
def new_statistics(model: nn.Module) -> Iterator[None]:
    """Let batch norm forget its statistics, and average those of all batches inside: its channels may be others now."""
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    before, hooks = [layer.momentum for layer in layers], []
    for layer in layers:
        layer.reset_running_stats()
        hooks.append(layer.register_forward_pre_hook(_plain_average()))
    try:
        yield
    finally:
        for layer, momentum, hook in zip(layers, before, hooks, strict=True):
            layer.momentum = momentum
            hook.remove()


def _plain_average() -> Callable[[_BatchNorm, object], None]:
    """Count batches in Python, where nobody waits for a device: the n-th has weight 1/n."""
    numbers = count(1)

    def weigh(layer: _BatchNorm, _: object) -> None:
        layer.momentum = 1 / next(numbers)

    return weigh


@torch.no_grad()
def measure(client: Client, model: nn.Module) -> None:
    """Measure batch norm's statistics in one pass over the training part in its order; nothing is drawn.

    Batches are as large as in training, or a little larger, so that all samples count alike.
    """
    size = len(client.train)
    order = torch.arange(max(size, 2)) % size  # batch norm needs two rows
    model.train()
    with new_statistics(model):
        for positions in order.tensor_split(max(1, size // client.batch_size)):
            x, _ = client.train.batch(positions, client.device)
            with client.autocast():
                model(x)


def with_statistics(client: Client, state: Tensors) -> Tensors:
    """Measure batch norm's statistics for the weights of a client that has not trained yet; others have their own.

    A client that predicts elsewhere has no samples to measure with, so that those of its training must do.
    """
    untrained = any(name.endswith(COUNTER) and not int(value) for name, value in state.items())
    if not untrained or not len(client.train):
        return state
    model = client.load(state)
    measure(client, model)
    return state | snapshot("model", model)
