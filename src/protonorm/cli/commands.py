"""Kinds of commands: what typer says of wrong words is plain text, for it repeats them as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperCommand, TyperGroup

from protonorm.core.text import visible

TAKE_SETTINGS = ("run", "compare", "sweep", "tune", "check")


@contextmanager
def visible_errors() -> Iterator[None]:
    """Make the sentence of an error one line without escape sequences."""
    try:
        yield
    except Exception as error:
        if isinstance(said := getattr(error, "message", None), str):
            error.message = visible(said)  # type: ignore[attr-defined]
        raise


@contextmanager
def settings_meant(takes: bool) -> Iterator[None]:
    """Say that --rounds 5 is written rounds=5, in a command that takes settings."""
    try:
        yield
    except Exception as error:
        name = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
        if takes and name and type(error).__name__ == "NoSuchOption":
            error.message = f"{error.message}. Settings are words without dashes: {name}=…."  # type: ignore[attr-defined]
        raise


class Command(TyperCommand):
    """One command."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the command's words."""
        with visible_errors(), settings_meant(self.name in TAKE_SETTINGS):
            return super().make_context(*arguments, **options)


class Commands(TyperGroup):
    """Several commands."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the words before a command's name."""
        with visible_errors():
            return super().make_context(*arguments, **options)

    def resolve_command(self, *arguments: Any, **options: Any) -> Any:
        """Find a command by its name."""
        with visible_errors():
            return super().resolve_command(*arguments, **options)
