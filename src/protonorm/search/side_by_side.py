"""Whole runs side by side: some processes, each of which does one run after the other alone.

A process ends the moment this one has gone, whatever it is doing, and a run that was cut off goes on at the next start.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from protonorm.engines.processes.pool import GRACE, start_worker
from protonorm.engines.processes.wire import BadFrame, read_frame, write_frame

MODULE = "protonorm.search.worker"


class Job(NamedTuple):
    """One run to do."""

    key: str
    settings: dict[str, Any]
    rounds: int  # that are left


class News(NamedTuple):
    """What is heard of a run: a round that is done, a warning, or how it ended."""

    key: str
    round: int = 0
    warning: str = ""
    ended: bool = False
    problem: str = ""  # why it did not come to its end


class Crew:
    """Processes that share a list of runs."""

    def __init__(self, jobs: Sequence[Job], out: Path, count: int, *, no_own_code: bool = False) -> None:
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._news: queue.SimpleQueue[News | BaseException] = queue.SimpleQueue()
        self._told = {"out": str(out.resolve()), "path": sys.path, "argv": sys.argv, "no_own_code": no_own_code}
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._closing = False
        self._waiting = len(jobs)
        for job in jobs:
            self._jobs.put(job)
        self._threads = [threading.Thread(target=self._follow, args=(number,), daemon=True) for number in range(count)]

    @property
    def processes(self) -> list[int]:
        """List the ids of the processes."""
        return [worker.pid for worker in self._workers.values()]

    def news(self) -> Iterator[News]:
        """Do all runs, and tell of them as it comes; whoever stops listening ends them."""
        try:
            for thread in self._threads:
                thread.start()
            while self._waiting:
                heard = self._news.get()
                if isinstance(heard, BaseException):
                    raise heard
                self._waiting -= heard.ended
                yield heard
        finally:
            self._close()

    def _follow(self, number: int) -> None:
        """Give one process a run after the other, and pass on what it says."""
        try:
            while not self._closing:
                job = self._jobs.get_nowait()
                self._news.put(News(job.key, ended=True, problem=self._run(number, job)))
        except queue.Empty:
            pass
        except Exception as error:  # no process can be started: whoever waits must hear of it
            self._news.put(error)

    def _run(self, number: int, job: Job) -> str:
        """Let a process do a run; say why it did not come to its end, or nothing."""
        worker = self._workers.get(number)
        if worker is None:
            worker = self._workers[number] = start_worker(MODULE)
        assert worker.stdin is not None
        assert worker.stdout is not None
        problem = "it sent what nobody can read"
        try:
            write_frame(worker.stdin, self._told | {"settings": job.settings})
            while frame := read_frame(worker.stdout):
                header, _ = frame
                if "ended" in header:
                    return str(header["ended"])
                self._news.put(News(job.key, int(header.get("round", 0)), str(header.get("warning", ""))))
            problem = "its process ended, perhaps for lack of memory"
        except (BrokenPipeError, BadFrame, ValueError, TypeError):
            pass
        _end(self._workers.pop(number))
        return f"{problem}; the same command goes on from its last round"

    def _close(self) -> None:
        """End all processes, at once."""
        self._closing = True
        for worker in list(self._workers.values()):
            with suppress(BrokenPipeError, ValueError):
                if worker.stdin:
                    worker.stdin.close()  # they go when their line is closed
        for thread in self._threads:
            if thread.ident:
                thread.join(GRACE)
        for worker in list(self._workers.values()):
            _end(worker)


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Wait a while for a process to end, then end it, and close the lines to it."""
    with suppress(BrokenPipeError, ValueError):
        if worker.stdin:
            worker.stdin.close()
    try:
        worker.wait(GRACE)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
    if worker.stdout:
        worker.stdout.close()
