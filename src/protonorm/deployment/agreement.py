"""What the parties of a real federation agree on: a small JSON file, and its SHA-256, which every message carries."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
from annotated_types import Ge, Le, MaxLen, MinLen
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from protonorm.algorithms import ALGORITHMS
from protonorm.config.components import build, describe
from protonorm.config.plain import check_plain
from protonorm.core.algorithm import Algorithm
from protonorm.core.complaints import sentences
from protonorm.core.registry import find, nearest
from protonorm.core.task import InputSpec, Task
from protonorm.core.types import LARGEST, Count, Positive, Seed, Width, shortened, shown
from protonorm.deployment.terms import canonical, counted, differing, listed, no_number, once, word
from protonorm.models import MODELS
from protonorm.models.choose import Recipe
from protonorm.models.libraries import LibraryNetwork

LARGEST_FILE = 2**22  # bytes of an agreement
MOST_CLASSES = 100_000
GROUPS, DIGITS = 5, 4  # of the fingerprint that people read to each other: 80 bits

ClassName = Annotated[str, MinLen(1), MaxLen(200)]
Part = Literal["validation", "test"]


class InputTerms(BaseModel):
    """What one sample is, where a network is shared: all clients' samples are alike then."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    shape: Annotated[list[Annotated[int, Ge(1), Le(2**20)]], MinLen(1), MaxLen(3)]  # (H, W, C), (D,) or (L,)
    type: Literal["uint8", "float32", "int64"]
    vocabulary: Annotated[int, Ge(2), Le(2**18)] | None = None  # V, if it is tokens


class Agreement(BaseModel):
    """The terms. Everything in it is plain data: names of what every party has, never code."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1]
    algorithm: dict[str, Any]  # its name, and all of its settings
    classes: Annotated[list[ClassName], MinLen(2), MaxLen(MOST_CLASSES)]  # K names; their order is that of the numbers
    feature_dim: Width  # d
    rounds: Count  # R
    seed: Seed  # of all that is random and protects nobody
    input: InputTerms | None = None  # only where a network is shared
    shared_network: ClassName | None = None  # everybody's network, or the second one that clients share
    head_bias: bool = True  # whether heads have a bias; only where heads are shared
    server_lr: Positive = 0.01  # of what the server trains
    server_batch_size: Annotated[int, Ge(2), Le(LARGEST)] = 32
    evaluated: list[Part] = ["test"]  # parts of their samples on which clients may be asked to count right answers
    evaluate_every: Count = 1  # rounds

    @classmethod
    def of(cls, settings: Mapping[str, Any], dataset: str = "") -> Self:
        """Make an agreement from plain settings; those of the method that are not given take their usual values."""
        plain = {"format": 1, **settings}
        if isinstance(plain.get("algorithm"), str):
            plain["algorithm"] = {"name": plain["algorithm"]}
        method = _method(plain.get("algorithm"))
        network = plain.get("shared_network")
        method = method.adapted(dataset, [network] if isinstance(network, str) else [])
        return cls._checked({**plain, "algorithm": _plain(describe("algorithm", method))})

    @classmethod
    def of_task(cls, task: Task, evaluated: Sequence[str] = ("test",), evaluate_every: int = 1) -> Self:
        """Write down a task, if its method and network are known to everybody by their names."""
        shared = task.shared_network
        if shared is not None and not isinstance(shared.describe(), str):
            raise ValueError(f"The network {shared.name} is code of one party's own; a federation shares named ones.")
        settings = {name: getattr(task, name) for name in ("feature_dim", "rounds", "seed", "head_bias", "server_lr")}
        spec = task.input.describe() if shared is not None and task.input is not None else None
        return cls._checked(
            settings
            | {
                "format": 1,
                "algorithm": _plain(describe("algorithm", task.algorithm)),
                "classes": list(task.classes),
                "input": spec,
                "shared_network": None if shared is None else shared.name,
                "server_batch_size": task.server_batch_size,
                "evaluated": list(evaluated),
                "evaluate_every": evaluate_every,
            }
        )

    @classmethod
    def read(cls, content: bytes, where: str = "The agreement") -> Self:
        """Read what `write` wrote; anything else, also what only another version understands, is refused."""
        if len(content) > LARGEST_FILE:
            raise ValueError(f"{where} has {len(content)} bytes; {LARGEST_FILE} at most are expected.")
        try:
            plain = json.loads(content, object_pairs_hook=once, parse_constant=no_number)
            check_plain(plain)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where} cannot be read: {shortened(str(error))}") from None
        if not isinstance(plain, dict):
            raise ValueError(f"{where} holds a {type(plain).__name__}; expected an object of terms.")
        found = cls._checked(plain)
        if canonical(plain) != canonical(found.plain()):
            other = ", ".join(differing(plain, found.plain()))
            raise ValueError(f"{where} does not say all terms as this version does: {other}. Use the same version.")
        return found

    @classmethod
    def _checked(cls, plain: Mapping[str, Any]) -> Self:
        try:
            return cls.model_validate(dict(plain))
        except ValidationError as error:
            raise ValueError(sentences(error, {name: [] for name in cls.model_fields}, "The agreement")) from None

    @field_validator("algorithm")
    @classmethod
    def _fill_in(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _plain(describe("algorithm", _method(value)))

    @field_validator("classes", "evaluated")
    @classmethod
    def _no_two_alike(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            twice = Counter(value).most_common(1)[0][0]
            raise ValueError(f"The agreement names {shown(twice)} twice.")
        return value

    @field_validator("shared_network")
    @classmethod
    def _known_network(cls, value: str | None) -> str | None:
        if value is not None and value not in MODELS and (".py:" in value or LibraryNetwork.of(value) is None):
            raise ValueError(f"Nobody else has the network {shown(value)}; {nearest(shortened(value), MODELS)}")
        return value

    @model_validator(mode="after")
    def _shares_what_the_method_needs(self) -> Self:
        method = _method(self.algorithm)
        needed = method.auxiliary or method.needs_shared_network
        if needed and (self.shared_network is None or self.input is None):
            name = self.algorithm["name"]
            raise ValueError(f"{name} needs a network that all clients share: give shared_network and input.")
        return self

    def plain(self) -> dict[str, Any]:
        """Give the terms as plain data."""
        return self.model_dump(mode="json")

    def write(self) -> bytes:
        """Write the terms as JSON for people; `read` reads it."""
        return json.dumps(self.plain(), indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"

    @cached_property
    def digest(self) -> str:
        """Condense the terms to the SHA-256 of their canonical form."""
        return hashlib.sha256(canonical(self.plain())).hexdigest()

    @property
    def fingerprint(self) -> str:
        """Give the beginning of the digest in groups, to be read to each other."""
        return " ".join(self.digest[DIGITS * place : DIGITS * (place + 1)] for place in range(GROUPS))

    @cached_property
    def task(self) -> Task:
        """Make the task that the round loop and the clients work on."""
        given = self.input
        spec = None if given is None else InputSpec(tuple(given.shape), given.type, given.vocabulary)
        shared = None
        if self.shared_network is not None and spec is not None:
            shared = Recipe(self.shared_network, spec.network_shape, self.feature_dim, len(self.classes))
        return Task(
            algorithm=_method(self.algorithm),
            classes=tuple(self.classes),
            feature_dim=self.feature_dim,
            rounds=self.rounds,
            seed=self.seed,
            input=spec,
            shared_network=shared,
            head_bias=self.head_bias,
            server_lr=self.server_lr,
            server_batch_size=self.server_batch_size,
        )

    def lines(self) -> list[tuple[str, str]]:
        """Show the terms to somebody who has to agree: what each is called, and what it is."""
        settings = ", ".join(f"{name}={word(value)}" for name, value in self.algorithm.items() if name != "name")
        rest = {name: value for name, value in self.plain().items() if name not in ("algorithm", "classes", "format")}
        return [
            ("algorithm", str(self.algorithm["name"])),
            ("its settings", settings or "none"),
            ("classes", f"{len(self.classes)}: {listed(self.classes)}"),
            *((name, word(value)) for name, value in rest.items() if value is not None),
            ("SHA-256", self.digest),
            ("to read aloud", self.fingerprint),
        ]

    def class_numbers(self, own: Sequence[str], whose: str = "The data") -> NDArray[np.int64]:
        """Find the number of each class of a client, by name; a client need not have all classes."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        if strange := [name for name in own if name not in numbers]:
            raise ValueError(
                f"{whose} have {counted(strange)} that the agreement does not have: {listed(strange)}. "
                f"It has {len(self.classes)}: {listed(self.classes)}."
            )
        return np.array([numbers[name] for name in own], np.int64)

    def refuse_width(self, feature_dim: int, whose: str = "The network") -> None:
        """Refuse a network whose decision layer is of another width."""
        if feature_dim != self.feature_dim:
            raise ValueError(f"{whose} has d = {feature_dim}; the agreement says d = {self.feature_dim}.")

    def refuse_other(self, other: Agreement, whose: str = "The other side") -> None:
        """Refuse another agreement, and say in what it differs."""
        if other.digest != self.digest:
            said = ", ".join(differing(other.plain(), self.plain()))
            raise ValueError(f"{whose} has another agreement; it differs in {said}.")


def _method(value: Any) -> Algorithm:
    """Make a method by its registered name: an agreement never names a file, which would be run."""
    name = value.get("name") if isinstance(value, Mapping) else None
    if not isinstance(name, str):
        raise ValueError(f"algorithm={shown(value)} is refused: expected the name of a method, and its settings.")
    find(ALGORITHMS, shortened(name), "algorithm")
    made: Algorithm = build("algorithm", dict(value))
    return made


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """Turn tuples to lists, as JSON has them; what JSON cannot say is refused."""
    if not isinstance(value.get("name"), str) or value["name"] not in ALGORITHMS:
        raise ValueError(f"{shown(value.get('name'))} is code of one party's own; a federation has named methods.")
    found: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
    return found
