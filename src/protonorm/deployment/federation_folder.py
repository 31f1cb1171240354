"""Folder of a federation, on the server's machine. torch is imported lazily.

federation.json    name, addresses, quorum and deadline; may be edited between two starts
agreement.json     the agreement of all parties; never changed
amendments/N.json  amended terms, in their order
roster.json        the clients: id, name, public key, certificate, and whether it is revoked
keys/              key and certificate of the authority and of the server; the keys never leave this folder
bundles/NAME.json  the bundle for each client
run/               the record, as of every other run
logs/              server.jsonl for machines, server.log for people
run.wanted         exists while the owner requests that the rounds run
audit.jsonl        the audit trail, to which lines are only added
status.json        current status, rewritten by the server at every change
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from filelock import FileLock
from pydantic import TypeAdapter, ValidationError

from protonorm.core.types import shown
from protonorm.deployment.audit import Trail, fingerprints
from protonorm.deployment.settings import FederationSettings, TlsFiles, listed
from protonorm.files import PRIVATE_FILE, append, make_folder, pretty, read_json, refuse_existing, replace
from protonorm.runs.layout import INFO, committed, read_file

if TYPE_CHECKING:
    from protonorm.deployment.agreement import Agreement, Bundle
    from protonorm.deployment.federation import Membership

FEDERATION_VARIABLE = "PROTONORM_FEDERATION"  # environment variable with the default folder
FEDERATION, AGREEMENT, ROSTER, LOCK = "federation.json", "agreement.json", "roster.json", "lock"
UPDATE = "update"  # content of run.wanted, where a method that is finished shall go on
RENEWAL = dt.timedelta(days=365)  # `renew` replaces clients' certificates that end sooner


class Member(NamedTuple):
    """Client on the roster."""

    id: int  # 0 to M - 1, in the order of registration
    name: str
    public_key: str  # OpenSSH format, without a comment
    certificate: str = ""  # PEM, from the federation's authority
    revoked: bool = False
    gone: str = ""  # why it is no longer a member: it was removed, or left
    confirmed: str = ""  # SHA-256 of the last terms that its owner has confirmed; "" for the first agreement
    missed: int = 0  # consecutive rounds in which it was late or refused

    @property
    def active(self) -> bool:
        """Whether the client is a member whose key is accepted."""
        return not (self.revoked or self.gone)


MEMBERS = TypeAdapter(list[Member])


class FederationFolder:
    """Folder of a federation; several processes may have it open."""

    def __init__(self, path: Path, settings: FederationSettings) -> None:
        self.path, self.settings = path, settings
        self.keys = path / "keys"  # keys and certificates
        self.authority_key = self.keys / "authority.key"  # only needed to issue certificates
        self.tls = TlsFiles(*(self.keys / name for name in ("authority.crt", "server.crt", "server.key")))
        self.bundles, self.amendments = path / "bundles", path / "amendments"
        self.run_folder = path / "run"
        self.log_folder = path / "logs"
        self.status_file = path / "status.json"
        self.server_lock = path / "server.lock"  # locked by a running server
        self.trail = Trail(path, on_repair=self._log_repair)
        self.wanted = path / "run.wanted"  # exists while the owner requests that the rounds run
        self._read: tuple[tuple[int, int], list[Member]] | None = None  # time and size of the roster's file, and it

    def _log_repair(self, sentence: str) -> None:
        from protonorm.deployment.events import Log

        Log(self.log_folder, "server").write("repaired", sentence, "warning")

    @classmethod
    def create(cls, path: Path, settings: FederationSettings, agreement: Agreement) -> Self:
        """Create a federation: a private folder, an authority, and the server's certificate."""
        from protonorm.deployment.keys import make_authority, make_server_certificate

        refuse_existing(path, "a federation")
        federation = cls(path.resolve(), settings)
        for folder in (federation.path, federation.keys, federation.bundles, federation.log_folder):
            make_folder(folder)
        make_authority(federation.authority_key, federation.tls.authority, settings.name)
        make_server_certificate(federation._authority, federation.tls.key, federation.tls.certificate, settings.hosts)
        append(federation.path / AGREEMENT, agreement.write())
        append(federation.path / ROSTER, pretty({"members": []}))
        federation.trail.write("created", federation=settings.name, agreement=agreement.digest)
        replace(federation.path / FEDERATION, pretty(settings.plain()))  # last: it marks a complete federation
        return federation

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open an existing federation."""
        folder = Path(path).resolve()
        if not (folder / FEDERATION).is_file():
            raise ValueError(f"{path} is no folder of a federation; `protonorm deploy init FOLDER` makes one.")
        return cls(folder, FederationSettings.of(read_json(folder / FEDERATION), str(folder / FEDERATION)))

    @property
    def wants_update(self) -> bool:
        """Whether a method that is finished shall go on."""
        return read_file(self.wanted) == UPDATE.encode()

    def request_run(self, *, update: bool = False) -> None:
        """Request the rounds; with `update` also those of a method that is finished."""
        replace(self.wanted, UPDATE.encode() if update else b"")

    @property
    def _authority(self) -> tuple[Path, Path]:
        return self.authority_key, self.tls.authority

    def check_keys(self) -> None:
        """Raise ValueError if other users can read a private key; the authority's may be kept elsewhere."""
        from protonorm.deployment.keys import check_private

        check_private(self.tls.key)
        if self.authority_key.exists():
            check_private(self.authority_key)

    def renew_certificates(self) -> None:
        """Issue a new server certificate for the current host names, and clients' certificates that end soon."""
        from cryptography.x509 import load_pem_x509_certificate

        from protonorm.deployment.keys import make_client_certificate, make_server_certificate

        key, certificate = self.tls.key.with_suffix(".new-key"), self.tls.certificate.with_suffix(".new-crt")
        for leftover in (key, certificate):
            leftover.unlink(missing_ok=True)
        make_server_certificate(self._authority, key, certificate, self.settings.hosts)
        key.replace(self.tls.key)
        certificate.replace(self.tls.certificate)
        soon = dt.datetime.now(dt.UTC) + RENEWAL
        with self._locked():
            members = self.roster
            for member in members:
                own = member.certificate.encode()
                if not own or load_pem_x509_certificate(own).not_valid_after_utc < soon:
                    new = make_client_certificate(self._authority, member.public_key, member.name)
                    members[member.id] = member._replace(certificate=new)
            self._write_roster(members)

    def change_settings(self, settings: FederationSettings) -> None:
        """Write the server's settings; quorum, deadline, grace and patience hold from the next round on."""
        self.settings = settings
        replace(self.path / FEDERATION, pretty(settings.plain()))

    @property
    def agreement(self) -> Agreement:
        """Agreement of all parties, read from its file."""
        from protonorm.deployment.agreement import Agreement  # imports torch

        file = self.path / AGREEMENT
        return Agreement.read(file.read_bytes(), str(file))

    @property
    def roster(self) -> list[Member]:
        """Clients of the federation in the order of their ids, read from their file when it has changed."""
        file = self.path / ROSTER
        status = file.stat()
        stamp = status.st_mtime_ns, status.st_size
        if self._read is None or self._read[0] != stamp:
            try:
                members = MEMBERS.validate_python(read_json(file).get("members") or [], strict=True)
            except ValidationError:
                raise ValueError(f"{file} is damaged: expected clients with id, name and public_key.") from None
            if [member.id for member in members] != list(range(len(members))):
                raise ValueError(f"{file} is damaged: its clients are not numbered 0, 1, 2 and so on.")
            self._read = stamp, members
        return list(self._read[1])

    def add(self, name: str, public_key: str) -> Member:
        """Add a client to the roster, with the next id; or give a revoked client of this name a new key."""
        from protonorm.deployment.keys import check_public_line, make_client_certificate

        key = check_public_line(public_key)
        with self._locked():
            members = self.roster
            old = next((other for other in members if other.name.lower() == name.lower()), None)
            if old is not None and old.active:
                raise ValueError(f"There is a client {shown(old.name)} already, number {old.id}.")
            for other in members:
                if other is old and other.revoked and other.public_key == key:
                    raise ValueError(
                        f"This key of client {shown(name)} was revoked, and is not taken again: `protonorm deploy "
                        "rekey` on the client's machine makes another, and keeps its state."
                    )
                if other.public_key == key and other is not old:
                    raise ValueError(
                        f"This key is that of client {shown(other.name)}; every client has one of its own."
                    )
            certificate = make_client_certificate(self._authority, key, name)
            id = len(members) if old is None else old.id
            confirmed = self.current.digest if self.current.amends else ""  # the bundle has these terms
            member = Member(id, name if old is None else old.name, key, certificate, confirmed=confirmed)
            self.bundle(member)  # validates the name before anything is written
            self._write_roster([*members[:id], member, *members[id + 1 :]])
        return member

    def rekey(self, name: str, public_key: str) -> Member:
        """Register a new key of a client; its number and its state stay, and its old key is no longer accepted."""
        from protonorm.deployment.keys import check_public_line, make_client_certificate

        key, old = check_public_line(public_key), self.find(name)
        if any(other.public_key == key for other in self.roster):
            raise ValueError("This key is known already: `protonorm deploy rekey` on the client's machine makes one.")
        if old.gone:
            raise ValueError(f"Client {shown(old.name)} is no longer a member; `deploy add-client` lets it in again.")
        certificate = make_client_certificate(self._authority, key, old.name)
        return self.change(old.id, public_key=key, certificate=certificate, revoked=False)

    def revoke(self, name: str) -> Member:
        """Revoke a client's key: its connections are cut, and it is let in again only with a new key."""
        return self.change(self.find(name).id, revoked=True)

    def remove(self, name: str) -> Member:
        """Remove a client from the members; its number stays its own."""
        return self.change(self.find(name).id, gone="it was removed")

    def find(self, name: str) -> Member:
        """Find a client by its name."""
        members = self.roster
        member = next((other for other in members if other.name.lower() == name.lower()), None)
        if member is None:
            names = listed([other.name for other in members])
            raise ValueError(f"There is no client {shown(name)}; there are {names}.")
        return member

    def change(self, id: int, **fields: Any) -> Member:
        """Change what the roster says of a client; a running server hears of it at once."""
        with self._locked():
            members = self.roster
            members[id] = members[id]._replace(**fields)
            self._write_roster(members)
        return members[id]

    @property
    def amendment_files(self) -> list[Path]:
        """Files of the amendments, in their order."""
        count = len(list(self.amendments.glob("*.json")))
        return [self.amendments / f"{number}.json" for number in range(1, count + 1)]

    @property
    def terms(self) -> list[Agreement]:
        """The agreement and its amendments, in their order."""
        from protonorm.deployment.agreement import Agreement

        terms = [self.agreement]
        for file in self.amendment_files:
            terms.append(Agreement.read(file.read_bytes(), str(file)))
            terms[-1].refuse_unless_it_follows(terms[-2])
        return terms

    @property
    def current(self) -> Agreement:
        """Terms of the round after the last committed one."""
        from protonorm.deployment.agreement import terms_of

        return terms_of(self.terms, committed(self.run_folder) + 1)

    def amend(self, settings: dict[str, Any], round: int | None = None) -> Agreement:
        """Amend the terms from a round on: by default the next one that has not begun.

        The last amendment is replaced for its round, as long as no owner has confirmed it: what the new one does not
        name stays as it was amended.
        """
        done = committed(self.run_folder)
        with self._locked():
            terms = self.terms
            last, changes = terms[-1], dict(settings)
            pending = last.amends.round if last.amends and self._is_open(last, done) else None
            replaces = pending is not None and round in (None, pending)
            if replaces:
                changes = last.amendable | changes
                if isinstance(method := settings.get("algorithm"), dict):
                    changes["algorithm"] = last.algorithm | method
                terms.pop()
            first = done + 1 + (done < terms[-1].rounds and (self.run_folder / INFO).exists())
            begin = pending if replaces and pending else round or first
            if begin < first and not replaces:
                least = min(first, pending or first)
                raise ValueError(f"Amended terms must begin in round {least} or later, got {begin}.")
            amended = terms[-1].amended(changes, begin)
            if amended.rounds < begin and "rounds" not in settings:
                raise ValueError(f"There is no round {begin} after the last, {amended.rounds}: give rounds= too.")
            if amended.rounds < max(done, begin - 1):
                raise ValueError(f"rounds must not be less than the rounds that are done, got {amended.rounds}.")
            make_folder(self.amendments)
            replace(self.amendments / f"{len(terms)}.json", amended.write())
        return amended

    def _is_open(self, terms: Agreement, done: int) -> bool:
        """Return whether no round has begun by amended terms: no owner has confirmed them."""
        confirmed = any(member.confirmed == terms.digest for member in self.roster)
        return terms.amends is not None and terms.amends.round > done and not confirmed

    def standing(self, member: Member) -> str:
        """Return why a client is not waited for; empty if it is."""
        aside = "set aside" if member.missed >= self.settings.patience else ""
        return "revoked" if member.revoked else member.gone or aside

    def membership(self) -> Membership:
        """Return who takes part in the next round, and by which terms."""
        from protonorm.deployment.federation import Membership

        members, settings, terms = self.roster, FederationFolder.open(self.path).settings, self.terms
        digests = {each.digest for each in terms}  # without amendments that were replaced
        return Membership(
            names=[member.name for member in members],
            members=[member.id for member in members if member.active],
            terms=terms,
            confirmed={member.id: member.confirmed for member in members if member.confirmed in digests},
            missed={member.id: member.missed for member in members},
            **{name: getattr(settings, name) for name in ("quorum", "deadline", "grace", "patience")},
        )

    def _locked(self) -> FileLock:
        return FileLock(self.path / LOCK, mode=PRIVATE_FILE)

    def _write_roster(self, members: Sequence[Member]) -> None:
        before = {member.id: member._asdict() for member in self.roster}
        replace(self.path / ROSTER, pretty({"members": [member._asdict() for member in members]}))
        for member in members:
            previous = before.get(member.id, {})
            changed = {name: value for name, value in member._asdict().items() if previous.get(name) != value}
            if changed:
                changed |= fingerprints(changed)
                self.trail.write("member", client=member.id, name=member.name, changed=changed)

    def bundle(self, member: Member) -> Bundle:
        """Create a client's bundle, which contains no secret."""
        from protonorm.deployment.agreement import Bundle

        own = {"client": member.id, "name": member.name, "public_key": member.public_key}
        own |= {"certificate": member.certificate, "authority": self.tls.authority.read_text()}
        settings = self.settings
        return Bundle.of(self.current, federation=settings.name, host=settings.host, port=settings.port, **own)

    def write_bundle(self, member: Member) -> Path:
        """Write a client's bundle to its file."""
        file = self.bundles / f"{member.name}.json"
        replace(file, self.bundle(member).write())
        return file
