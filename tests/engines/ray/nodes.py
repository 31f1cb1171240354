"""A Ray cluster of several nodes on this machine: each has its own home, its own temporary folder and one core."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

RAY = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def session_of(pid):
    """Read the session of a process; None if it is gone."""
    with suppress(OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return None if fields[0] == "Z" else int(fields[3])
    return None


def processes(session):
    """List the living processes of a session."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if session_of(pid) == session]


def name_of(pid):
    """Read what a process calls itself; an agent if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    return "Agent"


def wait_for(condition, seconds=300.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def end(process):
    """End a process that a test has started, and all of its session, if it has not ended by itself."""
    for pid in processes(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    for stream in filter(None, (process.stdout, process.stderr)):
        stream.close()


class Cluster:
    """Nodes, each in a session of its own, so that it can be ended without touching anything else."""

    def __init__(self, folder, count=2):
        self.address = f"127.0.0.1:{free_port()}"
        self.secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.folder, self.nodes, self.homes = folder, [], []
        try:
            for _ in range(count):
                self.add()
        except BaseException:
            self.close()
            raise

    @property
    def environment(self):
        """What a driver needs to use the cluster."""
        return os.environ | self.secret | {"RAY_ADDRESS": self.address, "RAY_USAGE_STATS_ENABLED": "0"}

    def temporary(self, number):
        """The temporary folder of a node."""
        return self.homes[number] / "t"

    def add(self):
        """Start a node; a machine that is busy may need several tries, for Ray gives up after thirty seconds."""
        for attempt in range(3):
            home = self.folder / f"{len(self.nodes)}"
            node = self._start(home / f"{attempt}" if attempt else home)
            if node.poll() is None:
                self.nodes.append(node)
                self.homes.append(home / f"{attempt}" if attempt else home)
                return
            end(node)
        raise AssertionError((home / "log").read_text())

    def _start(self, home):
        (home / "t").mkdir(parents=True)
        first = ["--head", f"--port={self.address.rpartition(':')[2]}", "--include-dashboard=false"]
        words = [f"--address={self.address}"] if self.nodes else first
        words += ["--node-ip-address=127.0.0.1", "--num-cpus=1", f"--temp-dir={home / 'r'}", "--block"]
        words += ["--object-store-memory=100000000", "--disable-usage-stats", "--log-color=false"]
        quick = {"RAY_health_check_period_ms": "500", "RAY_health_check_initial_delay_ms": "500"}
        environment = os.environ | self.secret | quick | {"HOME": str(home), "TMPDIR": str(home / "t")}
        environment.pop("RAY_ADDRESS", None)
        with (home / "log").open("wb") as log:
            node = subprocess.Popen(
                [*RAY, "start", *words], env=environment, cwd=home, stdout=log, stderr=log, start_new_session=True
            )
        wait_for(lambda: node.poll() is not None or "runtime started" in (home / "log").read_text())
        return node

    def kill(self, number):
        """End all processes of a node at once, as a power failure does."""
        end(self.nodes[number])

    def close(self):
        for number in reversed(range(len(self.nodes))):
            self.kill(number)
        wait_for(lambda: not any(processes(node.pid) for node in self.nodes))
