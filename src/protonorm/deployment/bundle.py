"""What an organisation gets to take part: the authority's certificate, an address, the agreement, and no secret."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Le, MaxLen
from cryptography import x509
from pydantic import BaseModel, ConfigDict, ValidationError

from protonorm.core.complaints import sentences
from protonorm.core.types import LARGEST, shortened
from protonorm.deployment.agreement import DIGITS, GROUPS, LARGEST_FILE, Agreement
from protonorm.deployment.keys import check_public_line, key_fingerprint
from protonorm.deployment.terms import Host, Word, canonical, no_number, once

LARGEST_BUNDLE = LARGEST_FILE + 2**17  # bytes


class Bundle(BaseModel):
    """One client's bundle. Whoever has it can read the terms, but not take part: that needs the client's key."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1]
    federation: Word
    client: Annotated[int, Ge(0), Le(LARGEST)]  # its number
    name: Word
    public_key: Annotated[str, MaxLen(1000)]  # the client's own, so that it can see that it is meant
    host: Host
    port: Annotated[int, Ge(1), Le(65535)]
    authority: Annotated[str, MaxLen(2**14)]  # the certificate by which the server is known, PEM
    agreement: dict[str, Any]

    @classmethod
    def of(cls, terms: Agreement, **about: Any) -> Self:
        """Put a bundle together."""
        return cls._checked({"format": 1, "agreement": terms.plain(), **about}, "The bundle")

    @classmethod
    def read(cls, content: bytes, where: str = "The bundle") -> Self:
        """Read a bundle that somebody sent; all of it is checked, also the agreement and the certificate."""
        if len(content) > LARGEST_BUNDLE:
            raise ValueError(f"{where} has {len(content)} bytes; {LARGEST_BUNDLE} at most are expected.")
        try:
            plain = json.loads(content, object_pairs_hook=once, parse_constant=no_number)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where} cannot be read: {shortened(str(error))}") from None
        if not isinstance(plain, dict):
            raise ValueError(f"{where} holds a {type(plain).__name__}; expected an object.")
        return cls._checked(plain, where)

    @classmethod
    def _checked(cls, plain: dict[str, Any], where: str) -> Self:
        try:
            found = cls.model_validate(plain)
        except ValidationError as error:
            raise ValueError(sentences(error, {name: [] for name in cls.model_fields}, where)) from None
        if check_public_line(found.public_key) != found.public_key:
            raise ValueError(f"{where} has a public key with more than a key in it.")
        try:
            x509.load_pem_x509_certificate(found.authority.encode())
        except ValueError:
            raise ValueError(f"{where} holds no certificate of the federation's authority.") from None
        assert found.terms.digest  # read now, so that a bad one is refused here
        return found

    @cached_property
    def terms(self) -> Agreement:
        """Read the agreement in it."""
        return Agreement.read(canonical(self.agreement), "The agreement in the bundle")

    def write(self) -> bytes:
        """Write it as JSON for people."""
        return json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True).encode() + b"\n"

    @property
    def checksum(self) -> str:
        """Give the beginning of the SHA-256 of all that is in it, in groups, to be read over the phone."""
        digest = hashlib.sha256(canonical(self.model_dump(mode="json"))).hexdigest()
        return " ".join(digest[DIGITS * place : DIGITS * (place + 1)] for place in range(GROUPS))

    def refuse_other_key(self, line: str) -> None:
        """Refuse to take part with another key than the one that was registered."""
        if check_public_line(line) != self.public_key:
            meant, here = key_fingerprint(self.public_key), key_fingerprint(line)
            raise ValueError(f"The bundle is for the key {meant}; the key here is {here}.")
