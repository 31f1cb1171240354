"""The command `list`: what can be chosen by name."""

from __future__ import annotations

from enum import StrEnum

from protonorm.cli.console import print_json, reporting, say
from protonorm.cli.options import Json
from protonorm.config.kinds import KINDS

Kind = StrEnum("Kind", {kind.plural: kind.plural for kind in KINDS.values()})  # type: ignore[misc]


def list_(kind: Kind, as_json: Json = False) -> None:
    """List what can be chosen by name."""
    with reporting(quiet=as_json):
        entries = next(one for one in KINDS.values() if one.plural == kind.value).table()
        if as_json:
            print_json({key: {"summary": entry.summary, **entry.details} for key, entry in entries.items()})
            return
        from protonorm.cli.tables import entries_table

        say(entries_table(kind.value.capitalize(), entries))
