"""What every command does with its answers and its errors. Nothing here needs torch."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console

from protonorm.errors import Failed

REFUSED, FAILED, INTERRUPTED = 2, 1, 130  # exit codes
PAGE = 110  # characters a line where there is no terminal to ask


def say(what: Any) -> None:
    """Print a table or a text on the answer stream."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PAGE
    console.print(what, soft_wrap=isinstance(what, str))


def print_json(value: dict[str, Any]) -> None:
    """Print JSON on the answer stream."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def complain(sentence: str) -> None:
    """Say what is wrong on the error stream."""
    sys.stderr.write(f"protonorm: {sentence}\n")


@contextmanager
def reporting(*, quiet: bool = False) -> Iterator[None]:
    """Show progress; turn what can go wrong into a sentence and an exit code. PROTONORM_DEBUG=1 shows tracebacks."""
    from protonorm.cli.progress import showing_progress

    if os.environ.get("PROTONORM_DEBUG"):
        with showing_progress(quiet=quiet):
            yield
        return
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: complain(str(message))
        try:
            with showing_progress(quiet=quiet):
                yield
        except KeyboardInterrupt:
            complain("Stopped. Finished rounds are kept; the same command goes on from there.")
            raise typer.Exit(INTERRUPTED) from None
        except (ValueError, BlockingIOError) as error:
            complain(str(error))
            raise typer.Exit(REFUSED) from None
        except OSError as error:
            complain(f"A file could not be used: {error}.")
            raise typer.Exit(FAILED) from None
        except Failed as error:
            complain(str(error))
            raise typer.Exit(FAILED) from None
