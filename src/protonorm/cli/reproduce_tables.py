"""Tables of the command `reproduce` in a terminal. Listing them does without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table as RichTable
from rich.text import Text

from protonorm.cli.tables import Column, bold, make_table
from protonorm.core.text import visible

if TYPE_CHECKING:
    from protonorm.reproduction.profiles import Profile
    from protonorm.reproduction.tables import Table, TableEntry


def terminal_table(table: Table, profile: Profile) -> RichTable:
    """Lay out a table for the terminal; the best test round and what the paper prints stand below ours."""
    columns, before = [Column(table.corner)], ""
    for group, name in table.titled_columns:
        columns.append(Column(f"{visible(group)}\n{visible(name)}" if group != before else visible(name), "right"))
        before = group  # stands above the first of its columns only
    rows = [[bold(row, False), *map(_entry, entries)] for row, entries in table.rows]
    stamp = f"{profile.stamp}: " if profile.stamp else ""
    return make_table(stamp + table.title, columns, rows, table.explanation)


def _entry(entry: TableEntry) -> Text:
    shown = bold(entry.text, entry.bold)
    return Text.assemble(shown, *((f"\n{visible(line)}", "dim") for line in entry.lines))


def listing(names: list[str]) -> RichTable:
    """List tables and figures: how many runs each has, and about how long they take on two cores."""
    from protonorm.reproduction.estimate import duration, total_seconds, work_left
    from protonorm.reproduction.profiles import PROFILES
    from protonorm.reproduction.protocols import PROTOCOLS
    from protonorm.reproduction.study import find_studies

    rows = []
    for study in find_studies(names):
        guesses = []
        for profile in PROFILES.values():
            protocol = PROTOCOLS[profile.protocol]
            settings = [study.settings(cell, profile, protocol, seed) for cell in study.cells for seed in profile.seeds]
            runs = {str(one): work_left(one) for one in settings}  # equal settings are run once
            guesses.append(duration(total_seconds(runs.values())) if runs else "-")
        rows.append([study.name, study.title, str(len(study.cells)), *guesses])
    return make_table(
        "Tables and figures",
        [Column("name", no_wrap=True), Column("what it is"), Column("cells", "right"),
         *(Column(name, "right", no_wrap=True) for name in PROFILES)],
        rows,
        "Guesses for two cores that nobody else uses, each as if nothing were there yet: runs are shared, so that all "
        "together take less. " + " ".join(f"{one.name}: {one.summary}." for one in PROFILES.values()),
    )  # fmt: skip
