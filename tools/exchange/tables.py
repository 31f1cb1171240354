"""The tables of docs/exchange.md, in Markdown, of what has been run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import mean

import numpy as np
from tools.exchange.jobs import ABLATION, CENTRE, MAP, SEEDS, TABLE, WHOLE, Job, Place, tuning
from tools.exchange.work import Work, accuracy, by_client

from protonorm.analysis.contrasts import measure, points
from protonorm.analysis.statistics import mean_interval

OURS, TOGETHER = "Duet", "received"  # the rule by which both of its networks answer
RULES = ("received", "logits", "shared", "joint")


def settings(work: Work) -> str:
    """Format the settings chosen for each method."""
    rows = []
    for method in dict.fromkeys((*TABLE, *MAP)):
        if pick := work.chosen(method):
            fields = ", ".join(f"{name}={value}" for name, value in pick.fields.items())
            rows.append([method, f"{pick.lr:g}", fields, f"`{pick.rule}`"])
        else:
            rows.append([method, "not chosen yet", "", ""])
    return _table(["method", "learning rate", "settings", "rule"], rows)


def table(work: Work) -> str:
    """Compare all methods in the centre of the map, under their chosen rules and all others, three seeds."""
    rows = []
    for method in TABLE:
        pick, run = work.chosen(method), work.done(tuning(method)[0])
        jobs = [work.job(method, CENTRE, seed) for seed in SEEDS] if pick else []
        rules = run.info.rules if run else []
        cells = [_entry(work, jobs, rule) if rule in rules else "" for rule in RULES]
        best = f"{_entry(work, jobs, pick.rule)} (`{pick.rule}`)" if pick else "–"
        rows.append([method, best, *cells, "" if method == OURS else _gain(work, method)])
    return _table([str(CENTRE), "under the chosen rule", *RULES, f"gain of {OURS} on it, client by client"], rows)


def ablation(work: Work) -> str:
    """Compare Duet with itself without each of its parts, in the centre of the map."""
    pick = work.chosen(OURS)
    rows = []
    for name, changed in ABLATION.items():
        jobs = [Job(OURS, CENTRE, seed, pick.lr, changed) for seed in SEEDS] if pick else []
        rows.append([name, *(_entry(work, jobs, rule) for rule in RULES)])
    return _table([str(CENTRE), *RULES], rows)


def whole_map(work: Work) -> str:
    """Compare methods with their controls in every place, one seed: accuracies, and what the control leaves of them.

    Each is read by its chosen rule, and ours by both of its networks too.
    """
    controls = {name: f"{name}, solo" for name in MAP if f"{name}, solo" in MAP}
    shown = [name for name in MAP if name not in controls.values()]
    head = [column for name in shown for column in ([name, "on its solo"] if name in controls else [name])]
    rows = []
    for place in WHOLE:
        accuracies = {name: _tested(work, name, place) for name in MAP}
        cells = [f"{place.clients} × {place.samples}, {place.alpha:g}", _majority(work, place)]
        for name in shown:
            cells.append(
                _entry(work, [work.job(name, place, SEEDS[0])], pick.rule) if (pick := work.chosen(name)) else "–"
            )
            if name in controls:
                gain = accuracies[name] - accuracies[controls[name]]
                cells.append("–" if math.isnan(gain) else points(gain / 100))
        job = [work.job(OURS, place, SEEDS[0])] if work.chosen(OURS) else []
        rows.append([*cells, _entry(work, job, TOGETHER)])
    return _table(["clients × samples, α", "majority", *head, f"{OURS}, `{TOGETHER}`"], rows)


TABLES: dict[str, Callable[[Work], str]] = {
    "exchange_settings": settings,
    "exchange_table": table,
    "exchange_ablation": ablation,
    "exchange_map": whole_map,
}


def _tested(work: Work, method: str, place: Place) -> float:
    """Return a method's test accuracy in a place under its chosen rule, first seed; NaN without one."""
    pick = work.chosen(method)
    result = work.done(work.job(method, place, SEEDS[0])) if pick else None
    return accuracy(result, pick.rule)[1] if pick and result and not result.failure else math.nan


def _majority(work: Work, place: Place) -> str:
    """Compute the accuracy of guessing each client's most frequent class in a place."""
    local = work.done(work.job("Local", place, SEEDS[0])) if work.chosen("Local") else None
    return f"{100 * local.majority.pooled:.2f}" if local and local.majority else "–"


def _gain(work: Work, method: str) -> str:
    """Format the clients' gain of our method over another, each under its chosen rule."""
    picks = [work.chosen(one) for one in (OURS, method)]
    gains = []
    for seed in SEEDS:
        runs = [
            work.done(work.job(one, CENTRE, seed)) if pick else None
            for one, pick in zip((OURS, method), picks, strict=True)
        ]
        accuracies, baseline = (
            by_client(run, pick.rule) if run and pick and not run.failure else None
            for run, pick in zip(runs, picks, strict=True)
        )
        if accuracies is not None and baseline is not None:
            gains.append((accuracies - baseline)[~np.isnan(accuracies)])
    if not gains:
        return "–"
    gain = measure(gains)
    interval = f" [{points(gain.interval.low)}, {points(gain.interval.high)}]" if gain.interval else ""
    return f"{points(gain.mean)}{interval}, {gain.verdict or 'no interval'}"


def _entry(work: Work, jobs: Sequence[Job], rule: str) -> str:
    """Write the mean over seeds, half of Student's interval, and how many seeds are missing."""
    results = [result for job in jobs if (result := work.done(job))]
    if any(one.failure for one in results):
        return "diverged"
    numbers = [accuracy(one, rule)[1] for one in results]
    if not numbers:
        return "–"
    interval = mean_interval(numbers) if len(numbers) > 1 else None
    missing = "" if len(numbers) == len(jobs) else f" ({len(numbers)} of {len(jobs)} seeds)"
    return f"{mean(numbers):.2f}{f' ± {interval.half:.2f}' if interval else ''}{missing}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)) + "\n"
