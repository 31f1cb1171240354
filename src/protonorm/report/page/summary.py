"""The top of the page: how the runs came out in a sentence, the first numbers, and the table of the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protonorm.analysis.comparison import COLUMNS, Cell, Row, majority_rows, rows
from protonorm.analysis.labels import dataset_names
from protonorm.analysis.wording import NOT_RANKED, OPTIMISTIC, how_chosen, is_hint, p_values, what_spread_is, why_bold
from protonorm.report.page import costs
from protonorm.report.page.accuracy import NOTHING, UNTESTED, is_untested
from protonorm.report.page.groups import Groups
from protonorm.report.page.text import duration, listed, per_cent, size

RIVALS = 4  # methods named in a sentence; of more, the first ones
ROUNDS = 3  # reported rounds that are named one by one


def by_data(groups: Groups) -> dict[str, Groups]:
    """Group the methods by their data sets: accuracies on different data are not compared with each other."""
    names = dataset_names([found[0] for found in groups.values()])
    return {
        name: {method: found for method, found in groups.items() if dataset_names(found[:1]) == [name]}
        for name in names
    }


def lead(groups: Groups, table: Sequence[Row]) -> str:
    """Say in a sentence for each data set how the comparison, or the run, came out; then what its numbers are."""
    parts = by_data(groups)
    told = [outcome(part, table if len(parts) == 1 else rows(part)) for part in parts.values()]
    empty = [_nothing(part, f" on {name}" if len(parts) > 1 else "") for name, part in parts.items()]
    chosen = f"Test accuracies are pooled over clients, {how}." if (how := how_chosen(table)) else ""
    said = [one or none for one, none in zip(told, empty, strict=True)]
    return " ".join(filter(None, [*said, chosen, what_spread_is(table)]))


def _nothing(groups: Groups, where: str) -> str:
    """Say why there is no test accuracy."""
    if all(is_untested(run) for runs in groups.values() for run in runs):
        return UNTESTED if not where else f"The test parts{where} are not evaluated (tested=false)."
    return NOTHING if not where else f"No round{where} has been evaluated yet."


def outcome(groups: Groups, table: Sequence[Row]) -> str:
    """Say how the methods on one data set came out, rule by rule; nothing without a number.

    No winner is named that is not one, and none across rules.
    """
    heads = [row for row in table if row.headline and not row.is_majority and row.cells["accuracy"]]
    if not heads:
        return ""
    told = [_outcome(row) for row in heads if row.leads or sum(one.rule == row.rule for one in heads) == 1]
    told += [NOT_RANKED] if len({row.rule for row in heads}) > 1 else []
    levels = [row.cells["accuracy"] for row in majority_rows([run for runs in groups.values() for run in runs])]
    if len(levels) == 1 and levels[0]:  # where methods differ in who holds what, no one level is that of all
        told.append(f"Guessing each client’s majority class gives {per_cent(levels[0].mean)}.")
    return " ".join(told)


def cards(groups: Groups, table: Sequence[Row], *, ranked: bool) -> list[dict[str, Any]]:
    """Choose the numbers at the top of the page: of each method, or of the one run."""
    if len(groups) > 1:
        heads = [row for row in table if row.headline]
        return [
            {
                "slot": None if row.is_majority else slot,
                "name": row.method,
                **_value(row.cells["accuracy"]),
                "note": "guessing, for scale" if row.is_majority else f"rule {row.rule}{_where(row)}",
                "first": ranked and row.stands_out,
            }
            for slot, row in enumerate(heads)
        ]
    ((_, runs),) = groups.items()
    head, majority = table[0], table[-1].cells["accuracy"]
    named = [
        ("accuracy", "reported round", _where(head).removeprefix(", ")),
        ("best", "best test round*", "optimistic"),
        ("last", "last round", ""),
        ("worst", "worst tenth of the clients", "in the reported round"),
    ]
    found = [(name, _value(head.cells[column]), note) for column, name, note in named]
    found.append(("majority class", _value(majority), "guessing, for scale"))
    first = "the first seed" if len(runs) > 1 else ""
    timed = ", ".join(filter(None, [first, costs.untimed(runs[0])]))
    found.append(("sent in all", _plain(size(costs.total_bytes(runs[0]))), first))
    found.append(("time of all rounds", _plain(duration(costs.total_seconds(runs[0]))), timed))
    return [{"slot": None, "name": name, **value, "note": note, "first": False} for name, value, note in found]


def captions(groups: Groups, table: Sequence[Row], *, ranked: bool) -> dict[str, str]:
    """Say what the numbers of the table are, how their round was chosen, and whether the highest stands out."""
    chosen = how_chosen(table)
    return {
        "chosen": f"Accuracies are reported {chosen}." if chosen else "",
        "spread": what_spread_is(table),
        "curves": how_drawn(groups),
        "bold": why_bold(table) if ranked else "",
        "optimistic": f"{OPTIMISTIC}.",
        "tests": p_values(table),
    }


def table_rows(table: Sequence[Row], *, ranked: bool) -> list[dict[str, Any]]:
    """Write the comparison's rows; an accuracy is marked if it stands out among those of its rule."""
    methods = dict.fromkeys(row.method for row in table if not row.is_majority)
    slots = {name: slot for slot, name in enumerate(methods)}
    return [
        {
            "method": row.method,
            "continued": index > 0 and table[index - 1].method == row.method,
            "slot": slots.get(row.method) if len(slots) > 1 else None,
            "rule": row.rule,
            "round": rounds_text(row.rounds),
            "headline": row.headline,
            "cells": [
                (str(cell) if (cell := row.cells[name]) else "–", ranked and row.stands_out and name == "accuracy")
                for name in COLUMNS
            ],
            "note": row.note,
        }
        for index, row in enumerate(table)
    ]


def rounds_text(rounds: Sequence[int]) -> str:
    """Name the reported rounds of the seeds, or their range if there are many."""
    known = sorted(set(rounds))
    if not known:
        return "–"
    return listed([str(one) for one in known]) if len(known) <= ROUNDS else f"{known[0]} to {known[-1]}"


def how_drawn(groups: Groups) -> str:
    """Say of how many seeds the curves are, and what their bands are, if there are any."""
    most = max(len(runs) for runs in groups.values())
    if most == 1:
        return "Lines are of one seed: there are no bands."
    counts = {len(runs) for runs in groups.values()}
    each = f"{most} seeds" if len(counts) == 1 else listed([f"{len(runs)} of {name}" for name, runs in groups.items()])
    fewer = "" if len(counts) == 1 else "seeds: "
    return (
        f"Lines are means over the seeds that reached a round ({fewer}{each}), bands one standard deviation over seeds "
        "to each side; a single seed has no band."
    )


def _outcome(row: Row) -> str:
    reached = f"{row.cells['accuracy']} % under the rule {row.rule}"
    if not row.leads:
        return f"{row.method} reaches {reached}."
    if row.stands_out:
        return (
            f"{row.method} reaches {reached}, and can be told apart from every other method judged by it.{is_hint(row)}"
        )
    why = set(row.alike.values())
    reason = f" ({next(iter(why))})" if len(why) == 1 else ""
    return (
        f"No method stands out under the rule {row.rule}: {row.method}, with {row.cells['accuracy']} %, cannot be told "
        f"apart from {listed(list(row.alike), RIVALS)}{reason}."
    )


def _value(cell: Cell | None) -> dict[str, str]:
    """Write the number of a card, and half its interval for a line of its own."""
    if cell is None:
        return _plain("–")
    return {"value": f"{cell.short} %", "spread": f"± {100 * cell.interval.half:.2f}" if cell.interval else ""}


def _plain(text: str) -> dict[str, str]:
    return {"value": text, "spread": ""}


def _where(row: Row) -> str:
    """Say in which rounds a row's accuracies are, and what they were chosen by."""
    if not row.rounds:
        return ""
    by = {"validation": "by validation", "test": "the best test round: optimistic", "last": "the last one"}
    how = [by[one] for one in row.chosen_by.split(", ")]
    several = "s" if len(set(row.rounds)) > 1 else ""
    return f", round{several} {rounds_text(row.rounds)} ({listed(how)})"
