"""Secure sums: CPU seconds of a client in a round, by its steps, and the largest error of the sum."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protonorm.core import masking

from .results import silent

MEMBERS, NUMBERS = (5, 20, 100), 100 * 512
CONTEXT = b"benchmark"


def measure(
    notify: Callable[[str], None] = silent, members: Sequence[int] = MEMBERS, numbers: int = NUMBERS
) -> dict[str, Any]:
    """Sum random numbers of each number of members."""
    cases = []
    for count in members:
        notify(f"masks: {count} members")
        cases.append({"members": count} | of_members(count, numbers))
    return {"numbers": numbers, "cases": cases}


def of_members(count: int, numbers: int) -> dict[str, float]:
    """Return the mean CPU seconds of a member in each step, and the largest error of the sum."""
    spent: dict[str, float] = {}

    def timed(name: str, step: Callable[..., Any], *words: Any) -> Any:
        start = time.process_time()
        result = step(*words)
        spent[name] = spent.get(name, 0.0) + (time.process_time() - start) / count
        return result

    rng, keys, pledges, identities = np.random.default_rng(0), {}, [], {}
    for number in range(count):
        identity, key = masking.identity_from(number + 1), X25519PrivateKey.generate()
        own = timed("pledge", masking.pledge, identity, key, CONTEXT)
        keys[own.identity], identities[own.identity] = key, identity
        pledges.append(own)
    pledges.sort()
    digest = b""
    for _ in pledges:
        digest = timed("confirm", masking.digest_of_members, pledges, CONTEXT, count)
    signatures = [timed("confirm", masking.confirm, identities[each.identity], digest) for each in pledges]
    plain, total = np.zeros(numbers), np.zeros(numbers, np.uint64)
    for each in pledges:
        own_numbers = rng.normal(size=numbers)
        plain += own_numbers
        timed("confirm", masking.check_confirmations, pledges, signatures, digest)
        fixed = timed("mask", masking.to_fixed, own_numbers, count)
        total += timed("mask", masking.masked, fixed, keys[each.identity], pledges, digest)
    return spent | {"error": float(np.abs(masking.from_fixed(total.view(np.int64)) - plain).max())}


def table(result: dict[str, Any]) -> list[list[str]]:
    """Show a line for each number of members, headings first."""
    rows = [["members", "pledge, ms", "confirm, ms", "mask, ms", "largest error"]]
    for case in result["cases"]:
        steps = [f"{1000 * case[name]:.1f}" for name in ("pledge", "confirm", "mask")]
        rows.append([str(case["members"]), *steps, f"{case['error']:.1e}"])
    return rows
