"""Clients in persistent processes, one torch thread each; a client stays where it is unless the balance asks."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from protonorm.core import Reply
from protonorm.engines.balance import deal, redeal
from protonorm.engines.handover import hand_over
from protonorm.engines.wire import raise_error, read_frame, reply_of, write_frame
from protonorm.errors import WorkerLost
from protonorm.record import States
from protonorm.setup import Setup
from protonorm.tensors import Tensors

GRACE = 5.0  # seconds for a worker to end by itself


class Processes:
    """Run clients side by side."""

    def __init__(self, setup: Setup, states: States, workers: int | None = None) -> None:
        sizes = {id: float(len(part.train) + len(part.test)) for id, part in enumerate(setup.parts)}
        count = min(workers or cores(), len(sizes))
        self.hands = deal(sizes, count)
        self._answers: queue.SimpleQueue[tuple[int, dict[str, Any], Tensors]] = queue.SimpleQueue()
        self._workers = [start_worker() for _ in range(count)]
        for number, worker in enumerate(self._workers):
            threading.Thread(target=self._listen, args=(number, worker), daemon=True).start()
        try:
            with tempfile.TemporaryDirectory(prefix="protonorm-") as folder:  # gone once all have mapped it
                told = hand_over(setup, Path(folder)) | {"run": str(states.folder.parent.resolve()), "key": states.key}
                for worker in self._workers:
                    self._send(worker, told)
                for _ in self._workers:
                    self._answer()
        except BaseException:
            self.close()
            raise

    def run_clients(
        self, round: int, cohort: Collection[int], message: Tensors, trained: Sequence[int]
    ) -> Iterator[Reply]:
        """Let the cohort train and everybody be tested; give replies in the order of the clients' numbers."""
        for worker, hand in zip(self._workers, self.hands, strict=True):
            self._send(worker, {"round": round, "clients": [(id, id in cohort, trained[id]) for id in hand]}, message)
        early: dict[int, Reply] = {}
        costs: dict[int, float] = {}
        for id in range(len(trained)):
            while id not in early:
                header, tensors = self._answer()
                early[header["id"]] = reply_of(header, tensors)
                costs[header["id"]] = header["seconds"]
            yield early.pop(id)
        if len(cohort) == len(trained):  # costs of a round in which everybody did the same
            self.hands = redeal(self.hands, costs)

    def close(self) -> None:
        """End the workers: they go when their line is closed."""
        for worker in self._workers:
            with suppress(BrokenPipeError):
                _stdin(worker).close()
        for worker in self._workers:
            try:
                worker.wait(GRACE)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            if worker.stdout:
                worker.stdout.close()

    def _listen(self, number: int, worker: subprocess.Popen[bytes]) -> None:
        """Read all the time, so that no worker ever waits for the server to be ready."""
        assert worker.stdout is not None
        try:
            while frame := read_frame(worker.stdout):
                self._answers.put((number, *frame))
        except ValueError:  # closed while reading
            return
        self._answers.put((number, {"gone": True}, {}))

    def _send(self, worker: subprocess.Popen[bytes], header: dict[str, Any], tensors: Tensors | None = None) -> None:
        try:
            write_frame(_stdin(worker), header, tensors)
        except BrokenPipeError:
            self._lose(worker)

    def _answer(self) -> tuple[dict[str, Any], Tensors]:
        number, header, tensors = self._answers.get()
        if "gone" in header:
            self._lose(self._workers[number])
        if "error" in header:
            raise_error(header)
        return header, tensors

    def _lose(self, worker: subprocess.Popen[bytes]) -> None:
        code = worker.wait()
        why = f"was ended by signal {-code}, perhaps for lack of memory" if code < 0 else f"ended with code {code}"
        raise WorkerLost(f"A worker process {why}. The finished rounds are kept; fewer --workers need less memory.")


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_worker() -> subprocess.Popen[bytes]:
    """Start a process of its own kind: neither a fork nor a second import of the user's script."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "protonorm.engines.worker"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _stdin(worker: subprocess.Popen[bytes]) -> IO[bytes]:
    assert worker.stdin is not None
    return worker.stdin
