"""What `protonorm reproduce` shows of the records in results/reproduced, for docs/results.md."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.reproduction.accuracy import check
from experiments.reproduction.cells import Table
from experiments.reproduction.findings import Findings, Value, values
from experiments.reproduction.running import reproduction
from experiments.reproduction.writing import make_tables, markdown, remarks
from typer.main import get_command

from protonorm.cli.app import app
from protonorm.cli.reproduce import WORDS
from protonorm.core.text import markdown_text

OPTIONS = ("names", "profile", "protocol", "only", "seeds", "rounds")
GLANCE = ("column", "size", "method", "λ", "accuracy", "best test round", "printed", "difference", "verdict")
UNSAID = "cannot be said at this size"
NEAR = 3.0  # points: what --check allows at the paper's size
PAPER_ROUNDS = 300


def reproduced(command: str, records: Path) -> str:
    """Write the tables of a command in Markdown, what is missing in them, and with --check its verdicts."""
    options = _options(command)
    parts: list[str] = []
    for findings in _findings(options, records):
        parts += [_plain(table) for table in make_tables(findings)]
        parts += _listed("What is missing", map(markdown_text, remarks(findings)))
        if options["check"]:
            judged = (
                f"*{WORDS[verdict.passed].lower()}*: {markdown_text(verdict.sentence)}" for verdict in check(findings)
            )
            parts += _listed("What `--check` says", judged)
        parts.append(_made(findings, records.name))
    return "\n".join(parts)


def beside_printed(commands: Sequence[str], records: Path) -> str:
    """Write one table of all numbers of some commands for which the paper prints one, and of Local in their columns."""
    every = [findings for command in commands for findings in _findings(_options(command), records)]
    printed: dict[tuple[str, str], Any] = {}
    columns: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for findings in sorted(every, key=lambda findings: not findings.study.paper):
        printed |= findings.study.paper
        for line in _glance(findings, printed):
            columns.setdefault(line[:2], []).append(line)
    lines = [GLANCE, ("---",) * 3 + ("---:",) * 5 + ("---",)]
    lines += [("" if i else place, *rest) for some in columns.values() for i, (place, *rest) in enumerate(some)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def accuracies(command: str, records: Path) -> str:
    """Write the accuracies of a command alone, a table for each group of columns."""
    parts: list[str] = []
    for findings in _findings(_options(command), records):
        by_cell = values(findings)
        for group in dict.fromkeys(column.group for column in findings.columns):
            columns = [column for column in findings.columns if column.group == group]
            lines = [("method", *(column.name for column in columns)), ("---", *["---:"] * len(columns))]
            for row in findings.rows:
                cells = [by_cell[row, column.place] for column in columns]
                texts = ("diverged" if cell.note else "–" if cell.mean is None else cell.text for cell in cells)
                lines.append((row, *texts))
            parts += [f"**{group}**", "", *("| " + " | ".join(line) + " |" for line in lines), ""]
    return "\n".join(parts)


def _options(command: str) -> dict[str, Any]:
    """Read the options of a command as the command line does."""
    words = shlex.split(command, comments=True)[2:]  # without `protonorm reproduce`
    context = get_command(app).commands["reproduce"].make_context("reproduce", words)  # type: ignore[attr-defined]
    return dict(context.params)


def _findings(options: Mapping[str, Any], records: Path) -> Iterator[Findings]:
    names, profile, protocol, only, seeds, rounds = (options[name] for name in OPTIONS)
    task = reproduction(list(names), profile, protocol, records, None, list(only or []), seeds, rounds, "")
    return map(_whatever_is_here, map(task.findings, task.studies))


def _glance(findings: Findings, printed: Mapping[tuple[str, str], Any]) -> Iterator[tuple[str, ...]]:
    """Write a line for each number that is there, by column; what compares with the paper's is the best test round.

    Of a table that is not the paper's, rows that change λ of a printed method are shown.
    """
    by_cell, study = values(findings), findings.study
    title = study.title.partition(":")[0]  # of the paper's table; others stand beside one
    for column in findings.columns:
        for row in (*findings.rows, *study.beside):
            value, paper_value = (
                by_cell.get((row, column.place), Value()),
                printed.get((row.split(", λ")[0], column.place)),
            )
            if value.mean is None or not (study.paper or (paper_value and row.partition(", λ = ")[2].isdigit())):
                continue
            best, experiment = float(value.best or value.mean), findings.at(row, column.place)[0].experiment
            size = f"{findings.profile.name}, {experiment.rounds} rounds"
            lam = getattr(experiment.algorithm, "lam", None)
            labels = (f"{title.removeprefix('Beside ')}, {column.place}", size, row.split(", λ")[0])
            numbers = ("" if lam is None else f"{lam:g}", value.text if value.best else "–", f"{best:.2f}")
            if paper_value is None or paper_value.mean is None:
                yield (*labels, *numbers, "not printed", "", "")
            else:
                gap = best - paper_value.mean
                full_size = findings.profile.name == "paper" and experiment.rounds >= PAPER_ROUNDS
                near = findings.profile.name == "paper" and abs(gap) <= NEAR
                verdict = "agrees" if near else "differs" if full_size else UNSAID
                yield (*labels, *numbers, str(paper_value), f"{gap:+.2f}".replace("-", "−"), verdict)


def _whatever_is_here(findings: Findings) -> Findings:
    """Leave out which data this machine lacks: the page is about what was run."""
    return replace(findings, outcomes=[replace(outcome, missing="") for outcome in findings.outcomes])


def _plain(table: Table) -> str:
    """Write a table without heading and explanation, for the page has its own."""
    title, body = markdown(table._replace(explanation="")).split("\n", 1)
    return f"**{title.lstrip('# ')}**\n{body}"


def _listed(title: str, sentences: Iterable[str]) -> list[str]:
    items = [f"- {sentence}" for sentence in sentences]
    return [f"{title}:", "", *items, ""] if items else []


def _made(findings: Findings, folder: str) -> str:
    """Describe how many runs a table is made from, and by which versions."""
    runs = {outcome.key: outcome.run for outcome in findings.outcomes if outcome.run}
    versions = ", ".join(sorted({run.info.versions["protonorm"] for run in runs.values()}))
    count = f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}"
    return f"{count}, made with protonorm {versions}; records: `results/{folder}`.\n"
