"""Execution backend with persistent worker processes, one torch thread each.

Clients stay on their worker unless rebalancing moves them. The pool starts the workers, reads from them continuously,
and replaces workers that exit or send invalid frames.
"""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from protonorm.core.frames import BadFrame, read_frame, write_frame
from protonorm.core.randomness import cores
from protonorm.core.task import ByClient, Counts, Lost, Messages, Order, Reply, Task
from protonorm.engines.balance import Placement
from protonorm.engines.handover import BY_SIGNAL, exit_text, hand_over, raise_error, read_answer
from protonorm.engines.serial import Deadline, Replies
from protonorm.errors import Failed
from protonorm.federation.population import SimulatedPopulation
from protonorm.files import Scratch
from protonorm.runs.states import FolderStore
from protonorm.tensors import Tensors, prefixed

AHEAD = 16  # orders per worker sent ahead; bounded because out-of-order replies are buffered in memory
GRACE = 5.0  # seconds for a worker to exit
START = 600.0  # seconds for a worker to start
KILLED = 3  # maximum number of workers killed during start-up

Handover = Callable[[Path], dict[str, Any]]  # returns a worker's set-up data, and writes arrays into the folder
Outbox = queue.SimpleQueue[tuple[dict[str, Any], Tensors | None] | None]  # frames to send; None closes the pipe


class Processes:
    """Execution backend that runs clients side by side in worker processes."""

    def __init__(
        self, task: Task, population: SimulatedPopulation, store: FolderStore, workers: int | None = None
    ) -> None:
        sizes: list[int] = population.parts.sizes().sum(1).tolist()
        count = min(workers or cores(), len(sizes))
        self._placement = Placement(sizes, len(population.networks))
        self._placement.balance(range(len(sizes)), range(count))
        self._calls = 0
        self._pending: dict[int, dict[int, Order]] = {}  # by worker: orders of this call without a reply
        self._messages: list[Messages | None] = [None] * count  # by worker: last message sent
        states = {"states": str(store.folder.resolve()), "key": store.key, "cache": store.cache.limit // count}
        self.pool = Pool(count, lambda folder: hand_over(task, population, folder) | states)

    def train(self, orders: Sequence[Order], messages: Messages, deadline: float | None = None) -> Replies:
        """Train clients; yield replies in the sequence of `orders`.

        Clients move to other workers if that is faster: states are on disk, and only some are cached in memory.
        """
        self._placement.balance([order.id for order in orders], range(len(self.pool)))
        return self._ask({"verb": "train"}, orders, messages, deadline)

    def evaluate(self, orders: Sequence[Order], messages: Messages, parts: Sequence[str]) -> Iterator[Counts | Lost]:
        """Evaluate clients; yield counts in the sequence of `orders`."""
        return self._ask({"verb": "evaluate", "parts": list(parts)}, orders, messages)

    def commit(self, round: int, replied: Collection[int], chosen: int = 0) -> None:
        """Commit a round at the workers, and record the seconds of its clients."""
        for number in range(len(self.pool)):
            self.pool.send(number, {"verb": "commit", "round": round, "replied": sorted(replied), "chosen": chosen})
        self._placement.commit(replied)

    @property
    def assigned(self) -> list[list[int]]:
        """Clients of each worker."""
        where = self._placement.where
        return [[id for id in where if where[id] == number] for number in range(len(self.pool))]

    def close(self) -> None:
        """End the workers; idle workers finish their queued requests."""
        self.pool.close(gently=not any(self._pending.values()))

    def _ask(
        self, header: dict[str, Any], orders: Sequence[Order], messages: Messages, deadline: float | None = None
    ) -> Iterator[Any]:
        """Send each worker its orders, and yield the answers in the sequence of `orders`."""
        self._calls += 1
        limit = Deadline(deadline)
        header |= {"call": self._calls} | ({} if deadline is None else {"end": limit.end})
        self._pending = {}
        answers: dict[int, Reply | Counts | Lost] = {}
        size, sent = AHEAD * len(self.pool), 0
        for position, order in enumerate(orders):
            while sent < len(orders) and sent <= position + size:
                block = orders[sent : sent + size]
                answers |= limit.lost(block) if limit.passed else self._send(header, block, messages)
                sent += len(block)
            while order.id not in answers:
                answers |= self._receive(header["verb"], limit)
            yield answers.pop(order.id)

    def _send(self, header: dict[str, Any], orders: Sequence[Order], messages: Messages) -> dict[int, Any]:
        """Send orders to the workers of their clients; return no lost clients."""
        shares: dict[int, dict[int, Order]] = {}
        for order in orders:
            shares.setdefault(self._placement.where[order.id], {})[order.id] = order
        for number, share in shares.items():
            self._pending.setdefault(number, {}).update(share)
            self._send_message(number, share.values(), messages)
            self.pool.send(number, header | {"orders": list(share.values())})
        return {}

    def _receive(self, verb: str, limit: Deadline) -> dict[int, Any]:
        """Wait for the next answer to this call; late clients and those of an ended or faulty worker are lost."""
        try:
            frame = self.pool.receive(limit.left)
        except queue.Empty:
            late = [order for orders in self._pending.values() for order in orders.values()]
            self._pending = {}
            return limit.lost(late)
        header, id = frame.header, frame.header.get("id")
        if frame.gone or "gone" in header:
            return self._lose(frame.number, frame.gone)
        if header.get("call") != self._calls:
            return {}  # the answer to an earlier call
        if type(id) is not int or id not in self._pending.get(frame.number, {}):
            return self._lose(frame.number, f"answered for client {id}, which it was not asked about")
        if "error" in header:
            del self._pending[frame.number][id]
            raise_error(header)
        try:
            answer, seconds = read_answer(verb, id, header, frame.tensors), float(header["seconds"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return self._lose(frame.number, "sent an answer that lacks something")
        del self._pending[frame.number][id]
        self._placement.note(id, seconds)
        return {id: answer}

    def _lose(self, number: int, reason: str) -> dict[int, Any]:
        """Replace a worker; its pending clients are lost."""
        self._messages[number] = None
        reason = self.pool.replace(number, reason)
        return {id: Lost(id, reason) for id in self._pending.pop(number, {})}

    def _send_message(self, number: int, orders: Collection[Order], messages: Messages) -> None:
        """Send a worker the server's message, unless it has received it."""
        if self._messages[number] is messages:
            return
        self._messages[number] = None if isinstance(messages, ByClient) else messages
        if isinstance(messages, ByClient):
            ids = [order.id for order in orders]
            tensors = {name: value for id in ids for name, value in prefixed(str(id), messages[id]).items()}
            self.pool.send(number, {"verb": "message", "ids": ids}, tensors)
        else:
            self.pool.send(number, {"verb": "message"}, messages)


class WorkerFrame(NamedTuple):
    """Frame from a worker, or the end of its output."""

    number: int  # of the worker
    worker: subprocess.Popen[bytes]
    header: dict[str, Any]
    tensors: Tensors
    gone: str = ""  # reason for the end of output, if known


class Pool:
    """Numbered worker processes."""

    def __init__(self, count: int, hand_over: Handover, module: str = "protonorm.engines.worker") -> None:
        self._hand_over, self._module = hand_over, module
        self._frames: queue.SimpleQueue[WorkerFrame] = queue.SimpleQueue()
        self._workers: list[subprocess.Popen[bytes]] = []
        self._outboxes: list[Outbox] = []  # by worker: frames to send
        self._scratch: Scratch | None = None  # holds arrays until all workers have mapped them
        self._setup: dict[str, Any] = {}  # set-up data for new workers
        self._starting: set[int] = set()  # numbers of workers that are not ready yet
        self._killed = 0  # workers killed during start-up
        try:
            for number in range(count):
                self._start(number)
            while self._starting:
                self._expect_ready()
        except BaseException:
            self.close(gently=False)
            raise

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def processes(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.pid for worker in self._workers]

    def send(self, number: int, header: dict[str, Any], tensors: Tensors | None = None) -> None:
        """Queue a frame for a worker without blocking; `receive` reports a worker that has exited."""
        self._outboxes[number].put((header, tensors))

    def receive(self, seconds: float | None = None) -> WorkerFrame:
        """Return the next frame of any worker; raise queue.Empty after `seconds`."""
        while True:
            frame = self._frames.get(timeout=seconds)
            if frame.worker is self._workers[frame.number] and not self._note_start(frame):
                return frame

    def replace(self, number: int, reason: str) -> str:
        """Replace a worker, and return the reason as a clause."""
        self._outboxes[number].put(None)
        ended = _end(self._workers[number], GRACE if not reason else 0.0)
        self._start(number)
        return f"its worker process {reason or ended}"

    def close(self, *, gently: bool) -> None:
        """End the workers: gently, after their queued requests, or at once."""
        for outbox in self._outboxes:
            outbox.put(({"verb": "close"}, None) if gently else None)  # workers exit when their pipe is closed
        for worker in self._workers:
            _end(worker, GRACE)
        for outbox in self._outboxes:
            outbox.put(None)
        if self._scratch:
            self._scratch.remove()

    def _start(self, number: int) -> None:
        """Start or replace a worker, queue its set-up data, and start its reader and writer threads."""
        if self._scratch is None:  # otherwise reuse the arrays, which other workers may be mapping
            self._scratch = Scratch()
            self._setup = self._hand_over(self._scratch.folder)
        worker = start_worker(self._module)
        self._starting.add(number)
        outbox: Outbox = queue.SimpleQueue()
        outbox.put((self._setup, None))
        self._workers[number : number + 1], self._outboxes[number : number + 1] = [worker], [outbox]
        threading.Thread(target=self._listen, args=(number, worker), daemon=True).start()
        threading.Thread(target=_deliver, args=(worker.stdin, outbox), daemon=True).start()

    def _expect_ready(self) -> None:
        """Wait for the first frame of a new worker; replace a killed worker, raise for other failures."""
        try:
            frame = self._frames.get(timeout=START)
        except queue.Empty:
            raise Failed(f"A worker process has not begun after {START:g} seconds.") from None
        worker = self._workers[frame.number]
        if frame.worker is not worker or self._note_start(frame):
            return  # from a replaced worker, or ready
        reason = frame.gone or _end(worker, GRACE)
        if not reason.startswith(BY_SIGNAL) or self._killed == KILLED:
            raise Failed(f"A worker process did not start: it {reason}.")
        self._killed += 1
        self.replace(frame.number, reason)

    def _note_start(self, frame: WorkerFrame) -> bool:
        """Return whether a frame says that its worker is ready; raise the error of a worker that cannot start."""
        if "error" in frame.header and frame.number in self._starting:
            raise_error(frame.header)  # a replacement would fail in the same way
        if "ready" not in frame.header:
            return False
        self._starting.discard(frame.number)
        if not self._starting and self._scratch:
            self._scratch.remove()
            self._scratch = None
        return True

    def _listen(self, number: int, worker: subprocess.Popen[bytes]) -> None:
        """Read frames continuously, so that no worker blocks on its output; report the end of output."""
        assert worker.stdout is not None
        reason = ""
        try:
            while frame := read_frame(worker.stdout):
                self._frames.put(WorkerFrame(number, worker, *frame))
        except BadFrame as error:
            reason = f"sent an unreadable message: {error}"
        except (ValueError, OSError, MemoryError) as error:  # closed while reading, or too large for this machine
            reason = f"could not be listened to ({error})"
        self._frames.put(WorkerFrame(number, worker, {"gone": True}, {}, reason))


def start_worker(module: str) -> subprocess.Popen[bytes]:
    """Start a worker in a new interpreter: neither a fork nor a second import of the user's script.

    The working directory is not on the search path (-P), so that a local torch.py cannot shadow torch. The package is
    imported from the same place as here; the worker receives the parent's search path later.
    """
    paths = filter(None, [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")])
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environment = os.environ | threads | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-P", "-m", module]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _deliver(stream: IO[bytes], outbox: Outbox) -> None:
    """Write queued frames to a worker; close the pipe after None, or when the worker has exited."""
    with suppress(BrokenPipeError, ValueError), stream:
        while frame := outbox.get():
            write_frame(stream, *frame)


def _end(worker: subprocess.Popen[bytes], grace: float) -> str:
    """Wait for a worker to exit, kill it after `grace` seconds, and close its pipes; return how it ended."""
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
    return "did not end by itself" if code is None else exit_text(code)
