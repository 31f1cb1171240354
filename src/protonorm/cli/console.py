"""Output, tables and errors on a terminal. Does not import torch."""

import json
import os
import re
import select
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TextIO

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from protonorm.core.text import visible
from protonorm.errors import Failed, lacks_memory

REFUSED, FAILED, INTERRUPTED = 2, 1, 130  # exit codes
PAGE = 110  # characters per line without a terminal
LONG_WORD = re.compile(r"(\S{80})\S{340,}(\S{80})")  # words of more than 500 characters: longer than an intended path
ENDLESS = 10_000  # characters: more than any table needs


class Column(NamedTuple):
    """Column of a table."""

    heading: str
    justify: Literal["left", "right"] = "left"
    no_wrap: bool = False


def make_table(
    title: str, columns: Iterable[Column | str], rows: Iterable[Sequence[str | Text]], caption: str = ""
) -> Table:
    """Build a table; cells are text, never markup, and each cell that is not a Text is one line."""
    table = Table(
        title=Text(visible(title)), caption=Text(visible_lines(caption)) if caption else None, box=SIMPLE_HEAD,
        title_justify="left", caption_justify="left",
    )  # fmt: skip
    for heading, justify, no_wrap in (item if isinstance(item, Column) else Column(item) for item in columns):
        table.add_column(Text(visible_lines(heading)), justify=justify, no_wrap=no_wrap, overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(visible(cell)) for cell in row))
    return table


def fits(table: Table, width: int) -> bool:
    """Return whether a table fits in lines of `width` characters."""
    return Console(width=ENDLESS).measure(table).maximum <= width


def visible_lines(text: str) -> str:
    """Escape control characters, so that a terminal shows them and does not obey them; line breaks stay."""
    return "\n".join(map(visible, text.split("\n")))


def bold(text: str, emphasised: bool = True) -> Text:
    """Return a text in one line, in bold if wanted."""
    return Text(visible(text), style="bold" if emphasised else "")


def entries_table(title: str, entries: Mapping[str, Any]) -> Table:
    """Build the table of components that can be chosen by name."""
    details = sorted({column for entry in entries.values() for column in entry.details})
    rows = ([name, *(item.details.get(key, "") for key in details), item.summary] for name, item in entries.items())
    return make_table(title, ["name", *details, "what it is"], rows)


def page_width() -> int:
    """Return the characters per line: those of the terminal, or of a page without a terminal."""
    console = Console()
    return console.width if console.is_terminal else PAGE


def say(item: Any, *, captions: bool = True) -> None:
    """Print a table or a text on standard output."""
    if isinstance(item, Table) and not captions:
        item.caption = None
    console = Console(highlight=False, markup=False, emoji=False, width=page_width())
    if isinstance(item, Table) and not fits(item, console.width):
        for column in item.columns:
            column.no_wrap = False  # two lines rather than a truncated number
    console.print(visible_lines(item) if isinstance(item, str) else item, soft_wrap=isinstance(item, str))


def print_json(value: dict[str, Any]) -> None:
    """Print JSON on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def complain(sentence: str) -> None:
    """Print an error on standard error; further lines are indented, so that they do not look like other errors."""
    lines = visible_lines(LONG_WORD.sub(r"\1…\2", sentence)).split("\n")
    sys.stderr.write("protonorm: " + "\n  ".join(lines) + "\n")


def say_findings(findings: Iterable[Any], *, as_json: bool, fine: str = "") -> None:
    """Print findings as they are made, or all as JSON; exit with an error code if one of them is a problem."""
    plain = []
    for finding in findings:
        plain.append(finding._asdict())
        if not as_json:
            label = f"{finding.what}: " if "what" in plain[-1] else ""
            (say if finding.ok else complain)(f"{label}{finding.text}")
    ok = all(finding["ok"] for finding in plain)
    if as_json:
        print_json({"ok": ok, "findings": plain})
    elif ok and fine:
        say(fine)
    if not ok:
        raise typer.Exit(FAILED)


@contextmanager
def reporting(*, quiet: bool = False, no_own_code: bool = False) -> Iterator[None]:
    """Show progress; convert expected errors into a message and an exit code. PROTONORM_DEBUG=1 shows tracebacks."""
    from protonorm.cli.progress import Display
    from protonorm.core.own_code import without_own_code

    with warnings.catch_warnings():
        debug = bool(os.environ.get("PROTONORM_DEBUG"))
        if not debug:
            warnings.showwarning = lambda message, *_, **__: complain(str(message))
        try:
            with without_own_code(no_own_code), Display(quiet=quiet):
                yield
        except (Exception, KeyboardInterrupt) as error:
            if debug or (explained := _explain(error)) is None:
                raise
            sentence, code = explained
            if sentence:
                complain(sentence)
            raise typer.Exit(code) from None


def _explain(error: BaseException) -> tuple[str, int] | None:
    """Return the message and the exit code of an expected error; None for a bug. A closed pipe needs no message."""
    from protonorm.core.own_failures import runtime_failure

    if isinstance(error, KeyboardInterrupt):
        return "Stopped. Finished rounds are kept; the same command goes on from there.", INTERRUPTED
    if isinstance(error, ValueError | BlockingIOError):
        own = runtime_failure(error)  # raised by the user's own file while it ran
        return own or str(error), FAILED if own else REFUSED
    if isinstance(error, OSError):
        if isinstance(error, BrokenPipeError) and _is_closed(sys.stdout):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return "", FAILED
        return f"A file could not be used: {error}.", FAILED
    if isinstance(error, Failed):
        return str(error), FAILED
    if lacks_memory(error):
        match = re.search(r"allocate (\d+) bytes|allocate ([\d.]+ \w+)", str(error))
        asked = match and (f"{int(match[1]) / 2**30:.1f} GiB" if match[1] else match[2])
        much = f" ({asked} at once)" if asked else ""
        return f"There is not enough memory{much}; smaller data, networks or batches need less.", FAILED
    own = runtime_failure(error)
    return (own, FAILED) if own else None


def _is_closed(stream: TextIO) -> bool:
    """Return whether a stream is a pipe whose reader has closed; True where the system cannot tell."""
    if not hasattr(select, "poll"):
        return True
    try:
        pipe = select.poll()
        pipe.register(stream.fileno(), 0)
    except (OSError, ValueError):  # not a file
        return False
    return any(event & select.POLLERR for _, event in pipe.poll(0))
