"""Clients on the page: samples, accuracy in selectable rounds, and gains against Local and against solo controls."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protonorm.analysis import contrasts
from protonorm.analysis.breakdown import describe_partition
from protonorm.analysis.comparison import Row
from protonorm.analysis.contrasts import Transfer, points
from protonorm.analysis.settings import client_label
from protonorm.analysis.statistics import Interval, Numbers
from protonorm.analysis.tables import meaning_of_verdicts, no_gain
from protonorm.core.text import counted, listed
from protonorm.report.page.charts import read_snapshots, rules_of, sphere, thinned
from protonorm.report.page.groups import Groups, rounded
from protonorm.runs.arrays import majority_correct, ratio
from protonorm.runs.run import Run

NUMBERS = 200_000  # maximum accuracies of single clients and classes on a page, about 6 bytes each
ROUNDS = 50  # maximum selectable rounds
SHOWN = 200  # maximum clients shown individually; of more, an evenly spaced subset
PARTITION = ("alpha", "classes_per_client", "seed")  # partition settings that are part of its name
CASES = 20_000  # maximum points of the charts of gains
HALVES = 4  # minimum cases for a comparison of small and large clients
KINDS = {  # references of a method: (heading, pairing condition)
    "local": ("Against Local: each client trains alone", contrasts.same_clients),
    "solo": ("Against its own solo control: what the exchange brought", contrasts.same_but_control),
}


def populations_and_runs(groups: Groups) -> dict[str, Any]:
    """Collect the populations and each run's details; runs with equal populations share one."""
    populations: dict[tuple[Any, ...], dict[str, Any]] = {}
    details, spheres, unread = [], [], []
    count = sum(map(len, groups.values()))
    for slot, (name, runs) in enumerate(groups.items()):
        for run in runs:
            names = tuple(run.client_name(id) for id in range(run.info.experiment.clients))
            key = (names, tuple(run.info.classes), *(part.tobytes() for part in run.population))
            population = populations.setdefault(key, _describe_population(run, name))["name"]
            seed = run.info.experiment.seed
            label = f"{name}, seed {seed}" if len(runs) > 1 else name
            entry = {"name": label, "slot": slot, "population": population}
            details.append(entry | {"method": name, "seed": seed, "headline": run.info.headline} | _details(run, count))
            snapshots, damages = read_snapshots(run, count)
            unread += [f"{label}: {damage}" for damage in damages]
            if snapshots:
                spheres.append(entry | sphere(snapshots, len(run.info.classes)))
    parts = {"populations": list(populations.values()), "runs": details, "spheres": spheres}
    return {**parts, "unread": unread, "rules": rules_of(groups)}


def _describe_population(run: Run, method: str) -> dict[str, Any]:
    """Describe a population: samples and networks of the clients, and the accuracy of the majority class."""
    info, (train, validation, test) = run.info, run.population
    correct = majority_correct(train, test)  # (M, K)
    clients, shown = info.experiment.clients, thinned(range(info.experiment.clients), SHOWN)
    partition = describe_partition(info.experiment.partition, PARTITION)
    return {
        "name": f"{info.experiment.dataset.name}, {partition}, {counted(clients, 'client')}, as in {method}",
        "classes": list(info.classes),
        "whole": clients,  # number of all clients; the lists below hold the shown clients
        "known": run.knows_samples,  # whether the sample counts below are on record
        "clients": [client_label(run, id) for id in shown],
        "networks": [info.network_name(id) for id in shown],
        "train": train[shown].tolist(),
        "validation": validation[shown].tolist(),
        "test": test[shown].tolist(),
        "held": (train + validation + test).sum(0).tolist(),  # by class, over all clients
        "majority": {
            "clients": _per_cents(ratio(correct.sum(1), test.sum(1))[shown]),
            "classes": _per_cents(ratio(correct.sum(0), test.sum(0))),
        },
    }


def _details(run: Run, runs: int) -> dict[str, Any]:
    """Return a run's accuracy by client and by class, in the selectable rounds and the reported round.

    It is None for a round in which a rule was not evaluated.
    """
    shown, rules = thinned(range(run.info.experiment.clients), SHOWN), run.info.rules
    limit = min(ROUNDS, NUMBERS // ((len(shown) + len(run.info.classes)) * len(rules) * runs))
    reported = run.chosen.record.round if run.chosen else None
    evaluated = [record for record in run.rounds if record.rules]
    chosen = {record.round for record in thinned(evaluated, max(2, limit))} | {reported}
    records = [record for record in evaluated if record.round in chosen]
    accuracies = {}
    for rule in rules:
        evaluated_records = [record if record.rules.get(rule) else None for record in records]
        accuracies[rule] = {
            "clients": [record and _per_cents(run.by_client(record, rule)[shown]) for record in evaluated_records],
            "classes": [record and _per_cents(run.by_class(record, rule)) for record in evaluated_records],
        }
    return {"rounds": [record.round for record in records], "reported": reported, "rules": accuracies}


def _per_cents(shares: Numbers) -> list[float | None]:
    return [rounded(100 * share) for share in shares.tolist()]


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
        return np.round(self.accuracies - self.references, contrasts.EXACT)


def gains(groups: Groups, table: Sequence[Row]) -> dict[str, Any]:
    """Build the panels and the table of gains; both are empty without a reference."""
    pairs = [(kind, row, contrast) for kind in KINDS for row in table if (contrast := row.contrast(kind))]
    transfers = [contrast.transfer for _, _, contrast in pairs if contrast.transfer]
    infos = [run.info for runs in groups.values() for run in runs]
    used = [(info, range(min(len(info.networks), info.experiment.clients))) for info in infos]
    networks = list(dict.fromkeys(info.network_name(id) for info, ids in used for id in ids))
    panels: list[dict[str, Any]] = []
    for kind, row, contrast in pairs:
        if transfer := contrast.transfer:
            cases = _cases(contrasts.pair_runs(groups[row.method], groups[contrast.reference], KINDS[kind][1]))
            entry = {"id": f"gains-{len(panels)}", "kind": kind, "slot": list(groups).index(row.method)}
            entry["title"] = f"{row.method} against {contrast.reference}"
            panels.append(entry | _panel(cases, transfer, groups[row.method][0], networks, CASES // len(transfers)))
    verdicts = meaning_of_verdicts(transfers)
    explained = f"Intervals: 95 %, by the bootstrap over seeds and clients. {verdicts}"
    return {
        "kinds": [(kind, KINDS[kind][0]) for kind in dict.fromkeys(panel["kind"] for panel in panels)],
        "panels": panels,
        "networks": networks,
        "rows": [
            {"method": row.method, "against": contrast.reference, "cells": _cells(contrast.transfer)}
            for _, row, contrast in pairs
        ],
        "tested": any(transfer.p_holm is not None for transfer in transfers),
        "explained": explained if verdicts else "There is no interval, and so no verdict.",
        "mismatches": [
            no_gain(row, contrast, contrast.reference) for _, row, contrast in pairs if not contrast.transfer
        ],
    }


def _cases(paired: contrasts.Pairs) -> Cases:
    """Collect the clients of all pairs, with their accuracies under the headline rules in the reported rounds."""
    columns: list[tuple[NDArray[Any], ...]] = []
    for run, reference in paired.pairs:
        accuracies, baseline = contrasts.reported_accuracies(run), contrasts.reported_accuracies(reference)
        (ids,) = np.nonzero(~np.isnan(accuracies))
        networks = np.array([run.info.network_name(id) for id in ids.tolist()], object)
        seeds, samples = np.full(len(ids), run.info.experiment.seed), run.population.train.sum(1)[ids]
        columns.append((ids, seeds, samples, networks, accuracies[ids], baseline[ids]))
    return Cases(*map(np.concatenate, zip(*columns, strict=True)))


def _panel(cases: Cases, transfer: Transfer, run: Run, networks: list[str], limit: int) -> dict[str, Any]:
    """Build a chart: a point for each case, and in words the mean gain, its interval, the verdict and the losses."""
    interval = f", without an interval ({transfer.no_interval})"
    if transfer.interval:
        interval = f", 95 % interval {_span(transfer.interval)}: {transfer.verdict}"
    losses = (
        f"Negative transfer in {100 * transfer.negative:.0f} %; the worst tenth’s mean gain is {points(transfer.tail)}"
    )
    sentence, count = contrasts.who_gains(transfer), len(cases.gains)
    columns = [column.tolist() for column in (*cases, cases.gains)]
    shown = thinned(list(zip(*columns, strict=True)), limit)
    fewer = f" The chart shows {len(shown)} of {count} cases." if len(shown) < count else ""
    counted = bool(cases.samples.any())
    rows = [
        [id, seed, samples if counted else None, networks.index(network), *(rounded(100 * share) for share in shares)]
        for id, seed, samples, network, *shares in shown
    ]
    names = {id: client_label(run, id) for id in sorted({row[0] for row in rows})}
    return {
        "sentence": f"{sentence[0].upper()}{sentence[1:]}",
        "judged": f"Mean gain {points(transfer.mean)} points{interval}. {losses}.{fewer}",
        "parts": _parts(cases),
        "mean": rounded(100 * transfer.mean),
        "interval": [rounded(100 * end) for end in transfer.interval] if transfer.interval else None,
        "clients": {id: name for id, name in names.items() if name != f"client {id}"},  # clients with a name
        "cases": rows,
    }


def _parts(cases: Cases) -> str:
    """Describe the mean gain by network, and of small and large clients; descriptive, not tested."""
    gains, names = cases.gains, dict.fromkeys(cases.networks.tolist())
    means = listed([f"{name} {points(gains[cases.networks == name].mean())}" for name in names])
    sentences = [f"Mean gain by network: {means}."] if len(names) > 1 else []
    middle = np.median(cases.samples)
    small = cases.samples <= middle
    if len(gains) >= HALVES and not small.all():
        sentences.append(
            f"Clients with at most {int(middle)} samples to train on: {points(gains[small].mean())}; "
            f"larger ones: {points(gains[~small].mean())}."
        )
    return " ".join(sentences)


def _cells(transfer: Transfer | None) -> list[str]:
    """Format a row of the table of gains."""
    if transfer is None:
        return ["–"] * 8
    p = transfer.p_holm
    return [
        points(transfer.mean),
        _span(transfer.interval) if transfer.interval else transfer.no_interval,
        transfer.verdict or "no interval",
        f"{transfer.losing} of {transfer.cases}, {100 * transfer.negative:.0f} %",
        points(-transfer.loss) if transfer.loss is not None else "–",
        points(transfer.tail),
        points(transfer.worst),
        "–" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}",
    ]


def _span(interval: Interval) -> str:
    return f"{points(interval.low)} to {points(interval.high)}"
