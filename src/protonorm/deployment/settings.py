"""Settings of federations and clients, and JSON documents: canonical form, differences, addresses. No torch."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from annotated_types import Ge, Gt, Le, MaxLen, MinLen
from pydantic import (
    AfterValidator,
    AllowInfNan,
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from protonorm.core.settings import sentences
from protonorm.core.text import shortened, visible
from protonorm.core.training import OPTIMISERS, MinimumCount, Training
from protonorm.core.types import MAX_INT, Count, Format, Fraction, shown
from protonorm.models import FROZEN, is_frozen

SHOWN = 8  # maximal number of names listed in a message


def _matching(pattern: str, description: str) -> AfterValidator:
    """Return a validator of strings, which describes in words what the pattern accepts."""

    def check(value: str, info: ValidationInfo) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"{info.field_name} must be {description}, got {shown(value)}.")
        return value

    return AfterValidator(check)


WORD = "a word of at most 63 letters, digits, dots, - and _ that begins with a letter or digit"
HOST = "a host name or address without scheme, port or path"
Word = Annotated[str, _matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", WORD)]  # valid as a file name
Host = Annotated[str, _matching(r"[A-Za-z0-9:][A-Za-z0-9.:-]{0,252}", HOST)]
PORT = 9092  # default port
KINDS = {".npz": "npz", ".csv": "table", ".tsv": "table"}  # of data, by file suffix
OWN = ("folder", "npz", "array", "table", "text", "hf")  # kinds of data given as kind:PATH
Port = Annotated[int, Ge(1), Le(65535)]
Allowed = Literal["off", "accuracy", "classes"]  # evaluation results that an owner lets the server receive


def read_object(content: bytes, where: str, largest: int, expected: str = "an object") -> dict[str, Any]:
    """Parse a received JSON object, or raise ValueError."""
    from protonorm.core.frames import strict_json  # imports torch

    if len(content) > largest:
        raise ValueError(f"{where} has {len(content)} bytes; {largest} at most are expected.")
    try:
        plain = strict_json(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} cannot be read: {shortened(str(error))}") from None
    if not isinstance(plain, dict):
        raise ValueError(f"{where} holds a {type(plain).__name__}; expected {expected}.")
    return plain


def canonical(plain: Mapping[str, Any]) -> bytes:
    """Return the canonical JSON that is hashed: sorted names, no spaces, ASCII."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def differing(first: Mapping[str, Any], second: Mapping[str, Any], prefix: str = "") -> list[str]:
    """List the terms in which two agreements differ, with both values."""
    terms = []
    for name in sorted({*first, *second}):
        left, right = first.get(name), second.get(name)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            terms += differing(left, right, f"{prefix}{name}.")
        elif left != right or type(left) is not type(right):
            terms.append(f"{shortened(prefix + name)} ({_difference(left, right)})")
    return terms[:SHOWN]


def _difference(left: Any, right: Any) -> str:
    """Format two values that differ: of lists what came and went, of certificates only that it is another one."""
    if isinstance(left, list) and isinstance(right, list) and (left or right):
        parts = (
            ("with", [one for one in left if one not in right]),
            ("without", [one for one in right if one not in left]),
        )
        if told := [f"{word} {', '.join(map(short_value, some[:SHOWN]))}" for word, some in parts if some]:
            return ", ".join(told)
    if isinstance(left, str) and left.startswith("-----BEGIN"):
        return "another one"
    return f"{short_value(left)} instead of {short_value(right)}"


def short_value(value: Any) -> str:
    """Format a value, truncated."""
    return shortened(value if isinstance(value, str) else json.dumps(value))


def full_value(value: Any) -> str:
    """Format a value, however long it is."""
    return visible(value if isinstance(value, str) else json.dumps(value))


def listed(names: Sequence[str]) -> str:
    """Format the first names of a list, and the number of the others."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(shortened(name, 40) for name in names[:SHOWN]) + more


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def address_of(host: str, port: int) -> str:
    """Format host and port as an address, with IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Document(BaseModel):
    """JSON document of a federation; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def checked(cls, plain: Mapping[str, Any], where: str) -> Self:
        """Validate plain data, or raise ValueError with one sentence per problem."""
        format = plain.get("format", 1)
        if "format" in cls.model_fields and isinstance(format, int) and format != 1:
            raise ValueError(
                f"{where} is of another version of protonorm: format must be 1, got {shown(format)}. All parties need "
                "one version."
            )
        try:
            return cls.model_validate(dict(plain))
        except ValidationError as error:
            known: dict[str, Any] = {name: [] for name in cls.model_fields}
            raise ValueError(sentences(error, known, where, hint=lambda name: cls.hint(name, plain))) from None

    @classmethod
    def hint(cls, name: str, plain: Mapping[str, Any]) -> str | None:
        """Return a hint for an unknown field; None to list the known ones."""
        return None

    def plain(self) -> dict[str, Any]:
        """Return the document as plain data."""
        return self.model_dump(mode="json")

    def write(self) -> bytes:
        """Return the document as indented JSON."""
        return json.dumps(self.plain(), indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical form."""
        return hashlib.sha256(canonical(self.plain())).hexdigest()

    @property
    def fingerprint(self) -> str:
        """Number of 24 digits from the digest, 80 bits, in groups of four: to be read aloud."""
        digits = f"{int(self.digest, 16) % 10**24:024}"
        return " ".join(digits[start : start + 4] for start in range(0, 24, 4))


class TlsFiles(NamedTuple):
    """TLS files of a server or client."""

    authority: Path  # certificate that authenticates the other side
    certificate: Path
    key: Path


class Settings(Document):
    """Settings of a party."""

    whose: ClassVar[str]

    @classmethod
    def of(cls, plain: Mapping[str, Any], where: str = "") -> Self:
        """Validate settings, or raise ValueError; folders of earlier versions say that there is no plaintext."""
        kept = {name: value for name, value in plain.items() if (name, value) != ("plaintext", False)}
        return cls.checked(kept, where or cls.whose)


class FederationSettings(Settings):
    """Settings of a federation's server: addresses, quorum and deadline."""

    whose: ClassVar[str] = "The federation"

    format: Format = 1
    name: Word
    hosts: Annotated[list[Host], MinLen(1), MaxLen(32)]  # names and addresses of the server; clients use the first
    bind: Host = "0.0.0.0"  # address that the server listens at: by default all of the machine
    port: Port = PORT
    quorum: Fraction = 0.5  # share of the clients that must answer for a round to count
    deadline: Annotated[float, Gt(0), Le(MAX_INT), AllowInfNan(False)] = 600.0  # seconds that clients have in a round
    grace: Annotated[float, Gt(0), Le(MAX_INT), AllowInfNan(False)] | None = None  # seconds for others once a quorum
    # has answered; None: as long again as the quorum took, and 30 seconds at least
    patience: Count = 3  # consecutive rounds after which a late or refused client is set aside
    metrics_port: Port | None = None  # Prometheus port, on the loopback address only; None: no metrics
    per_address: Count = 256  # connections of one address; behind a TCP proxy all clients have the proxy's

    @model_validator(mode="after")
    def _two_ports(self) -> Self:
        if self.metrics_port == self.port:
            raise ValueError(f"Clients and figures cannot both have the port {self.port}.")
        return self

    @property
    def host(self) -> str:
        """Name or address that clients use."""
        return self.hosts[0]


class ClientSettings(Training, Settings):
    """Settings of a client's owner, including all training settings; none is sent to the server."""

    whose: ClassVar[str] = "The client"

    format: Format = 1
    name: Word
    data: str | dict[str, Any] = ""  # folder:PATH, npz:PATH, table:PATH and so on, or a component with settings
    model: Annotated[str, MaxLen(4096)] | None = None  # network name, or file.py:function on this machine
    optimiser: str = "sgd"  # or file.py:function on this machine
    allowed: Allowed = "off"  # evaluation results that the server may receive
    split: Literal["random", "content"] = "content"  # a folder that grows keeps its test samples

    @field_validator("optimiser")
    @classmethod
    def _known_optimiser(cls, value: str) -> str:
        file, colon, name = value.rpartition(".py:")
        if not colon and value not in OPTIMISERS:
            raise ValueError(f"optimiser must be {', '.join(OPTIMISERS)} or file.py:NAME, got {shown(value)}.")
        return f"{_absolute(f'{file}.py')}:{name}" if colon else value

    @field_validator("epochs", "batch_size", "lr", "local_steps")
    @classmethod
    def _one_value(cls, value: Any) -> Any:
        if isinstance(value, tuple):
            raise ValueError(f"epochs, batch_size, lr, local_steps must be one number each, got {shown(list(value))}.")
        return value

    @model_validator(mode="after")
    def _refuse_counts_with_privacy(self) -> Self:
        if self.protect.private and self.allowed != "off":
            raise ValueError(
                f"evaluation must be off with noise, as counts have none, got {self.allowed}: give --evaluation off."
            )
        if isinstance(self.protect, MinimumCount) and self.allowed == "classes":
            raise ValueError(
                "allowed must be off or accuracy with protect=minimum_count, because counts by class tell of the "
                "classes that are kept back, got classes."
            )
        if self.protect.per_sample and self.split != "content":
            raise ValueError(
                "split must be content with a claim of privacy for single samples, because in another split one sample "
                f"moves others, got {self.split}."
            )
        if self.protect.per_sample and is_scaled(self.data):
            raise ValueError(
                "data must not be scaled by its own samples with a claim of privacy, because one sample then changes "
                "all others: give vectors with data.standardise=false, or pictures."
            )
        return self

    @field_validator("data")
    @classmethod
    def _infer_kind(cls, value: str | dict[str, Any]) -> str | dict[str, Any]:
        """Infer the kind of data from a plain path; make paths absolute, since services start in another folder."""
        if isinstance(value, dict):
            path = value.get("path")
            return {**value, "path": _absolute(path)} if isinstance(path, str) and path else value
        kind, colon, rest = value.partition(":")
        if not value or (colon and kind in OWN):
            return f"{kind}:{_absolute(rest)}" if value else value
        file = Path(value).expanduser()
        if file.is_dir():
            return f"folder:{_absolute(value)}"
        if file.is_file() and file.suffix.lower() in KINDS:
            return f"{KINDS[file.suffix.lower()]}:{_absolute(value)}"
        if file.exists():
            raise ValueError(f"{shown(value)} may be data of several kinds; say which, such as table:{value}.")
        raise ValueError(f"There are no data {value}; expected a folder of pictures, an npz file or a table.")

    @field_validator("model")
    @classmethod
    def _make_absolute(cls, value: str | None) -> str | None:
        start = FROZEN if is_frozen(value) else ""
        rest = (value or "").removeprefix(start)
        source, equals, weights = rest.partition("=") if start else (rest, "", "")
        file, colon, name = source.rpartition(".py:")
        if equals:
            return f"{start}{source}={_absolute(weights)}"
        return f"{start}{_absolute(f'{file}.py')}:{name}" if colon else value


def is_scaled(data: str | dict[str, Any]) -> bool:
    """Return whether samples are scaled by the others of a client: tables, and vectors unless said otherwise."""
    name, settings = (data["name"], data) if isinstance(data, dict) else (data.partition(":")[0], {})
    return name == "table" or (name == "array" and settings.get("standardise", True))


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())
