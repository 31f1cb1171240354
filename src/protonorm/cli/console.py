"""What every command does with its answers and its errors. Nothing here needs torch."""

from __future__ import annotations

import json
import os
import re
import select
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.table import Table

from protonorm.cli.tables import fits, visible_lines
from protonorm.errors import Failed
from protonorm.models.memory import lacks_memory

REFUSED, FAILED, INTERRUPTED = 2, 1, 130  # exit codes
PAGE = 110  # characters a line where there is no terminal to ask
LONG_WORD = re.compile(r"(\S{80})\S{340,}(\S{80})")  # of more than 500 characters: longer than a path that is meant


def page_width() -> int:
    """Tell how many characters a line has: those of the terminal, or of a page where there is none."""
    console = Console()
    return console.width if console.is_terminal else PAGE


def say(what: Any) -> None:
    """Print a table or a text on the answer stream."""
    console = Console(highlight=False, markup=False, emoji=False, width=page_width())
    if isinstance(what, Table) and not fits(what, console.width):
        for column in what.columns:
            column.no_wrap = False  # two lines rather than half a number
    console.print(visible_lines(what) if isinstance(what, str) else what, soft_wrap=isinstance(what, str))


def print_json(value: dict[str, Any]) -> None:
    """Print JSON on the answer stream."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def complain(sentence: str) -> None:
    """Say what is wrong on the error stream; further lines are indented, so that none passes for another complaint."""
    lines = visible_lines(LONG_WORD.sub(r"\1…\2", sentence)).split("\n")
    sys.stderr.write("protonorm: " + "\n  ".join(lines) + "\n")


@contextmanager
def reporting(*, quiet: bool = False, no_own_code: bool = False) -> Iterator[None]:
    """Show progress; turn what can go wrong into a sentence and an exit code. PROTONORM_DEBUG=1 shows tracebacks."""
    from protonorm.cli.progress import showing_progress
    from protonorm.core.own_code import without_own_code
    from protonorm.core.own_failures import runtime_failure

    if os.environ.get("PROTONORM_DEBUG"):
        with without_own_code(no_own_code), showing_progress(quiet=quiet):
            yield
        return
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: complain(str(message))
        try:
            with without_own_code(no_own_code), showing_progress(quiet=quiet):
                yield
        except KeyboardInterrupt:
            complain("Stopped. Finished rounds are kept; the same command goes on from there.")
            raise typer.Exit(INTERRUPTED) from None
        except (ValueError, BlockingIOError) as error:
            said = runtime_failure(error)  # of a user's own file, while it ran
            complain(said or str(error))
            raise typer.Exit(FAILED if said else REFUSED) from None
        except OSError as error:
            if isinstance(error, BrokenPipeError) and _is_closed(sys.stdout):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody needs to know
            else:
                complain(f"A file could not be used: {error}.")
            raise typer.Exit(FAILED) from None
        except Failed as error:
            complain(str(error))
            raise typer.Exit(FAILED) from None
        except Exception as error:
            if lacks_memory(error):
                said = f"There is not enough memory{_asked(error)}; smaller data, networks or batches need less."
            else:
                said = runtime_failure(error)
            if not said:
                raise
            complain(said)
            raise typer.Exit(FAILED) from None


def _is_closed(stream: TextIO) -> bool:
    """Tell whether a stream is a pipe whose reader has gone; where systems do not say, it is taken for one."""
    if not hasattr(select, "poll"):
        return True
    try:
        pipe = select.poll()
        pipe.register(stream.fileno(), 0)
    except (OSError, ValueError):  # it is no file
        return False
    return any(event & select.POLLERR for _, event in pipe.poll(0))


def _asked(error: BaseException) -> str:
    """Say how much memory was asked for, if the error says it."""
    found = re.search(r"allocate (\d+) bytes|allocate ([\d.]+ \w+)", str(error))
    if not found:
        return ""
    return f" ({int(found[1]) / 2**30:.1f} GiB at once)" if found[1] else f" ({found[2]} at once)"
