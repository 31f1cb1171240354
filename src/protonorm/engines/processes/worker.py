"""A process that plays some clients: `python -m protonorm.engines.processes.worker`, frames in and frames out."""

from __future__ import annotations

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
from typing import IO, Any

import torch

from protonorm.core.task import ByClient, Messages, Order, message_for
from protonorm.engines.host import Host
from protonorm.engines.processes.handover import take_over
from protonorm.engines.processes.wire import read_frame, tell_error, write_frame
from protonorm.runs.states import FolderStore
from protonorm.tensors import Tensors, under

Frames = queue.SimpleQueue[tuple[dict[str, Any], Tensors]]


def main() -> None:
    """Play clients until the parent closes the line."""
    obey_parent(serve)


def obey_parent(serve: Callable[[Frames, IO[bytes]], None]) -> None:
    """Serve the parent, frames in and frames out, and end the moment it closes the line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    os.umask(0o077)  # what is made of a user's data is for its owner only
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a user's code prints must not get between the frames
    frames: Frames = queue.SimpleQueue()
    threading.Thread(target=listen, args=(sys.stdin.buffer, frames), daemon=True).start()
    code = 0
    try:
        serve(frames, answers)
    except BrokenPipeError:
        pass  # the parent has gone
    except Exception:  # whatever it is, it is told on the terminal, and by the code
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)  # the thread that listens still reads, and Python would abort if it ended in the usual way


def listen(stream: IO[bytes], frames: Frames) -> None:
    """Queue what the parent says; end the process the moment the parent has gone, whatever it is doing."""
    try:
        while frame := read_frame(stream):
            frames.put(frame)
    finally:
        os._exit(0)


def serve(frames: Frames, answers: IO[bytes]) -> None:
    """Take over the task and the population, then do what the parent asks; tell it if that cannot be."""
    told, _ = frames.get()
    try:
        task, population = take_over(told)
    except Exception as error:
        write_frame(answers, tell_error(error))
        return
    store = FolderStore(Path(told["states"]), told["key"], told["cache"])
    worker = Worker(Host(task, population, store), answers)
    write_frame(answers, {"ready": True})
    while worker.obey(*frames.get()):
        pass


class Worker:
    """What the parent can ask for."""

    def __init__(self, host: Host, answers: IO[bytes]) -> None:
        self._host, self._answers = host, answers
        self._messages: Messages = {}  # what the server last said: it is sent once, and used for several verbs

    def obey(self, header: dict[str, Any], tensors: Tensors) -> bool:
        """Do what one frame asks for, and answer it; tell whether to go on."""
        if header["verb"] == "message":
            self._messages = tensors
            if "ids" in header:
                self._messages = ByClient((id, under(tensors, str(id))) for id in header["ids"])
        elif header["verb"] == "commit":
            self._host.commit(header["round"], set(header["replied"]), header["chosen"])
        else:
            for fields in header.get("orders", ()):
                if time.monotonic() < header.get("end", math.inf):  # the clock is the parent's too; else nobody waits
                    self._answer(header, Order(*fields))
        return bool(header["verb"] != "close")

    def _act(self, header: dict[str, Any], order: Order) -> tuple[dict[str, Any], Tensors]:
        message = message_for(self._messages, order.id)
        if header["verb"] == "train":
            reply = self._host.train(order, message)
            return {"metrics": dict(reply.metrics)}, reply.message
        if header["verb"] == "evaluate":
            return {}, self._host.evaluate(order, message, header["parts"]).counts
        return {}, self._host.fetch(order.id, order.trained)

    def _answer(self, header: dict[str, Any], order: Order) -> None:
        told = {"call": header["call"], "id": order.id}
        start = time.perf_counter()
        try:
            more, tensors = self._act(header, order)
        except Exception as error:
            write_frame(self._answers, told | tell_error(error))
        else:
            write_frame(self._answers, told | more | {"seconds": time.perf_counter() - start}, tensors)


if __name__ == "__main__":
    main()
