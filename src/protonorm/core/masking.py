"""Pairwise masks that cancel in the sum over all members of a round: the cryptography of secure sums.

Pure functions on bytes and integers; they need `cryptography`. Each member makes a fresh X25519 key for the round and
signs it (pledge). Everybody signs the digest of all pledges (confirmation), so that nobody masks before all have the
same members. Each pair of members derives a ChaCha20 key; one adds the stream, the other subtracts it, modulo 2⁶⁴.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from numpy.typing import NDArray

VERSION = b"protonorm secure sum 1"
FRACTION = 32  # bits after the binary point
RANGE = 2**62  # bound of the magnitude of a sum, half of what 64 bits hold
IDENTITY, KEY, SIGNATURE = 49, 32, 96  # bytes: point of P-384, compressed; X25519 key; r and s
PLEDGE = IDENTITY + KEY + SIGNATURE
BLOCK = 2**17  # numbers that are masked at once: 1 MiB

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]
Identity = ec.EllipticCurvePrivateKey


class Pledge(NamedTuple):
    """Member of a round with its key for the round, signed by the key that the agreement names."""

    identity: bytes
    key: bytes
    signature: bytes

    def write(self) -> bytes:
        """Return the pledge as bytes."""
        return self.identity + self.key + self.signature

    @classmethod
    def read(cls, content: bytes) -> Pledge:
        """Split the bytes of a pledge; raise ValueError for another length."""
        if len(content) != PLEDGE:
            raise ValueError(f"A pledge must have {PLEDGE} bytes, got {len(content)}.")
        return cls(content[:IDENTITY], content[IDENTITY:-SIGNATURE], content[-SIGNATURE:])


def identity_of(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key as it stands in pledges."""
    return key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def public_key_of(identity: bytes) -> ec.EllipticCurvePublicKey:
    """Return the public key of a pledge; raise ValueError if it is none."""
    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), identity)


def identity_from(number: int) -> Identity:
    """Return the private key that a number gives, for simulations."""
    return ec.derive_private_key(number, ec.SECP384R1())


def pledge(identity: Identity, key: X25519PrivateKey, context: bytes) -> Pledge:
    """Sign a key for a round. `context` names the federation, its terms and the round."""
    public = key.public_key().public_bytes_raw()
    signature = _sign(identity, b"pledge", context, public)
    return Pledge(identity_of(identity.public_key()), public, signature)


def check_pledge(given: Pledge, context: bytes) -> None:
    """Raise ValueError if a pledge was not signed by its member for this round."""
    _check(given.identity, given.signature, b"pledge", context, given.key)


def is_valid(given: Pledge, context: bytes) -> bool:
    """Return whether a pledge was signed by its member for this context."""
    try:
        check_pledge(given, context)
    except ValueError:
        return False
    return True


def digest_of_members(pledges: Sequence[Pledge], context: bytes, least: int) -> bytes:
    """Return the digest of all members of a round and their keys; `pledges` are in the order of their identities.

    Raises ValueError for fewer members than `least`, two that are alike, another order, or a pledge that is not valid.
    """
    identities, keys = [each.identity for each in pledges], {each.key for each in pledges}
    if len(pledges) < least:
        raise ValueError(f"A secure sum must be of {least} members at least, got {len(pledges)}.")
    if len(keys) < len(pledges) or identities != sorted(set(identities)):
        raise ValueError("The members of a secure sum must be different, and in the order of their keys.")
    for each in pledges:
        check_pledge(each, context)
    listed = b"".join(each.identity + each.key for each in pledges)
    return hashlib.sha256(VERSION + b" members" + context + listed).digest()


def confirm(identity: Identity, digest: bytes) -> bytes:
    """Sign the digest of the members."""
    return _sign(identity, b"members", digest)


def check_confirmations(pledges: Sequence[Pledge], signatures: Sequence[bytes], digest: bytes) -> None:
    """Raise ValueError unless every member has signed the same digest."""
    if len(signatures) != len(pledges):
        raise ValueError(f"All {len(pledges)} members must have confirmed, got {len(signatures)} signatures.")
    for each, signature in zip(pledges, signatures, strict=True):
        _check(each.identity, signature, b"members", digest)


def masked(numbers: Integers, key: X25519PrivateKey, pledges: Sequence[Pledge], digest: bytes) -> Words:
    """Return the numbers with the masks of all pairs of this member, modulo 2⁶⁴; raise ValueError for another's key."""
    own = key.public_key().public_bytes_raw()
    position = [each.key for each in pledges].index(own)
    words = numbers.astype(np.uint64)  # a copy, modulo 2⁶⁴
    for place, each in enumerate(pledges):
        if place == position:
            continue
        shared = key.exchange(X25519PublicKey.from_public_bytes(each.key))  # raises for keys of small order
        pair = own + each.key if position < place else each.key + own
        stream = HKDF(hashes.SHA256(), 32, salt=None, info=VERSION + b" pair" + digest + pair).derive(shared)
        encryptor = Cipher(algorithms.ChaCha20(stream, bytes(16)), mode=None).encryptor()
        combine = np.add if position < place else np.subtract
        for block in (words[start : start + BLOCK] for start in range(0, len(words), BLOCK)):
            mask = np.frombuffer(encryptor.update(bytes(block.nbytes)), "<u8")
            combine(block, mask, out=block)
    return words


def to_fixed(numbers: NDArray[np.float64], members: int) -> Integers:
    """Round to fixed point; raise ValueError for what is not finite, or so large that a sum could overflow."""
    with np.errstate(over="ignore"):  # infinite numbers are refused
        steps = np.rint(numbers * 2.0**FRACTION)
    return checked(steps, members).astype(np.int64)


def checked(steps: NDArray[Any], members: int) -> NDArray[Any]:
    """Return numbers of a sum over so many members; raise ValueError if they are not finite, or could overflow."""
    bound = RANGE // members
    if not bool(((steps >= -bound) & (steps <= bound)).all()):  # false for NaN
        raise ValueError(
            f"The numbers of a secure sum of {members} members must be finite and at most {bound} in steps of "
            f"{2.0**-FRACTION:.1g}, so that the sum stays within 64 bits."
        )
    return steps


def from_fixed(steps: Integers) -> NDArray[np.float64]:
    """Return fixed-point numbers as floats."""
    return steps.astype(np.float64) * 2.0**-FRACTION


def _text(purpose: bytes, parts: Sequence[bytes]) -> bytes:
    return VERSION + b" " + purpose + b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def _sign(identity: Identity, purpose: bytes, *parts: bytes) -> bytes:
    r, s = decode_dss_signature(identity.sign(_text(purpose, parts), ec.ECDSA(hashes.SHA384())))
    return r.to_bytes(SIGNATURE // 2, "big") + s.to_bytes(SIGNATURE // 2, "big")


def _check(identity: bytes, signature: bytes, purpose: bytes, *parts: bytes) -> None:
    r, s = (int.from_bytes(half, "big") for half in (signature[: SIGNATURE // 2], signature[SIGNATURE // 2 :]))
    try:
        public_key_of(identity).verify(encode_dss_signature(r, s), _text(purpose, parts), ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, ValueError):
        raise ValueError("A signature of a member of the secure sum is not valid.") from None
