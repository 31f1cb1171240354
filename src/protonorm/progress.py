"""Tell of a run, or of other long work, while it goes on: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from statistics import fmean
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from protonorm.federation import Round

EVERY = 10.0  # seconds between plain lines
LATE = 2.0  # seconds of work before a bar is worth showing

Item = TypeVar("Item")

_heard: ContextVar[bool] = ContextVar("heard", default=False)  # a program that uses the package is not talked to


class Teller:
    """Follow one run's rounds on the error stream; the answer stream stays free for the result."""

    def __init__(self, title: str, rounds: int, headline: str, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._title, self._rounds, self._headline = title, rounds, headline
        self._live: Progress | None = None
        self._task = TaskID(0)
        self._said = time.monotonic()
        self._seconds: list[float] = []  # of the rounds so far
        if self._console.is_terminal:
            self._live = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._live.add_task(title, total=rounds, note="")

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, round: Round) -> None:
        """Tell of a committed round."""
        note = _note(round.metrics, self._headline)
        if self._live:
            self._live.update(self._task, completed=round.number, note=note)
            return
        now = time.monotonic()
        self._seconds.append(round.seconds["round"])
        if now - self._said >= EVERY or len(self._seconds) == 1 or round.number == self._rounds:
            self._said = now
            left = fmean(self._seconds) * (self._rounds - round.number)
            self._console.print(
                f"{self._title}: round {round.number}/{self._rounds}, {note}, {_clock(left)} left", highlight=False
            )


@contextmanager
def speaking(*, wanted: bool = True) -> Iterator[None]:
    """Let `steps` be heard, or not, while this lasts."""
    before = _heard.set(wanted)
    try:
        yield
    finally:
        _heard.reset(before)


def steps(items: Sequence[Item], title: str) -> Iterator[Item]:
    """Go through items, and tell on the error stream how far it is once that takes long."""
    if not _heard.get():
        yield from items
        return
    console = Console(stderr=True)
    live = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    )
    task = live.add_task(title, total=len(items))
    begun = said = time.monotonic()
    try:
        for done, item in enumerate(items):
            now = time.monotonic()
            live.update(task, completed=done)
            if console.is_terminal and not live.live.is_started and now - begun >= LATE:
                live.start()
            elif done and not console.is_terminal and now - said >= EVERY:
                said, left = now, (now - begun) / done * (len(items) - done)
                console.print(f"{title}: {done}/{len(items)}, {_clock(left)} left", highlight=False)
            yield item
        live.update(task, completed=len(items))
    finally:
        if live.live.is_started:
            live.stop()


def _note(metrics: dict[str, Any], headline: str) -> str:
    value = metrics["rules"].get(headline) or metrics["rules"].get("logits")
    rule = headline if metrics["rules"].get(headline) else "logits"
    return f"{rule} {100 * value['pooled']:.2f} %" if value else f"loss {metrics['loss']:.4g}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
