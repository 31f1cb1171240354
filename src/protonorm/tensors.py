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


def numbers(tensors: Mapping[str, Tensor]) -> int:
    """Count the floating numbers: what the papers count when they speak of communication."""
    return sum(value.numel() for value in floats(tensors).values())


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
        if not 0 < weight < float("inf"):
            raise ValueError(f"The weights of an average must be finite and above zero, but one is {weight}.")
        for name, value in sums.items():
            value.add_(tensors[name], alpha=weight)
        total += weight
    return {name: (sums[name] / total).to(value.dtype) if name in sums else value for name, value in like.items()}


def floats(tensors: Mapping[str, Tensor]) -> Tensors:
    """Take the tensors of a floating type."""
    return {name: value for name, value in tensors.items() if value.is_floating_point()}


def integers(tensors: Mapping[str, Tensor]) -> Tensors:
    """Take the tensors of other types: batch counters and tables, which have no mean."""
    return {name: value for name, value in tensors.items() if not value.is_floating_point()}


def alike(tensors: Tensors, like: Mapping[str, Tensor], owner: str) -> Tensors:
    """Let tensors by that have the names, shapes and types of others and are finite; say what is wrong if not."""
    if tensors.keys() != like.keys():
        differ = ", ".join(sorted(tensors.keys() ^ like.keys()))
        raise ValueError(f"{owner} does not hold what was expected: the names differ in {differ}.")
    for name, value in tensors.items():
        (found, shape), (wanted, size) = ((part.dtype, tuple(part.shape)) for part in (value, like[name]))
        if (found, shape) != (wanted, size):
            raise ValueError(f"{owner} holds {name} as {found} of shape {shape}; expected {wanted} of shape {size}.")
        if not bool(value.isfinite().all()):
            raise ValueError(f"{owner} holds numbers in {name} that are not finite.")
    return tensors


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
