"""A federation of real processes on this machine: TLS, keys, folders, and the simulation that has the same data."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

import protonorm as pn
from protonorm.core.training import describe_outgoing
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.federation_folder import FederationFolder
from protonorm.deployment.keys import key_fingerprint
from protonorm.deployment.settings import FederationSettings
from protonorm.session.build import build
from tests import warm
from tests.deployment.sites import agreement_of
from tests.support import pictures, run, run_folder

Started = subprocess.Popen[bytes] | warm.Process

LABELS = ([0, 1, 2] * 8, [0, 1] * 10, [2, 1, 0, 0] * 6, [1, 2] * 9)
NAMES = ("berlin", "kyoto", "lima", "quito")

SERVER = """
import sys
from pathlib import Path
from protonorm.deployment.federation_folder import FederationFolder
from protonorm.deployment.https.serving import serve
told = lambda event: print(event.what, event.sentence, flush=True)
serve(FederationFolder.open(sys.argv[1]), told, on_denied=print, once=True)
"""
CLIENT = """
import sys
from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.worker import run_client
from protonorm.errors import Failed
told = lambda event, sentence: print(event, sentence, flush=True)
try:
    run_client(ClientFolder.open(sys.argv[1]), told, linger=0.0)
except (Failed, ValueError) as error:
    print(error, flush=True)
    sys.exit(1)
"""


def free_port() -> int:
    """Find a port that nobody has at the moment."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        found: int = one.getsockname()[1]
    return found


class RealFederation:
    """Folders of a server and of clients whose data are files; processes end with the test."""

    def __init__(self, root: Path, clients: int = 2, **settings: Any) -> None:
        self.root, self.running = root, []
        data = root / "sites"
        data.mkdir(parents=True)
        for seed, (name, labels) in enumerate(zip(NAMES[:clients], LABELS, strict=False)):
            one = pictures(labels, 3, seed=seed)
            np.savez(data / f"{name}.npz", images=one.inputs, labels=one.labels, classes=np.array(one.classes))
        usual = {"dataset": f"clients:{data}", "clients": clients, "rounds": 2, "batch_size": 4, "feature_dim": 8}
        usual |= {"split": "content"}
        self.experiment = pn.Experiment.of(usual | {"lr": 0.01} | settings)
        task, population = build(self.experiment)
        self.made = {name: ClientFolder.create(self.root / name, name) for name in NAMES[:clients]}
        members = [key_fingerprint(made.public_key) for made in self.made.values()] if task.secure else []
        terms = agreement_of(task, ("validation", "test"), reproducible=True, members=members).plain()
        self.noise = describe_outgoing(self.experiment.protect) if self.experiment.protect.private else None
        self.agreement = Agreement.of(terms | {"noise": self.noise})
        plain = {"name": "trial", "hosts": ["127.0.0.1"], "bind": "127.0.0.1", "port": free_port(), "quorum": 1.0}
        self.server = FederationFolder.create(root / "server", FederationSettings.of(plain), self.agreement)
        self.clients = [self._client(id, data / f"{name}.npz") for id, name in enumerate(NAMES[:clients])]
        for id, one in enumerate(self.clients):
            one.change(model=population.recipe(id).name)

    def join(self, name: str, model: str) -> ClientFolder:
        """Add another client, whatever the round is."""
        id = NAMES.index(name)
        one, place = pictures(LABELS[id], 3, seed=id), self.root / "sites" / f"{name}.npz"
        np.savez(place, images=one.inputs, labels=one.labels, classes=np.array(one.classes))
        self.clients.append(self._client(id, place))
        self.clients[-1].change(model=model)
        return self.clients[-1]

    def _client(self, id: int, data: Path) -> ClientFolder:
        made = self.made.get(NAMES[id]) or ClientFolder.create(self.root / NAMES[id], NAMES[id])
        made.confirm(self.server.bundle(self.server.add(NAMES[id], made.public_key)))
        settings = self.experiment
        made.change(data=f"npz:{data}", lr=settings.lr, batch_size=4, validation=settings.validation)
        made.change(**{"protect": self.noise} if self.noise else {"allowed": "classes"})
        return made

    def start_server(self) -> Started:
        """Start the server in a process of its own."""
        return self._start(SERVER, self.server.path, "server.out")

    def start_client(self, id: int) -> Started:
        """Start a client in a process of its own."""
        return self._start(CLIENT, self.clients[id].path, f"{id}.out")

    def _start(self, code: str, folder: Path, out: str) -> Started:
        made: Started
        with (self.root / out).open("a") as file, open(os.devnull) as nothing:
            if warm.POSSIBLE:
                made = warm.NURSERY.start(["-c", code, str(folder)], nothing.fileno(), file.fileno(), file.fileno())
            else:
                env = dict(os.environ, OMP_NUM_THREADS="1")
                made = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=file, stderr=file, env=env)
        self.running.append(made)
        return made

    def output(self, out: str) -> str:
        """Return what a process has printed."""
        return (self.root / out).read_text() if (self.root / out).exists() else ""

    def wait_for(self, out: str, text: str, times: int = 1, seconds: float = 120.0) -> None:
        """Wait until a process has printed something."""
        end = time.monotonic() + seconds
        while self.output(out).count(text) < times:
            assert time.monotonic() < end, f"{text!r} does not come:\n{self.output(out)}"
            time.sleep(0.02)

    def serial(self) -> Path:
        """Run the simulation that has all clients' data; give its folder."""
        run(self.experiment, self.root / "serial")
        return run_folder(self.experiment, self.root / "serial")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for one in self.running:
            if one.poll() is None:
                one.kill()
            one.wait()
