"""Gains and losses, client by client: against Local, and against the method's own solo control."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.analysis.comparison import Row
from protonorm.analysis.contrasts import (
    EXACT,
    Pair,
    Transfer,
    pair_runs,
    points,
    same_but_control,
    same_clients,
    who_gains,
)
from protonorm.analysis.settings import client_label
from protonorm.analysis.statistics import Interval
from protonorm.analysis.tables import FEW, meaning_of_verdicts
from protonorm.core.text import listed
from protonorm.report.page.groups import Groups, rounded
from protonorm.runs.run import Run

CASES = 20_000  # maximum points on a page
HALVES = 4  # minimum cases for a comparison of small and large clients
KINDS: dict[str, tuple[str, Callable[[Run, Run], str]]] = {  # references of a method: (heading, pairing condition)
    "local": ("Against Local: each client trains alone", same_clients),
    "solo": ("Against its own solo control: what the exchange brought", same_but_control),
}


class Cases(NamedTuple):
    """Clients of paired runs that were tested in both, each column (n,)."""

    clients: NDArray[np.int64]
    seeds: NDArray[np.int64]
    samples: NDArray[np.int64]  # training samples; all 0 if not on record
    networks: NDArray[np.object_]
    accuracies: NDArray[np.float64]
    references: NDArray[np.float64]

    @property
    def gains(self) -> NDArray[np.float64]:
        """Gain of each client, as a fraction."""
        return np.round(self.accuracies - self.references, EXACT)


def gains(groups: Groups, table: Sequence[Row]) -> dict[str, Any]:
    """Build the panels and the table of gains; both are empty without a reference."""
    contrasts = [(kind, row, one) for kind in KINDS for row in table if (one := row.contrast(kind))]
    known = [(kind, row, one.reference, one.transfer) for kind, row, one in contrasts if one.transfer]
    networks = list(dict.fromkeys(name for runs in groups.values() for run in runs for name in _networks(run)))
    panels = []
    for number, (kind, row, reference, transfer) in enumerate(known):
        cases = _cases(pair_runs(groups[row.method], groups[reference], KINDS[kind][1]).pairs)
        about = {"id": f"gains-{number}", "kind": kind, "slot": list(groups).index(row.method)}
        about["title"] = f"{row.method} against {reference}"
        panels.append(about | _panel(cases, transfer, groups[row.method][0], networks, CASES // len(known)))
    return {
        "kinds": [(kind, KINDS[kind][0]) for kind in KINDS if any(one["kind"] == kind for one in panels)],
        "panels": panels,
        "networks": networks,
        "rows": [
            {"method": row.method, "against": one.reference, "cells": _cells(one.transfer)} for _, row, one in contrasts
        ],
        "tested": any(one.p_holm is not None for _, _, _, one in known),
        "explained": _explained([one for _, _, _, one in known]),
        "mismatches": [
            f"{row.method} has no gain against {one.reference}: they differ in {one.mismatch}."
            for _, row, one in contrasts
            if not one.transfer
        ],
    }


def _cases(pairs: Sequence[Pair]) -> Cases:
    """Collect the clients of all pairs, with their accuracies under the headline rules in the reported rounds."""
    columns: list[tuple[NDArray[Any], ...]] = []
    for run, reference in pairs:
        ours, theirs = (
            one.by_client(one.chosen.record, one.info.headline) if one.chosen else np.full(0, np.nan)
            for one in (run, reference)
        )
        (ids,) = np.nonzero(~np.isnan(ours))
        networks = np.array([run.info.network_name(id) for id in ids.tolist()], object)
        seeds, samples = np.full(len(ids), run.info.experiment.seed), run.population.train.sum(1)[ids]
        columns.append((ids, seeds, samples, networks, ours[ids], theirs[ids]))
    return Cases(*map(np.concatenate, zip(*columns, strict=True)))


def _panel(cases: Cases, transfer: Transfer, run: Run, networks: list[str], most: int) -> dict[str, Any]:
    """Build a chart: a point for each case, the mean gain with its interval, and the conclusion in words."""
    told, count = who_gains(transfer), len(cases.gains)
    shown = np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))
    fewer = f" The chart shows {len(shown)} of {count} cases." if len(shown) < count else ""
    counted = bool(cases.samples.any())
    rows = [
        [id, seed, samples if counted else None, networks.index(network), *(rounded(100 * one) for one in shares)]
        for id, seed, samples, network, *shares in zip(
            *(column[shown].tolist() for column in (*cases, cases.gains)), strict=True
        )
    ]
    names = {id: client_label(run, id) for id in sorted({row[0] for row in rows})}
    return {
        "sentence": f"{told[0].upper()}{told[1:]}",
        "judged": f"{_judged(transfer)}{fewer}",
        "parts": _parts(cases),
        "mean": rounded(100 * transfer.mean),
        "interval": [rounded(100 * one) for one in transfer.interval] if transfer.interval else None,
        "clients": {id: name for id, name in names.items() if name != f"client {id}"},  # clients with a name
        "cases": rows,
    }


def _judged(found: Transfer) -> str:
    """Describe the mean gain with its interval, the verdict, the share that loses, and the worst tenth."""
    mean = f"Mean gain {points(found.mean)} points"
    if found.interval and found.verdict:
        mean += f", 95 % interval {_span(found.interval)}: {found.verdict}"
    else:
        mean += f", without an interval ({found.no_interval})"
    lose = f"Negative transfer in {100 * found.negative:.0f} %"
    return f"{mean}. {lose}; the worst tenth’s mean gain is {points(found.tail)}."


def _parts(cases: Cases) -> str:
    """Describe the mean gain by network, and of small and large clients; descriptive, not tested."""
    found, names = cases.gains, list(dict.fromkeys(cases.networks.tolist()))
    told = []
    if len(names) > 1:
        means = [f"{name} {points(found[cases.networks == name].mean())}" for name in names]
        told.append(f"Mean gain by network: {listed(means)}.")
    middle = np.median(cases.samples)
    small = cases.samples <= middle
    if len(found) >= HALVES and not small.all():
        told.append(
            f"Clients with at most {int(middle)} samples to train on: {points(found[small].mean())}; "
            f"larger ones: {points(found[~small].mean())}."
        )
    return " ".join(told)


def _cells(found: Transfer | None) -> list[str]:
    """Format a row of the table of gains."""
    if found is None:
        return ["–"] * 8
    return [
        points(found.mean),
        _span(found.interval) if found.interval else found.no_interval,
        found.verdict or "no interval",
        f"{found.losing} of {found.cases}, {100 * found.negative:.0f} %",
        points(-found.loss) if found.loss is not None else "–",
        points(found.tail),
        points(found.worst),
        "–" if found.p_holm is None else "< 0.001" if found.p_holm < 0.001 else f"{found.p_holm:.3f}",
    ]


def _span(interval: Interval) -> str:
    return f"{points(interval.low)} to {points(interval.high)}"


def _explained(found: Sequence[Transfer]) -> str:
    """Explain the verdicts if there are any, and when their intervals are unreliable."""
    judged = [one for one in found if one.verdict]
    if not judged:
        return "There is no interval, and so no verdict."
    few = min(one.seeds for one in judged) < FEW
    narrow = f" With fewer than {FEW} seeds these intervals may be too narrow." if few else ""
    verdicts = meaning_of_verdicts([one.verdict for one in judged])
    return f"Intervals: 95 %, by the bootstrap over seeds and clients. Verdicts: {verdicts}.{narrow}"


def _networks(run: Run) -> list[str]:
    return [run.info.network_name(id) for id in range(min(len(run.info.networks), run.info.experiment.clients))]
