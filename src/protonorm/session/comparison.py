"""Comparison of methods: table rows, frames, figures, report page, and results. Does not import torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from protonorm.analysis.breakdown import UNITS, check_rule, headline, matching_local, plain_run, rows_by, units_of
from protonorm.analysis.comparison import COLUMNS, Row, Unread, columns_of, rows, whole
from protonorm.analysis.contrasts import is_local, points
from protonorm.analysis.tables import csv_text, latex_table, markdown_table
from protonorm.core.text import html_table
from protonorm.core.types import rule_name, shown
from protonorm.files import make_folder, replace, sealed, unsealed
from protonorm.runs.layout import RECORDS, is_packed
from protonorm.runs.run import Run

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from protonorm.config.experiment import Experiment
    from protonorm.session.comparing import Plan
    from protonorm.session.result import Result

CURVES, MAP, REPORT = "accuracy.png", "partition.png", "report.html"


@dataclass(frozen=True, repr=False)
class Comparison:
    """Comparison of several methods, each with one run per seed; returned by `pn.compare`."""

    plan: Plan  # requested runs of each method, and their folder
    found: dict[str, list[Run | Unread]]  # runs of each method, one per seed; an unreadable run holds the reason

    @property
    def experiments(self) -> dict[str, list[Experiment]]:
        """Experiments of each method, one per seed."""
        return self.plan.compared.experiments

    @cached_property
    def rows(self) -> list[Row]:
        """Rows of the comparison table: each method under each prediction rule, and the majority class."""
        return rows(self.found)

    @cached_property
    def runs(self) -> dict[str, list[Run]]:
        """Readable runs, by method."""
        return whole(self.found)

    @cached_property
    def results(self) -> dict[str, list[Result]]:
        """Results of the readable runs, by method."""
        from protonorm.session.result import Result

        pairs = {method: zip(self.experiments[method], runs, strict=True) for method, runs in self.found.items()}
        return {
            method: [Result(experiment, run) for experiment, run in paired if isinstance(run, Run)]
            for method, paired in pairs.items()
        }

    def frame(self, by: str = "method", rule: str | None = None) -> pandas.DataFrame:
        """Return a pandas frame of the comparison. Needs pandas, `protonorm[frame]`.

        Accuracies are fractions in [0, 1], in the reported round.

        Args:
            by: `method` for one row per method and rule, over seeds; `round`, `client`, `class`, `rule`, `client,class`
                and so on, as of a `Result`, for the rows of all runs. By client and by class, the accuracy in the
                matching run of `local` is added where one exists.
            rule: Prediction rule of the numbers by client and class; methods without it use their headline rule.
        """
        from protonorm.data.own.tables import import_pandas

        units = units_of(by, ("method", *UNITS))
        records = self._method_rows() if units == "method" else self._run_rows(units, rule)
        frame: pandas.DataFrame = import_pandas().DataFrame(records)
        return frame

    def plain(self) -> dict[str, Any]:
        """Return rows, runs and the reasons for unreadable runs as plain data, as printed by `compare --json`."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "runs": {method: [plain_run(run) for run in runs] for method, runs in self.runs.items()},
            "unread": [run.reason for runs in self.found.values() for run in runs if isinstance(run, Unread)],
        }

    def csv(self) -> str:
        """Return the CSV text of `compare --csv`: one line per method, rule and seed."""
        return csv_text(self.found)

    def latex(self, label: str = "comparison") -> str:
        r"""Return the LaTeX table of `compare --latex`, with \label{table:LABEL}."""
        return latex_table(self.title, self.rows, label)

    def markdown(self) -> str:
        """Return the Markdown table of `compare --markdown`."""
        return markdown_table(self.title, self.rows)

    def page(self, path: str | Path) -> Path:
        """Write the report page, one self-contained HTML file, and return its path."""
        from protonorm.report.page import write_page

        return write_page(self._readable(), path, self.rows)

    def plot(self, kind: Literal["accuracy", "partition"] = "accuracy") -> Figure:
        """Draw the accuracy of each method over rounds, or the samples of each client and class, with matplotlib."""
        from protonorm.report.figures import accuracy_curves, heat_map  # slow to import

        if kind not in ("accuracy", "partition"):
            raise ValueError(f"kind must be accuracy or partition, got {shown(kind)}.")
        runs = self._readable()
        return accuracy_curves(runs) if kind == "accuracy" else heat_map(next(iter(runs.values()))[0])

    def figures(self) -> dict[str, pandas.DataFrame]:
        """Return the data behind every figure of the report page as frames, by name. Needs pandas, `protonorm[frame]`.

        Numbers are as on the page: accuracies in per cent, rounded, and of at most as many points as are drawn.
        """
        from protonorm.data.own.tables import import_pandas
        from protonorm.report.page import figure_rows

        figures = figure_rows(self._readable(), self.rows)
        return {name: import_pandas().DataFrame(rows) for name, rows in figures.items()}

    def draw(self, folder: Path) -> list[Path]:
        """Write the accuracy curves, the partition map and the report page, unless they are up to date."""
        paths = [folder / name for name in (CURVES, MAP, REPORT)]
        mark = digest("drawn", str(folder.absolute()), code_version(), *self._record_versions())
        with suppress(OSError):
            if recall(self.plan.root, mark) == {"files": list(map(_content, paths))}:
                return paths
        from protonorm.report.drawing import write_figure
        from protonorm.report.figures import accuracy_curves, heat_map  # slow to import

        write_figure(accuracy_curves(self.runs), paths[0])
        write_figure(heat_map(next(iter(self.runs.values()))[0]), paths[1])
        self.page(paths[2])
        note(self.plan.root, mark, {"files": list(map(_content, paths))})
        return paths

    @property
    def key(self) -> str:
        """Identifier of this comparison (10 characters)."""
        return self.plan.key

    @property
    def title(self) -> str:
        """Common settings of the compared runs: data, partition, clients, rounds."""
        return headline(self.runs) if self.runs else "no run can be read"

    def __repr__(self) -> str:
        """Return the title and one line per method: its accuracy under its headline rule."""
        heads = [(row, f" ({row.note})" if row.note else "") for row in self.rows if row.headline]
        lines = [f"  {row.method}: {row.cells.get('accuracy') or '–'}{note}" for row, note in heads]
        return "\n".join([f"Comparison({self.title}, accuracy in per cent)", *lines])

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        columns, body = columns_of(self.rows), []
        head = ["method", "rule", *(COLUMNS[name][0] for name in columns), "gain on local"]
        for row in self.rows:
            transfer = row.local.transfer if row.local else None
            gain = points(transfer.mean) if transfer else ""
            body.append([row.method, row.rule, *map(row.text, columns), gain])
        uneven = {len(runs) for runs in self.found.values()} != {1}
        seeds = "mean ± half the 95 % interval over seeds" if uneven else "one seed"
        note = f"Test accuracy in per cent; {seeds}. Columns with * are chosen by the test part: optimistic."
        return html_table(self.title, head, body, note)

    def _cells(self, method: str, position: int, rule: str | None) -> Any:
        return self.results[method][position].cells(rule)

    def _readable(self) -> dict[str, list[Run]]:
        if not self.runs:
            raise ValueError("No run of this comparison can be read: there is nothing to compare.")
        return self.runs

    def _record_versions(self) -> Iterator[str]:
        """Yield fingerprints of the records: names, sizes and modification times of their files."""
        for method, run in ((method, run) for method, runs in self._readable().items() for run in runs):
            yield f"{method} {run.folder} {run.info.experiment.rounds}"
            paths = [run.folder.parent / RECORDS] if is_packed(run.folder) else run.folder.iterdir()
            yield from sorted(f"{path} {file_version(path)}" for path in paths if path.name != REPORT)

    def _method_rows(self) -> list[dict[str, Any]]:
        records, columns = [], columns_of(self.rows)
        for row in self.rows:
            line: dict[str, Any] = {"method": row.method, "rule": row.rule, "headline": row.headline}
            line["seeds"] = len(row.seeds)
            for name in columns:
                cell = row.cells.get(name)
                numbers = (cell.mean, cell.std, *(cell.interval or (None, None))) if cell else (None,) * 4
                line |= dict(zip((name, f"{name}_std", f"{name}_low", f"{name}_high"), numbers, strict=True))
            line["gain"] = row.local.transfer.mean if row.local and row.local.transfer else None
            records.append(line | {"note": row.note})
        return records

    def _run_rows(self, by: str, rule: str | None) -> list[dict[str, Any]]:
        all_runs = [run for runs in self._readable().values() for run in runs]
        local, records = [run for run in all_runs if is_local(run)], []
        rule = rule and rule_name(rule)
        if rule is not None and all(rule not in run.info.rules for run in all_runs):
            check_rule(all_runs[0], rule)
        for method, group in self._readable().items():
            for position, run in enumerate(group):
                known_rule = rule if rule is None or rule in run.info.rules else None
                cells = partial(self._cells, method, position, known_rule)
                rows = rows_by(run, by, known_rule, matching_local(run, local), cells)
                records += [row | {"method": method} for row in rows]
        return records


def refuse_to_overwrite(folder: Path) -> None:
    """Raise an error, before any run starts, if `draw` would overwrite files that protonorm did not write."""
    from protonorm.report import drawing
    from protonorm.report.page import write

    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; figures and report need one.")
    drawing.refuse_foreign([folder / CURVES, folder / MAP])
    write.refuse_to_overwrite(folder / REPORT)


def note(root: Path, mark: str, value: dict[str, Any]) -> None:
    """Write a cache entry, if the folder of all runs is writable."""
    path = _entry(root, mark)
    with suppress(OSError):
        make_folder(path.parent)
        replace(path, sealed(value, owner=mark))


def recall(root: Path, mark: str) -> dict[str, Any]:
    """Read a cache entry; return an empty dict if it is missing or damaged."""
    path = _entry(root, mark)
    with suppress(OSError, ValueError):
        return unsealed(path.read_bytes(), path, owner=mark)
    return {}


def _entry(root: Path, mark: str) -> Path:
    return root / "comparisons" / "known" / f"{mark[:20]}.json"


def code_version() -> str:
    """Return a fingerprint of the package's files, from their sizes and modification times."""
    root = Path(__file__).parents[1]
    return digest(*(f"{path.relative_to(root)} {file_version(path)}" for path in sorted(root.rglob("*.py"))))


def file_version(path: str | Path) -> list[int]:
    """Return a file's size and modification time."""
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns]


def _content(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digest(*texts: str) -> str:
    """Return the SHA-256 of texts."""
    return hashlib.sha256("\n".join(texts).encode(errors="backslashreplace")).hexdigest()
