"""What goes wrong while settings are written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic_core import PydanticSerializationError

from protonorm.core.own_failures import told
from protonorm.errors import Failed

LOST = "The settings cannot be written down: "


@contextmanager
def own_words() -> Iterator[None]:
    """Let an error while a component is described say what it says, not who asked for it."""
    try:
        yield
    except PydanticSerializationError as error:
        cause = error.__cause__
        while isinstance(cause, PydanticSerializationError) and cause.__cause__:
            cause = cause.__cause__
        if isinstance(cause, ValueError | OSError | Failed):  # such as data that cannot be read
            raise cause from None
        raise ValueError(LOST + told(cause or error)) from cause
