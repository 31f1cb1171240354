"""Folders of a federation (on the server's machine) and of a client (on its owner's). torch is imported lazily.

A federation's folder:

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

A client's folder:

client.json   the owner's settings: data, network, learning rate, batch size, device, disclosed evaluation results
client.key    the client's private key, which never leaves this folder; client.pub goes to the server's owner
client.secret random secret of the client's first weights and batches
amendments/   amended terms that the owner has confirmed; offer.json has those that the server proposes
bundle.json   the bundle from the server's owner, as confirmed by the client's owner; its certificates are
              authority.crt and client.crt
samples.bin   a hash of each sample that was there at the last start, for the audit trail
states/       the client's states, the server's last message, and the client's own accuracy in each round
audit.jsonl   the audit trail, to which lines are only added
logs/         client.jsonl for machines, client.log for people
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from filelock import FileLock

from protonorm.core.types import shown
from protonorm.deployment.audit import Trail
from protonorm.deployment.settings import (
    ClientSettings,
    FederationSettings,
    address_of,
    canonical,
    differing,
    listed,
)
from protonorm.files import PRIVATE_FILE, append, make_folder, pretty, read_json, replace, unsealed
from protonorm.runs.layout import INFO, committed, read_lines

if TYPE_CHECKING:
    from protonorm.deployment.agreement import Agreement, Bundle
    from protonorm.deployment.federation import Seats
    from protonorm.deployment.node import Node
    from protonorm.deployment.owner import OwnerPolicy
    from protonorm.deployment.site import OwnSite
    from protonorm.runs.states import FolderStore

FEDERATION_VARIABLE, CLIENT_VARIABLE = "PROTONORM_FEDERATION", "PROTONORM_CLIENT"  # variables with the default folder
FEDERATION, AGREEMENT, ROSTER, LOCK = "federation.json", "agreement.json", "roster.json", "lock"
CLIENT, BUNDLE, HISTORY, SAMPLES = "client.json", "bundle.json", "history.jsonl", "samples.bin"
LISTED = 1000  # removed samples that the audit trail names
RENEWAL = dt.timedelta(days=365)  # `renew` replaces clients' certificates that end sooner
TEXTS = ("name", "public_key", "certificate", "gone", "confirmed")
KINDS = {"id": int, "revoked": bool, "missed": int} | dict.fromkeys(TEXTS, str)  # of a member


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
        self.bundles, self.amendments = path / "bundles", path / "amendments"
        self.run_folder = path / "run"
        self.log_folder = path / "logs"
        self.status_file = path / "status.json"
        self.server_lock = path / "server.lock"  # locked by a running server
        self.trail = Trail(path)
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
        made.trail.write("created", federation=settings.name, agreement=agreement.digest)
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

    def change_settings(self, settings: FederationSettings) -> None:
        """Write the server's settings; quorum, deadline, grace and patience hold from the next round on."""
        self.settings = settings
        replace(self.path / FEDERATION, pretty(settings.plain()))

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
            if old is not None and old.active:
                raise ValueError(f"There is a client {shown(old.name)} already, number {old.id}.")
            for one in members:
                if one.public_key == key and (one is not old or one.revoked):
                    raise ValueError(f"This key is that of client {shown(one.name)}; every client has one of its own.")
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
        if any(one.public_key == key for one in self.roster):
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
        member = next((one for one in members if one.name.lower() == name.lower()), None)
        if member is None:
            raise ValueError(f"There is no client {shown(name)}; there are {listed([one.name for one in members])}.")
        return member

    def change(self, id: int, **fields: Any) -> Member:
        """Change what the roster says of a client; a running server hears of it at once."""
        with self._locked():
            members = self.roster
            members[id] = members[id]._replace(**fields)
            self._write_roster(members)
        return members[id]

    @property
    def terms(self) -> list[Agreement]:
        """The agreement and its amendments, in their order."""
        from protonorm.deployment.agreement import Agreement

        terms = [self.agreement]
        for number in range(1, len(list(self.amendments.glob("*.json"))) + 1):
            place = self.amendments / f"{number}.json"
            terms.append(Agreement.read(place.read_bytes(), str(place)))
            terms[-1].refuse_unless_it_follows(terms[-2])
        return terms

    @property
    def current(self) -> Agreement:
        """Terms of the round after the last committed one."""
        from protonorm.deployment.agreement import terms_of

        return terms_of(self.terms, committed(self.run_folder) + 1)

    def amend(self, settings: dict[str, Any], round: int | None = None) -> Agreement:
        """Amend the terms from a round on: by default the next one that has not begun."""
        done = committed(self.run_folder)
        first = done + 1 + (done < self.terms[-1].rounds and (self.run_folder / INFO).exists())
        if (round or first) < first:
            raise ValueError(f"Amended terms must begin in round {first} or later, got {round}.")
        with self._locked():
            terms = self.terms
            made = terms[-1].amended(settings, round or first)
            if made.rounds < max(done, made.amends.round - 1 if made.amends else 0):
                raise ValueError(f"rounds must not be less than the rounds that are done, got {made.rounds}.")
            make_folder(self.amendments)
            append(self.amendments / f"{len(terms)}.json", made.write())
        return made

    def standing(self, member: Member) -> str:
        """Return why a client is not waited for; empty if it is."""
        aside = "set aside" if member.missed >= self.settings.patience else ""
        return "revoked" if member.revoked else member.gone or aside

    def look(self) -> Seats:
        """Return who takes part in the next round, and by which terms."""
        from protonorm.deployment.federation import Seats

        members, own = self.roster, FederationFolder.open(self.path).settings
        return Seats(
            names=[one.name for one in members],
            members=[one.id for one in members if one.active],
            terms=self.terms,
            confirmed={one.id: one.confirmed for one in members if one.confirmed},
            missed={one.id: one.missed for one in members},
            **{name: getattr(own, name) for name in ("quorum", "deadline", "grace", "patience")},
        )

    def _locked(self) -> FileLock:
        return FileLock(self.path / LOCK, mode=PRIVATE_FILE)

    def _write_roster(self, members: Sequence[Member]) -> None:
        before = {one.id: one._asdict() for one in self.roster}
        replace(self.path / ROSTER, pretty({"members": [one._asdict() for one in members]}))
        for one in members:
            old = before.get(one.id, {})
            changed = {name: value for name, value in one._asdict().items() if old.get(name) != value}
            if changed:
                self.trail.write("member", client=one.id, name=one.name, changed={**changed, **_fingerprints(changed)})

    def bundle(self, member: Member) -> Bundle:
        """Create a client's bundle, which contains no secret."""
        from protonorm.deployment.agreement import Bundle

        own = {"client": member.id, "name": member.name, "public_key": member.public_key}
        own |= {"certificate": member.certificate, "authority": self.tls.authority.read_text()}
        settings = self.settings
        return Bundle.of(self.current, federation=settings.name, host=settings.host, port=settings.port, **own)

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
        self.new_key, self.new_public_key = path / "new.key", path / "new.pub"  # until its bundle is confirmed
        self.amendments, self.offer_file = path / "amendments", path / "offer.json"
        self.states = path / "states"
        self.log_folder = path / "logs"
        self.trail = Trail(path)
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
        made.trail.write("created", **_fingerprints({"public_key": made.public_key}))
        return made

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open an existing client's folder."""
        place = Path(path).resolve()
        if not (place / CLIENT).is_file():
            raise ValueError(f"{path} is no folder of a client; `protonorm deploy join NAME` makes one.")
        return cls(place, ClientSettings.of(read_json(place / CLIENT), str(place / CLIENT)))

    def rekey(self) -> str:
        """Make a new key, which is used once a bundle for it is confirmed; return its public line."""
        from protonorm.deployment.keys import make_client_key

        for leftover in (self.new_key, self.new_public_key):
            leftover.unlink(missing_ok=True)
        append(self.new_public_key, make_client_key(self.new_key).encode() + f" {self.settings.name}\n".encode())
        return self.new_public_key.read_text().strip()

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

    @property
    def allowed(self) -> ClientSettings:
        """Settings of the client within the owner's policy; raise ValueError if it does not allow the agreement."""
        if (policy := self.policy) is None:
            return self.settings
        policy.check(self.terms)
        return policy.within(self.settings)

    def refuse_other_key(self, bundle: Bundle) -> bool:
        """Raise ValueError if a bundle is for another key; return whether it is for the new key of `rekey`."""
        from protonorm.deployment.keys import check_public_line

        if self.new_public_key.is_file() and check_public_line(self.new_public_key.read_text()) == bundle.public_key:
            return True
        bundle.refuse_other_key(self.public_key)
        return False

    def confirm(self, bundle: Bundle, how: str = "") -> None:
        """Store a bundle that the owner has confirmed; raise ValueError if it is for another key.

        If it is for the new key of `rekey`, that key takes the place of the old one.
        """
        if self.refuse_other_key(bundle):
            self.new_key.replace(self.tls.key)
            self.new_public_key.replace(self.public_key_file)
        replace(self.tls.authority, bundle.authority.encode())
        replace(self.tls.certificate, bundle.certificate.encode())
        replace(self.path / BUNDLE, bundle.write())
        terms = {
            "federation": bundle.federation,
            "client": bundle.client,
            "server": address_of(bundle.host, bundle.port),
        }
        digests = {"bundle": bundle.digest, "agreement": bundle.terms.digest}
        self.trail.write("confirmed", **terms, **digests, allowed=self.settings.allowed, how=how)

    def change(self, **given: Any) -> None:
        """Change the owner's settings and write them."""
        before, self.settings = self.settings.plain(), ClientSettings.of({**self.settings.plain(), **given})
        changed = {name: value for name, value in self.settings.plain().items() if before[name] != value}
        if changed:
            self.trail.write("settings", **changed)
        replace(self.path / CLIENT, pretty(self.settings.plain()))

    def known(self) -> list[Agreement]:
        """Return the terms that the owner has confirmed, in their order."""
        from protonorm.deployment.agreement import Agreement

        terms = [Agreement.read(path.read_bytes(), str(path)) for path in self.amendments.glob("*.json")]
        mine = self.bundle.terms
        terms = [one for one in terms if one.root == mine.root and one.digest != mine.digest]
        return sorted([mine, *terms], key=lambda one: one.amends.round if one.amends else 0)

    @property
    def terms(self) -> Agreement:
        """Last terms that the owner has confirmed."""
        return self.known()[-1]

    @property
    def offered(self) -> Agreement | None:
        """Amended terms that wait for the owner's confirmation."""
        from protonorm.deployment.agreement import Agreement

        if not self.offer_file.is_file():
            return None
        terms = Agreement.read(self.offer_file.read_bytes(), str(self.offer_file))
        return None if terms.digest in [one.digest for one in self.known()] else terms

    def offer(self, terms: Agreement) -> bool:
        """Return whether terms are confirmed; keep new ones for the owner to look at, and say so once."""
        known = self.known()
        if terms.digest in [one.digest for one in known]:
            return True
        terms.refuse_unless_it_follows(known[-1])
        if not self.offer_file.is_file() or self.offer_file.read_bytes() != terms.write():
            from protonorm.deployment.events import Log

            replace(self.offer_file, terms.write())
            other = ", ".join(differing(terms.plain(), known[-1].plain()))
            sentence = f"The server proposes other terms: {other}. `protonorm deploy accept` shows and confirms them."
            Log(self.log_folder, "client").write("offered", sentence, "warning")
        return False

    def accept(self) -> None:
        """Confirm the amended terms that the server proposes."""
        terms = self.offered
        assert terms is not None
        if policy := self.policy:
            policy.check(terms)
        make_folder(self.amendments)
        replace(self.amendments / f"{terms.digest[:16]}.json", terms.write())
        self.offer_file.unlink(missing_ok=True)

    @property
    def history_folder(self) -> Path:
        """Folder of the client's states and history; found without reading the agreement, which needs torch."""
        agreement = read_json(self.path / BUNDLE)["agreement"]
        root = (agreement.get("amends") or {}).get("first") or hashlib.sha256(canonical(agreement)).hexdigest()
        return self.states / str(root)[:16]

    def store(self, name: str = "") -> FolderStore:
        """Open the store of the client's states, or that of its training `alone`."""
        from protonorm.deployment.site import open_store

        return open_store(self.states, self.terms, name)

    def _note_samples(self, site: OwnSite) -> None:
        """Record in the audit trail which samples came and which went since the last time."""
        import numpy as np

        place, keys = self.path / SAMPLES, np.unique(site.dataset.content_keys())
        old = np.frombuffer(place.read_bytes()[: place.stat().st_size // 8 * 8], "<u8") if place.exists() else keys[:0]
        if place.exists() and np.array_equal(old, keys):
            return
        added, removed = np.setdiff1d(keys, old), np.setdiff1d(old, keys)
        facts = site.facts()
        parts = {name: int(getattr(facts, name).sum()) for name in ("train", "validation", "test")}
        gone = [f"{key:016x}" for key in removed[:LISTED].tolist()]
        self.trail.write("samples", **parts, added=len(added), removed=len(removed), removed_hashes=gone)
        replace(place, keys.astype("<u8").tobytes())

    def node(self) -> Node:
        """Build the node from data, network and agreement; raise ValueError if they do not fit together."""
        from protonorm.deployment.events import Log
        from protonorm.deployment.node import Node

        def tell(cause: str) -> None:  # causes of errors are not sent to the server
            Log(self.log_folder, "client").write("cause", cause, "warning")

        site, policy = self.site(), self.policy
        self._note_samples(site)
        return Node(
            self.terms,
            site,
            self.store(),
            self.allowed.allowed,
            begin_anew=self.begin_anew,
            tell=tell,
            owner=self,
            received=policy.received if policy else None,
            loss=policy is None or policy.loss,
            record=self.trail.write,
        )

    def site(self) -> OwnSite:
        """Build the client from data, network and agreement; raise ValueError if they do not fit together."""
        from protonorm.deployment.site import own_secret, own_site

        if not self.settings.data:
            raise ValueError("The client has no data yet: give --data PATH.")
        return own_site(self.terms, self.bundle.client, self.allowed, own_secret(self.path))


def is_client_folder(path: Path) -> bool:
    """Return whether a folder is a client's of a real federation."""
    return (path / CLIENT).is_file() and (path / "client.pub").is_file()


def read_history(folder: Path) -> dict[int, dict[str, Any]]:
    """Read a client's own evaluations and training losses by round; a later line of a round adds to an earlier one."""
    path, found = folder / HISTORY, dict[int, dict[str, Any]]()
    for line in read_lines(path):
        plain = unsealed(line, path, owner=folder.name)
        found.setdefault(plain.pop("round"), {}).update(plain)
    return dict(sorted(found.items()))


def _fingerprints(changed: Mapping[str, Any]) -> dict[str, str]:
    """Return short forms of a key and a certificate."""
    from protonorm.deployment.keys import certificate_fingerprint, key_fingerprint

    forms = {"public_key": key_fingerprint, "certificate": certificate_fingerprint}
    return {name: make(changed[name]) for name, make in forms.items() if changed.get(name)}


def refuse_existing(path: Path, what: str) -> None:
    """Raise ValueError if a path exists and is not an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} is there already, and it is not empty; {what} gets a folder of its own.")
