"""Masks against an independent computation and published vectors, their statistics, and what a lying server gets."""

import hashlib
import hmac
import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protonorm.core import masking
from protonorm.core.masking import Pledge, check_confirmations, confirm, digest_of_members, masked, pledge, to_fixed

CONTEXT = b"federation, terms, round 1"
# RFC 7748, section 6.1: private and public keys of Alice and Bob, and their shared secret
ALICE, ALICE_PUBLIC, BOB, BOB_PUBLIC, SHARED = map(
    bytes.fromhex,
    (
        "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
        "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
        "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
        "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
        "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742",
    ),
)


def chacha20(key, length):
    """Stream of RFC 8439 with counter and nonce 0, in Python alone."""

    def block(counter):
        start = list(struct.unpack("<4I", b"expand 32-byte k")) + list(struct.unpack("<8I", key)) + [counter, 0, 0, 0]
        x = list(start)

        def quarter(a, b, c, d):
            for left, right, other, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[left] = (x[left] + x[right]) & 0xFFFFFFFF
                mixed = x[other] ^ x[left]
                x[other] = (mixed << turn | mixed >> (32 - turn)) & 0xFFFFFFFF

        for _ in range(10):
            for column in range(4):
                quarter(column, column + 4, column + 8, column + 12)
            for place in range(4):
                quarter(place, 4 + (place + 1) % 4, 8 + (place + 2) % 4, 12 + (place + 3) % 4)
        return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(x, start, strict=True)))

    return b"".join(block(counter) for counter in range(-(-length // 64)))[:length]


def hkdf(secret, info):
    """32 bytes of RFC 5869 with SHA-256 and no salt."""
    return hmac.new(hmac.digest(bytes(32), secret, "sha256"), info + b"\1", hashlib.sha256).digest()


def members_of(count, context=CONTEXT):
    """Return identities and keys of members, in their order, with their pledges."""
    made = []
    for number in range(count):
        identity = masking.identity_from(number + 1)
        key = X25519PrivateKey.from_private_bytes(hashlib.sha256(bytes([number])).digest())
        made.append((pledge(identity, key, context), identity, key))
    made.sort(key=lambda each: each[0].identity)
    pledges, identities, keys = zip(*made, strict=True)
    return list(pledges), identities, keys


def test_the_mask_is_that_of_the_standards():
    """RFC 7748's two parties; HKDF and ChaCha20 of the test, of which the latter has RFC 8439's stream (A.1, 1)."""
    assert chacha20(bytes(32), 64).hex().startswith("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    alice, bob = (X25519PrivateKey.from_private_bytes(key) for key in (ALICE, BOB))
    pledges = [Pledge(b"a", ALICE_PUBLIC, b""), Pledge(b"b", BOB_PUBLIC, b"")]
    digest, numbers = hashlib.sha256(b"members").digest(), np.array([5, -7, 2**62] + [0] * 30)
    info = b"protonorm secure sum 1 pair" + digest + ALICE_PUBLIC + BOB_PUBLIC
    stream = struct.unpack("<33Q", chacha20(hkdf(SHARED, info), 33 * 8))
    for key, sign in ((alice, 1), (bob, -1)):
        expected = [(int(number) + sign * mask) % 2**64 for number, mask in zip(numbers, stream, strict=True)]
        assert masked(numbers, key, pledges, digest).tolist() == expected


@pytest.mark.parametrize("count", [2, 5])
def test_masks_cancel_in_the_sum_of_all_and_in_no_other(count, monkeypatch):
    """Exactly, also of negative numbers, across blocks of the stream; the sum without one member is of noise."""
    monkeypatch.setattr(masking, "BLOCK", 7)
    pledges, _, keys = members_of(count)
    digest = digest_of_members(pledges, CONTEXT, count)
    numbers = np.random.default_rng(0).integers(-(2**60), 2**60, (count, 50))
    sent = [masked(own, key, pledges, digest) for own, key in zip(numbers, keys, strict=True)]
    assert np.sum(sent, axis=0, dtype=np.uint64).view(np.int64).tolist() == numbers.sum(0).tolist()
    part = np.sum(sent[1:], axis=0, dtype=np.uint64).view(np.int64)
    assert not (part == numbers[1:].sum(0)).any()
    assert (masked(numbers[0], keys[0], pledges, digest) == sent[0]).all()


def test_a_transcript_tells_nothing_of_one_client_s_numbers():
    """All bytes of masked zeros, ones and large numbers are uniform: χ² of 255 degrees of freedom below 255 + 5·√510.

    So are the bytes of the difference of two rounds with the same numbers, of which the masks differ.
    """
    sent = []
    for number, round in ((0, 1), (1, 1), (2**60, 1), (1, 2)):
        context = CONTEXT + bytes([round])
        pledges, _, keys = members_of(3, context)  # the same keys in each round
        digest = digest_of_members(pledges, context, 3)
        sent += [masked(np.full(20_000, number), key, pledges, digest) for key in keys]
    differences = [sent[9 + place] - sent[3 + place] for place in range(3)]
    for words in [*sent, *differences]:
        counts = np.bincount(words.view(np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert ((counts - expected) ** 2 / expected).sum() < 255 + 5 * 510**0.5
    assert all(len(np.unique(words)) == len(words) for words in sent)


def test_a_server_that_drops_repeats_or_invents_members_gets_no_digest_to_sign():
    pledges, _, _ = members_of(4)
    stranger = pledge(masking.identity_from(99), X25519PrivateKey.generate(), CONTEXT)
    with pytest.raises(ValueError, match="must be of 4 members at least, got 3"):
        digest_of_members(pledges[1:], CONTEXT, 4)
    for wrong in ([*pledges, pledges[-1]], pledges[::-1]):
        with pytest.raises(ValueError, match="must be different, and in the order of their keys"):
            digest_of_members(wrong, CONTEXT, 2)
    invented = sorted([*pledges[:3], stranger._replace(identity=pledges[3].identity)])
    with pytest.raises(ValueError, match="signature of a member of the secure sum is not valid"):
        digest_of_members(invented, CONTEXT, 2)
    same_key = sorted([*pledges[:3], pledge(masking.identity_from(77), members_of(4)[2][0], CONTEXT)])
    with pytest.raises(ValueError, match="must be different"):
        digest_of_members(same_key, CONTEXT, 2)
    with pytest.raises(ValueError, match="is not valid"):  # of another round
        digest_of_members(pledges, CONTEXT + b"1", 2)


def test_nobody_masks_before_all_have_signed_the_same_members():
    """The server shows one member others than the rest: two digests, of which no client gets all signatures."""
    pledges, identities, _ = members_of(4)
    digests = [digest_of_members(part, CONTEXT, 3) for part in (pledges, pledges[:3])]
    signatures = [confirm(identity, digests[0]) for identity in identities]
    check_confirmations(pledges, signatures, digests[0])
    assert digests[0] != digests[1]
    for wrong, digest in (
        ([*signatures[:3], confirm(identities[3], digests[1])], digests[0]),
        ([signatures[0]] * 4, digests[0]),
        ([*signatures[:3], bytes(96)], digests[0]),
        (signatures, digests[1]),
    ):
        with pytest.raises(ValueError, match="is not valid"):
            check_confirmations(pledges, wrong, digest)
    with pytest.raises(ValueError, match="All 4 members must have confirmed, got 3"):
        check_confirmations(pledges, signatures[:3], digests[0])


def test_a_degenerate_key_is_refused():
    """With the key 0 the shared secret of RFC 7748 is 0, whatever the other key is."""
    key = X25519PrivateKey.generate()
    pledges = [Pledge(b"a", key.public_key().public_bytes_raw(), b""), Pledge(b"b", bytes(32), b"")]
    with pytest.raises(ValueError, match="shared key"):
        masked(np.zeros(3, np.int64), key, pledges, bytes(32))


def test_fixed_point_is_exact_to_its_last_bit_and_an_overflow_is_refused():
    """Steps of 2⁻³²; of 4 members each number is below 2⁶²/4 steps, 2²⁸."""
    assert to_fixed(np.array([0.75, -1.5, 2.0**-33 * 3, 2.0**28]), 4).tolist() == [3 * 2**30, -3 * 2**31, 2, 2**60]
    assert masking.from_fixed(np.array([3 * 2**30, -(2**60)])).tolist() == [0.75, -(2.0**28)]
    for wrong in (2.0**28 + 1, -(2.0**28) - 1, float("nan"), float("inf"), 1e300):
        with pytest.raises(ValueError, match="must be finite and at most 1152921504606846976 in steps of 2e-10"):
            to_fixed(np.array([0.0, wrong]), 4)


def test_a_pledge_of_another_length_is_refused():
    whole = members_of(2)[0][0]
    assert Pledge.read(whole.write()) == whole
    with pytest.raises(ValueError, match="must have 177 bytes, got 176"):
        Pledge.read(whole.write()[1:])
