"""A federation by Flower's own commands on this machine, with TLS and keys: SuperLink, SuperNodes and `flwr run`."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from protonorm.deployment.agreement import Agreement
from protonorm.deployment.flower.export import PACKAGE, export_app
from protonorm.deployment.keys import make_authority, make_server_certificate

BIN = Path(sys.executable).parent
NAME = "bench"  # of the connection in Flower's settings
STARTING, ENDING = 120.0, 10.0  # seconds
POLL = "0.05"  # seconds between two looks of Flower's executor

APP = '''"""The server of the benchmark: our loop, with messages carried in one of two ways."""

import json, os, time
from pathlib import Path

from flwr.app import Message
from flwr.serverapp import ServerApp

from protonorm.deployment.agreement import Agreement
from protonorm.deployment.flower.transport import TTL, TYPE, GridTransport, unwrap, wrap
from protonorm.deployment.flower.app import Introductions
from protonorm.deployment.federation import run_federation
from protonorm.deployment.engine import Arrived

app = ServerApp()


class SendAndReceive:
    """Carry messages as Flower's own strategies do."""

    def __init__(self, grid, known):
        self.grid, self.known, self.messages = grid, known, {}

    def push(self, requests):
        here = self.known(self.grid.get_node_ids())
        self.messages = {here[id]: (id, wrap(content)) for id, content in requests.items() if id in here}
        return {id: "it is not connected" for id in requests if id not in here}

    def pull(self, seconds):
        sent = [Message(content, node, TYPE, ttl=TTL) for node, (_, content) in self.messages.items()]
        if not sent:
            time.sleep(min(seconds, 0.2))
            return []
        replies = self.grid.send_and_receive(sent, timeout=600.0)
        clients, self.messages = self.messages, {}
        return [Arrived(clients[one.metadata.src_node_id][0], unwrap(one)) for one in replies]

    def close(self):
        pass


@app.main()
def main(grid, context):
    terms = Agreement.read(Path(__file__).with_name("agreement.json").read_bytes())
    known, clients = Introductions(grid, terms.digest), int(os.environ["BENCH_CLIENTS"])
    while len(known(grid.get_node_ids())) < clients:
        time.sleep(0.2)
    own = os.environ["BENCH_WAY"] == "push and pull"
    transport = GridTransport(grid, known) if own else SendAndReceive(grid, known)

    def tell(event):
        with open(os.environ["BENCH_EVENTS"], "a") as file:
            file.write(json.dumps([time.time(), event.what, event.round, dict(event.numbers)]) + "\\n")

    names = [f"client-{number}" for number in range(clients)]
    run_federation(terms, transport, Path(os.environ["BENCH_RECORD"]), clients=names, deadline=600.0, notify=tell)
'''


class FlowerFederation:
    """Flower's processes, each in a group of its own that ends with this context.

    `way` says how the benchmark's server carries messages; without one the app is as it was exported.
    """

    def __init__(self, folder: Path, agreement: Agreement, data: Sequence[Path], grid: str = "") -> None:
        folder.mkdir()
        self.folder, self.data, self._running, self._logs = folder, data, [], list[IO[bytes]]()
        self.events, self.port = folder / "events.jsonl", free_port()
        export_app(agreement, folder / "app")
        if grid:
            (folder / "app" / PACKAGE / "server_app.py").write_text(APP)
        make_authority(folder / "ca.key", folder / "ca.crt", "bench")
        pair = folder / "ca.key", folder / "ca.crt"
        make_server_certificate(pair, folder / "server.key", folder / "server.crt", ["127.0.0.1", "localhost"])
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n[superlink.{NAME}]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{folder / "ca.crt"}"\n'
        )
        self._env = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "BENCH_WAY": grid,
            "BENCH_CLIENTS": str(len(data)),
            "BENCH_EVENTS": str(self.events),
            "BENCH_RECORD": str(folder / "record"),
        }
        if grid == "push and pull":
            self._env["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = POLL

    def __enter__(self) -> Self:
        at, folder = f"127.0.0.1:{self.port}", self.folder
        tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key"]
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        extra = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        self._start("superlink", "flower-superlink", *tls, *where, *extra)
        self._wait_until_it_answers()
        for number, data in enumerate(self.data):
            _make_key(folder / f"{number}.key", folder / f"{number}.pub")
            self._call("flwr", "supernode", "register", str(folder / f"{number}.pub"), NAME)
            settings = (
                f'client-id={number} data-path="array:{data}" evaluation="classes" state-path="{folder}/s{number}"'
            )
            own = ["--root-certificates", "ca.crt", "--superlink", at, "--auth-supernode-private-key", f"{number}.key"]
            own += ["--host", "127.0.0.1", "--port", str(free_port()), "--node-config", settings]
            self._start(f"node-{number}", "flower-supernode", *own)
        return self

    def run(self, settings: str = "") -> None:
        """Start the run, with settings for the app; it goes on by itself."""
        self._call("flwr", "run", str(self.folder / "app"), NAME, *(["--run-config", settings] if settings else []))

    def check(self) -> None:
        """Refuse to wait for processes that have ended."""
        for name, process in self._running:
            if process.poll() is not None:
                log = (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{name} has ended:\n{log}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for _, process in reversed(self._running):
            process.terminate()  # it ends those that it started
        for _, process in reversed(self._running):
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for log in self._logs:
            log.close()

    def _start(self, name: str, program: str, *arguments: str) -> None:
        log = (self.folder / f"{name}.log").open("wb")
        self._logs.append(log)
        process = subprocess.Popen(
            [str(BIN / program), *arguments],
            cwd=self.folder,
            env=self._env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._running.append((name, process))

    def _call(self, program: str, *arguments: str) -> None:
        command = [str(BIN / program), *arguments]
        done = subprocess.run(command, env=self._env, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{program} {arguments[0]} failed:\n{done.stdout}{done.stderr}")

    def _wait_until_it_answers(self) -> None:
        context, end = ssl.create_default_context(cafile=self.folder / "ca.crt"), time.monotonic() + STARTING
        while True:
            self.check()
            try:
                urllib.request.urlopen(f"https://127.0.0.1:{self.port}/health", context=context, timeout=5)
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
            else:
                return


def _make_key(private: Path, public: Path) -> None:
    """Make a key as Flower wants it, in OpenSSH's format."""
    key, encoding, form = ec.generate_private_key(ec.SECP384R1()), Encoding.OpenSSH, PublicFormat.OpenSSH
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(encoding, form) + b"\n")


def free_port() -> int:
    """Find a port that is free at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port
