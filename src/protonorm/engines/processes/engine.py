"""Clients in persistent processes, one torch thread each; a client stays where it is unless the balance asks."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from protonorm.core.task import Counts, Lost, Messages, Order, Reply, Task
from protonorm.engines.processes.balance import assign, reassign
from protonorm.engines.processes.handover import hand_over
from protonorm.engines.processes.wire import raise_error, read_frame, write_frame
from protonorm.errors import Failed
from protonorm.federation.population import SimulatedPopulation
from protonorm.runs.states import FolderStore
from protonorm.tensors import Tensors, prefixed

GRACE = 5.0  # seconds for a worker to end by itself

Answer = TypeVar("Answer")


class Processes:
    """Run clients side by side."""

    def __init__(
        self, task: Task, population: SimulatedPopulation, store: FolderStore, workers: int | None = None
    ) -> None:
        sizes = {id: float(size) for id, size in enumerate(population.parts.sizes().sum(1).tolist())}
        count = min(workers or cores(), len(sizes))
        self.assigned = assign(sizes, count)  # the clients of each worker
        self._costs: dict[int, float] = {}  # seconds of each client since the last commit
        self._calls = 0
        self._waiting = False  # whether somebody owes an answer
        self._frames: queue.SimpleQueue[tuple[int, dict[str, Any], Tensors]] = queue.SimpleQueue()
        self._workers: list[subprocess.Popen[bytes]] = []
        self._messages: list[Messages | None] = [None] * count  # what each worker was last told
        self._simulation = task, population, store
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # with arrays, until all workers have mapped them
        self._starting = 0  # workers that are not ready yet
        try:
            for number in range(count):
                self._workers.append(self._start(number))
            while self._starting:
                self._expect_ready()
        except BaseException:
            self.close()
            raise

    def train(
        self, orders: Sequence[Order], messages: Messages, deadline: float | None = None
    ) -> Iterator[Reply | Lost]:
        """Let clients train; give replies in the order of the orders."""

        def reply(header: dict[str, Any], tensors: Tensors) -> Reply:
            return Reply(header["id"], tensors, header["metrics"], header["seconds"])

        return self._ask({"verb": "train"}, orders, messages, reply, deadline)

    def evaluate(self, orders: Sequence[Order], messages: Messages, part: str) -> Iterator[Counts | Lost]:
        """Let clients be evaluated; give counts in the order of the orders."""

        def counts(header: dict[str, Any], tensors: Tensors) -> Counts:
            return Counts(header["id"], tensors)

        return self._ask({"verb": "evaluate", "part": part}, orders, messages, counts)

    def commit(self, round: int, replied: Collection[int]) -> None:
        """Tell the workers that a round is final, and balance their clients by what they cost."""
        for number in range(len(self._workers)):
            self._send(number, {"verb": "commit", "round": round, "replied": sorted(replied)})
        if self._costs.keys() == {id for part in self.assigned for id in part}:
            self.assigned = reassign(self.assigned, self._costs)
        self._costs = {}

    def fetch(self, id: int, trained: int) -> Tensors:
        """Give a client's state."""
        for found in self._ask({"verb": "fetch"}, [Order(id, trained, trained)], {}, lambda _, state: state):
            if isinstance(found, Lost):
                raise Failed(f"The state of client {id} is not to be had: {found.reason}.")
            return found
        raise AssertionError("one order has one answer")

    def close(self) -> None:
        """End the workers: idle ones finish what they were told, and all go when their line is closed."""
        if not self._waiting:
            for number, worker in enumerate(self._workers):
                self._send(number, {"verb": "close"})
                with suppress(subprocess.TimeoutExpired):
                    worker.wait(GRACE)
        for worker in self._workers:
            with suppress(BrokenPipeError):
                _stdin(worker).close()
        for worker in self._workers:
            try:
                worker.wait(GRACE)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            _close(worker)
        self._clean_up()

    def _ask(
        self,
        header: dict[str, Any],
        orders: Sequence[Order],
        messages: Messages,
        make: Callable[[dict[str, Any], Tensors], Answer],
        deadline: float | None = None,
    ) -> Iterator[Answer | Lost]:
        """Send each worker its orders, and give the answers in the order of the orders."""
        self._calls += 1
        call, end = self._calls, None if deadline is None else time.monotonic() + deadline
        waiting, self._waiting = self._share_out(orders), True
        for number, own in waiting.items():
            self._tell_message(number, own.values(), messages)
            self._send(number, header | {"call": call, "orders": list(own.values())})
        early: dict[int, Answer | Lost] = {}
        for order in orders:
            while order.id not in early:
                early |= self._hear(call, waiting, make, end, deadline)
            self._waiting = any(waiting.values())
            yield early.pop(order.id)

    def _hear(
        self,
        call: int,
        waiting: dict[int, dict[int, Order]],
        make: Callable[[dict[str, Any], Tensors], Answer],
        end: float | None,
        deadline: float | None,
    ) -> dict[int, Answer | Lost]:
        """Wait for the next answer to a call; a worker that has gone loses all that it still owed."""
        try:
            number, header, tensors = self._frames.get(
                timeout=None if end is None else max(0.0, end - time.monotonic())
            )
        except queue.Empty:
            late = [id for own in waiting.values() for id in own]
            waiting.clear()
            return {id: Lost(id, f"it had not replied after {deadline:g} seconds") for id in late}
        if "gone" in header:
            owed = waiting.pop(number, {})
            reason = self._replace(number)
            return {id: Lost(id, reason) for id in owed}
        if "ready" in header:
            self._note_ready()
        if header.get("call") != call:
            return {}  # the answer to a call that nobody waits for any more
        waiting.get(number, {}).pop(header["id"], None)
        if "error" in header:
            raise_error(header)
        self._costs[header["id"]] = self._costs.get(header["id"], 0.0) + header["seconds"]
        return {header["id"]: make(header, tensors)}

    def _share_out(self, orders: Sequence[Order]) -> dict[int, dict[int, Order]]:
        """Give each order to the worker that has the client."""
        wanted = {order.id: order for order in orders}
        parts = ({id: wanted[id] for id in part if id in wanted} for part in self.assigned)
        return {number: own for number, own in enumerate(parts) if own}

    def _tell_message(self, number: int, orders: Collection[Order], messages: Messages) -> None:
        """Tell a worker what the server said, unless it was told before."""
        if self._messages[number] is messages:
            return
        self._messages[number] = messages
        if isinstance(next(iter(messages), None), int):
            single: Mapping[Any, Any] = messages
            own = {order.id: single[order.id] for order in orders}
            packed: Tensors = {}
            for id, message in own.items():
                packed |= prefixed(str(id), message)
            self._send(number, {"verb": "message", "ids": list(own)}, packed)
            self._messages[number] = None  # only these clients' messages went there
        else:
            common: Any = messages
            self._send(number, {"verb": "message"}, common)

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        """Start a worker, tell it of the simulation, and listen to it."""
        task, population, store = self._simulation
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="protonorm-")
        told = hand_over(task, population, Path(self._folder.name))
        worker = start_worker()
        self._starting += 1
        threading.Thread(target=self._listen, args=(number, worker), daemon=True).start()
        with suppress(BrokenPipeError):  # the listener tells that it has gone
            write_frame(_stdin(worker), told | {"states": str(store.folder.resolve()), "key": store.key})
        return worker

    def _expect_ready(self) -> None:
        number, header, _ = self._frames.get()
        if "gone" in header:
            raise Failed(f"A worker process did not start: {self._end(number)}.")
        self._note_ready()

    def _note_ready(self) -> None:
        self._starting -= 1
        if not self._starting:
            self._clean_up()

    def _clean_up(self) -> None:
        if self._folder:
            self._folder.cleanup()
            self._folder = None

    def _replace(self, number: int) -> str:
        """Put a new worker in the place of one that has gone, and say how that one ended."""
        reason = self._end(number)
        _close(self._workers[number])
        self._messages[number] = None
        self._workers[number] = self._start(number)
        return reason

    def _end(self, number: int) -> str:
        code = self._workers[number].wait()
        why = f"was ended by signal {-code}, perhaps for lack of memory" if code < 0 else f"ended with code {code}"
        return f"its worker process {why}"

    def _listen(self, number: int, worker: subprocess.Popen[bytes]) -> None:
        """Read all the time, so that no worker ever waits for the server to be ready."""
        assert worker.stdout is not None
        try:
            while frame := read_frame(worker.stdout):
                self._frames.put((number, *frame))
        except ValueError:  # closed while reading
            return
        self._frames.put((number, {"gone": True}, {}))

    def _send(self, number: int, header: dict[str, Any], tensors: Tensors | None = None) -> None:
        with suppress(BrokenPipeError):  # the listener tells that the worker has gone
            write_frame(_stdin(self._workers[number]), header, tensors)


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_worker() -> subprocess.Popen[bytes]:
    """Start a process of its own kind: neither a fork nor a second import of the user's script."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "protonorm.engines.processes.worker"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _close(worker: subprocess.Popen[bytes]) -> None:
    """Close the lines to a worker that has ended."""
    for stream in (worker.stdin, worker.stdout):
        with suppress(BrokenPipeError):
            if stream:
                stream.close()


def _stdin(worker: subprocess.Popen[bytes]) -> IO[bytes]:
    assert worker.stdin is not None
    return worker.stdin
