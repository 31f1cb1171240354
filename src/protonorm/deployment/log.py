"""What happens, in two files: a line of JSON for machines and a line of text for people, for each event."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from protonorm.core.text import visible
from protonorm.core.types import shortened
from protonorm.files import make_folder, open_private

LARGEST = 2**24  # bytes of a log file; then it is moved aside, and the one before it is dropped
LONGEST = 1000  # characters of a sentence

Level = Literal["info", "warning", "error"]


class Log:
    """Add events to the files of a folder; several processes may do so at once, for a line is written in one go."""

    def __init__(self, folder: Path, name: str, show: Callable[[str], None] | None = None) -> None:
        make_folder(folder)
        self.machine, self.people = folder / f"{name}.jsonl", folder / f"{name}.log"
        self._show = show

    def write(self, event: str, text: str, level: Level = "info", **details: Any) -> None:
        """Add an event: a short name that stays the same, a sentence, and what a machine may want to know."""
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        said = shortened(text, LONGEST)  # what clients say is in it: never more than a line
        plain = {"time": now, "level": level, "event": event, "text": said, **details}
        line = f"{now[:10]} {now[11:19]} {level:7} {said}"
        _append(self.machine, json.dumps(plain, allow_nan=False, default=str))
        _append(self.people, line)
        if self._show:
            self._show(line)


def read_events(path: Path, last: int = 20) -> list[dict[str, Any]]:
    """Read the last events of a log; lines that a kill has cut short are left out."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - last * 4 * LONGEST))
            lines = file.read().splitlines()[-last:]
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and {"time", "level", "event", "text"} <= event.keys():
            found.append(event)
    return found


def _append(path: Path, line: str) -> None:
    if path.exists() and path.stat().st_size > LARGEST:
        os.replace(path, path.with_name(f"{path.name}.1"))
    with open_private(path, "ab") as file:
        file.write(visible(line).encode() + b"\n")
