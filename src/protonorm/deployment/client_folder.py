"""Folder of a client, on its owner's machine. torch is imported lazily.

client.json   the owner's settings: data, network, learning rate, batch size, device, disclosed evaluation results
client.key    the client's private key, which never leaves this folder; client.pub goes to the server's owner
client.secret random secret of the client's first weights and batches
amendments/   amended terms that the owner has confirmed; offer.json has those that the server proposes
bundle.json   the bundle from the server's owner, as confirmed by the client's owner; its certificates are
              authority.crt and client.crt
left          exists once the client has left its federation, until its owner confirms another bundle
samples.bin   a hash of each sample that was there at the last start, for the audit trail
states/       the client's states, the server's last message, and the client's own accuracy in each round
audit.jsonl   the audit trail, to which lines are only added
logs/         client.jsonl for machines, client.log for people
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from protonorm.deployment.audit import Trail, fingerprints, read_trail
from protonorm.deployment.settings import ClientSettings, TlsFiles, address_of, canonical, differing
from protonorm.files import append, make_folder, pretty, read_json, refuse_existing, replace, unsealed
from protonorm.runs.layout import read_lines

if TYPE_CHECKING:
    from protonorm.core.training import Outgoing
    from protonorm.deployment.agreement import Agreement, Bundle
    from protonorm.deployment.node import Node
    from protonorm.deployment.owner import OwnerPolicy
    from protonorm.deployment.site import OwnSite
    from protonorm.runs.states import FolderStore

CLIENT_VARIABLE = "PROTONORM_CLIENT"  # environment variable with the default folder
CLIENT, BUNDLE, HISTORY, SAMPLES = "client.json", "bundle.json", "history.jsonl", "samples.bin"
POLICY = "policy.yaml"
LISTED = 1000  # removed samples that the audit trail names


class ClientFolder:
    """Folder of a client."""

    def __init__(self, path: Path, settings: ClientSettings) -> None:
        self.path, self.settings = path, settings
        self.begin_anew = False  # whether to start from a new network if the client's state is lost
        self.show: Callable[[str], None] | None = None  # shows log lines at the terminal
        self.tls = TlsFiles(*(path / name for name in ("authority.crt", "client.crt", "client.key")))
        self.public_key_file = path / "client.pub"
        self.new_key, self.new_public_key = path / "new.key", path / "new.pub"  # until its bundle is confirmed
        self.amendments, self.offer_file = path / "amendments", path / "offer.json"
        self.states = path / "states"
        self.log_folder = path / "logs"
        self.trail = Trail(path, on_repair=self._log_repair)
        self.left = path / "left"  # exists once the client has left its federation
        self.lock = path / "client.lock"  # locked by a running client

    def _log_repair(self, sentence: str) -> None:
        from protonorm.deployment.events import Log

        Log(self.log_folder, "client", self.show).write("repaired", sentence, "warning")

    @classmethod
    def create(cls, path: Path, name: str) -> Self:
        """Create a client: a private folder with a new key."""
        from protonorm.deployment.keys import make_client_key

        settings = ClientSettings.of({"name": name})
        refuse_existing(path, "a client")
        client = cls(path.resolve(), settings)
        for folder in (client.path, client.states, client.log_folder):
            make_folder(folder)
        append(client.public_key_file, make_client_key(client.tls.key).encode() + f" {name}\n".encode())
        client.change()
        client.trail.write("created", **fingerprints({"public_key": client.public_key}))
        return client

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open an existing client's folder."""
        folder = Path(path).resolve()
        if not (folder / CLIENT).is_file():
            raise ValueError(f"{path} is no folder of a client; `protonorm deploy join NAME` makes one.")
        return cls(folder, ClientSettings.of(read_json(folder / CLIENT), str(folder / CLIENT)))

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

        file = self.path / BUNDLE
        if not self.joined:
            raise ValueError(f"{self.path} has no bundle yet: `protonorm deploy client BUNDLE` takes the one you got.")
        return Bundle.read(file.read_bytes(), str(file))

    @property
    def policy(self) -> OwnerPolicy | None:
        """Policy of the owner; None if there is no file."""
        if not (self.path / POLICY).exists():
            return None
        from protonorm.deployment.owner import OwnerPolicy  # imports torch

        return OwnerPolicy.read(self.path / POLICY)

    @property
    def allowed(self) -> ClientSettings:
        """Settings of the client within the owner's policy; raise ValueError if it does not allow the agreement."""
        if policy := self.policy:
            policy.check(self.terms)
        return self.within_policy

    @property
    def within_policy(self) -> ClientSettings:
        """Settings of the client within the owner's policy, whatever the agreement is."""
        policy = self.policy
        return policy.within(self.settings) if policy else self.settings

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
        self.left.unlink(missing_ok=True)
        about = {"federation": bundle.federation, "client": bundle.client}
        about |= {"server": address_of(bundle.host, bundle.port), "bundle": bundle.digest}
        self.trail.write("confirmed", **about, agreement=bundle.terms.digest, allowed=self.settings.allowed, how=how)

    def change(self, **changes: Any) -> None:
        """Change the owner's settings and write them."""
        before, self.settings = self.settings.plain(), ClientSettings.of({**self.settings.plain(), **changes})
        changed = {name: value for name, value in self.settings.plain().items() if before[name] != value}
        if changed:
            self.trail.write("settings", **changed)
        replace(self.path / CLIENT, pretty(self.settings.plain()))

    @contextmanager
    def trying(self, **changes: Any) -> Iterator[None]:
        """Change the owner's settings within the context, and write them if it ends without an error."""
        before, self.settings = self.settings, ClientSettings.of({**self.settings.plain(), **changes})
        try:
            yield
        finally:
            self.settings = before
        self.change(**changes)

    def confirmed_terms(self) -> list[Agreement]:
        """Return the terms that the owner has confirmed, in their order."""
        from protonorm.deployment.agreement import Agreement

        terms = [Agreement.read(path.read_bytes(), str(path)) for path in self.amendments.glob("*.json")]
        first = self.bundle.terms
        terms = [agreement for agreement in terms if agreement.root == first.root and agreement.digest != first.digest]
        return sorted([first, *terms], key=lambda agreement: agreement.amends.round if agreement.amends else 0)

    @property
    def terms(self) -> Agreement:
        """Last terms that the owner has confirmed."""
        return self.confirmed_terms()[-1]

    @property
    def offered(self) -> Agreement | None:
        """Amended terms that wait for the owner's confirmation."""
        from protonorm.deployment.agreement import Agreement

        if not self.offer_file.is_file():
            return None
        terms = Agreement.read(self.offer_file.read_bytes(), str(self.offer_file))
        return None if terms.digest in [agreement.digest for agreement in self.confirmed_terms()] else terms

    def previous(self, terms: Agreement) -> Agreement:
        """Return the confirmed terms that others amend; the last ones if they amend none of them."""
        confirmed = self.confirmed_terms()
        first = terms.amends.previous if terms.amends else ""
        return next((agreement for agreement in confirmed if agreement.digest == first), confirmed[-1])

    def offer(self, terms: Agreement) -> bool:
        """Return whether terms are confirmed; keep new ones for the owner to look at, and say so once."""
        confirmed = self.confirmed_terms()
        if terms.digest in [agreement.digest for agreement in confirmed]:
            return True
        previous = self.previous(terms)
        terms.refuse_unless_it_follows(previous)
        if not self.offer_file.is_file() or self.offer_file.read_bytes() != terms.write():
            from protonorm.deployment.events import Log

            replace(self.offer_file, terms.write())
            before = previous.plain() | {"amends": terms.plain()["amends"]}
            changes = ", ".join(differing(terms.plain(), before))
            sentence = f"The server proposes other terms: {changes}. `protonorm deploy accept` shows and confirms them."
            Log(self.log_folder, "client", self.show).write("offered", sentence, "warning")
        return False

    def check(self, terms: Agreement) -> None:
        """Raise ValueError for terms that the owner's policy does not allow."""
        if policy := self.policy:
            policy.check(terms)

    def accept(self) -> None:
        """Confirm the amended terms that the server proposes."""
        terms = self.offered
        assert terms is not None
        assert terms.amends is not None
        self.check(terms)
        make_folder(self.amendments)
        for replaced in self.confirmed_terms():  # by the server's owner, before a round began by them
            if replaced.amends and replaced.amends.previous == terms.amends.previous:
                (self.amendments / f"{replaced.digest[:16]}.json").unlink(missing_ok=True)
        replace(self.amendments / f"{terms.digest[:16]}.json", terms.write())
        self.offer_file.unlink(missing_ok=True)

    @property
    def history_folder(self) -> Path:
        """Folder of the client's states and history; found without reading the agreement, which needs torch."""
        return self.states / self._root(read_json(self.path / BUNDLE)["agreement"])[:16]

    @staticmethod
    def _root(agreement: dict[str, Any]) -> str:
        """Return the SHA-256 of the first agreement."""
        return str((agreement.get("amends") or {}).get("first") or hashlib.sha256(canonical(agreement)).hexdigest())

    def missing_state(self) -> str:
        """Return a sentence if the state of the last round that the client answered is not there; empty if it is.

        The audit trail has that round. A state of any round is enough after a later request: it was then another one
        that the server asked for, and the state of an answer that did not count is dropped. Does not need torch.
        """
        plain = read_json(self.path / BUNDLE)
        root, digest = self._root(plain["agreement"]), hashlib.sha256(canonical(plain["agreement"])).hexdigest()
        current, answered, asked = True, 0, 0  # whether lines are of this agreement; last rounds of training
        for line in read_trail(self.trail.path):
            round, trains = line.get("round"), "train" in str(line.get("kind", ""))
            if line.get("event") == "confirmed":
                current = line.get("agreement") in (root, digest)
            elif current and trains and isinstance(round, int):
                asked = round
                answered = round if line.get("event") == "sent" else answered
        paths = [path.name.split(".") for path in self.history_folder.glob(f"{plain['client']}.*.safetensors")]
        rounds = [int(parts[1]) for parts in paths if parts[1].isdigit()]
        if not answered or answered in rounds or (rounds and asked != answered):
            return ""
        return (
            f"The state of round {answered}, the last one that the client answered, is missing in "
            f"{self.history_folder}: bring the file back, or start the client with --begin-anew, which goes on with a "
            "new network. Without either it takes part in no round."
        )

    def store(self, name: str = "") -> FolderStore:
        """Open the store of the client's states, or that of its training `alone`."""
        from protonorm.deployment.site import open_store

        return open_store(self.states, self.terms, name)

    def _note_samples(self, site: OwnSite) -> None:
        """Record in the audit trail which samples came and which went since the last time."""
        import numpy as np

        file, keys = self.path / SAMPLES, np.unique(site.dataset.content_keys())
        old = np.frombuffer(file.read_bytes()[: file.stat().st_size // 8 * 8], "<u8") if file.exists() else keys[:0]
        if file.exists() and np.array_equal(old, keys):
            return
        added, removed = np.setdiff1d(keys, old), np.setdiff1d(old, keys)
        facts = site.facts()
        parts = {name: int(getattr(facts, name).sum()) for name in ("train", "validation", "test")}
        hashes = [f"{key:016x}" for key in removed[:LISTED].tolist()]
        self.trail.write("samples", **parts, added=len(added), removed=len(removed), removed_hashes=hashes)
        replace(file, keys.astype("<u8").tobytes())

    def node(self) -> Node:
        """Build the node from data, network and agreement; raise ValueError if they do not fit together."""
        from protonorm.deployment.events import Log
        from protonorm.deployment.keys import read_private
        from protonorm.deployment.node import Node

        def log_cause(cause: str) -> None:  # causes of errors are not sent to the server
            Log(self.log_folder, "client", self.show).write("cause", cause, "warning")

        site, policy = self.site(), self.policy
        self._note_samples(site)
        return Node(
            self.terms,
            site,
            self.store(),
            self.allowed.allowed,
            begin_anew=self.begin_anew,
            on_error=log_cause,
            owner=self,
            received=policy.received if policy else None,
            loss=policy is None or policy.loss,
            record=self.trail.write,
            identity=read_private(self.tls.key) if site.task.secure else None,
            unprotected=self.count_unprotected(site.training.protect),
        )

    def count_unprotected(self, protect: Outgoing) -> int:
        """Return how many messages were sent without noise, which the ε of an outgoing step does not cover."""
        from protonorm.deployment.ledger import count_unprotected

        if not protect.private or not self.joined:
            return 0
        return count_unprotected(self.trail.path, once=protect.releases(self.terms.task) == 1)

    def site(self) -> OwnSite:
        """Build the client from data, network and agreement; raise ValueError if they do not fit together."""
        from protonorm.deployment.site import own_secret, own_site

        terms = self.terms  # first: without a bundle data are of no use
        if not self.settings.data:
            raise ValueError("The client has no data yet: give --data PATH.")
        return own_site(terms, self.bundle.client, self.allowed, own_secret(self.path))


def is_client_folder(path: Path) -> bool:
    """Return whether a folder is a client's of a real federation."""
    return (path / CLIENT).is_file() and (path / "client.pub").is_file()


def read_history(folder: Path) -> dict[int, dict[str, Any]]:
    """Read a client's own evaluations and training losses by round; a later line of a round adds to an earlier one."""
    path, history = folder / HISTORY, dict[int, dict[str, Any]]()
    for line in read_lines(path):
        plain = unsealed(line, path, owner=folder.name)
        history.setdefault(plain.pop("round"), {}).update(plain)
    return dict(sorted(history.items()))
