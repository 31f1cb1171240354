"""A client's folder, on its owner's machine. Nothing here needs torch until the agreement or the data are asked for.

client.json   the owner's settings: data, network, learning rate, batch size, device, what may be said of evaluations
client.key    the client's key, which never leaves this folder; client.pub is what the server's owner gets
bundle.json   what the server's owner sent, as its owner confirmed it
states/       what the client remembers from round to round
logs/         client.jsonl for machines, client.log for people
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from protonorm.deployment.settings import ClientSettings
from protonorm.files import append, make_folder, pretty, read_json, replace

__all__ = ["ClientFolder", "ClientSettings"]

if TYPE_CHECKING:
    from protonorm.deployment.agreement import Agreement
    from protonorm.deployment.bundle import Bundle
    from protonorm.deployment.node import Node

VARIABLE = "PROTONORM_CLIENT"  # names the folder where no other is given
SETTINGS, BUNDLE = "client.json", "bundle.json"


class ClientFolder:
    """One client's own folder."""

    def __init__(self, path: Path, settings: ClientSettings) -> None:
        self.path, self.settings = path, settings
        self.begin_anew = False  # whether the owner wants a new network where the client's state is lost

    @classmethod
    def create(cls, path: Path, name: str) -> Self:
        """Make a client: a folder for its owner alone, and a key in it."""
        from protonorm.deployment.keys import make_client_key

        settings = ClientSettings.of({"name": name})
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ValueError(f"{path} is there already, and it is not empty; a client gets a folder of its own.")
        made = cls(path.resolve(), settings)
        for folder in (made.path, made.states, made.log_folder):
            make_folder(folder)
        append(made.public_key_file, make_client_key(made.key).encode() + f" {name}\n".encode())
        made._write(settings)
        return made

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open a client's folder that is there."""
        place = Path(path).resolve()
        if not (place / SETTINGS).is_file():
            raise ValueError(f"{path} is no folder of a client; `protonorm deploy join NAME` makes one.")
        return cls(place, ClientSettings.of(read_json(place / SETTINGS), str(place / SETTINGS)))

    @property
    def key(self) -> Path:
        """Give the file of the client's key, in OpenSSH's form."""
        return self.path / "client.key"

    @property
    def public_key_file(self) -> Path:
        """Give the file of the public key."""
        return self.path / "client.pub"

    @property
    def public_key(self) -> str:
        """Read the public key, without its comment."""
        from protonorm.deployment.keys import check_public_line

        return check_public_line(self.public_key_file.read_text())

    @property
    def authority(self) -> Path:
        """Give the certificate by which the server is known; it comes with the bundle."""
        return self.path / "authority.crt"

    @property
    def states(self) -> Path:
        """Give the folder of what the client remembers."""
        return self.path / "states"

    @property
    def log_folder(self) -> Path:
        """Give the folder of logs."""
        return self.path / "logs"

    @property
    def lock(self) -> Path:
        """Give the file that a running client holds."""
        return self.path / "client.lock"

    @property
    def joined(self) -> bool:
        """Tell whether its owner has confirmed a bundle."""
        return (self.path / BUNDLE).is_file()

    @property
    def bundle(self) -> Bundle:
        """Read the bundle that its owner confirmed."""
        from protonorm.deployment.bundle import Bundle  # takes torch

        place = self.path / BUNDLE
        if not self.joined:
            raise ValueError(f"{self.path} has no bundle yet: `protonorm deploy client BUNDLE` takes the one you got.")
        return Bundle.read(place.read_bytes(), str(place))

    @property
    def agreement(self) -> Agreement:
        """Read the agreement that its owner confirmed."""
        return self.bundle.terms

    @property
    def id(self) -> int:
        """Give the client's number."""
        return self.bundle.client

    def confirm(self, bundle: Bundle) -> None:
        """Take a bundle that the owner has looked at; one for another key is refused."""
        bundle.refuse_other_key(self.public_key)
        replace(self.authority, bundle.authority.encode())
        replace(self.path / BUNDLE, bundle.write())

    def change(self, **given: Any) -> None:
        """Change settings of the owner's, and write them down."""
        self.settings = ClientSettings.of({**self.settings.model_dump(mode="json"), **given})
        self._write(self.settings)

    def node(self) -> Node:
        """Bring data, network and agreement together: what does not fit is refused in a sentence."""
        from protonorm.deployment.node import Node
        from protonorm.deployment.site import make_site, open_store
        from protonorm.federation.population import Training

        own, bundle = self.settings, self.bundle
        if not own.data:
            raise ValueError("The client has no data yet: give --data PATH.")
        training = Training(
            validation=own.validation,
            lr=own.lr,
            momentum=own.momentum,
            weight_decay=own.weight_decay,
            epochs=own.epochs,
            batch_size=own.batch_size,
            device=own.device,
        )
        site = make_site(
            bundle.terms,
            bundle.client,
            own.data,
            own.model,
            training,
            lowering=own.lowering,
            train=own.train,
            name=own.name,
        )
        store = open_store(self.states, bundle.terms)
        return Node(bundle.terms, site, store, own.allowed, begin_anew=self.begin_anew, tell=self._tell_owner)

    def _tell_owner(self, sentence: str) -> None:
        """Log what the server is not told."""
        from protonorm.deployment.log import Log

        Log(self.log_folder, "client").write("cause", sentence, "warning")

    def _write(self, settings: ClientSettings) -> None:
        replace(self.path / SETTINGS, pretty(settings.model_dump(mode="json")))
