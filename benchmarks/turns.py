"""Candidates measured in turns, each in its own process, so that a noisy machine slows all of them alike.

A process of its own also has a peak of memory of its own, and can be ended when it takes too long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

from .machine import forget_peak, memory

Job = tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]  # a function of a module, and its arguments

REPEATS = 5
LONG = 10.0  # seconds of a job that is not worth repeating: noise of a second does not change its ratio


class Rival:
    """A process that does one job whenever it is asked to."""

    def __init__(self, job: Job) -> None:
        context = get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, *job), daemon=True)
        self._process.start()
        there.close()
        self.ready = bool(self._here.recv())

    def ask(self, limit: float) -> dict[str, Any] | None:
        """Have the job done once; None if it takes longer than the limit in seconds, which ends the process."""
        self._here.send("go")
        if self._here.poll(limit):
            try:
                answer: dict[str, Any] = self._here.recv()
            except EOFError:
                return {"failed": "the process ended, perhaps for lack of memory"}
            return answer
        self.close()
        return None

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()
        self._here.close()


def _serve(pipe: Connection, work: Callable[..., dict[str, Any]], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        torch.rand(8, 8) @ torch.rand(8, 8)  # what the library loads only once belongs to no rival
    pipe.send("ready")
    while pipe.recv():
        forget_peak()
        before, start = memory("VmRSS"), time.perf_counter()
        result = work(*arguments)
        seconds, after = time.perf_counter() - start, memory("VmHWM")
        grown = None if before is None or after is None else after - before
        pipe.send(result | {"seconds": seconds, "megabytes": grown})


def take_turns(
    jobs: Mapping[str, Job], notify: Callable[[str], None], *, limit: float, repeats: int = REPEATS
) -> dict[str, list[dict[str, Any]] | None]:
    """Do every job some times, in turns: what each time gave, or None where the first went over the limit."""
    rivals = {name: Rival(job) for name, job in jobs.items()}
    answers: dict[str, list[dict[str, Any]] | None] = {name: [] for name in jobs}
    for turn in range(repeats):
        for name, rival in list(rivals.items()):
            if turn == 0:
                notify(name)
            answer = rival.ask(limit)
            if answer is None:
                answers[name] = answers[name] or None
            else:
                answers[name] = [*(answers[name] or []), answer]
            if answer is None or "failed" in answer or answer["seconds"] > LONG:
                rivals.pop(name).close()
    for rival in rivals.values():
        rival.close()
    return answers
