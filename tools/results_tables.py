"""Write the tables of the documentation from the records in results/, so that no number there is typed by hand.

A table stands between `<!-- FOLDER -->` and `<!-- end -->`; FOLDER in results/ holds the archived runs of one
comparison. Methods are sorted by what their clients gain on training alone. Other marks are

- `reproduced`: what the last `protonorm reproduce` above shows of the records in results/reproduced, and `backbones` or
  `privacy` of those in the folder of that name; `backbones_in_short`: the accuracies of these alone;
- `several_seeds`: the comparison of those in results/reproduced that were run with several seeds;
- `glance`: all numbers of such tables on the page, beside the printed ones;
- `exchange_…`: tables of tools.exchange, of the records in results/exchange.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.exchange.tables import TABLES as EXCHANGE
from tools.exchange.work import Work
from tools.results_reproduced import accuracies, beside_printed, reproduced

from protonorm.analysis.comparison import Row, rows
from protonorm.analysis.contrasts import is_solo
from protonorm.analysis.tables import gain_cells
from protonorm.core.text import markdown_text
from protonorm.runs.layout import find_runs
from protonorm.runs.run import Run, read_run, read_whole

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("results.md", "results-tables.md", "exchange.md", "algorithms/duet.md", "backbones.md", "privacy.md")
PAGES = [ROOT / "docs" / name for name in NAMES]
APPENDIX = ROOT / "docs" / "results-tables.md"  # with the commands whose printed numbers the overview shows
RESULTS = ROOT / "results"
PLACE = re.compile(r"(<!-- (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
COMMAND = re.compile(r"^protonorm reproduce .*$", re.MULTILINE)
REPRODUCED = "reproduced"
ALONE = ("backbones", "privacy")  # studies with records of their own
IN_SHORT = "_in_short"  # after the name of such a study
SEVERAL = "several_seeds"
GLANCE = "glance"
SEEDS = 3  # of them at least
NO_PICTURES = Path("no-pictures")  # records are read without them
HEAD = ("method", "rule", "accuracy", "other rules", "gain on Local, client by client", "lose", "verdict")
SOLO = ("gain on its solo control", "verdict")  # further columns, where there are such runs
HIDDEN = ("sha256",)  # settings of a method that say nothing to a reader


def written(page: str, results: Path = RESULTS, appendix: str | None = None) -> str:
    """Write every table between its marks, where there are records.

    The overview of printed numbers is of the commands on the appendix, or on the page itself if there is none.
    """

    def fill(match: re.Match[str]) -> str:
        folder = results / folder_of(match["name"])
        if not folder.is_dir():
            return match[0]
        if match["name"] in EXCHANGE:
            text = EXCHANGE[match["name"]](Work(folder, NO_PICTURES))
        elif match["name"] in (REPRODUCED, *ALONE):
            text = reproduced(command_above(page, match.start()), folder)
        elif match["name"].endswith(IN_SHORT):
            text = accuracies(command_above(page, match.start()), folder)
        elif match["name"] == GLANCE:
            text = beside_printed(commands(page if appendix is None else appendix), folder)
        elif match["name"] == SEVERAL:
            text = table(folder, several(folder))
        else:
            text = table(folder)
        return f"{match[1]}\n{text}\n{match[3]}"

    return PLACE.sub(fill, page)


def command_above(page: str, mark: int) -> str:
    """Find the last command before a mark."""
    commands = COMMAND.findall(page, 0, mark)
    if not commands:
        raise ValueError(f"There is no `protonorm reproduce …` above a mark <!-- {REPRODUCED} -->.")
    return str(commands[-1])


def commands(page: str) -> list[str]:
    """List the commands whose tables stand on a page, in their order."""
    marks = (match.start() for match in PLACE.finditer(page) if match["name"] == REPRODUCED)
    return list(dict.fromkeys(command_above(page, mark) for mark in marks))


def folder_of(mark: str) -> str:
    """Name the folder of records that a mark stands for."""
    return "exchange" if mark in EXCHANGE else REPRODUCED if mark in (SEVERAL, GLANCE) else mark.removesuffix(IN_SHORT)


def several(folder: Path) -> list[Path]:
    """List the runs in a folder that are there with three seeds or more."""
    seeds: dict[str, list[Path]] = {}
    for path in find_runs(folder):
        plain = read_run(path).info.experiment.plain()
        seeds.setdefault(json.dumps({**plain, "seed": None}, sort_keys=True), []).append(path)
    return [path for paths in seeds.values() if len(paths) >= SEEDS for path in paths]


def table(folder: Path, chosen: Sequence[Path] | None = None) -> str:
    """Write the comparison of all runs in a folder, or of some, and with which versions they were made."""
    runs = [read_whole(folder_of_run) for folder_of_run in (find_runs(folder) if chosen is None else chosen)]
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.info.experiment.seed):
        groups.setdefault(label(run), []).append(run)
    table_rows = rows(groups)
    heads = sorted((row for row in table_rows if row.headline or row.is_majority), key=_rank)
    head = (*HEAD, *SOLO) if any(row.solo for row in heads) else HEAD
    lines = [head, ["---"] * len(head)]
    for row in heads:
        rules = [candidate for candidate in table_rows if candidate.method == row.method]
        lines.append([*_line(row, rules), *gain_cells(row.solo)[::2]][: len(head)])
    versions = ", ".join(sorted({run.info.versions["protonorm"] for run in runs}))
    seeds = sorted({run.info.experiment.seed for run in runs})
    note = f"{len(runs)} runs, seeds {', '.join(map(str, seeds))}, made with protonorm {versions}; records: "
    note += f"`results/{folder.name}`."
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), "", note]) + "\n"


def label(run: Run) -> str:
    """Name a run's method as `compare` takes it."""
    changed = run.info.changed.items()
    fields = {name.removeprefix("algorithm."): value for name, value in changed if name.startswith("algorithm.")}
    settings = ",".join(f"{name}={_short(value)}" for name, value in fields.items() if name not in HIDDEN)
    method = run.info.experiment.algorithm.name + (f":{settings}" if settings else "")
    return f"{method} (solo)" if is_solo(run) else method


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _rank(row: Row) -> tuple[int, float]:
    """Sort methods by their gain, then Local, then the majority class."""
    return (
        (2, 0.0) if row.is_majority else (0, -row.local.transfer.mean) if row.local and row.local.transfer else (1, 0.0)
    )


def _line(row: Row, rule_rows: Sequence[Row]) -> list[str]:
    cell, bold = row.cells["accuracy"], "**" if row.stands_out else ""
    accuracy = f"{bold}{cell}{bold}" if cell else "–"
    if row.is_majority:
        return [markdown_text(row.method), "", accuracy, "", "", "", ""]
    return [f"`{row.method}`", row.rule, accuracy, ", ".join(_beside(rule_rows)), *gain_cells(row.local)]


def _beside(rule_rows: Sequence[Row]) -> Iterator[str]:
    """Write the accuracies of a method under its other rules."""
    for row in rule_rows:
        if not row.headline and not row.is_majority and (cell := row.cells["accuracy"]):
            yield f"{row.rule} {cell.short}"


def main() -> None:
    """Bring the pages up to date."""
    for page in PAGES:
        page.write_text(rendered(page), encoding="utf-8")


def rendered(page: Path) -> str:
    """Return a page of the documentation with its tables up to date."""
    appendix = APPENDIX.read_text(encoding="utf-8") if page.name == "results.md" else None
    return written(page.read_text(encoding="utf-8"), appendix=appendix)


if __name__ == "__main__":
    main()
