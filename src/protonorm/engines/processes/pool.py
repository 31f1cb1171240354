"""Worker processes: started, listened to all the time, and replaced when they end or send what is no frame."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from protonorm.core.scratch import Scratch
from protonorm.engines.processes.wire import BadFrame, raise_error, read_frame, write_frame
from protonorm.errors import Failed
from protonorm.tensors import Tensors

GRACE = 5.0  # seconds for a worker to end by itself
START = 600.0  # seconds for a worker to begin

Handover = Callable[[Path], dict[str, Any]]  # tells a worker what it needs; arrays go into files of a folder


Letters = queue.SimpleQueue[tuple[dict[str, Any], Tensors | None] | None]  # frames to send; None is the last one


class Heard(NamedTuple):
    """A frame from a worker, or why there will be no more."""

    number: int  # of the worker
    worker: subprocess.Popen[bytes]
    header: dict[str, Any]
    tensors: Tensors
    gone: str = ""  # why nothing more will come


class Pool:
    """Some workers, each with a number."""

    def __init__(self, count: int, hand_over: Handover) -> None:
        self._hand_over = hand_over
        self._heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self._workers: list[subprocess.Popen[bytes]] = []
        self._letters: list[Letters] = []  # what each worker is still to be sent
        self._scratch: Scratch | None = None  # with arrays, until all workers have mapped them
        self._told: dict[str, Any] = {}  # what workers that start now are told
        self._starting: set[int] = set()  # numbers of workers that are not ready yet
        try:
            for number in range(count):
                worker, letters = self._start(number)
                self._workers.append(worker)
                self._letters.append(letters)
            while self._starting:
                self._expect_ready()
        except BaseException:
            self.close(gently=False)
            raise

    def __len__(self) -> int:
        """Count the workers."""
        return len(self._workers)

    @property
    def processes(self) -> list[int]:
        """List the workers' process ids."""
        return [worker.pid for worker in self._workers]

    def send(self, number: int, header: dict[str, Any], tensors: Tensors | None = None) -> None:
        """Send a worker a frame; that it has gone is heard, not raised, and one that does not read stops nobody."""
        self._letters[number].put((header, tensors))

    def hear(self, seconds: float | None = None) -> Heard:
        """Wait for the next frame of any worker; raises queue.Empty when nothing comes in time."""
        while True:
            heard = self._heard.get(timeout=seconds)
            if heard.worker is not self._workers[heard.number]:
                continue  # the last words of one that was replaced
            if "ready" in heard.header:
                self._note_ready(heard.number)
                continue
            if "error" in heard.header and heard.number in self._starting:
                raise_error(heard.header)  # the next one would fail in the same way
            return heard

    def replace(self, number: int, reason: str) -> str:
        """Put a new worker in the place of one that is no use any more, and say why that was."""
        self._letters[number].put(None)
        ended = _end(self._workers[number], GRACE if not reason else 0.0)
        self._workers[number], self._letters[number] = self._start(number)
        return f"its worker process {reason or ended}"

    def close(self, *, gently: bool) -> None:
        """End the workers: gently, so that they finish what they were told, or at once."""
        if gently:
            for number in range(len(self._workers)):
                self.send(number, {"verb": "close"})
        else:
            self._close_lines()  # they go when their line is closed
        for worker in self._workers:
            _end(worker, GRACE)
        self._close_lines()
        if self._scratch:
            self._scratch.remove()

    def _start(self, number: int) -> tuple[subprocess.Popen[bytes], Letters]:
        """Start a worker, tell it what it needs, and listen to it."""
        if self._scratch is None:  # else the arrays are there, and others may be mapping them
            self._scratch = Scratch()
            self._told = self._hand_over(self._scratch.folder)
        worker = start_worker()
        self._starting.add(number)
        letters: Letters = queue.SimpleQueue()
        letters.put((self._told, None))
        threading.Thread(target=self._listen, args=(number, worker), daemon=True).start()
        threading.Thread(target=_deliver, args=(_stdin(worker), letters), daemon=True).start()
        return worker, letters

    def _close_lines(self) -> None:
        for letters in self._letters:
            letters.put(None)

    def _expect_ready(self) -> None:
        try:
            heard = self._heard.get(timeout=START)
        except queue.Empty:
            raise Failed(f"A worker process has not begun after {START:g} seconds.") from None
        if "error" in heard.header:
            raise_error(heard.header)
        if "ready" not in heard.header:
            reason = heard.gone or _end(self._workers[heard.number], GRACE)
            raise Failed(f"A worker process did not start: it {reason}.")
        self._note_ready(heard.number)

    def _note_ready(self, number: int) -> None:
        self._starting.discard(number)
        if not self._starting and self._scratch:
            self._scratch.remove()
            self._scratch = None

    def _listen(self, number: int, worker: subprocess.Popen[bytes]) -> None:
        """Read all the time, so that no worker ever waits for the server; whatever ends the reading is told."""
        assert worker.stdout is not None
        reason = ""
        try:
            while frame := read_frame(worker.stdout):
                self._heard.put(Heard(number, worker, *frame))
        except BadFrame as error:
            reason = f"sent what nobody can read: {error}"
        except (ValueError, OSError, MemoryError) as error:  # closed while reading, or too large for this machine
            reason = f"could not be listened to ({error})"
        self._heard.put(Heard(number, worker, {"gone": True}, {}, reason))


def start_worker(module: str = "protonorm.engines.processes.worker") -> subprocess.Popen[bytes]:
    """Start a process of its own kind: neither a fork nor a second import of the user's script.

    Nothing in the current folder is imported (-P): a torch.py that lies there is not torch. The package is found where
    it was found here; all else where the parent finds it, once it has told.
    """
    here = str(Path(__file__).resolve().parents[3])
    before = os.environ.get("PYTHONPATH")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": os.pathsep.join([here, before] if before else [here])}
    command = [sys.executable, "-P", "-m", module]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _deliver(stream: IO[bytes], letters: Letters) -> None:
    """Send a worker its frames, as fast as it reads them; close the line after the last one, or when it has gone."""
    with suppress(BrokenPipeError, ValueError), stream:
        while letter := letters.get():
            write_frame(stream, *letter)


def _end(worker: subprocess.Popen[bytes], grace: float) -> str:
    """Wait a while for a worker to end, then end it; close the lines to it, and say how it ended."""
    try:
        code = worker.wait(grace)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
        code = None
    for stream in (worker.stdin, worker.stdout):
        with suppress(BrokenPipeError):
            if stream:
                stream.close()
    if code is None:
        return "did not end by itself"
    return f"was ended by signal {-code}, perhaps for lack of memory" if code < 0 else f"ended with code {code}"


def _stdin(worker: subprocess.Popen[bytes]) -> IO[bytes]:
    assert worker.stdin is not None
    return worker.stdin
