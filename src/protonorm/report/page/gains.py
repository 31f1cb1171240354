"""Who gains and who loses, client by client: against Local, and against the method's own solo control."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.analysis.comparison import Row
from protonorm.analysis.contrasts import Contrast
from protonorm.analysis.labels import client_label
from protonorm.analysis.pairing import Pair, pair_runs, same_but_control, same_clients
from protonorm.analysis.transfer import EXACT, Transfer, points, who_gains
from protonorm.analysis.wording import FEW, meaning_of_verdicts
from protonorm.report.page.groups import Groups
from protonorm.report.page.text import listed, rounded
from protonorm.runs.run import Run

CASES = 20_000  # points on a page
HALVES = 4  # cases from which on small and large clients are told apart
KINDS: dict[
    str, tuple[str, Callable[[Run, Run], str]]
] = {  # what a method is compared with: (heading, what may differ)
    "local": ("Against Local: each client trains alone", same_clients),
    "solo": ("Against its own solo control: what the exchange brought", same_but_control),
}


class Cases(NamedTuple):
    """Clients of runs that were tested on both sides, each column (n,)."""

    clients: NDArray[np.int64]
    seeds: NDArray[np.int64]
    samples: NDArray[np.int64]  # to train on; all 0 if the record does not tell
    networks: list[str]
    accuracies: NDArray[np.float64]
    references: NDArray[np.float64]

    @property
    def gains(self) -> NDArray[np.float64]:
        """Give what each client gains, as a fraction of one."""
        return np.round(self.accuracies - self.references, EXACT)


def gains(groups: Groups, table: Sequence[Row]) -> dict[str, Any]:
    """Collect the panels and the table of gains; both are empty where there is nothing to compare with."""
    contrasts = [(kind, row, one) for kind in KINDS for row in table if (one := _contrast(row, kind))]
    known = [(kind, row, one.reference, one.transfer) for kind, row, one in contrasts if one.transfer]
    most = CASES // max(1, len(known))
    networks = list(dict.fromkeys(name for runs in groups.values() for run in runs for name in _networks(run)))
    panels = [
        _panel(f"gains-{number}", kind, row, reference, transfer, groups, networks, most)
        for number, (kind, row, reference, transfer) in enumerate(known)
    ]
    return {
        "kinds": [(kind, KINDS[kind][0]) for kind in KINDS if any(one["kind"] == kind for one in panels)],
        "panels": panels,
        "networks": networks,
        "rows": [_table_row(row, one) for _, row, one in contrasts],
        "tested": any(one.p_holm is not None for _, _, _, one in known),
        "explained": _explained([one for _, _, _, one in known]),
        "mismatches": [
            f"{row.method} has no gain against {one.reference}: they differ in {one.mismatch}."
            for _, row, one in contrasts
            if not one.transfer
        ],
    }


def cases_of(pairs: Sequence[Pair]) -> Cases:
    """Put the clients of all runs in rows, with their accuracies under the headline rules in the reported rounds."""
    columns: list[tuple[NDArray[Any], ...]] = []
    networks: list[str] = []
    for run, reference in pairs:
        ours, theirs = (
            one.by_client(one.chosen.record, one.info.headline) if one.chosen else np.full(0, np.nan)
            for one in (run, reference)
        )
        (ids,) = np.nonzero(~np.isnan(ours))
        seeds = np.full(len(ids), run.info.experiment.seed)
        columns.append((ids, seeds, run.population.train.sum(1)[ids], ours[ids], theirs[ids]))
        networks += [run.info.network_name(id) for id in ids.tolist()]
    clients, seeds, samples, ours, theirs = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Cases(clients, seeds, samples, networks, ours, theirs)


def _panel(
    id: str,
    kind: str,
    row: Row,
    reference: str,
    transfer: Transfer,
    groups: Groups,
    networks: list[str],
    most: int,
) -> dict[str, Any]:
    """Describe a chart: a point for each case, the mean gain and its interval, and the conclusion in words."""
    cases = cases_of(pair_runs(groups[row.method], groups[reference], KINDS[kind][1]).pairs)
    told = who_gains(transfer)
    shown = np.unique(np.linspace(0, len(cases.gains) - 1, min(most, len(cases.gains))).round().astype(int))
    fewer = f" The chart shows {len(shown)} of {len(cases.gains)} cases." if len(shown) < len(cases.gains) else ""
    table = zip(
        cases.clients.tolist(),
        cases.seeds.tolist(),
        cases.samples.tolist() if cases.samples.any() else [None] * len(cases.samples),
        [networks.index(name) for name in cases.networks],
        *([rounded(100 * one) for one in part.tolist()] for part in (cases.accuracies, cases.references, cases.gains)),
        strict=True,
    )
    rows = [list(one) for one in table]
    return {
        "id": id,
        "kind": kind,
        "slot": list(groups).index(row.method),
        "title": f"{row.method} against {reference}",
        "sentence": f"{told[0].upper()}{told[1:]}",
        "judged": f"{_judged(transfer)}{fewer}",
        "parts": _parts(cases),
        "mean": rounded(100 * transfer.mean),
        "interval": [rounded(100 * one) for one in transfer.interval] if transfer.interval else None,
        "clients": _names_of(groups[row.method][0], cases.clients[shown].tolist()),
        "cases": [rows[place] for place in shown.tolist()],
    }


def _judged(found: Transfer) -> str:
    """Say the mean gain with its interval, the share that loses, the worst tenth, and the verdict."""
    mean = f"Mean gain {points(found.mean)} points"
    if found.interval and found.verdict:
        mean += f", 95 % interval {points(found.interval.low)} to {points(found.interval.high)}: {found.verdict}"
    else:
        mean += f", without an interval ({found.no_interval})"
    return (
        f"{mean}. Negative transfer in {_share(found.negative)}; the worst tenth’s mean gain is {points(found.tail)}."
    )


def _parts(cases: Cases) -> str:
    """Say the mean gain of each network, and of small and large clients; descriptions, not tests."""
    found = cases.gains
    names = list(dict.fromkeys(cases.networks))
    marks = np.array([names.index(name) for name in cases.networks])
    told = []
    if len(names) > 1:
        means = [f"{name} {points(found[marks == place].mean())}" for place, name in enumerate(names)]
        told.append(f"Mean gain by network: {listed(means)}.")
    middle = np.median(cases.samples)
    small = cases.samples <= middle
    if len(found) >= HALVES and not small.all():
        told.append(
            f"Clients with at most {int(middle)} samples to train on: {points(found[small].mean())}; "
            f"larger ones: {points(found[~small].mean())}."
        )
    return " ".join(told)


def _table_row(row: Row, contrast: Contrast) -> dict[str, Any]:
    found = contrast.transfer
    cells = ["–"] * 8 if found is None else [
        points(found.mean),
        f"{points(found.interval.low)} to {points(found.interval.high)}" if found.interval else found.no_interval,
        found.verdict or "no interval",
        f"{found.losing} of {found.cases}, {_share(found.negative)}",
        points(-found.loss) if found.loss is not None else "–",
        points(found.tail),
        points(found.worst),
        "–" if found.p_holm is None else "< 0.001" if found.p_holm < 0.001 else f"{found.p_holm:.3f}",
    ]  # fmt: skip
    return {"method": row.method, "against": contrast.reference, "cells": cells}


def _explained(found: Sequence[Transfer]) -> str:
    """Explain verdicts if there are any, and say when their intervals are not to be trusted."""
    judged = [one for one in found if one.verdict]
    if not judged:
        return "There is no interval, and so no verdict."
    few = min(one.seeds for one in judged) < FEW
    narrow = f" With fewer than {FEW} seeds these intervals may be too narrow." if few else ""
    verdicts = meaning_of_verdicts([one.verdict for one in judged])
    return f"Intervals: 95 %, by the bootstrap over seeds and clients. Verdicts: {verdicts}.{narrow}"


def _contrast(row: Row, kind: str) -> Contrast | None:
    return row.local if kind == "local" else row.solo


def _names_of(run: Run, clients: Sequence[int]) -> dict[int, str]:
    """Name those of some clients that have more than a number."""
    found = {id: client_label(run, id) for id in sorted(set(clients))}
    return {id: name for id, name in found.items() if name != f"client {id}"}


def _networks(run: Run) -> list[str]:
    return [run.info.network_name(id) for id in range(min(len(run.info.networks), run.info.experiment.clients))]


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"
