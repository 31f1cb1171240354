"""Workers that run clients: the process `python -m protonorm.engines.worker`, and the player of a Ray actor."""

import math
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from protonorm.core.frames import pack, read_frame, unpack, write_frame
from protonorm.core.task import ByClient, Messages, Order, message_for
from protonorm.engines.handover import NodeCode, error_header, rebuild, take_over
from protonorm.engines.serial import Host
from protonorm.runs.states import FolderStore
from protonorm.tensors import Tensors, strip_prefix

if TYPE_CHECKING:
    from protonorm.engines.ray.actor import NodeFolder


Frames = queue.SimpleQueue[tuple[dict[str, Any], Tensors]]


def serve_parent(serve: Callable[[Frames, IO[bytes]], None]) -> None:
    """Run `serve` on frames from the parent via stdin and stdout, and exit as soon as the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    os.umask(0o077)  # files derived from user data are private
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of user code must not mix with frames
    frames: Frames = queue.SimpleQueue()
    threading.Thread(target=listen, args=(sys.stdin.buffer, frames), daemon=True).start()
    code = 0
    try:
        serve(frames, answers)
    except BrokenPipeError:
        pass  # the parent has exited
    except Exception:  # reported on stderr and by the exit code
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)  # the listener thread still reads stdin, and a normal exit of Python would abort


def listen(stream: IO[bytes], frames: Frames) -> None:
    """Queue frames from the parent; end the process as soon as the parent exits."""
    try:
        while frame := read_frame(stream):
            frames.put(frame)
    finally:
        os._exit(0)


def serve(frames: Frames, answers: IO[bytes]) -> None:
    """Build the simulation, then process requests of the parent; send it an error if the build fails."""
    setup, _ = frames.get()
    try:
        task, population = take_over(setup)
    except Exception as error:
        write_frame(answers, error_header(error))
        return
    store = FolderStore(Path(setup["states"]), setup["key"], setup["cache"])
    worker = Worker(Host(task, population, store), answers)
    write_frame(answers, {"ready": True})
    while worker.handle(*frames.get()):
        pass


def act(host: Host, header: dict[str, Any], order: Order, message: Tensors) -> tuple[dict[str, Any], Tensors]:
    """Train or evaluate a client; return header and tensors of the reply."""
    if header["verb"] == "train":
        reply = host.train(order, message)
        return {"metrics": dict(reply.metrics)}, reply.message
    return {}, host.evaluate(order, message, header["parts"]).counts


class Worker:
    """Request handler of a worker process."""

    def __init__(self, host: Host, answers: IO[bytes]) -> None:
        self._host, self._answers = host, answers
        self._messages: Messages = {}  # last server message, sent once for several requests

    def handle(self, header: dict[str, Any], tensors: Tensors) -> bool:
        """Process a request frame and send its replies; return False for `close`."""
        if header["verb"] == "message":
            self._messages = tensors
            if "ids" in header:
                self._messages = ByClient((id, strip_prefix(tensors, str(id))) for id in header["ids"])
        elif header["verb"] == "commit":
            self._host.commit(header["round"], set(header["replied"]), header["chosen"])
        else:
            for fields in header.get("orders", ()):
                if time.monotonic() < header.get("end", math.inf):  # skip late orders; the parent uses the same clock
                    self._answer(header, Order(*fields))
        return bool(header["verb"] != "close")

    def _answer(self, header: dict[str, Any], order: Order) -> None:
        start, tensors = time.perf_counter(), Tensors()
        try:
            answer, tensors = act(self._host, header, order, message_for(self._messages, order.id))
            answer["seconds"] = time.perf_counter() - start
        except Exception as error:
            answer = error_header(error)
        write_frame(self._answers, {"call": header["call"], "id": order.id, **answer}, tensors)


def open_player(content: bytes, node: "NodeFolder", states: Path) -> "tuple[Player | None, bytes]":
    """Build the simulation from its description and this node's arrays; return the player and a frame to send."""
    torch.set_num_threads(1)
    setup, _, _ = unpack(content)
    code = NodeCode(node.folder / "code")
    try:
        task, population = rebuild(setup, node.open_all(setup["arrays"]), code.resolve)
        store = FolderStore(states, setup["key"], setup["cache"])
        return Player(Host(task, population, store), store, code), pack({"ready": True})
    except Exception as error:  # all errors are reported to the driver
        return None, pack(error_header(error))


class Player:
    """Request handler of a Ray actor; states are stored on the node and returned with replies."""

    def __init__(self, host: Host, store: FolderStore, code: NodeCode) -> None:
        self._host, self._store, self._code = host, store, code
        self._number = 0  # of the last received message
        self._message: Tensors = {}

    def act(self, content: bytes, message: bytes) -> bytes:
        """Process an order from the state that it names; idempotent."""
        header, own, state = unpack(content)
        if message and header["message"] != self._number:
            self._number, self._message = header["message"], unpack(message)[1]
        elif not header["own"] and header["message"] != self._number:
            return pack({"lacks": "message"})
        order = Order(*header["order"])
        if state:
            self._store.copy_in(order.id, order.trained, state)
        elif order.trained and not self._store.has(order.id, order.trained):
            return pack({"lacks": "state"})
        start = time.perf_counter()
        try:
            answer, tensors = act(self._host, header, order, own if header["own"] else self._message)
            file = self._store.copy_out(order.id, order.round) if header["verb"] == "train" else b""
        except Exception as error:  # all errors are reported to the driver
            failure = error_header(error)
            return pack(failure | {"text": self._code.translate(failure["text"])})
        return pack(answer | {"seconds": time.perf_counter() - start}, tensors, file)

    def commit(self, content: bytes) -> None:
        """Remove replaced states after a commit, and all states of clients that moved to another actor."""
        header, _, _ = unpack(content)
        self._host.commit(header["round"], set(header["replied"]))
        for id in header["gone"]:
            self._store.keep_only(id, 0)


if __name__ == "__main__":
    serve_parent(serve)
