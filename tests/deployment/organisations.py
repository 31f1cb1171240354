"""Four organisations and a server on hosts of their own, who give the documented commands."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import numpy as np
from PIL import Image

import protonorm as pn
from protonorm import tensors
from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.federation_folder import FederationFolder
from protonorm.deployment.status import Status
from protonorm.runs.layout import stamp
from protonorm.runs.run import read_run
from protonorm.runs.states import FolderStore
from tests.contract.playing import same
from tests.deployment.hosts import Host, Hosts
from tests.deployment.processes import free_port
from tests.support import pictures, run, run_folder

LABELS = {"berlin": [0, 1, 2] * 6, "kyoto": [0, 1] * 8, "lima": [2, 1, 0, 0] * 4, "quito": [1, 2] * 8}
NETWORKS = ["plain", "residual", "depthwise", "dense"]
ROUNDS, PATIENCE = 5, 240.0


class Organisations:
    """Folders of pictures, and the commands that their owners and the owner of the server give."""

    def __init__(self, root: Path, hosts: Hosts) -> None:
        self.root, self.hosts, self.running = root, hosts, {}
        for seed, (name, labels) in enumerate(LABELS.items()):
            found = pictures(labels, 3, seed=seed)
            for number, (picture, label) in enumerate(zip(found.inputs, found.labels, strict=True)):
                place = root / "pictures" / name / found.classes[label]
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(picture[:, :, 0]).save(place / f"{number:03}.png")

    def do(self, host: Host, *words: str, folder: str = ".") -> str:
        """Run a command on a host, and wait for it."""
        done = subprocess.run(self._words(host, words), capture_output=True, text=True, cwd=self.root / folder)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, name: str, host: Host, *words: str) -> subprocess.Popen:
        """Start a command on a host, without waiting."""
        with (self.root / f"{name}.out").open("a") as out:
            env = dict(os.environ, OMP_NUM_THREADS="1")
            made = subprocess.Popen(self._words(host, words), stdout=out, stderr=out, cwd=self.root, env=env)
        self.running.setdefault(name, []).append(made)
        return made

    def _words(self, host: Host, words: tuple[str, ...]) -> list[str]:
        return host.command(sys.executable, "-P", "-m", "protonorm", "deploy", *words)

    def found(self, members: int = 4, deadline: int = 120) -> None:
        """Make the federation, and let organisations join."""
        terms = ["classes=class 0,class 1,class 2", "feature_dim=8", f"rounds={ROUNDS}", "reproducible=true"]
        terms += ["evaluated=[validation,test]"]
        about = ["--host", self.hosts.server.address, "--port", str(free_port()), "--quorum", "1"]
        self.do(self.hosts.server, "init", "server", *terms, *about, "--deadline", str(deadline))
        for number in range(members):
            self.add(number)

    def add(self, number: int) -> None:
        """Add an organisation as a client."""
        name = list(LABELS)[number]
        key = self.do(self.hosts.clients[number], "join", name).strip().splitlines()[-1]
        self.do(self.hosts.server, "add-client", name, key, "--folder", "server")

    def start_client(self, number: int, *words: str) -> subprocess.Popen:
        """Start a client with its pictures and its network; its bundle was sent to it."""
        name, host = list(LABELS)[number], self.hosts.clients[number]
        bundle = next((self.root / "server").rglob(f"{name}.json"))
        own = ("--data", f"pictures/{name}", "--model", NETWORKS[number], "--lr", "0.002", "--batch-size", "4")
        told = ("--evaluation", "classes", "--validation", "0.25", "--yes")
        return self.start(name, host, "client", str(bundle), *own, *told, *words)

    def status(self) -> dict:
        """Ask how the federation stands."""
        return json.loads(self.do(self.hosts.server, "status", "--folder", "server", "--json"))

    def seen(self) -> Status:
        """Look at how the federation stands without starting a process."""
        return Status.read(FederationFolder.open(self.root / "server").status_file) or Status(
            federation="", agreement="", rounds=0
        )

    def output(self) -> str:
        """Return all that was printed."""
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(self.root.glob("*.out")))

    def wait(self, process: subprocess.Popen) -> None:
        """Wait until a command has ended, and well."""
        try:
            assert process.wait(PATIENCE) == 0, self.output()
        except subprocess.TimeoutExpired:
            raise AssertionError(self.output()) from None

    def wait_until(self, holds) -> None:
        """Wait until something holds."""
        end = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < end, self.output()
            time.sleep(0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in [process for all_of_a_name in self.running.values() for process in all_of_a_name]:
            if one.poll() is None:
                one.kill()
            one.wait()

    def equals_serial(self, **settings) -> None:
        """Compare with the simulation that has all the data: every record, the server's file, every client's state."""
        usual = {"dataset": f"clients:{self.root / 'pictures'}", "models": NETWORKS, "rounds": ROUNDS, "batch_size": 4}
        combine = FederationFolder.open(self.root / "server").agreement.combine
        usual |= {"split": "content", "combine": combine}
        experiment = pn.Experiment.of(usual | {"lr": 0.002, "feature_dim": 8, "validation": 0.25} | settings)
        run(experiment, self.root / "serial")
        ours, theirs = read_run(self.root / "server" / "run"), read_run(run_folder(experiment, self.root / "serial"))
        assert [one.round for one in ours.rounds] == list(range(1, ROUNDS + 1))
        for left, right in zip(ours.rounds, theirs.rounds, strict=True):
            assert left.model_dump(exclude={"arrays"}) == right.model_dump(exclude={"arrays"})
            pair = ours.arrays(left), theirs.arrays(right)
            assert pair[0].keys() == pair[1].keys()
            assert all(np.array_equal(pair[0][name], pair[1][name], equal_nan=True) for name in pair[0])
        files = [
            tensors.load(one.folder / "server.safetensors", stamp(one.info.key, "server", ROUNDS))
            for one in (ours, theirs)
        ]
        assert same(*files)
        simulated = FolderStore(theirs.folder / "clients", experiment.key)
        for id, name in enumerate(LABELS):
            own = ClientFolder.open(self.root / name).store()
            assert same(own.load(id, ROUNDS), simulated.load(id, ROUNDS))
