"""A state, a message and a checkpoint are one plain thing: a flat dict of named tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from protonorm.files import replace

Tensors = dict[str, Tensor]  # names like "model.head.weight"


def prefixed(name: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Put `name.` before every name."""
    return {f"{name}.{key}": value for key, value in tensors.items()}


def under(tensors: Mapping[str, Tensor], name: str) -> Tensors:
    """Take what stands under `name.`, without that prefix."""
    start = f"{name}."
    return {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}


def snapshot(name: str, module: nn.Module) -> Tensors:
    """Copy a module's parameters and buffers to the CPU, where states rest, under `name.`."""
    return {f"{name}.{key}": value.detach().cpu().clone() for key, value in module.state_dict().items()}


def nbytes(tensors: Mapping[str, Tensor]) -> int:
    """Count the bytes of all values."""
    return sum(value.nbytes for value in tensors.values())


def weighted_mean(parts: Iterable[tuple[float, Tensors]]) -> Tensors:
    """Average tensors of equal names and shapes, folding them one by one; weights need not sum to one.

    Integers, such as batch counters, have no mean: those of the first part are taken.
    """
    total = 0.0
    sums: Tensors = {}
    like: Tensors = {}
    for weight, tensors in parts:
        if not like:
            like = tensors
            sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in floats(tensors).items()}
        if like.keys() != tensors.keys():
            raise ValueError(f"The parts of an average differ in {', '.join(sorted(like.keys() ^ tensors.keys()))}.")
        for name, value in sums.items():
            value.add_(tensors[name], alpha=weight)
        total += weight
    return {name: (sums[name] / total).to(value.dtype) if name in sums else value for name, value in like.items()}


def floats(tensors: Mapping[str, Tensor]) -> Tensors:
    """Take the tensors of a floating type."""
    return {name: value for name, value in tensors.items() if value.is_floating_point()}


def encode(tensors: Mapping[str, Tensor], stamp: str = "") -> bytes:
    """Write tensors as safetensors; equal tensors give equal bytes."""
    whole: Tensors = {}
    places: set[int] = set()
    for key, value in tensors.items():
        plain = value.detach().cpu().contiguous()
        whole[key] = plain.clone() if plain.data_ptr() in places else plain  # no two names for one memory
        places.add(plain.data_ptr())
    # One metadata key at most: safetensors writes several in random order.
    encoded: bytes = safetensors.torch.save(whole, metadata={"stamp": stamp})
    return encoded


def decode(content: bytes) -> Tensors:
    """Read what `encode` wrote."""
    tensors: Tensors = safetensors.torch.load(content)
    return tensors


def save(path: Path, tensors: Mapping[str, Tensor], stamp: str) -> None:
    """Write a file in one atomic step, with a stamp that says what it is."""
    replace(path, encode(tensors, stamp))


def load(path: Path, stamp: str) -> Tensors:
    """Read a file that `save` wrote, if it is what the stamp says."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            found = (file.metadata() or {}).get("stamp")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing.") from None
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged: it is not a whole safetensors file ({error}).") from error
    if found != stamp:
        raise ValueError(f"{path} is not the right file: it is stamped {found!r}, and {stamp!r} was expected.")
    return tensors
