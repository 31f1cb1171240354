"""Progress display on standard error: live bars in a terminal, occasional plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from protonorm.core.progress import listening
from protonorm.core.text import visible
from protonorm.session.progress import TimeLeft

if TYPE_CHECKING:
    from protonorm.federation.rounds import Round
    from protonorm.runs.schema import RoundRecord

EVERY = 10.0  # seconds between plain lines
LATE = 2.0  # seconds of work before progress is shown


class Display:
    """Display of the progress of several tasks, as bars or lines."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False, markup=False, emoji=False)
        self._live = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[share]}", markup=False),
            TextColumn("{task.fields[note]}", markup=False),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._begun: dict[str, tuple[float, int]] = {}  # time and progress of the first report
        self._said: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._leave()

    def __call__(self, what: str, done: int, whole: int) -> None:
        """Show the progress of a task, once it has taken `LATE` seconds."""
        now = time.monotonic()
        what = visible(what)
        begun, before = self._begun.setdefault(what, (now, done))
        if now - begun >= LATE:
            known = whole and done > before
            self.show(what, done, whole, left=(now - begun) / (done - before) * (whole - done) if known else None)
        if whole and done >= whole:  # the same work may start again
            del self._begun[what]
            self._said.pop(what, None)

    def show(
        self, what: str, done: int, whole: int, note: str = "", left: float | None = None, *, now: bool = False
    ) -> None:
        """Show the progress of a task: update its bar, or print a line if the last is old or `now` is set."""
        what, note = visible(what), visible(note)
        share = f"{done}/{whole}" if whole else str(done)
        if self._console.is_terminal:
            if not self._live.live.is_started:
                self._live.start()
            if what not in self._tasks:
                self._tasks[what] = self._live.add_task(what, share=share, note=note)
            self._live.update(self._tasks[what], completed=done, total=whole or None, share=share, note=note)
            if self._live.finished:
                self._leave()
            return
        clock = time.monotonic()
        if now or clock - self._said.setdefault(what, self._begun.get(what, (clock, 0))[0]) >= EVERY:
            self._said[what] = clock
            parts = [f"{what}: {share}", note, f"{write_time(left)} left" if left is not None else ""]
            self.say(", ".join(filter(None, parts)))

    def say(self, line: str) -> None:
        """Print one line."""
        self._console.print(visible(line), soft_wrap=True)

    def _leave(self) -> None:
        """Stop the bars, so that other output can be written."""
        if self._live.live.is_started:
            self._live.stop()
        for task in self._tasks.values():
            self._live.remove_task(task)
        self._tasks.clear()


class RoundDisplay:
    """Display of the rounds of one run."""

    def __init__(self, title: str, rounds: int, headline: str, *, quiet: bool = False) -> None:
        self._title, self._rounds, self._headline = title, rounds, headline
        self._display = Display(quiet=quiet)
        self._hearing = listening(
            None if quiet else self._display
        )  # progress inside rounds: a terminal has one display
        self._left, self._begun = TimeLeft(rounds), False

    def __enter__(self) -> Self:
        self._display.__enter__()
        self._hearing.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._hearing.__exit__(kind, error, at)
        self._display.__exit__(kind, error, at)

    def __call__(self, round: Round) -> None:
        """Show a committed round."""
        ends, self._begun = not self._begun or round.number == self._rounds, True
        said, left = note(round.record, self._headline), self._left.after(round)
        self._display.show(self._title, round.number, self._rounds, said, left, now=ends)


@contextmanager
def showing_progress(*, quiet: bool = False) -> Iterator[Display]:
    """Show the progress of all long work inside this context."""
    with Display(quiet=quiet) as display, listening(None if quiet else display):
        yield display


def note(record: RoundRecord, headline: str) -> str:
    """Summarise a round: its accuracy under the headline rule, or else its loss."""
    rule = headline if record.rules.get(headline) else "logits"
    if found := record.rules.get(rule):
        return f"{rule} {100 * found.pooled:.2f} %"
    return "" if record.loss is None else f"loss {record.loss:.4g}"


def write_time(seconds: float) -> str:
    """Format a time as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
