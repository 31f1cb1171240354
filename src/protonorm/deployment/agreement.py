"""Agreement of a federation (a JSON file whose SHA-256 every message carries) and the clients' bundles."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
from annotated_types import Ge, Le, MaxLen, MinLen
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError, field_validator, model_validator

from protonorm.algorithms import ALGORITHMS
from protonorm.config.components import build, describe
from protonorm.config.parsing import check_plain
from protonorm.core.algorithm import Algorithm
from protonorm.core.model import Trunk
from protonorm.core.registry import find, nearest
from protonorm.core.robust import MEAN, MOST_MEMBERS, Rule
from protonorm.core.settings import known_fields, sentences
from protonorm.core.task import Task
from protonorm.core.text import shortened, visible
from protonorm.core.training import describe_outgoing, make_outgoing
from protonorm.core.types import MAX_INT, Count, Format, InputSpec, Positive, Seed, Width, shown
from protonorm.deployment.keys import check_public_line, key_fingerprint
from protonorm.deployment.settings import Document, Host, Word, canonical, differing, full_value, listed, read_object
from protonorm.models import MODELS, is_frozen
from protonorm.models.choose import Recipe
from protonorm.models.frozen import FrozenNetwork, trunk_at
from protonorm.models.libraries import LibraryNetwork

LATER_TERMS = ("trunks", "shared_trunk", "members", "noise")  # left out where they are empty
LARGEST_FILE = 2**22  # bytes of an agreement
MAX_CLASSES = 100_000
INPUT = "height, width and channels of pictures, as in input=32x32x3, or the length of vectors, as in input=20"

OF_TASK = ("feature_dim", "rounds", "seed", "head_bias", "server_lr", "server_batch_size", "combine")  # as in a Task
ROBUST_RULE = "trust"  # by which messages are combined unless the settings say otherwise, if the method combines them
Fingerprint = Annotated[str, StringConstraints(pattern=r"^SHA256:[A-Za-z0-9+/]{43}$")]
ClassName = Annotated[str, MinLen(1), MaxLen(200)]
Part = Literal["validation", "test"]
LARGEST_BUNDLE = LARGEST_FILE + 2**17  # bytes


AMENDABLE = (
    *("rounds", "algorithm", "server_lr", "server_batch_size", "evaluated", "evaluate_every", "amends", "members"),
)


class Amends(Document):
    """Place of amended terms in the chain of a federation's agreements."""

    first: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]  # SHA-256 of the federation's first agreement
    previous: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]  # SHA-256 of the agreement before
    round: Count  # first round of these terms


class TrunkTerm(BaseModel):
    """Frozen trunk that parties have alike."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: ClassName  # as in the setting `models`, without the head
    digest: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]  # of architecture, weights and preprocessing
    width: Width  # D, number of features

    @property
    def trunk(self) -> Trunk:
        """The term as a trunk."""
        return Trunk(self.name, self.digest, self.width)


class Agreement(Document):
    """Terms of a federation, as plain data: methods and networks by name, never code."""

    format: Format
    algorithm: dict[str, Any]  # name and all settings
    classes: Annotated[list[ClassName], MinLen(2), MaxLen(MAX_CLASSES)]  # K names, in the order of the labels
    feature_dim: Width  # d
    rounds: Count  # R
    seed: Seed  # of all randomness except that of privacy protection
    input: InputSpec | None = None  # only if a network is shared
    shared_network: ClassName | None = None  # network of all clients, or the auxiliary network that clients share
    head_bias: bool = True  # whether heads have a bias; only if heads are shared
    server_lr: Positive = 0.01  # learning rate of server-side training
    server_batch_size: Annotated[int, Ge(2), Le(MAX_INT)] = 32
    combine: Rule = MEAN  # how the server combines the clients' messages
    evaluated: list[Part] = ["test"]  # sample parts on which clients may be asked to evaluate
    evaluate_every: Count = 1  # rounds
    reproducible: bool = False  # whether clients' random numbers follow from the seed, as in a simulation
    amends: Amends | None = None  # of amended terms
    trunks: Annotated[list[TrunkTerm], MaxLen(100)] = []  # of the clients' own networks; any if there are none
    shared_trunk: TrunkTerm | None = None  # of the shared network
    members: Annotated[list[Fingerprint], MaxLen(MOST_MEMBERS)] = []  # of a secure sum: fingerprints of their keys
    noise: dict[str, Any] | None = None  # of a secure sum: `protect` of all members, each of which adds a share

    @property
    def root(self) -> str:
        """SHA-256 of the federation's first agreement, which names records and states."""
        return self.amends.first if self.amends else self.digest

    @property
    def amendable(self) -> dict[str, Any]:
        """Terms that can be amended, as plain data."""
        return {name: value for name, value in self.plain().items() if name in AMENDABLE and name != "amends"}

    def amended(self, settings: Mapping[str, Any], round: int) -> Self:
        """Return new terms from a round on; raise ValueError for what cannot be amended."""
        plain = self.plain()
        changes = dict(settings)
        known = [name for name in type(self).model_fields if name not in AMENDABLE]
        refuse_fixed({name for name in known if name in changes and changes[name] != plain.get(name)})
        if isinstance(method := changes.get("algorithm"), Mapping):
            changes["algorithm"] = plain["algorithm"] | dict(method)
        amends = {"first": self.root, "previous": self.digest, "round": round}
        amended = self.checked({**plain, **changes, "amends": amends}, "The agreement")
        if not differing(plain, amended.plain() | {"amends": plain["amends"]}):
            raise ValueError("These are the terms already: there is nothing to amend.")
        amended.refuse_unless_it_follows(self)
        return amended

    def as_first(self) -> Self:
        """Return these terms as the first agreement of another federation, whose rounds begin with 1."""
        return self.checked({**self.plain(), "amends": None}, "The agreement") if self.amends else self

    def refuse_unless_it_follows(self, before: Agreement) -> None:
        """Raise ValueError unless these terms amend the ones before, and clients can go on with their states."""
        amends = self.amends
        if amends is None or (amends.first, amends.previous) != (before.root, before.digest):
            raise ValueError(f"These terms do not amend the agreement {before.digest[:16]}.")
        if before.amends and amends.round < before.amends.round:
            raise ValueError(f"These terms would begin before those that they amend, in round {before.amends.round}.")
        old, new = before.plain(), self.plain()
        fixed = {name for name in old | new if name not in AMENDABLE and old.get(name) != new.get(name)}
        fixed |= {"algorithm.name"} if old["algorithm"]["name"] != new["algorithm"]["name"] else set()
        refuse_fixed(fixed)
        first, second = before.task, self.task
        if (first.schema, first.algorithm.rules) != (second.schema, second.algorithm.rules):
            raise ValueError("These settings of the method change its messages: that would be another federation.")

    @classmethod
    def of(cls, settings: Mapping[str, Any], dataset: str = "") -> Self:
        """Create an agreement from plain settings; missing settings of the method take their defaults."""
        plain = {"format": 1, **settings}
        if plain.get("input") is not None:
            plain["input"] = read_input(plain["input"]).describe()
        plain = with_trunk_terms(plain)
        if isinstance(plain.get("algorithm"), str):
            plain["algorithm"] = {"name": plain["algorithm"]}
        method = _method(plain.get("algorithm"))
        network = plain.get("shared_network")
        if isinstance(network, str) or not method.needs_shared_network:  # a missing network is reported below
            method = method.adapted(dataset, [network] if isinstance(network, str) else [])
        terms = cls.checked({**plain, "algorithm": _plain(describe("algorithm", method))}, "The agreement")
        robust = "combine" not in plain and terms.task.combines
        return cls.checked({**terms.plain(), "combine": ROBUST_RULE}, "The agreement") if robust else terms

    @classmethod
    def read(cls, content: bytes, where: str = "The agreement") -> Self:
        """Parse an agreement written by `write`; raise ValueError for anything else, also for other versions' terms."""
        plain = read_object(content, where, LARGEST_FILE, "an object of terms")
        try:
            check_plain(plain)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where} cannot be read: {shortened(str(error))}") from None
        terms = cls.checked(plain, "The agreement")
        if canonical(plain) != canonical(terms.plain()):
            other = ", ".join(differing(plain, terms.plain()))
            raise ValueError(f"{where} does not say all terms as this version does: {other}. Use the same version.")
        return terms

    @classmethod
    def hint(cls, name: str, plain: Mapping[str, Any]) -> str | None:
        """Return the name of a method's setting that was given without `algorithm`."""
        fields = known_fields(type(_method(plain.get("algorithm"))))
        return f"did you mean 'algorithm.{name}'?" if name in fields else None

    @field_validator("input", mode="before")
    @classmethod
    def _one_sentence_each(cls, value: Any) -> Any:
        return read_input(value) if isinstance(value, Mapping) else value

    @field_validator("algorithm")
    @classmethod
    def _fill_in(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _plain(describe("algorithm", _method(value)))

    @field_validator("noise")
    @classmethod
    def _fill_in_noise(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if value is None else describe_outgoing(make_outgoing(value))

    @field_validator("classes", "evaluated", "members")
    @classmethod
    def _no_two_alike(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            twice = Counter(value).most_common(1)[0][0]
            raise ValueError(f"The agreement names {shown(twice)} twice.")
        return value

    @field_validator("shared_network")
    @classmethod
    def _known_network(cls, value: str | None) -> str | None:
        if is_frozen(value) and ".py:" not in str(value):
            FrozenNetwork.of(value)
        elif value is not None and value not in MODELS and (".py:" in value or LibraryNetwork.of(value) is None):
            raise ValueError(f"Nobody else has the network {shown(value)}; {nearest(shortened(value), MODELS)}")
        return value

    @model_validator(mode="after")
    def _shares_what_the_method_needs(self) -> Self:
        method = _method(self.algorithm)
        needed = method.auxiliary or method.needs_shared_network
        if needed and (self.shared_network is None or self.input is None):
            name = self.algorithm["name"]
            raise ValueError(f"{name} needs a network that all clients share: give shared_network, and input: {INPUT}.")
        if is_frozen(self.shared_network) != (self.shared_trunk is not None):
            raise ValueError("A shared network has shared_trunk if it is frozen, and only then.")
        self.task.check_combine()
        if self.task.secure:
            if not self.members:
                raise ValueError(
                    f"combine={self.combine} needs the public keys of all members, {self.task.least_members} at least: "
                    "members=north.pub,south.pub,east.pub."
                )
            self.task.check_members(len(self.members))
            if self.noise is not None and make_outgoing(self.noise).shared_length is None:
                raise ValueError("noise must be protect=gaussian with colluding, of which each member adds a share.")
        elif self.members or self.noise is not None:
            raise ValueError(f"members and noise must be left out unless combine=secure_sum, got {self.combine}.")
        return self

    def plain(self) -> dict[str, Any]:
        """Return the terms as plain data; without later ones, where they are empty."""
        return {name: value for name, value in super().plain().items() if value or name not in LATER_TERMS}

    @cached_property
    def task(self) -> Task:
        """Build the task that the round loop and the clients work on."""
        spec = self.input
        shared = None
        if self.shared_network is not None and spec is not None:
            trunk = self.shared_trunk.trunk if self.shared_trunk else None
            shared = Recipe(self.shared_network, spec.network_shape, self.feature_dim, len(self.classes), trunk=trunk)
        terms: dict[str, Any] = {name: getattr(self, name) for name in OF_TASK}
        terms |= {"trunks": tuple(term.trunk for term in self.trunks)}
        terms |= {"noise_length": make_outgoing(self.noise).shared_length if self.noise else None}
        classes = tuple(self.classes)
        return Task(_method(self.algorithm), classes, input=spec, shared_network=shared, **terms)

    @property
    def least_answers(self) -> int:
        """Members that a secure sum needs; all, unless they share noise. 0 if messages are not masked."""
        return len(self.members) if self.noise is None else self.task.least_members

    def lines(self) -> list[tuple[str, str]]:
        """List all terms, whole, for display as (label, value)."""
        settings = ", ".join(f"{name}={full_value(value)}" for name, value in self.algorithm.items() if name != "name")
        rest = {name: value for name, value in self.plain().items() if name not in ("algorithm", "classes", "format")}
        public = "follow from the seed, which all parties know: who sees a client's messages can rebuild more from them"
        random = public if self.reproducible else "are each client's own secret"
        return [
            ("algorithm", str(self.algorithm["name"])),
            ("its settings", settings or "none"),
            ("classes", f"{len(self.classes)}: {', '.join(map(visible, self.classes))}"),
            *((name, full_value(value)) for name, value in rest.items() if value is not None),
            ("first weights and batches", random),
            ("SHA-256", self.digest),
        ]

    def class_numbers(self, own: Sequence[str], whose: str = "The data") -> NDArray[np.int64]:
        """Return the label of each of a client's classes, by name; a client may lack classes."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        if strange := [name for name in own if name not in numbers]:
            count = "a class" if len(strange) == 1 else f"{len(strange)} classes"
            raise ValueError(
                f"{whose} have {count} that the agreement does not have: {listed(strange)}. "
                f"It has {len(self.classes)}: {listed(self.classes)}."
            )
        return np.array([numbers[name] for name in own], np.int64)


def refuse_fixed(terms: Collection[str]) -> None:
    """Raise ValueError for terms that cannot be amended."""
    if terms:
        raise ValueError(f"{', '.join(sorted(terms))} cannot be amended: that would be another federation.")


def read_input(value: Any) -> InputSpec:
    """Return shape and type of a sample; 32x32x3 means pictures of bytes, 20 means vectors of so many numbers."""
    if isinstance(value, InputSpec):
        return value
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}x\d{1,9}x\d{1,9}", value):
        first, second, last = map(int, value.split("x"))
        if first in (1, 3) and last > 4:
            raise ValueError(f"input must have the channels last, as in input={second}x{last}x{first}, got {value}.")
        value = {"shape": [first, second, last], "type": "uint8"}
    elif isinstance(value, int) and not isinstance(value, bool):
        value = {"shape": [value], "type": "float32"}
    if not isinstance(value, Mapping):
        long = "input={shape: [64], type: int64, vocabulary: 4096}"
        raise ValueError(f"input must be {INPUT}; or written out, as in {long}; got {shown(value)}.")
    try:
        return InputSpec.model_validate(dict(value))
    except ValidationError as error:
        known: dict[str, Any] = {name: [] for name in InputSpec.model_fields}
        raise ValueError(sentences(error, known, "input", "input.")) from None


def with_trunk_terms(plain: dict[str, Any]) -> dict[str, Any]:
    """Fill in digest and width of trunks that are given by name, from the weights that are here."""
    shape = read_input(plain["input"]).network_shape if plain.get("input") is not None else None
    trunks = plain.get("trunks") or []
    names = trunks.split(",") if isinstance(trunks, str) else list(trunks)
    if is_frozen(plain.get("shared_network")) and "shared_trunk" not in plain:
        plain["shared_trunk"] = trunk_at(str(plain["shared_network"]), shape)._asdict()
    if names:
        plain["trunks"] = [trunk_at(name, shape)._asdict() if isinstance(name, str) else name for name in names]
    return plain


def _method(value: Any) -> Algorithm:
    """Build a method by its registered name; files are not accepted, because their code would be executed."""
    name = value.get("name") if isinstance(value, Mapping) else None
    if not isinstance(name, str):
        raise ValueError(f"algorithm must be the name of a method, perhaps with settings, got {shown(value)}.")
    find(ALGORITHMS, shortened(name), "algorithm")
    method: Algorithm = build("algorithm", dict(value))
    return method


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a description to JSON types; raise ValueError if the method is not registered."""
    if not isinstance(value.get("name"), str) or value["name"] not in ALGORITHMS:
        raise ValueError(f"{shown(value.get('name'))} is code of one party's own; a federation has named methods.")
    plain: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
    return plain


def terms_of(terms: Sequence[Agreement], round: int) -> Agreement:
    """Return the terms of a round: the last amendment that has begun, or the first agreement."""
    return next(last for last in reversed(terms) if last.amends is None or last.amends.round <= round)


class Bundle(Document):
    """Bundle of one client: server address, certificate and terms; taking part also needs the client's private key."""

    format: Format
    federation: Word
    client: Annotated[int, Ge(0), Le(MAX_INT)]
    name: Word
    public_key: Annotated[str, MaxLen(1000)]  # the client's own, so that it can verify that the bundle is meant for it
    host: Host
    port: Annotated[int, Ge(1), Le(65535)]
    authority: Annotated[str, MaxLen(2**14)]  # PEM certificate that authenticates the server
    certificate: Annotated[str, MaxLen(2**14)]  # PEM, the client's own, by which the server knows it
    agreement: dict[str, Any]

    @classmethod
    def of(cls, terms: Agreement, **about: Any) -> Self:
        """Create a bundle."""
        return cls.checked({"format": 1, "agreement": terms.plain(), **about}, "The bundle")

    @classmethod
    def read(cls, content: bytes, where: str = "The bundle") -> Self:
        """Parse and validate a received bundle, including its agreement and certificate."""
        return cls.checked(read_object(content, where, LARGEST_BUNDLE), where)

    @classmethod
    def checked(cls, plain: Mapping[str, Any], where: str) -> Self:
        """Validate plain data, including its key, certificate and agreement."""
        bundle = super().checked(plain, where)
        if check_public_line(bundle.public_key) != bundle.public_key:
            raise ValueError(f"{where} has a public key with more than a key in it.")
        texts = bundle.authority, bundle.certificate
        try:
            authority, own = (x509.load_pem_x509_certificate(text.encode()) for text in texts)
            own.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            raise ValueError(f"{where} must hold certificates of the federation's authority and the client.") from None
        key = key_fingerprint(bundle.public_key)
        if bundle.terms.members and key not in bundle.terms.members:  # parsed here, so that invalid terms fail
            raise ValueError(f"{where} is for the key {key}, which is not one of the agreement's members.")
        return bundle

    @cached_property
    def terms(self) -> Agreement:
        """Agreement in the bundle."""
        return Agreement.read(canonical(self.agreement), "The agreement in the bundle")

    def refuse_other_key(self, line: str) -> None:
        """Raise ValueError if a public key is not the registered one."""
        if check_public_line(line) != self.public_key:
            expected, actual = key_fingerprint(self.public_key), key_fingerprint(line)
            raise ValueError(
                f"The bundle is for the key {expected}; the key here is {actual}: --folder names its client."
            )
