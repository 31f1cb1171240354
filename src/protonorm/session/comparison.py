"""What a comparison gives: rows of a table, frames, a page, and the results of its runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from protonorm.analysis.alone import matching_local
from protonorm.analysis.breakdown import check_rule
from protonorm.analysis.comparison import COLUMNS, Row, Unread, rows, whole
from protonorm.analysis.pairing import is_local
from protonorm.analysis.printed import latex_table, markdown_table, printed_table
from protonorm.analysis.seeds import csv_text
from protonorm.analysis.summaries import headline
from protonorm.analysis.transfer import points
from protonorm.config.experiment import Experiment
from protonorm.core.html import html_table
from protonorm.data.own.tables import import_pandas
from protonorm.report.page import write_page
from protonorm.runs.run import Run
from protonorm.session.result import Result, rows_by

if TYPE_CHECKING:
    import pandas

By = Literal["method", "round", "client", "class", "rule"]
NUMBERS = ("mean", "std", "low", "high")  # of a cell over seeds


@dataclass(frozen=True, repr=False)
class Comparison:
    """Methods side by side, each with one run for each seed; `pn.compare` gives one."""

    experiments: dict[str, list[Experiment]]  # of each method, one for each seed
    found: dict[str, list[Run | Unread]]  # in the same order; a run that cannot be read says why

    @cached_property
    def rows(self) -> list[Row]:
        """Make the rows of the command's table: each method under each rule, and the majority class."""
        return rows(self.found)

    @cached_property
    def runs(self) -> dict[str, list[Run]]:
        """Give the runs that can be read, by method."""
        return whole(self.found)

    @cached_property
    def results(self) -> dict[str, list[Result]]:
        """Give their results, by method."""
        return {
            method: [
                Result(experiment, found)
                for experiment, found in zip(self.experiments[method], some, strict=True)
                if isinstance(found, Run)
            ]
            for method, some in self.found.items()
        }

    def frame(self, by: By = "method", rule: str | None = None) -> pandas.DataFrame:
        """Give a pandas frame: a row for each method and rule, over seeds; or the rows of all runs by client and so on.

        By client and class, what the same client or class has in the run of `local` stands beside, where there is one,
        and numbers are those under `rule`; of a method that does not have it, those under its headline rule. Accuracies
        are parts of one, in the reported round. Needs pandas, `protonorm[frame]`.
        """
        made = self._method_rows() if by == "method" else self._run_rows(by, rule)
        found: pandas.DataFrame = import_pandas().DataFrame(made)
        return found

    def csv(self) -> str:
        """Write what `compare --csv` prints: a line for each method, rule and seed."""
        return csv_text(self.found)

    def latex(self) -> str:
        """Write the table for a paper, as `compare --latex` does."""
        return latex_table(printed_table(self._title(), self.rows))

    def markdown(self) -> str:
        """Write the table as `compare --markdown` does."""
        return markdown_table(printed_table(self._title(), self.rows))

    def page(self, path: str | Path) -> Path:
        """Write the report page, one HTML file with all it needs inside, and return its path."""
        return write_page(self._readable(), path)

    @property
    def key(self) -> str:
        """Tell this comparison from others, in ten characters."""
        return comparison_key(self.experiments)

    def __repr__(self) -> str:
        """Say in lines what was compared, and what came out under the headline rules."""
        lines = [f"  {row.method}: {_number(row)}" for row in self.rows if row.headline]
        return "\n".join([f"Comparison({self._title()}, accuracy in per cent)", *lines])

    def _repr_html_(self) -> str:
        """Show the table in a notebook."""
        head = ["method", "rule", *(title for title, _ in COLUMNS.values()), "gain on local"]
        body = [[row.method, row.rule, *(_shown(row, name) for name in COLUMNS), _gain(row)] for row in self.rows]
        note = f"Test accuracy in per cent; {self._seeds()}. Columns with * are chosen by the test part: optimistic."
        return html_table(self._title(), head, body, note)

    def _title(self) -> str:
        return headline(self.runs) if self.runs else "no run can be read"

    def _seeds(self) -> str:
        several = {len(some) for some in self.experiments.values()} != {1}
        return "mean ± half the 95 % interval over seeds" if several else "one seed"

    def _readable(self) -> dict[str, list[Run]]:
        if not self.runs:
            raise ValueError("No run of this comparison can be read: there is nothing to compare.")
        return self.runs

    def _method_rows(self) -> list[dict[str, Any]]:
        made = []
        for row in self.rows:
            line: dict[str, Any] = {"method": row.method, "rule": row.rule, "headline": row.headline}
            line["seeds"] = len(row.seeds)
            for name in COLUMNS:
                line |= dict(zip((name, *(f"{name}_{end}" for end in NUMBERS[1:])), _numbers(row, name), strict=True))
            line["gain"] = row.local.transfer.mean if row.local and row.local.transfer else None
            made.append(line | {"note": row.note})
        return made

    def _run_rows(self, by: str, rule: str | None) -> list[dict[str, Any]]:
        every = [run for some in self._readable().values() for run in some]
        local, made = [run for run in every if is_local(run)], []
        if rule is not None and all(rule not in run.info.rules for run in every):
            check_rule(every[0], rule)
        for method, some in self._readable().items():
            for run in some:
                wanted = rule if rule is None or rule in run.info.rules else None
                rows = rows_by(run, by, wanted, matching_local(run, local))
                made += [one | {"method": method} for one in rows]
        return made


def comparison_key(experiments: Mapping[str, Sequence[Experiment]]) -> str:
    """Tell a comparison of experiments from others, in ten characters; nothing needs to have been run."""
    keys = "\n".join(one.key for some in experiments.values() for one in some)
    return hashlib.sha256(keys.encode()).hexdigest()[:10]


def _numbers(row: Row, column: str) -> tuple[float | None, ...]:
    cell = row.cells.get(column)
    if cell is None:
        return (None,) * len(NUMBERS)
    return (cell.mean, cell.std, *(cell.interval or (None, None)))


def _shown(row: Row, column: str) -> str:
    return str(row.cells.get(column) or "–")


def _number(row: Row) -> str:
    return f"{_shown(row, 'accuracy')}{f' ({row.note})' if row.note else ''}"


def _gain(row: Row) -> str:
    found = row.local.transfer if row.local else None
    return points(found.mean) if found else ""
