"""Settings of a federation, which its server's owner decides, and of a client, which its owner decides alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import AllowInfNan, BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from protonorm.core.complaints import sentences
from protonorm.core.types import LARGEST, Count, Fraction, NonNegative, Positive, Share, shown
from protonorm.deployment.terms import Host, Word, is_loopback

PORT = 9092  # if nobody says otherwise
KINDS = {".npz": "npz", ".csv": "table", ".tsv": "table"}  # of data, by the end of a file's name
OWN = ("folder", "npz", "array", "table", "text", "hf")  # kinds of data that a path follows

Port = Annotated[int, Ge(1), Le(65535)]
Allowed = Literal["off", "accuracy", "classes"]


class Settings(BaseModel):
    """Settings that are read from a file, or given in words."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def of(cls, plain: dict[str, Any], where: str = "") -> Self:
        """Read settings, or say in sentences what is wrong with them."""
        try:
            return cls.model_validate(plain)
        except ValidationError as error:
            raise ValueError(sentences(error, {name: [] for name in cls.model_fields}, where or cls.whose())) from None

    @classmethod
    def whose(cls) -> str:
        """Say whose settings they are, at the beginning of a sentence."""
        return "It"


class FederationSettings(Settings):
    """How a federation is reached, and when its rounds count."""

    format: Literal[1] = 1
    name: Word
    hosts: Annotated[list[Host], MinLen(1), MaxLen(32)]  # names and addresses of the server; clients use the first
    bind: Host = "0.0.0.0"  # the address that the server listens at: all that the machine has
    port: Port = PORT
    quorum: Fraction = 0.5  # share of the clients that must answer for a round to count
    deadline: Annotated[float, Gt(0), Le(LARGEST), AllowInfNan(False)] = 600.0  # seconds that clients have in a round
    metrics_port: Port | None = None  # where Prometheus finds figures, on this machine alone; None: nowhere
    plaintext: bool = False  # no TLS: only where nothing leaves the machine

    @classmethod
    def whose(cls) -> str:
        """Say whose settings they are, at the beginning of a sentence."""
        return "The federation"

    @model_validator(mode="after")
    def _plaintext_on_this_machine_alone(self) -> Self:
        for host in [*self.hosts, self.bind] if self.plaintext else []:
            if not is_loopback(host):
                raise ValueError(f"Plaintext is for tests on one machine; {host} can be reached from others: use TLS.")
        if self.metrics_port == self.port:
            raise ValueError(f"Clients and figures cannot both have the port {self.port}.")
        return self

    @property
    def host(self) -> str:
        """Give the name or address that clients use."""
        return self.hosts[0]


class ClientSettings(Settings):
    """What the owner of a client decides alone; the server learns none of it."""

    format: Literal[1] = 1
    name: Word
    data: str | dict[str, Any] = ""  # folder:PATH, npz:PATH, table:PATH and so on, or such a name and its settings
    model: Annotated[str, MaxLen(4096)] | None = None  # a network's name, or file.py:function of this machine
    lr: Positive = 0.01
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    weight_decay: NonNegative = 0.0
    epochs: Count = 1  # a round
    batch_size: Annotated[int, Ge(2), Le(LARGEST)] = 32
    device: Annotated[str, MaxLen(100)] = "cpu"
    train: Share = 0.75  # of its samples; the others test. A split of the data's own is kept
    validation: Annotated[float, Ge(0), Lt(1)] = 0.1  # share of the training part that is held out
    lowering: bool = True  # exact forms of convolutions that a CPU computes faster
    allowed: Allowed = "off"  # what the server may know of the client's evaluation
    plaintext: bool = False  # no TLS: only where nothing leaves the machine

    @classmethod
    def whose(cls) -> str:
        """Say whose settings they are, at the beginning of a sentence."""
        return "The client"

    @field_validator("data")
    @classmethod
    def _by_its_place(cls, value: str | dict[str, Any]) -> str | dict[str, Any]:
        """Let a path alone stand for the data there; write it whole, for a service begins elsewhere."""
        if isinstance(value, dict):
            path = value.get("path")
            return {**value, "path": _whole(path)} if isinstance(path, str) and path else value
        kind, colon, rest = value.partition(":")
        if not value or (colon and kind in OWN):
            return f"{kind}:{_whole(rest)}" if value else value
        place = Path(value).expanduser()
        if place.is_dir():
            return f"folder:{_whole(value)}"
        if place.is_file() and place.suffix.lower() in KINDS:
            return f"{KINDS[place.suffix.lower()]}:{_whole(value)}"
        if place.exists():
            raise ValueError(f"{shown(value)} may be data of several kinds; say which, such as table:{value}.")
        raise ValueError(f"There are no data {value}; expected a folder of pictures, an npz file or a table.")

    @field_validator("model")
    @classmethod
    def _in_its_place(cls, value: str | None) -> str | None:
        file, colon, name = (value or "").rpartition(".py:")
        return f"{_whole(f'{file}.py')}:{name}" if colon else value


def _whole(path: str) -> str:
    return str(Path(path).expanduser().resolve())
