"""A federation's folder, on the server's machine. Nothing here needs torch until the agreement is asked for.

federation.json    its name, how it is reached, and when a round counts; may be changed by hand between two starts
agreement.json     what all parties agree on; never changed
roster.json        the clients: number, name, public key
keys/              the authority's key and certificate, and the server's; the keys never leave this folder
bundles/NAME.json  what each client gets
run/               the record, as of every other run
logs/              server.jsonl for machines, server.log for people
run.wanted         is there as long as the owner wants the rounds to be run
status.json        how things stand, written anew by the server at every change
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from filelock import FileLock

from protonorm.core.types import shown
from protonorm.deployment.settings import FederationSettings
from protonorm.files import PRIVATE_FILE, append, make_folder, pretty, read_json, replace

__all__ = ["FederationFolder", "FederationSettings", "Member", "SuperLinkPaths"]

if TYPE_CHECKING:
    from protonorm.deployment.agreement import Agreement
    from protonorm.deployment.bundle import Bundle

VARIABLE = "PROTONORM_FEDERATION"  # names the folder where no other is given
SETTINGS, AGREEMENT, ROSTER, LOCK = "federation.json", "agreement.json", "roster.json", "lock"


class Member(NamedTuple):
    """A client that may take part."""

    id: int  # 0 to M - 1, in the order in which they were added
    name: str
    public_key: str  # a line as OpenSSH writes it, without a comment


class SuperLinkPaths(NamedTuple):
    """The files that the server needs for TLS."""

    authority: Path  # certificate by which everybody knows the server
    certificate: Path
    key: Path


class FederationFolder:
    """One federation; several processes may have it open."""

    def __init__(self, path: Path, settings: FederationSettings) -> None:
        self.path, self.settings = path, settings

    @classmethod
    def create(cls, path: Path, settings: FederationSettings, agreement: Agreement) -> Self:
        """Make a federation: a folder for its owner alone, an authority, and the server's certificate."""
        from protonorm.deployment.keys import make_authority, make_server_certificate

        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ValueError(f"{path} is there already, and it is not empty; a federation gets a folder of its own.")
        made = cls(path.resolve(), settings)
        for folder in (made.path, made.keys, made.bundles, made.log_folder):
            make_folder(folder)
        ways = made.superlink
        make_authority(made.authority_key, ways.authority, settings.name)
        make_server_certificate((made.authority_key, ways.authority), ways.key, ways.certificate, settings.hosts)
        append(made.path / AGREEMENT, agreement.write())
        append(made.path / ROSTER, pretty({"members": []}))
        replace(made.path / SETTINGS, pretty(settings.model_dump(mode="json")))  # last: now it is a federation
        return made

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open a federation that is there."""
        place = Path(path).resolve()
        if not (place / SETTINGS).is_file():
            raise ValueError(f"{path} is no folder of a federation; `protonorm deploy init FOLDER` makes one.")
        return cls(place, FederationSettings.of(read_json(place / SETTINGS), str(place / SETTINGS)))

    def renew_certificate(self) -> None:
        """Let the authority vouch for the server again, under the names that the settings have now."""
        from protonorm.deployment.keys import make_server_certificate

        ways = self.superlink
        key, certificate = ways.key.with_suffix(".new-key"), ways.certificate.with_suffix(".new-crt")
        for left in (key, certificate):
            left.unlink(missing_ok=True)
        make_server_certificate((self.authority_key, ways.authority), key, certificate, self.settings.hosts)
        key.replace(ways.key)
        certificate.replace(ways.certificate)

    @property
    def keys(self) -> Path:
        """Give the folder of keys and certificates."""
        return self.path / "keys"

    @property
    def authority_key(self) -> Path:
        """Give the authority's key, which is needed for new certificates alone."""
        return self.keys / "authority.key"

    @property
    def bundles(self) -> Path:
        """Give the folder of what clients get."""
        return self.path / "bundles"

    @property
    def run_folder(self) -> Path:
        """Give the folder of the record."""
        return self.path / "run"

    @property
    def log_folder(self) -> Path:
        """Give the folder of logs."""
        return self.path / "logs"

    @property
    def status_file(self) -> Path:
        """Give the file that says how things stand."""
        return self.path / "status.json"

    @property
    def server_lock(self) -> Path:
        """Give the file that a running server holds."""
        return self.path / "server.lock"

    @property
    def wanted(self) -> Path:
        """Give the file that is there as long as the owner wants the rounds to be run."""
        return self.path / "run.wanted"

    @property
    def superlink(self) -> SuperLinkPaths:
        """Give the files that the server needs for TLS."""
        return SuperLinkPaths(*(self.keys / name for name in ("authority.crt", "server.crt", "server.key")))

    @property
    def agreement(self) -> Agreement:
        """Read what all parties agree on."""
        from protonorm.deployment.agreement import Agreement  # takes torch

        place = self.path / AGREEMENT
        return Agreement.read(place.read_bytes(), str(place))

    @property
    def roster(self) -> list[Member]:
        """Read who may take part, in the order of their numbers."""
        place = self.path / ROSTER
        found = read_json(place).get("members")
        try:
            members = [Member(int(one["id"]), str(one["name"]), str(one["public_key"])) for one in found or []]
        except (TypeError, KeyError, ValueError):
            raise ValueError(f"{place} is damaged: expected clients with id, name and public_key.") from None
        if [one.id for one in members] != list(range(len(members))):
            raise ValueError(f"{place} is damaged: its clients are not numbered 0, 1, 2 and so on.")
        return members

    def add(self, name: str, public_key: str) -> Member:
        """Let a client take part; give it the next number."""
        from protonorm.deployment.keys import check_public_line

        key = check_public_line(public_key)
        with FileLock(self.path / LOCK, mode=PRIVATE_FILE):
            members = self.roster
            for one in members:
                if one.name.lower() == name.lower():
                    raise ValueError(f"There is a client {shown(one.name)} already, number {one.id}.")
                if one.public_key == key:
                    raise ValueError(f"This key is that of client {shown(one.name)}; every client has one of its own.")
            if (self.run_folder / "experiment.json").exists():
                raise ValueError(f"The run has begun with {len(members)} clients, and goes on with them alone.")
            member = Member(len(members), name, key)
            self.bundle(member)  # a name that does not fit is refused before anything is written
            plain = [one._asdict() for one in [*members, member]]
            replace(self.path / ROSTER, pretty({"members": plain}))
        return member

    def bundle(self, member: Member) -> Bundle:
        """Put together what a client gets: it holds no secret."""
        from protonorm.deployment.bundle import Bundle

        return Bundle.of(
            self.agreement,
            federation=self.settings.name,
            client=member.id,
            name=member.name,
            public_key=member.public_key,
            host=self.settings.host,
            port=self.settings.port,
            authority=self.superlink.authority.read_text(),
        )

    def write_bundle(self, member: Member) -> Path:
        """Write what a client gets into a file."""
        place = self.bundles / f"{member.name}.json"
        replace(place, self.bundle(member).write())
        return place
