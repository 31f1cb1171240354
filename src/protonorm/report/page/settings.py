"""The settings on the page: a table of all of them, and the commands that make the runs again."""

from __future__ import annotations

import shlex
from typing import Any

from protonorm.algorithms import ALGORITHMS
from protonorm.data import DATASETS, PARTITIONS
from protonorm.deals import flat
from protonorm.report.page.again import compare_again, resolved, run_again, text
from protonorm.report.page.groups import Groups
from protonorm.report.page.usual import UNKNOWN, usual

WIDTH = 76  # characters of a line of a command


def commands(groups: Groups) -> dict[str, Any]:
    """Give one command for all runs where there is one, and one for each run."""
    runs = [run for found in groups.values() for run in found]
    singles = [(run.about["key"], run_again(run.experiment)) for run in runs]
    whole = compare_again(groups) if len(runs) > 1 else None
    notes = dict.fromkeys(note for _, again in singles for note in again.notes)
    return {
        "compare": typed("compare", whole.words) if whole else None,
        "runs": [(key, typed("run", again.words)) for key, again in singles],
        "notes": list(notes),
    }


def typed(verb: str, words: list[str]) -> str:
    """Write a command as it is typed into a shell, in lines that fit a page."""
    lines = [f"protonorm {verb}"]
    for word in map(shlex.quote, words):
        if len(lines[-1]) + len(word) > WIDTH:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def settings_table(groups: Groups) -> dict[str, Any]:
    """Lay out all settings, a column for each method; True beside what differs from its default."""
    columns = [flat(found[0].experiment) for found in groups.values()]
    seeds = [", ".join(str(run.experiment["seed"]) for run in found) for found in groups.values()]
    defaults = [usual_settings(found[0].experiment) for found in groups.values()]
    names = dict.fromkeys(name for column in columns for name in column)
    lines = []
    places = {name: place for place, name in enumerate(columns[0])}
    for name in sorted(names, key=lambda name: places.get(name.split(".")[0], len(places))):
        cells = [
            (seed if name == "seed" else _cell(column, name), name in column and column[name] != usual_ones.get(name))
            for column, usual_ones, seed in zip(columns, defaults, seeds, strict=True)
        ]
        lines.append((name, cells))
    return {"methods": list(groups), "rows": lines}


def usual_settings(experiment: dict[str, Any]) -> dict[str, Any]:
    """Give the defaults of all settings, named as on the command line."""
    found = dict(usual("protonorm.experiment:Experiment")) | resolved(experiment)
    for kind, table in (("algorithm", ALGORITHMS), ("dataset", DATASETS), ("partition", PARTITIONS)):
        entry = table.get(experiment[kind]["name"])
        fields = usual(entry.target) if entry else {}
        recorded = (field for field in experiment[kind] if field != "name")
        # what is recorded but cannot be set, such as a hash of the data, has no default to differ from
        found |= {f"{kind}.{field}": fields.get(field, experiment[kind][field]) for field in recorded}
    return {name: value for name, value in found.items() if value is not UNKNOWN}


def _cell(column: dict[str, Any], name: str) -> str:
    return text(column[name]) if name in column else ""
