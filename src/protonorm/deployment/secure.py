"""Secure sums of a real federation: how the members of a round are fixed, confirmed and summed, on both sides.

Three calls make a round. A client trains, and answers with a pledge: a fresh key, signed by the key of its certificate.
It gets the pledges of all members, and signs their digest. It gets all signatures, and answers with its masked message.
Keys and updates stay in memory: a client that restarts in between burns the round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from protonorm.core import masking
from protonorm.core.frames import encode_body
from protonorm.core.masking import PLEDGE, SIGNATURE, Identity, Pledge
from protonorm.core.node import Client
from protonorm.core.schema import Field, Form, Schema, optional
from protonorm.core.secure_sum import integers_of, message_of
from protonorm.core.task import Lost, Order, Task
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.keys import key_fingerprint, public_line
from protonorm.deployment.ledger import Ledger
from protonorm.deployment.messages import USED, Answer, Kind
from protonorm.tensors import Tensors

OWN, PLEDGES, SIGNED, SIGNATURES = "pledge", "pledges", "signature", "signatures"  # tensors of bytes
Label = Callable[[int], str]  # names a client in messages
Ask = Callable[[Kind, Sequence[Order], Tensors], Mapping[int, Answer | Lost]]


def answer_schema(task: Task, kind: Kind) -> Schema:
    """Return the schema of the tensors that answer a request."""
    if not task.secure or kind == "mask":
        return task.received_schema
    name, size = (SIGNED, SIGNATURE) if kind == "members" else (OWN, PLEDGE)
    form: Form = {name: Field((size,), torch.uint8)}
    return Schema((optional(form) if "train" in kind else (form,),))


def context_of(agreement: Agreement, round: int, published: Tensors, *, sends: bool) -> bytes:
    """Return what a pledge is signed for: federation, terms, round, form, what was published, and whether it sends.

    All members must have trained from the same message, and either all or none have something to send: a server that
    chooses for each could make all contributions but one known or zero, and read the last one from the sum.
    """
    message = hashlib.sha256(encode_body(published)).hexdigest()
    size = agreement.task.layout.size
    text = f"{agreement.root} {agreement.digest} {round} {size} {masking.FRACTION} {message} {int(sends)}"
    return hashlib.sha256(text.encode()).digest()


def checked_members(agreement: Agreement, pledges: Sequence[Pledge], context: bytes) -> bytes:
    """Return the digest of the members of a round; raise ValueError unless all agree with the terms.

    Without noise all members of the agreement must take part: the difference of sums over other members would tell of
    one client.
    """
    known, least = set(agreement.members), agreement.least_answers
    for each in pledges:
        if key_fingerprint(public_line(masking.public_key_of(each.identity))) not in known:
            raise ValueError("A member of the secure sum is not one of the agreement.")
    return masking.digest_of_members(pledges, context, least)


class Member:
    """Client's part in secure sums."""

    def __init__(self, identity: Identity | None, ledger: Path, record: Callable[..., None]) -> None:
        self._identity, self._ledger, self._record = identity, ledger, record
        self._forget()

    def _forget(self) -> None:
        self.round = 0  # with a pledge
        self._key: X25519PrivateKey | None = None
        self._reply: Tensors = {}
        self._own: Pledge | None = None
        self._context = b""  # of the pledge
        self._terms = ""
        self._pledges: list[Pledge] = []
        self._digest = b""

    def used(self, agreement: Agreement, round: int) -> bool:
        """Return whether a message of the round or a later one may have been sent."""
        return any(
            each.agreement == agreement.root and each.round >= round for each in Ledger.read(self._ledger).masked
        )

    def pledge(self, agreement: Agreement, round: int, reply: Tensors, published: Tensors) -> Tensors:
        """Keep an update until its members are fixed; return a signed key."""
        if self._identity is None:
            raise ValueError("It has no key to sign with, which a secure sum needs.")
        self._forget()
        self.round, self._reply, self._key = round, reply, X25519PrivateKey.generate()
        self._terms, self._context = agreement.digest, context_of(agreement, round, published, sends=bool(reply))
        self._own = masking.pledge(self._identity, self._key, self._context)
        return {OWN: to_tensor(self._own.write())}

    def confirm(self, agreement: Agreement, round: int, message: Tensors) -> Tensors:
        """Check the members of a round, and sign their digest, once."""
        pledges = [Pledge.read(content) for content in rows_of(message, PLEDGES, PLEDGE)]
        expected = (round, agreement.digest) == (self.round, self._terms)
        if not expected or self._own not in pledges or self._identity is None:
            raise ValueError("Its pledge for the secure sum of this round is not there.")
        digest = checked_members(agreement, pledges, self._context)
        if self._digest not in (b"", digest):
            raise ValueError("It has confirmed other members of this round.")
        self._pledges, self._digest = pledges, digest
        return {SIGNED: to_tensor(masking.confirm(self._identity, digest))}

    def mask(self, agreement: Agreement, client: Client, message: Tensors, charge: Callable[[], None]) -> Tensors:
        """Mask the update, once all members have confirmed; the round is recorded as used before, and keys are erased.

        The message has the signatures in the order of the pledges; `charge` records a release with a claim of privacy.
        """
        expected = (client.round, agreement.digest) == (self.round, self._terms)
        if not expected or not self._digest or self._key is None:
            raise ValueError("It has confirmed no members of this round.")
        masking.check_confirmations(self._pledges, rows_of(message, SIGNATURES, SIGNATURE), self._digest)
        integers = integers_of(agreement.task, client, self._reply, len(self._pledges))
        update = hashlib.sha256(integers.tobytes()).hexdigest() if self._reply else ""
        Ledger.read(self._ledger).use(self._ledger, agreement.root, self.round, update)
        if self._reply:
            charge()
        self._record("masked", round=self.round, members=len(self._pledges), digest=self._digest.hex())
        words = masking.masked(integers, self._key, self._pledges, self._digest)
        self._forget()
        return message_of(words)


def collect(
    agreement: Agreement,
    orders: Sequence[Order],
    answers: Mapping[int, Answer],
    published: Tensors,
    ask: Ask,
    label: Label = lambda id: f"client {id}",
) -> dict[int, Any]:
    """Fix the members of a round among the clients that have pledged, and return their masked messages by client.

    Members are those that have something to send, if they are enough, and else those that have nothing. Raises
    ValueError if the round is burned.
    """
    if again := [id for id, answer in answers.items() if answer.header.metrics.get(USED)]:
        raise ValueError(f"{label(again[0])} had sent its message before the server was restarted")
    (round,) = {order.round for order in orders}
    contexts = {sends: context_of(agreement, round, published, sends=sends) for sends in (True, False)}
    given = {id: Pledge.read(bytes(answer.message[OWN].tolist())) for id, answer in answers.items()}
    silent = {id for id, each in given.items() if not masking.is_valid(each, contexts[True])}
    sends = len(given) - len(silent) >= agreement.least_answers
    pledges = {id: each for id, each in given.items() if (id not in silent) == sends}
    ids = sorted(pledges, key=lambda id: pledges[id].identity)
    members = [order for id in ids for order in orders if order.id == id]
    digest = checked_members(agreement, [pledges[id] for id in ids], contexts[sends])
    stacked = torch.stack([to_tensor(pledges[id].write()) for id in ids])
    confirmed = all_of(ask("members", members, {PLEDGES: stacked}), label)
    signatures = [confirmed[id].message[SIGNED] for id in ids]
    masking.check_confirmations([pledges[id] for id in ids], [bytes(each.tolist()) for each in signatures], digest)
    masked = all_of(ask("mask", members, {SIGNATURES: torch.stack(signatures)}), label)
    return {id: answer.message for id, answer in masked.items()}


def all_of(outcomes: Mapping[int, Answer | Lost], label: Label) -> dict[int, Answer]:
    """Return the answers if all members gave one; raise ValueError otherwise."""
    for outcome in outcomes.values():
        if isinstance(outcome, Lost):
            raise ValueError(f"{label(outcome.id)} dropped out: {outcome.reason.rstrip('.')}")
    return {id: outcome for id, outcome in outcomes.items() if isinstance(outcome, Answer)}


def rows_of(message: Tensors, name: str, width: int) -> list[bytes]:
    """Return the rows of a request's tensor of bytes; raise ValueError for anything else."""
    value = message.get(name)
    if value is None or len(message) > 1 or value.dtype != torch.uint8 or value.ndim != 2 or value.shape[1] != width:
        raise ValueError(f"The request must hold {name} alone, rows of {width} bytes.")
    return [bytes(row) for row in value.tolist()]


def to_tensor(content: bytes) -> Tensor:
    """Return bytes as a tensor."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
