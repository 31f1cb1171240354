"""Flat dicts of named tensors, used for states, messages and checkpoints, and their serialisation."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from contextvars import ContextVar, Token
from pathlib import Path
from typing import Self

import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from protonorm.files import BLANK, check_stamp, damaged, replace, seal

Tensors = dict[str, Tensor]  # state or message: a flat dict with names such as "model.head.weight"


def prefixed(name: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Add the prefix `name.` to every key."""
    return {f"{name}.{key}": value for key, value in tensors.items()}


def strip_prefix(tensors: Mapping[str, Tensor], name: str) -> Tensors:
    """Return the tensors whose keys start with `name.`, with that prefix stripped."""
    start = f"{name}."
    return {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}


def without_prefix(tensors: Mapping[str, Tensor], name: str) -> Tensors:
    """Return the tensors whose keys do not start with `name.`."""
    return {key: value for key, value in tensors.items() if not key.startswith(f"{name}.")}


class DeviceCopies:
    """Copies of a state's tensors on a device, to which these need not be moved again.

    Inside `with copies:`, `to_cpu` keeps what it copies from a device, and `on_device` takes what is kept and keeps
    what it moves. A tensor or a copy that was changed in place since is moved anew.
    """

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Tensor, Tensor, tuple[int, int]]] = {}  # by id: tensor, copy, their versions
        self._token: Token[DeviceCopies | None] | None = None

    def __enter__(self) -> Self:
        self._token = _copies.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _copies.reset(self._token)

    def get(self, value: Tensor) -> Tensor | None:
        """Return the copy of a tensor; None if there is none."""
        if id(value) not in self._copies:
            return None
        _, copy, versions = self._copies[id(value)]
        return copy if versions == (value._version, copy._version) else None

    def add(self, value: Tensor, copy: Tensor) -> None:
        """Keep the copy of a tensor."""
        self._copies[id(value)] = value, copy, (value._version, copy._version)

    def keep(self, state: Mapping[str, Tensor]) -> None:
        """Drop the copies of all tensors but those of a state."""
        kept = {id(value) for value in state.values()}
        self._copies = {key: entry for key, entry in self._copies.items() if key in kept}


_copies: ContextVar[DeviceCopies | None] = ContextVar("device_copies", default=None)


def on_device(value: Tensor, device: str | torch.device) -> Tensor:
    """Return a tensor on a device."""
    if value.device.type != "cpu" or torch.device(device).type == "cpu":
        return value.to(device)
    kept = kept_copy(value)
    copy, copies = value.to(device) if kept is value else kept, _copies.get()
    if copies is not None and kept is value and not value.is_inference():
        copies.add(value, copy)
    return copy


def kept_copy(value: Tensor) -> Tensor:
    """Return a tensor's copy on the device that it came from, if that is kept, or else the tensor."""
    copies = _copies.get()
    copy = None if copies is None else copies.get(value)
    return value if copy is None else copy


def to_cpu(value: Tensor) -> Tensor:
    """Copy a tensor to the CPU, where states are kept."""
    copy, copies = value.detach().cpu(), _copies.get()
    if value.device.type == "cpu":
        return copy.clone()
    if copies is not None and not copy.is_inference():
        copies.add(copy, value.detach().clone())
    return copy


def to_device(tensors: Mapping[str, Tensor], device: str) -> Tensors:
    """Return the tensors on a device."""
    return {key: on_device(value, device) for key, value in tensors.items()}


def snapshot(name: str, module: nn.Module) -> Tensors:
    """Copy a module's parameters and buffers to the CPU, where states are kept, with the key prefix `name.`."""
    return {f"{name}.{key}": to_cpu(value) for key, value in module.state_dict().items()}


def restore(name: str, module: nn.Module, tensors: Mapping[str, Tensor], whose: str | None = None) -> None:
    """Load the tensors of a `snapshot` into a module.

    Some layers check the version of the weights they load; it is set to their own.

    Raises:
        ValueError: If names or shapes do not fit the module.
    """
    own = module.state_dict()
    weights = OrderedDict(
        (key, on_device(value, own[key].device) if key in own else value)
        for key, value in strip_prefix(tensors, name).items()
    )
    weights._metadata = {path: {"version": part._version} for path, part in module.named_modules()}  # type: ignore[attr-defined]
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        misfit = _misfit(own, weights)
        raise ValueError(f"The weights of {whose or f'the {name}'} do not fit the network: {misfit}.") from error


def _misfit(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> str:
    """Describe how weights do not fit a network, with an example of each kind of mismatch."""
    parts = []
    if missing := expected.keys() - weights.keys():
        parts.append(f"{len(missing)} that it has are missing, such as {min(missing)}")
    if foreign := weights.keys() - expected.keys():
        parts.append(f"{len(foreign)} are of another network, such as {min(foreign)}")
    if others := [key for key in expected.keys() & weights.keys() if expected[key].shape != weights[key].shape]:
        key = min(others)
        parts.append(f"{key} has the shape {tuple(weights[key].shape)} instead of {tuple(expected[key].shape)}")
    return "; ".join(parts) or "they could not be loaded"


def numbers(tensors: Mapping[str, Tensor]) -> int:
    """Count the floating-point values, the measure of communication used in the papers."""
    return sum(value.numel() for value in floats(tensors).values())


def nbytes(tensors: Mapping[str, Tensor]) -> int:
    """Count the bytes of all tensors."""
    return sum(value.nbytes for value in tensors.values())


def floats(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the tensors of floating-point type."""
    return {name: value for name, value in tensors.items() if value.is_floating_point()}


def root_mean_square(value: Tensor) -> float:
    """Return the root mean square of a tensor's numbers; 0 if it has none."""
    return float(torch.linalg.vector_norm(value.double())) / math.sqrt(max(value.numel(), 1))


def integers(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the tensors of other types (batch counters and tables), which cannot be averaged."""
    return {name: value for name, value in tensors.items() if not value.is_floating_point()}


def all_finite(numbers: Tensor) -> bool:
    """Return whether no value is NaN or infinite, from the extremes in a single pass (NaN propagates to them)."""
    return numbers.numel() == 0 or bool(torch.stack(torch.aminmax(numbers)).isfinite().all())


def encode(tensors: Mapping[str, Tensor], stamp: str = "") -> bytes:
    """Serialise tensors as safetensors; equal tensors produce equal bytes."""
    copies: Tensors = {}
    addresses: set[int] = set()
    for key, value in tensors.items():
        tensor = value.detach().cpu().contiguous()
        copies[key] = tensor.clone() if tensor.data_ptr() in addresses else tensor  # safetensors rejects shared memory
        addresses.add(tensor.data_ptr())
    # At most one metadata key: safetensors writes several in random order.
    encoded: bytes = safetensors.torch.save(copies, metadata={"stamp": stamp})
    return encoded


def decode(content: bytes) -> Tensors:
    """Deserialise the output of `encode`, sorted by name: the order of safetensors is not deterministic."""
    return dict(sorted(safetensors.torch.load(content).items()))


def save(path: Path, tensors: Mapping[str, Tensor], stamp: str) -> None:
    """Write a tensor file atomically, with a stamp that identifies it and a checksum of its content."""
    replace(path, seal(encode(tensors, f"{stamp} {BLANK}"), stamp))


def load(path: Path, stamp: str) -> Tensors:
    """Read a file written by `save`; raise if it is damaged or has another stamp."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{path} is missing.") from None
    return decode_file(check_stamp(content, path, stamp), path)


def decode_file(content: bytes, path: Path) -> Tensors:
    """Parse the tensors of a sealed file whose stamp has been checked."""
    try:
        return decode(content)
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise damaged(path, f"it is not a whole tensor file ({error})") from error
