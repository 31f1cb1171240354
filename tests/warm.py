"""Processes that start warm: forks of one process in which torch and the package are imported already.

A new interpreter spends seconds on these imports. A fork of the nursery, itself a clean interpreter that never ran a
test, is ready at once, and is else what `python -P -m MODULE` is. Where there is no fork, interpreters are new.
"""

import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

ROOT = Path(__file__).parents[1]
IMPORTED = (  # what a worker imports before it has trained its first client
    *("protonorm.engines.worker", "protonorm.session.build", "protonorm.algorithms.protonorm"),
    *("protonorm.models.light", "protonorm.models.vectors", "protonorm.metrics.by_class", "torch._dynamo"),
)
POSSIBLE = sys.platform.startswith("linux")  # a fork after `import torch` is not safe elsewhere


class Process:
    """What engines use of `subprocess.Popen`, for a fork of the nursery."""

    def __init__(self, nursery: socket.socket, module: str, environment: dict[str, str]) -> None:
        takes, self.stdin = _pipe("wb")
        gives, self.stdout = _pipe("rb")
        self._status, other = socket.socketpair()
        request = {"module": module, "environment": environment, "folder": os.getcwd()}
        socket.send_fds(nursery, [json.dumps(request).encode()], [takes, gives, 2, other.fileno()])
        other.close()
        for file in (takes, gives):
            os.close(file)
        self.returncode: int | None = None
        self.pid = int(self._status.recv(16))

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the code as `subprocess` does."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a warm process", timeout or 0.0)
            self.returncode = int(self._status.recv(16))
            self._status.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the code, or None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def kill(self) -> None:
        """End the process at once."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _pipe(mode: str) -> tuple[int, IO[bytes]]:
    """Make a pipe; return the end for the process, and the open end for this one."""
    reads, writes = os.pipe()
    return (reads, os.fdopen(writes, mode)) if mode == "wb" else (writes, os.fdopen(reads, mode))


class Nursery:
    """The process that is forked; it starts when it is first needed, and ends with this one."""

    def __init__(self) -> None:
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start_worker(self, module: str) -> Process:
        """Start a worker, as `protonorm.engines.processes.start_worker` does."""
        if self._line is None:
            self._line, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
            environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
            words = [sys.executable, "-P", __file__, str(other.fileno())]
            self._process = subprocess.Popen(words, env=environment, pass_fds=[other.fileno()], cwd=ROOT)
            other.close()
        return Process(self._line, module, os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})

    def close(self) -> None:
        """End the nursery."""
        if self._line and self._process:
            self._line.close()
            self._process.wait(60)


def _serve(line: socket.socket) -> None:
    """Fork for each request, until the other side closes the line."""
    import torch

    for module in IMPORTED:
        __import__(module)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch
    while True:
        content, files, _, _ = socket.recv_fds(line, 2**20, 4)
        if not content:
            return
        if os.fork() == 0:
            line.close()
            _watch(json.loads(content), files)
        for file in files:
            os.close(file)


def _watch(request: dict[str, object], files: list[int]) -> NoReturn:
    """Start the process itself, and report its number and how it ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = socket.socket(fileno=files.pop())
    pid = os.fork()
    if pid == 0:
        status.close()
        _become(request, files)
    for file in files:
        os.close(file)
    status.send(b"%-16d" % pid)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(BrokenPipeError):
        status.send(b"%-16d" % code)
    os._exit(0)


def _become(request: dict[str, object], files: list[int]) -> NoReturn:
    """Run a module as `python -m` does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(str(request["folder"]))
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    module = str(request["module"])
    sys.modules.pop(module, None)
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
