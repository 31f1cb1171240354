"""Secure sums: a member's contribution as masked integers, and the sum of all members' as the server reads it.

The numbers of a contribution are laid out in a fixed order: weighted values w·v, weights w and totals, floats in fixed
point and integers as they are, and a 1 at the end. If the masks cancel, the last number of the sum is the number of
members; otherwise somebody is missing, and the sum says nothing.

A simulation takes the same steps, with keys that follow from the seed and protect nothing.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from protonorm.core.combine import ALL, Contribution, Sums, check_parts, divided, over
from protonorm.core.robust import by_name
from protonorm.core.schema import Field, Schema
from protonorm.errors import Burned

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from protonorm.core.algorithm import Additive
    from protonorm.core.masking import Integers, Pledge, Words
    from protonorm.core.node import Client
    from protonorm.core.task import Order, Task
    from protonorm.tensors import Tensors

MASKED = "masked"  # tensor of a masked message
KINDS = ("value", "weight", "total")


class Part(NamedTuple):
    """Tensor of a contribution, in the order in which they are laid out."""

    name: str  # kind and name: value.prototypes
    shape: torch.Size
    whole: bool  # whether it has integers, which are summed as they are
    dtype: torch.dtype  # of the mean


class Layout(NamedTuple):
    """Order of the numbers of a method's contributions."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Number of integers of a masked message."""
        return sum(part.shape.numel() for part in self.parts) + 1

    def integers(self, contribution: Contribution, members: int) -> Integers:
        """Return a contribution as integers; raise ValueError for other tensors, or numbers that are too large."""
        from protonorm.core.masking import checked, to_fixed

        check_parts(contribution, contribution)
        tensors, flat = laid_out(contribution), []
        if [(name, value.shape) for name, value in tensors.items()] != [(part.name, part.shape) for part in self.parts]:
            raise ValueError("A contribution to a secure sum must have the tensors and shapes of all others.")
        for part in self.parts:
            numbers = tensors[part.name].detach().cpu().flatten().numpy()
            exact = checked(numbers.astype(np.int64), members) if part.whole else None
            flat.append(to_fixed(numbers.astype(np.float64), members) if exact is None else exact)
        return np.concatenate([*flat, np.ones(1, np.int64)])

    def sums(self, total: Integers, length: float | None = None) -> Sums:
        """Return the sum of all integers as means, weights and totals; noisy means with the longest row of a length."""
        from protonorm.core.masking import from_fixed

        kinds: dict[str, Tensors] = {kind: {} for kind in KINDS}
        start, dtypes = 0, {part.name: part.dtype for part in self.parts}
        for part in self.parts:
            numbers = total[start : start + part.shape.numel()]
            flat = torch.from_numpy(numbers.copy() if part.whole else from_fixed(numbers))
            kind, _, name = part.name.partition(".")
            kinds[kind][name] = flat.reshape(part.shape)
            start += part.shape.numel()
        weights, means = {name: value.double() for name, value in kinds["weight"].items()}, {}
        for name, value in kinds["value"].items():
            mean = divided(value, weights[ALL if ALL in weights else name])
            means[name] = (mean if length is None else scaled(mean, length)).to(dtypes[f"value.{name}"])
        return Sums(means, weights.get(ALL, weights), kinds["total"])


class Unread(dict[str, Tensor]):
    """State of the server, which clients do not have: reading it is an error."""

    def _refuse(self, *words: object) -> NoReturn:
        raise ValueError("it needs the server's state, which clients do not have")

    __getitem__ = __contains__ = __iter__ = __len__ = __or__ = __ror__ = _refuse
    get = keys = items = values = copy = _refuse


class MaskedSum:
    """Fold of masked messages: their sum modulo 2⁶⁴, which is that of the contributions once all are there."""

    def __init__(self, task: Task) -> None:
        self._layout, self._length = task.layout, task.noise_length
        self._total, self._count = np.zeros(self._layout.size, np.uint64), 0

    def add(self, message: Tensors) -> None:
        """Add a member's message."""
        self._total += message[MASKED].numpy().view(np.uint64)
        self._count += 1

    def sums(self) -> Sums:
        """Return the sums; raise Burned if a message is missing."""
        total = self._total.view(np.int64)
        if not self._count or total[-1] != self._count:
            raise Burned("the round is burned, because not all of its members sent their messages")
        return self._layout.sums(total, self._length)


def layout_of(task: Task) -> Layout:
    """Return the layout of a method's contributions; raise ValueError if they depend on the server's state."""
    name = type(task.algorithm).__name__
    if find_spec("cryptography") is None:
        raise ValueError("combine=secure_sum needs cryptography: pip install '.[deploy]' in a checkout.")
    try:
        contribution = contribution_of(task, 1, blank(task.schema))
    except ValueError as error:
        raise ValueError(f"combine=secure_sum is not possible for {name}: {error}.") from None
    dtypes = {f"value.{key}": value.dtype for key, value in contribution.values.items()}
    return Layout(
        tuple(
            Part(key, value.shape, not value.is_floating_point(), dtypes.get(key, value.dtype))
            for key, value in laid_out(contribution).items()
        )
    )


def contribution_of(task: Task, round: int, reply: Tensors) -> Contribution:
    """Return what a client's reply adds to the sums, as the client computes it."""
    method: Additive = task.algorithm  # type: ignore[assignment]  # checked by `Task.check_combine`
    return method.contribution(task.server(round), Unread(), reply)


def masked_schema(task: Task) -> Schema:
    """Return the schema of what the server receives: one vector of integers."""
    return Schema((({MASKED: Field((task.layout.size,), torch.int64)},),), task.schema.down, task.schema.exact)


def integers_of(task: Task, client: Client, reply: Tensors, members: int) -> Integers:
    """Take the owner's step, and return the contribution of a reply to a sum over so many members as integers."""
    task.schema.check_up(reply, f"The reply of {client.label}")
    reply = client.training.protect.among(members).apply(task, client, reply)
    return task.layout.integers(contribution_of(task, client.round, reply), members)


def simulated(task: Task, client: Client, order: Order, reply: Tensors) -> Tensors:
    """Return a reply as the masked message of a simulated client."""
    from protonorm.core.masking import masked

    numbers = integers_of(task, client, reply, len(order.members))
    keys, pledges, digest = _simulated_round(task.seed, order.round, tuple(order.members))
    return message_of(masked(numbers, keys[order.id], pledges, digest))


def message_of(words: Words) -> Tensors:
    """Return masked numbers as a message."""
    return {MASKED: torch.from_numpy(words.view(np.int64))}


def laid_out(contribution: Contribution) -> Tensors:
    """Return the tensors that are summed, w·v, w and totals, in their order."""
    values, _, totals = contribution
    weights = by_name(contribution)
    parts = {f"total.{name}": value for name, value in totals.items()}
    parts |= {f"weight.{name}": value for name, value in weights.items()}
    for name, value in values.items():
        weight = weights[ALL if ALL in weights else name].double()
        parts[f"value.{name}"] = value.double() * over(weight, value)
    return dict(sorted(parts.items()))


def blank(schema: Schema) -> Tensors:
    """Return a reply of the form that a schema demands: zeros, and integers that are allowed; symbols are 1."""

    def made(field: Field) -> Tensor:
        shape = [schema.exact.get(size, 1) if isinstance(size, str) else size for size in field.shape]
        if field.dtype.is_floating_point:
            return torch.zeros(shape, dtype=field.dtype)
        if field.distinct:
            return torch.arange(math.prod(shape), dtype=field.dtype).reshape(shape)
        return torch.full(shape, max(field.least or 0, 1 if field.below is None else 0), dtype=field.dtype)

    return {name: made(field) for slot in schema.up for name, field in slot[0].items()}


def scaled(rows: Tensor, length: float) -> Tensor:
    """Scale rows (K, d) so that the longest has a length."""
    longest: Tensor = rows.norm(dim=-1).max().clamp(min=1e-30)
    return rows * (length / longest)


@lru_cache(4)
def _simulated_round(
    seed: int, round: int, members: tuple[int, ...]
) -> tuple[dict[int, X25519PrivateKey], list[Pledge], bytes]:
    """Return keys, pledges and digest of a simulated round, whose signatures are made and checked."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from protonorm.core import masking

    context = f"simulation {seed} {round}".encode()
    keys: dict[int, Any] = {}
    identities: dict[bytes, Any] = {}
    pledges = []
    for id in members:
        drawn = hashlib.sha512(f"{seed} {round} {id}".encode()).digest()
        identity = masking.identity_from(int.from_bytes(drawn[:32], "big"))
        keys[id] = X25519PrivateKey.from_private_bytes(drawn[32:])
        pledges.append(masking.pledge(identity, keys[id], context))
        identities[pledges[-1].identity] = identity
    pledges.sort()
    digest = masking.digest_of_members(pledges, context, len(members))
    signatures = [masking.confirm(identities[each.identity], digest) for each in pledges]
    masking.check_confirmations(pledges, signatures, digest)
    return keys, pledges, digest
