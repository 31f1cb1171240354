"""What `protonorm reproduce` shows of the records in results/reproduced, for docs/results.md."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from typer.main import get_command

from protonorm.analysis.plain_text import markdown_text
from protonorm.cli.app import app
from protonorm.cli.reproduce import WORDS, reproduction
from protonorm.reproduction.checking import check
from protonorm.reproduction.findings import Findings
from protonorm.reproduction.tables import Table, markdown
from protonorm.reproduction.writing import make_tables, remarks

OPTIONS = ("names", "profile", "protocol", "only", "seeds", "rounds")


def reproduced(command: str, records: Path) -> str:
    """Write the tables of a command in Markdown, what is missing in them, and with --check its verdicts."""
    words = shlex.split(command, comments=True)[2:]  # without `protonorm reproduce`
    given = get_command(app).commands["reproduce"].make_context("reproduce", words).params  # type: ignore[attr-defined]
    names, *others = (given[name] for name in OPTIONS)
    profile, protocol, only, seeds, rounds = others
    task = reproduction(list(names), profile, protocol, records, None, list(only or []), seeds, rounds)
    parts: list[str] = []
    for findings in map(_whatever_is_here, map(task.findings, task.studies)):
        parts += [_plain(table) for table in make_tables(findings)]
        parts += _listed("What is missing", map(markdown_text, remarks(findings)))
        if given["check"]:
            judged = (f"*{WORDS[one.passed].lower()}*: {markdown_text(one.sentence)}" for one in check(findings))
            parts += _listed("What `--check` says", judged)
        parts.append(_made(findings, records.name))
    return "\n".join(parts)


def _whatever_is_here(findings: Findings) -> Findings:
    """Leave out which data this machine lacks: the page is about what was run."""
    return replace(findings, outcomes=[replace(one, missing="") for one in findings.outcomes])


def _plain(table: Table) -> str:
    """Write a table whose title is no heading, for the page has its own."""
    title, rest = markdown(table).split("\n", 1)
    return f"**{title.lstrip('# ')}**\n{rest}"


def _listed(title: str, sentences: Iterable[str]) -> list[str]:
    found = [f"- {sentence}" for sentence in sentences]
    return [f"{title}:", "", *found, ""] if found else []


def _made(findings: Findings, folder: str) -> str:
    """Say how many runs it is made from, and by which versions they were made."""
    runs = {one.key: one.run for one in findings.outcomes if one.run}
    made = ", ".join(sorted({run.info.versions["protonorm"] for run in runs.values()}))
    return (
        f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}, made with protonorm {made}; records: `results/{folder}`.\n"
    )
