"""Where a run stands, as the server's file holds it: flat tensors of what the server remembers and said last."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from protonorm.core.task import ByClient, Messages
from protonorm.files import damaged
from protonorm.tensors import Tensors, prefixed, under

ALONE = "alone"  # stands beside what each client's own server has, in a solo run


class Checkpoint(NamedTuple):
    """Where a run stands."""

    round: int  # the last committed one
    state: Messages  # what the server remembers; in a solo run, by client
    message: Messages  # what it said last; likewise
    trained: list[int]  # the last round each client trained in; 0 for never


def pack(point: Checkpoint) -> Tensors:
    """Write a checkpoint as flat tensors; its round stands in the file's stamp."""
    held = _packed("state", point.state) | _packed("message", point.message)
    return held | {"trained": torch.tensor(point.trained)}


def unpack(held: Tensors, round: int, trained: list[int]) -> Checkpoint:
    """Read what `pack` wrote."""
    state, message = (_unpacked(held, name, len(trained)) for name in ("state", "message"))
    return Checkpoint(round, state, message, list(trained))


def message_to(held: Tensors, id: int) -> Tensors:
    """Find what a client was last told: by the server, or in a solo run by its own."""
    found = under(held, "message")
    return under(found, str(id)) if ALONE in found else found


def trained_rounds(held: Tensors, clients: int, rounds: int, path: Path) -> list[int]:
    """Read in which round each client trained last, 0 for never; it must be possible."""
    found = held.get("trained")
    possible = found is not None and found.dtype == torch.int64 and found.shape == (clients,)
    if found is None or not possible or bool(((found < 0) | (found > rounds)).any()):
        raise damaged(path, f"it does not say in which of {rounds} rounds each of {clients} clients trained last")
    last: list[int] = found.tolist()
    return last


def _packed(name: str, value: Messages) -> Tensors:
    """Write what one server has, or what each client's own server has."""
    if not isinstance(value, ByClient):
        return prefixed(name, value)
    found = {f"{name}.{ALONE}": torch.tensor(len(value))}
    for id, own in value.items():
        found |= prefixed(f"{name}.{id}", own)
    return found


def _unpacked(held: Tensors, name: str, clients: int) -> Messages:
    found = under(held, name)
    return ByClient((id, under(found, str(id))) for id in range(clients)) if ALONE in found else found
