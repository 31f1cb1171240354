"""Progress display on standard error: live bars in a terminal, occasional plain lines elsewhere."""

import time
from typing import TYPE_CHECKING, Any, Self

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
TEXTS = ("description", "fields[share]", "fields[note]")  # of a bar


class Display:
    """Display of the progress of all long work inside its context, as bars or lines."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False, markup=False, emoji=False)
        name, share, note = (TextColumn(f"{{task.{key}}}", markup=False) for key in TEXTS)
        self._live = Progress(name, BarColumn(), share, note, TimeRemainingColumn(), console=self._console)
        self._listening = listening(None if quiet else self.hear)
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, tuple[float, int]] = {}  # time and progress of the first report
        self._printed: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._listening.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._listening.__exit__(*error)
        self._leave()

    def hear(self, task: str, done: int, total: int) -> None:
        """Show the progress of a task, once it has taken `LATE` seconds."""
        now = time.monotonic()
        task = visible(task)
        started, before = self._started.setdefault(task, (now, done))
        if now - started >= LATE:
            estimable = total and done > before
            self.show(task, done, total, left=(now - started) / (done - before) * (total - done) if estimable else None)
        if total and done >= total:  # the same work may start again
            del self._started[task]
            self._printed.pop(task, None)

    def show(
        self, task: str, done: int, total: int, note: str = "", left: float | None = None, *, now: bool = False
    ) -> None:
        """Show the progress of a task: update its bar, or print a line if the last is old or `now` is set."""
        task, note = visible(task), visible(note)
        share = f"{done}/{total}" if total else str(done)
        if self._console.is_terminal:
            if not self._live.live.is_started:
                self._live.start()
            if task not in self._tasks:
                self._tasks[task] = self._live.add_task(task, share=share, note=note)
            self._live.update(self._tasks[task], completed=done, total=total or None, share=share, note=note)
            if self._live.finished:
                self._leave()
            return
        clock = time.monotonic()
        if now or clock - self._printed.setdefault(task, self._started.get(task, (clock, 0))[0]) >= EVERY:
            self._printed[task] = clock
            parts = [f"{task}: {share}", note, f"{write_time(left)} left" if left is not None else ""]
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


class RoundDisplay(Display):
    """Display of the rounds of one run, and of the work inside them: a terminal has one display."""

    def __init__(self, title: str, rounds: int, headline: str, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self._title, self._rounds, self._headline = title, rounds, headline
        self._left, self._first = TimeLeft(rounds), True

    def __call__(self, round: "Round") -> None:
        """Show a committed round."""
        at_end, self._first = self._first or round.number == self._rounds, False
        text, left = note(round.record, self._headline), self._left.after(round)
        self.show(self._title, round.number, self._rounds, text, left, now=at_end)


def note(record: "RoundRecord", headline: str) -> str:
    """Summarise a round: its accuracy under the headline rule, or else its loss."""
    rule = headline if record.rules.get(headline) else "logits"
    if accuracy := record.rules.get(rule):
        return f"{rule} {100 * accuracy.pooled:.2f} %"
    return "" if record.loss is None else f"loss {record.loss:.4g}"


def write_time(seconds: float) -> str:
    """Format a time as 1:02:03 or 2:03."""
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds_left:02}" if hours else f"{minutes}:{seconds_left:02}"
