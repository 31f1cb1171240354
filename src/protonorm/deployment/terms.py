"""Plain terms, as JSON: the one form that is hashed, in what two differ, and how they are shown in a sentence."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import StringConstraints

from protonorm.core.types import shortened

SHOWN = 8  # names that a sentence lists

Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]  # fit for a file's name
Host = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9:][A-Za-z0-9.:-]{0,252}$")]  # a name or an address


def canonical(plain: Mapping[str, Any]) -> bytes:
    """Write plain data in the one way that is hashed: names sorted, no spaces, ASCII."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def differing(one: Mapping[str, Any], two: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Name the terms in which two agreements differ, and how."""
    found = []
    for name in sorted({*one, *two}):
        left, right = one.get(name), two.get(name)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found += differing(left, right, f"{prefix}{name}.")
        elif left != right or type(left) is not type(right):
            found.append(f"{shortened(prefix + name)} ({word(left)} instead of {word(right)})")
    return found[:SHOWN]


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its members; no two may have one name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def no_number(text: str) -> Any:
    """Refuse NaN and Infinity, which are no JSON."""
    raise ValueError(f"{text} is not a number")


def word(value: Any) -> str:
    """Show a value in few words."""
    return shortened(value if isinstance(value, str) else json.dumps(value))


def listed(names: Sequence[str]) -> str:
    """Show the first names of a list, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(shortened(name, 40) for name in names[:SHOWN]) + more


def counted(names: Sequence[str]) -> str:
    """Say how many classes there are."""
    return "a class" if len(names) == 1 else f"{len(names)} classes"


def is_loopback(host: str) -> bool:
    """Tell whether a name or an address stands for this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_plaintext(host: str) -> None:
    """Refuse to speak to a host without TLS, unless it is this machine."""
    if not is_loopback(host):
        raise ValueError(f"Plaintext is for tests on one machine; {host} is another one: leave --plaintext away.")


def address_of(host: str, port: int) -> str:
    """Write host and port as one address; an address of IPv6 stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
