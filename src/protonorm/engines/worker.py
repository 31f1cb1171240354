"""A process that plays some clients: `python -m protonorm.engines.worker`, frames in and frames out."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import IO, Any

import torch

from protonorm.engines.handover import take_over
from protonorm.engines.host import Host
from protonorm.engines.wire import SAID, read_frame, write_frame, write_reply
from protonorm.record import States
from protonorm.tensors import Tensors

Frames = queue.SimpleQueue[tuple[dict[str, Any], Tensors]]


def main() -> None:
    """Obey the parent until it closes the line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a user's code prints must not get between the frames
    frames: Frames = queue.SimpleQueue()
    threading.Thread(target=listen, args=(sys.stdin.buffer, frames), daemon=True).start()
    try:
        serve(frames, answers)
    except BrokenPipeError:
        os._exit(0)


def listen(stream: IO[bytes], frames: Frames) -> None:
    """Queue what the parent says; end the process the moment the parent has gone, whatever it is doing."""
    while frame := read_frame(stream):
        frames.put(frame)
    os._exit(0)


def serve(frames: Frames, answers: IO[bytes]) -> None:
    """Take over the experiment, then play the clients of each round."""
    told, _ = frames.get()
    host = Host(take_over(told), States(Path(told["run"]), told["key"]))
    write_frame(answers, {"ready": True})
    while True:
        order, message = frames.get()
        for id, train, trained in order["clients"]:
            start = time.perf_counter()
            try:
                reply = host.step(id, order["round"], message, train=train, trained=trained)
            except tuple(SAID) as error:
                kind = next(kind for kind in SAID if isinstance(error, kind))
                write_frame(answers, {"error": SAID[kind], "text": str(error)})
            except Exception:  # whatever it is, the parent must hear of it
                write_frame(answers, {"error": "unexpected", "text": traceback.format_exc()})
            else:
                write_reply(answers, reply, time.perf_counter() - start)


if __name__ == "__main__":
    main()
