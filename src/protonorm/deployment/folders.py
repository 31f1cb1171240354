"""Folders of a federation (on the server's machine) and of a client (on its owner's). torch is imported lazily.

A federation's folder:

federation.json    name, addresses, quorum and deadline; may be edited between two starts
agreement.json     the agreement of all parties; never changed
roster.json        the clients: id, name, public key, certificate, and whether it is revoked
keys/              key and certificate of the authority and of the server; the keys never leave this folder
bundles/NAME.json  the bundle for each client
run/               the record, as of every other run
logs/              server.jsonl for machines, server.log for people
run.wanted         exists while the owner requests that the rounds run
status.json        current status, rewritten by the server at every change

A client's folder:

client.json   the owner's settings: data, network, learning rate, batch size, device, disclosed evaluation results
client.key    the client's private key, which never leaves this folder; client.pub goes to the server's owner
bundle.json   the bundle from the server's owner, as confirmed by the client's owner; its certificates are
              authority.crt and client.crt
states/       the client's states
logs/         client.jsonl for machines, client.log for people
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from filelock import FileLock

from protonorm.core.types import shown
from protonorm.deployment.settings import ClientSettings, FederationSettings, listed
from protonorm.files import PRIVATE_FILE, append, make_folder, pretty, read_json, replace

if TYPE_CHECKING:
    from protonorm.deployment.agreement import Agreement, Bundle
    from protonorm.deployment.node import Node
    from protonorm.deployment.owner import OwnerPolicy

FEDERATION_VARIABLE, CLIENT_VARIABLE = "PROTONORM_FEDERATION", "PROTONORM_CLIENT"  # variables with the default folder
FEDERATION, AGREEMENT, ROSTER, LOCK = "federation.json", "agreement.json", "roster.json", "lock"
CLIENT, BUNDLE = "client.json", "bundle.json"
RENEWAL = dt.timedelta(days=365)  # `renew` replaces clients' certificates that end sooner
KINDS = {"id": int, "name": str, "public_key": str, "certificate": str, "revoked": bool}  # of a member


class Member(NamedTuple):
    """Client on the roster."""

    id: int  # 0 to M - 1, in the order of registration
    name: str
    public_key: str  # OpenSSH format, without a comment
    certificate: str = ""  # PEM, from the federation's authority
    revoked: bool = False


class TlsFiles(NamedTuple):
    """TLS files of a server or client."""

    authority: Path  # certificate that authenticates the other side
    certificate: Path
    key: Path


class FederationFolder:
    """Folder of a federation; several processes may have it open."""

    def __init__(self, path: Path, settings: FederationSettings) -> None:
        self.path, self.settings = path, settings
        self.keys = path / "keys"  # keys and certificates
        self.authority_key = self.keys / "authority.key"  # only needed to issue certificates
        self.tls = TlsFiles(*(self.keys / name for name in ("authority.crt", "server.crt", "server.key")))
        self.bundles = path / "bundles"
        self.run_folder = path / "run"
        self.log_folder = path / "logs"
        self.status_file = path / "status.json"
        self.server_lock = path / "server.lock"  # locked by a running server
        self.wanted = path / "run.wanted"  # exists while the owner requests that the rounds run
        self._read: tuple[tuple[int, int], list[Member]] | None = None  # time and size of the roster's file, and it

    @classmethod
    def create(cls, path: Path, settings: FederationSettings, agreement: Agreement) -> Self:
        """Create a federation: a private folder, an authority, and the server's certificate."""
        from protonorm.deployment.keys import make_authority, make_server_certificate

        refuse_existing(path, "a federation")
        made = cls(path.resolve(), settings)
        for folder in (made.path, made.keys, made.bundles, made.log_folder):
            make_folder(folder)
        make_authority(made.authority_key, made.tls.authority, settings.name)
        make_server_certificate(made._authority, made.tls.key, made.tls.certificate, settings.hosts)
        append(made.path / AGREEMENT, agreement.write())
        append(made.path / ROSTER, pretty({"members": []}))
        replace(made.path / FEDERATION, pretty(settings.plain()))  # last, because this file marks a complete federation
        return made

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open an existing federation."""
        place = Path(path).resolve()
        if not (place / FEDERATION).is_file():
            raise ValueError(f"{path} is no folder of a federation; `protonorm deploy init FOLDER` makes one.")
        return cls(place, FederationSettings.of(read_json(place / FEDERATION), str(place / FEDERATION)))

    @property
    def _authority(self) -> tuple[Path, Path]:
        return self.authority_key, self.tls.authority

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

    @property
    def agreement(self) -> Agreement:
        """Agreement of all parties, read from its file."""
        from protonorm.deployment.agreement import Agreement  # imports torch

        place = self.path / AGREEMENT
        return Agreement.read(place.read_bytes(), str(place))

    @property
    def roster(self) -> list[Member]:
        """Clients of the federation in the order of their ids, read from their file when it has changed."""
        place = self.path / ROSTER
        about = place.stat()
        stamp = about.st_mtime_ns, about.st_size
        if self._read is None or self._read[0] != stamp:
            plain = read_json(place).get("members")
            try:
                members = [Member(**one) for one in plain or []]
                assert all(type(getattr(one, name)) is kind for one in members for name, kind in KINDS.items())
            except (TypeError, AssertionError):
                raise ValueError(f"{place} is damaged: expected clients with id, name and public_key.") from None
            if [one.id for one in members] != list(range(len(members))):
                raise ValueError(f"{place} is damaged: its clients are not numbered 0, 1, 2 and so on.")
            self._read = stamp, members
        return list(self._read[1])

    def add(self, name: str, public_key: str) -> Member:
        """Add a client to the roster, with the next id; or give a revoked client of this name a new key."""
        from protonorm.deployment.keys import check_public_line, make_client_certificate

        key = check_public_line(public_key)
        with self._locked():
            members = self.roster
            old = next((one for one in members if one.name.lower() == name.lower()), None)
            if old is not None and not old.revoked:
                raise ValueError(f"There is a client {shown(old.name)} already, number {old.id}.")
            for one in members:
                if one.public_key == key:
                    raise ValueError(f"This key is that of client {shown(one.name)}; every client has one of its own.")
            if old is None and (self.run_folder / "experiment.json").exists():
                raise ValueError(f"The run has begun with {len(members)} clients, and goes on with them alone.")
            certificate = make_client_certificate(self._authority, key, name)
            id = len(members) if old is None else old.id
            member = Member(id, name if old is None else old.name, key, certificate)
            self.bundle(member)  # validates the name before anything is written
            self._write_roster([*members[:id], member, *members[id + 1 :]])
        return member

    def revoke(self, name: str) -> Member:
        """Revoke a client's key: its connections are cut, and it is let in again only with a new key."""
        with self._locked():
            members = self.roster
            member = next((one for one in members if one.name.lower() == name.lower()), None)
            if member is None:
                names = listed([one.name for one in members])
                raise ValueError(f"There is no client {shown(name)}; there are {names}.")
            members[member.id] = member._replace(revoked=True)
            self._write_roster(members)
        return members[member.id]

    def _locked(self) -> FileLock:
        return FileLock(self.path / LOCK, mode=PRIVATE_FILE)

    def _write_roster(self, members: Sequence[Member]) -> None:
        replace(self.path / ROSTER, pretty({"members": [one._asdict() for one in members]}))

    def bundle(self, member: Member) -> Bundle:
        """Create a client's bundle, which contains no secret."""
        from protonorm.deployment.agreement import Bundle

        own = {"client": member.id, "name": member.name, "public_key": member.public_key}
        own |= {"certificate": member.certificate, "authority": self.tls.authority.read_text()}
        settings = self.settings
        return Bundle.of(self.agreement, federation=settings.name, host=settings.host, port=settings.port, **own)

    def write_bundle(self, member: Member) -> Path:
        """Write a client's bundle to its file."""
        place = self.bundles / f"{member.name}.json"
        replace(place, self.bundle(member).write())
        return place


class ClientFolder:
    """Folder of a client."""

    def __init__(self, path: Path, settings: ClientSettings) -> None:
        self.path, self.settings = path, settings
        self.begin_anew = False  # whether to start from a new network if the client's state is lost
        self.tls = TlsFiles(*(path / name for name in ("authority.crt", "client.crt", "client.key")))
        self.public_key_file = path / "client.pub"
        self.states = path / "states"
        self.log_folder = path / "logs"
        self.lock = path / "client.lock"  # locked by a running client

    @classmethod
    def create(cls, path: Path, name: str) -> Self:
        """Create a client: a private folder with a new key."""
        from protonorm.deployment.keys import make_client_key

        settings = ClientSettings.of({"name": name})
        refuse_existing(path, "a client")
        made = cls(path.resolve(), settings)
        for folder in (made.path, made.states, made.log_folder):
            make_folder(folder)
        append(made.public_key_file, make_client_key(made.tls.key).encode() + f" {name}\n".encode())
        made.change()
        return made

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open an existing client's folder."""
        place = Path(path).resolve()
        if not (place / CLIENT).is_file():
            raise ValueError(f"{path} is no folder of a client; `protonorm deploy join NAME` makes one.")
        return cls(place, ClientSettings.of(read_json(place / CLIENT), str(place / CLIENT)))

    @property
    def public_key(self) -> str:
        """Public key, without its comment."""
        from protonorm.deployment.keys import check_public_line

        return check_public_line(self.public_key_file.read_text())

    @property
    def joined(self) -> bool:
        """Whether the owner has confirmed a bundle."""
        return (self.path / BUNDLE).is_file()

    @property
    def bundle(self) -> Bundle:
        """Bundle that the owner confirmed."""
        from protonorm.deployment.agreement import Bundle  # imports torch

        place = self.path / BUNDLE
        if not self.joined:
            raise ValueError(f"{self.path} has no bundle yet: `protonorm deploy client BUNDLE` takes the one you got.")
        return Bundle.read(place.read_bytes(), str(place))

    @property
    def policy(self) -> OwnerPolicy | None:
        """Policy of the owner; None if there is no file."""
        from protonorm.deployment.owner import POLICY, OwnerPolicy  # imports torch

        return OwnerPolicy.read(self.path / POLICY)

    def confirm(self, bundle: Bundle) -> None:
        """Store a bundle that the owner has confirmed; raise ValueError if it is for another key."""
        bundle.refuse_other_key(self.public_key)
        replace(self.tls.authority, bundle.authority.encode())
        replace(self.tls.certificate, bundle.certificate.encode())
        replace(self.path / BUNDLE, bundle.write())

    def change(self, **given: Any) -> None:
        """Change the owner's settings and write them."""
        self.settings = ClientSettings.of({**self.settings.plain(), **given})
        replace(self.path / CLIENT, pretty(self.settings.plain()))

    def node(self) -> Node:
        """Build the node from data, network and agreement; raise ValueError if they do not fit together."""
        from protonorm.deployment.events import Log
        from protonorm.deployment.node import Node
        from protonorm.deployment.site import open_store, own_site

        own, bundle = self.settings, self.bundle
        if not own.data:
            raise ValueError("The client has no data yet: give --data PATH.")
        if policy := self.policy:
            policy.check(bundle.terms)
            own = policy.within(own)
        site, store = own_site(bundle.terms, bundle.client, own), open_store(self.states, bundle.terms)

        def tell(cause: str) -> None:  # causes of errors are not sent to the server
            Log(self.log_folder, "client").write("cause", cause, "warning")

        received = policy.received if policy else None
        return Node(bundle.terms, site, store, own.allowed, begin_anew=self.begin_anew, tell=tell, received=received)


def refuse_existing(path: Path, what: str) -> None:
    """Raise ValueError if a path exists and is not an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} is there already, and it is not empty; {what} gets a folder of its own.")
