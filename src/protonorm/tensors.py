"""A state, a message and a checkpoint are one plain thing: a flat dict of named tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from protonorm.files import BLANK, damaged, read_sealed, replace, seal

Tensors = dict[str, Tensor]  # a state or a message: a flat dict; names are like "model.head.weight"


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


def restore(name: str, module: nn.Module, tensors: Mapping[str, Tensor], whose: str | None = None) -> None:
    """Put what `snapshot` copied back into a module, or say that it does not fit.

    A few layers ask for the version of the weights they get: it is their own.
    """
    held = OrderedDict(under(tensors, name))
    held._metadata = {place: {"version": part._version} for place, part in module.named_modules()}  # type: ignore[attr-defined]
    try:
        module.load_state_dict(held)
    except RuntimeError as error:
        raise ValueError(
            f"The weights of {whose or f'the {name}'} do not fit the network: {_misfit(module, held)}."
        ) from error


def _misfit(module: nn.Module, held: Mapping[str, Tensor]) -> str:
    """Say in which way weights do not fit a network, with an example of each."""
    wanted, told = module.state_dict(), []
    lacking, foreign = sorted(wanted.keys() - held.keys()), sorted(held.keys() - wanted.keys())
    others = [key for key in wanted.keys() & held.keys() if wanted[key].shape != held[key].shape]
    if lacking:
        told.append(f"{len(lacking)} that it has are missing, such as {lacking[0]}")
    if foreign:
        told.append(f"{len(foreign)} are of another network, such as {foreign[0]}")
    if others:
        key = min(others)
        told.append(f"{key} has the shape {tuple(held[key].shape)} instead of {tuple(wanted[key].shape)}")
    return "; ".join(told) or "they could not be loaded"


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


def all_finite(numbers: Tensor) -> bool:
    """Tell whether no number is NaN or infinite: by the extremes, which NaN spoils, in one pass."""
    return numbers.numel() == 0 or bool(torch.stack(torch.aminmax(numbers)).isfinite().all())


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
    """Read what `encode` wrote, in the order of names: safetensors itself has another order each time."""
    return dict(sorted(safetensors.torch.load(content).items()))


def save(path: Path, tensors: Mapping[str, Tensor], stamp: str) -> None:
    """Write a file in one atomic step, with a stamp that says what it is and a checksum of all of it."""
    replace(path, seal(encode(tensors, f"{stamp} {BLANK}"), stamp))


def load(path: Path, stamp: str) -> Tensors:
    """Read a file that `save` wrote, if it is whole and what the stamp says."""
    content = read_sealed(path, stamp)
    try:
        return decode(content)
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise damaged(path, f"it is not a whole tensor file ({error})") from error
