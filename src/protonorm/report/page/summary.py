"""Top of the page: outcome, comparison table, measures, and notices."""

from collections.abc import Sequence
from typing import Any

from protonorm.analysis.breakdown import standing
from protonorm.analysis.comparison import Cell, Row, columns_of, rows
from protonorm.analysis.settings import client_label
from protonorm.analysis.statistics import share_a_seed
from protonorm.analysis.tables import (
    NOT_RANKED,
    OPTIMISTIC,
    how_chosen,
    is_hint,
    other_tests,
    p_values,
    what_spread_is,
    why_bold,
)
from protonorm.core.text import counted, duration, listed, size_text
from protonorm.metrics import metrics
from protonorm.report.page.charts import NOTHING, UNTESTED, is_untested, untimed
from protonorm.report.page.groups import Groups, differences, per_cent
from protonorm.runs.run import Run

RIVALS = 4  # maximum methods named in a sentence
ROUNDS = 3  # maximum reported rounds listed individually
NAMED = 4  # maximum rounds named in a notice
WAYS = {"validation": "validation", "test": "test*", "last": "last"}  # how a reported round was chosen
Card = dict[str, Any]
P10 = ("p10", "the accuracy that a tenth of the clients does not reach", True)


def by_data(groups: Groups) -> dict[str, Groups]:
    """Group the methods by data set: accuracies on different data are not compared."""
    parts: dict[str, dict[str, Sequence[Run]]] = {}
    for method, runs in groups.items():
        parts.setdefault(runs[0].info.experiment.dataset.name, {})[method] = runs
    return dict(parts)


def lead(groups: Groups, table: Sequence[Row]) -> str:
    """Describe the outcome of the comparison or the run for each data set, then how its numbers were obtained."""
    parts, sentences = by_data(groups), []
    for name, part in parts.items():
        where = f" on {name}" if len(parts) > 1 else ""
        untested = all(is_untested(run) for runs in part.values() for run in runs)
        outcome = _outcome(rows(part) if where else table)
        sentences.append(outcome or (UNTESTED if untested else NOTHING).format(where))
    sentences += [f"Test accuracies are pooled over clients, {choice}."] if (choice := how_chosen(table)) else []
    return " ".join(filter(None, [*sentences, what_spread_is(table)]))


def _outcome(table: Sequence[Row]) -> str:
    """Describe the outcome on one data set, rule by rule; empty without a number.

    A winner is named only if it is distinguishable, and never across rules.
    """
    heads = [row for row in table if row.headline and not row.is_majority and row.cells["accuracy"]]
    if not heads:
        return ""
    sentences = []
    for row in heads:
        reached = f"{row.method} reaches {row.cells['accuracy']} % under the rule {row.rule}"
        if row.stands_out:
            sentences.append(f"{reached}, and can be told apart from every other method judged by it.{is_hint(row)}")
        elif row.leads:
            reasons = set(row.alike.values())
            reason = f" ({reasons.pop()})" if len(reasons) == 1 else ""
            sentences.append(
                f"No method stands out under the rule {row.rule}: {row.method}, with {row.cells['accuracy']} %, cannot "
                f"be told apart from {listed(list(row.alike), RIVALS)}{reason}."
            )
        elif sum(head.rule == row.rule for head in heads) == 1:
            sentences.append(f"{reached}.")
    sentences += [NOT_RANKED] if len({row.rule for row in heads}) > 1 else []
    levels = [row.cells["accuracy"] for row in table if row.is_majority]
    if len(levels) == 1 and levels[0]:  # where populations differ, no single level applies to all methods
        sentences.append(f"Guessing each client’s majority class gives {per_cent(levels[0].mean)}.")
    return " ".join(sentences)


def cards(groups: Groups, table: Sequence[Row], *, ranked: bool) -> list[Card]:
    """Build the cards at the top of the page: the number of each method, or those of the single run."""

    def card(name: str, cell: Cell | str | None, note: str, slot: int | None = None, first: bool = False) -> Card:
        value, spread = (f"{cell.short} %", cell.spread()) if isinstance(cell, Cell) else (cell or "–", "")
        return {"slot": slot, "name": name, "value": value, "spread": spread, "note": note, "first": first}

    scale = "guessing, for scale"
    if len(groups) > 1:
        heads = [(row, row.cells["accuracy"], f"rule {row.rule}{_where(row)}") for row in table if row.headline]
        return [
            card(row.method, cell, scale)
            if row.is_majority
            else card(row.method, cell, note, slot, ranked and row.stands_out)
            for slot, (row, cell, note) in enumerate(heads)
        ]
    ((_, runs),) = groups.items()
    cells = table[0].cells
    first = "the first seed" if len(runs) > 1 else ""
    sent, seconds = sum(record.bytes.up + record.bytes.down for record in runs[0].rounds), sum(runs[0].seconds.values())
    return [
        card("reported round", cells["accuracy"], _where(table[0]).removeprefix(", ")),
        card("best test round*", cells["best"], "optimistic"),
        card("last round", cells["last"], ""),
        card("worst tenth of the clients", cells["worst"], "in the reported round"),
        card("majority class", table[-1].cells["accuracy"], scale),
        card("sent in all", size_text(sent), first),
        card("time of all rounds", duration(seconds), ", ".join(filter(None, [first, untimed(runs[0])]))),
    ]


def captions(groups: Groups, table: Sequence[Row], *, ranked: bool) -> dict[str, str]:
    """Return the captions of the table: how its round was chosen, the spread, and whether the highest stands out."""
    chosen = how_chosen(table)
    return {
        "chosen": f"Accuracies are reported {chosen}." if chosen else "",
        "spread": f"{what_spread_is(table)} {other_tests(table)}".strip(),
        "curves": _how_drawn(groups),
        "bold": why_bold(table) if ranked else "",
        "optimistic": f"{OPTIMISTIC}.",
        "tests": p_values(table),
    }


def table_rows(table: Sequence[Row], *, ranked: bool) -> list[dict[str, Any]]:
    """Build the rows of the comparison; an accuracy is marked if it stands out among those of its rule."""
    methods = dict.fromkeys(row.method for row in table if not row.is_majority)
    slots, columns = {name: slot for slot, name in enumerate(methods)}, columns_of(table)
    return [
        {
            "method": row.method,
            "continued": index > 0 and table[index - 1].method == row.method,
            "slot": slots.get(row.method) if len(slots) > 1 else None,
            "rule": row.rule,
            "round": _rounds_text(row.rounds),
            "headline": row.headline,
            "cells": [(row.text(name), ranked and row.stands_out and name == "accuracy") for name in columns],
            "note": row.note,
        }
        for index, row in enumerate(table)
    ]


def _rounds_text(rounds: Sequence[int]) -> str:
    """Format the reported rounds of the seeds, or their range if there are many."""
    distinct = sorted(set(rounds))
    return (listed(list(map(str, distinct))) if len(distinct) <= ROUNDS else f"{distinct[0]} to {distinct[-1]}") or "–"


def _how_drawn(groups: Groups) -> str:
    """Describe the number of seeds of the curves, and the meaning of their bands."""
    largest = max(len(runs) for runs in groups.values())
    if largest == 1:
        return "Lines are of one seed: there are no bands."
    seeds = f"{largest} seeds"
    if len({len(runs) for runs in groups.values()}) > 1:
        seeds = f"seeds: {listed([f'{len(runs)} of {name}' for name, runs in groups.items()])}"
    return (
        f"Lines are means over the seeds that reached a round ({seeds}), bands the 95 % interval of the mean, or the "
        "range of two seeds, as in tables; a single seed has no band."
    )


def _where(row: Row) -> str:
    """Describe the reported rounds of a row, and how they were chosen."""
    if not row.rounds:
        return ""
    by = {"validation": "by validation", "test": "the best test round: optimistic", "last": "the last one"}
    choices = [by[choice] for choice in row.chosen_by.split(", ")]
    plural = "s" if len(set(row.rounds)) > 1 else ""
    return f", round{plural} {_rounds_text(row.rounds)} ({listed(choices)})"


def measures(groups: Groups, table: Sequence[Row]) -> dict[str, Any]:
    """Build the table of measures, a row for each method and rule; no rows without recorded measures."""
    # name in the record: (title, meaning, whether it is a fraction, shown in per cent)
    described = {"p10": P10} | {
        name: (metric.title, metric.meaning, metric.share)
        for name, metric in metrics().items()
        if any(name in run.measures for runs in groups.values() for run in runs)
    }
    lines: list[dict[str, Any]] = []
    for row in (row for row in table if row.method in groups):
        runs = groups[row.method]
        values = [run.chosen.record.rules.get(row.rule) for run in runs if run.chosen]
        repeated = share_a_seed([run.info.experiment.seed for run in runs])
        cells = []
        for name, (_, _, share) in described.items():  # a dash if the rule has no such measure
            cell = Cell.of([getattr(value, name, None) for value in values], repeated)
            cells.append(cell.text(*((100, 2) if share else (1, 3))) if cell else "–")
        continued = bool(lines) and lines[-1]["method"] == row.method
        entry = {"method": row.method, "rule": row.rule, "headline": row.headline}
        lines.append({**entry, "cells": cells, "continued": continued})
    evaluated = any(text != "–" for line in lines for text in line["cells"])
    return {
        "titles": [title for title, _, _ in described.values()],
        "meanings": [(title, meaning) for title, meaning, _ in described.values()],
        "dashes": any("–" in line["cells"] for line in lines),
        "rows": lines if evaluated else [],
    }


def standings(groups: Groups) -> list[dict[str, Any]]:
    """Describe the state of each run, and its reported round."""
    return [
        {
            "method": name,
            "seed": run.info.experiment.seed,
            "key": run.info.key,
            "state": "stopped" if run.failure else "finished" if run.finished else "unfinished",
            "standing": standing(run),
            "accuracy": per_cent(accuracy.pooled if accuracy else None),
            "round": chosen.record.round if chosen else "–",
            "by": WAYS[chosen.by] if chosen else "–",
            "best": per_cent(summary.best.pooled if summary else None),
            "best_round": summary.best.round if summary else "–",
        }
        for name, runs in groups.items()
        for run in runs
        for chosen, summary in [(run.chosen, run.summary())]
        for accuracy in [chosen.record.rules.get(run.info.headline) if chosen else None]
    ]


def notices(groups: Groups) -> list[str]:
    """List warnings for the reader: rounds chosen by test, incomplete runs, runs with different settings."""
    titled = [(f"{name}, seed {run.info.experiment.seed}", run) for name, runs in groups.items() for run in runs]
    tested = [name for name, runs in groups.items() if any(run.chosen and run.chosen.by == "test" for run in runs)]
    warnings = []
    if tested:
        start = "There" if len(tested) == len(groups) else f"For {listed(tested)} there"
        warnings.append(f"{start} is no validation part: the best test round is reported, which is optimistic.")
    warnings += [f"{name}: {standing(run)}" for name, run in titled if not run.finished or run.failure]
    warnings += [f"{name}: {text}" for name, run in titled if (text := _lost_clients(run))]
    for name, run in titled:
        evaluated = [record for record in run.rounds if record.rules]
        if partial := sum("ids" in run.arrays(record) for record in evaluated):
            where = "every round" if partial == len(evaluated) else f"{partial} of {len(evaluated)} evaluated rounds"
            warnings.append(f"{name}: In {where} only a part of the clients was evaluated; accuracies are theirs.")
    if unlike := differences(groups):
        warnings.append(f"These runs differ in more than the method: {listed(unlike)}. Read the comparison with care.")
    if len({tuple(run.info.versions.items()) for _, run in titled}) > 1:
        warnings.append("These runs were made with different versions; the list of sources names them.")
    if len({len(runs) for runs in groups.values()}) > 1:
        warnings.append("The methods have different numbers of seeds.")
    return warnings


def _lost_clients(run: Run) -> str:
    """Describe the rounds with missing replies, and the reason of the first; empty if there are none."""
    rounds = [record for record in run.rounds if record.lost]
    if not rounds:
        return ""
    id, reason = next(iter(rounds[0].lost.items()))
    replies = counted(sum(len(record.lost) for record in rounds), "reply", "replies")
    where = f"round{'' if len(rounds) == 1 else 's'} {listed([str(record.round) for record in rounds], NAMED)}"
    who = client_label(run, int(id)) if id in map(str, range(run.info.experiment.clients)) else f"client {id}"
    return f"{replies} did not arrive, in {where}. The first was that of {who}: {reason.rstrip('.')}."
