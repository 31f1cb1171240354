"""Processes that start warm: forks of one process in which torch and the package are imported already.

A new interpreter spends seconds on these imports. A fork of the nursery, itself a clean interpreter that never ran a
test, is ready at once, and is else what `python -P -m MODULE` or `python -P -c CODE` is.
"""

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
from types import ModuleType
from typing import IO, Any, NoReturn

IMPORTED = (  # what a worker or a client has imported once it has trained
    *("protonorm.engines.worker", "protonorm.session.build", "protonorm.algorithms.protonorm", "torch._dynamo"),
    *("protonorm.models.light", "protonorm.metrics.base"),
    *("protonorm.deployment.https.serving", "protonorm.deployment.worker"),
)
POSSIBLE = sys.platform.startswith("linux")  # a fork after `import torch` is not safe elsewhere
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Process:
    """What engines and tests use of `subprocess.Popen`, for a fork of the nursery."""

    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None

    def __init__(self, nursery: socket.socket, request: dict[str, Any], files: list[int]) -> None:
        self._status, other = socket.socketpair()
        socket.send_fds(nursery, [json.dumps(request).encode()], [*files, other.fileno()])
        other.close()
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

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that is forked; it starts when it is first needed, and ends with this one."""

    def __init__(self) -> None:
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, words: list[str], stdin: int, stdout: int, stderr: int, **environment: str) -> Process:
        """Run `python -P WORDS` with these open files and this process's environment."""
        if self._line is None:
            self._line, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
            own = [sys.executable, "-P", __file__, str(other.fileno())]
            self._process = subprocess.Popen(own, env=os.environ | _path() | THREADS, pass_fds=[other.fileno()])
            other.close()
        request = {"words": words, "environment": os.environ | THREADS | environment, "folder": os.getcwd()}
        return Process(self._line, request, [stdin, stdout, stderr])

    def start_worker(self, module: str) -> Process:
        """Start a worker, as `protonorm.engines.processes.start_worker` does."""
        (takes, writes), (reads, gives) = os.pipe(), os.pipe()
        made = self.start(["-m", module], takes, gives, 2)
        made.stdin, made.stdout = os.fdopen(writes, "wb"), os.fdopen(reads, "rb")
        for file in (takes, gives):
            os.close(file)
        return made

    def close(self) -> None:
        """End the nursery."""
        if self._line and self._process:
            self._line.close()
            self._process.wait(60)
            self._line = None


NURSERY = Nursery()


def _path() -> dict[str, str]:
    """Return the import path of this process, for another one."""
    import protonorm

    return {"PYTHONPATH": str(Path(protonorm.__file__).parents[1])}


def _serve(line: socket.socket) -> None:
    """Fork for each request, until the other side closes the line."""
    import torch

    for module in IMPORTED:
        with suppress(ImportError):  # the packages of a deployment may not be there
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


def _watch(request: dict[str, Any], files: list[int]) -> NoReturn:
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


def _become(request: dict[str, Any], files: list[int]) -> NoReturn:
    """Run a module or code as `python` does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    kind, text, *rest = request["words"]
    sys.argv = [kind, *rest]
    code = 0
    try:
        if kind == "-m":
            sys.modules.pop(text, None)
            runpy.run_module(text, run_name="__main__", alter_sys=True)
        else:
            main = sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(text, "<string>", "exec"), main.__dict__)
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
