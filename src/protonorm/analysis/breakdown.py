"""One run in its reported round, by client, by class and by rule, as rows of plain data. Nothing here needs torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.analysis.pairing import is_solo, pair_runs
from protonorm.analysis.transfer import EXACT
from protonorm.runs.arrays import BESIDE
from protonorm.runs.run import Population, Run
from protonorm.runs.schema import RoundRecord

Rows = list[dict[str, Any]]

ACCURACIES = ("pooled", "mean", "worst", "p10", *BESIDE)  # parts of an Accuracy


def round_rows(run: Run) -> Rows:
    """Make a row for each evaluated round and rule."""
    return [
        about(run, record) | {"loss": record.loss, "rule": rule} | _accuracies(value)
        for record in run.rounds
        for rule, value in record.rules.items()
    ]


def client_rows(run: Run, alone: Run | None = None, rule: str | None = None) -> Rows:
    """Make a row for each client: what it has, how it does under a rule, and how it does alone if that run is given.

    Accuracies of a client that was not evaluated are NaN; how many samples there are is None where the record does not
    say it. A run whose clients are not the same is refused.
    """
    rule, record = check_rule(run, rule), _reported(run)
    clients, holds = range(run.info.experiment.clients), _holdings(run)
    columns: dict[str, Any] = {"accuracy": _client_shares(run, rule)}
    for measure in BESIDE:
        columns[measure] = _nothing(len(clients)) if record is None else run.measured(record, rule, measure)
    if alone is not None:
        columns |= _beside(columns["accuracy"], _client_shares(_matched(run, alone), alone.info.headline))
    return [
        about(run, record)
        | {"client": run.client_name(id), "number": id, "network": run.info.network_name(id)}
        | {name: counts[id] for name, counts in holds.items()}
        | {"rule": rule}
        | {name: float(values[id]) for name, values in columns.items()}
        for id in clients
    ]


def class_rows(run: Run, alone: Run | None = None, rule: str | None = None) -> Rows:
    """Make a row for each class: who has it, and how often it is recognised, by all clients together."""
    rule, record = check_rule(run, rule), _reported(run)
    columns: dict[str, Any] = {"accuracy": _class_shares(run, rule)}
    if alone is not None:
        columns |= _beside(columns["accuracy"], _class_shares(_matched(run, alone), alone.info.headline))
    held = {"clients": (run.population.train > 0).sum(0)}
    held |= {part: counts.sum(0) for part, counts in run.population._asdict().items()}  # (K,) each
    known = run.knows_samples
    return [
        about(run, record)
        | {"class": name, "number": k}
        | {what: int(counts[k]) if known else None for what, counts in held.items()}
        | {"rule": rule}
        | {column: float(values[k]) for column, values in columns.items()}
        for k, name in enumerate(run.info.classes)
    ]


def rule_rows(run: Run) -> Rows:
    """Make a row for each prediction rule, over all clients."""
    record = _reported(run)
    found = []
    for rule in run.info.rules:
        beside = run.summary(rule)
        row = about(run, record) | {"rule": rule, "headline": rule == run.info.headline}
        row |= _accuracies(record.rules.get(rule) if record else None)
        row |= {"best": beside.best.pooled, "last": beside.last.pooled} if beside else {"best": None, "last": None}
        found.append(row)
    return found


def about(run: Run, record: RoundRecord | None) -> dict[str, Any]:
    """Say of which run and round a row is."""
    settings = run.info.experiment
    method = settings.algorithm.name.split(":")[-1] + (" (solo)" if is_solo(run) else "")
    return {"method": method, "seed": settings.seed, "round": record.round if record else None}


def check_rule(run: Run, rule: str | None) -> str:
    """Give the rule that is asked for, or the method's headline; refuse one that the method does not have."""
    rules = run.info.rules
    if rule is not None and rule not in rules:
        raise ValueError(f"There is no rule {rule!r} in this run; known: {', '.join(rules)}.")
    return rule or run.info.headline


def _reported(run: Run) -> RoundRecord | None:
    return run.chosen.record if run.chosen else None


def _holdings(run: Run) -> dict[str, list[int] | list[None]]:
    """Count each client's samples of each part, and the classes that it trains on."""
    if not run.knows_samples:
        return {name: [None] * run.info.experiment.clients for name in (*Population._fields, "classes")}
    sizes = {part: counts.sum(1).tolist() for part, counts in run.population._asdict().items()}  # (M,) each
    return sizes | {"classes": (run.population.train > 0).sum(1).tolist()}


def _client_shares(run: Run, rule: str) -> NDArray[np.float64]:
    record = _reported(run)
    return _nothing(run.info.experiment.clients) if record is None else run.by_client(record, rule)


def _class_shares(run: Run, rule: str) -> NDArray[np.float64]:
    record = _reported(run)
    return _nothing(len(run.info.classes)) if record is None else run.by_class(record, rule)


def _beside(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    return {"alone": theirs, "gain": np.round(ours - theirs, EXACT)}


def _matched(run: Run, alone: Run) -> Run:
    """Refuse a run whose clients are not those of the other, or whose round was chosen in another way."""
    told = pair_runs([run], [alone]).mismatch
    ways = [one.chosen.by if one.chosen else "nothing" for one in (run, alone)]
    if not told and ways[0] != ways[1]:
        told = f"how their rounds were chosen (by {ways[0]}; by {ways[1]})"
    if told:
        raise ValueError(f"The two runs cannot be put side by side client by client: they differ in {told}.")
    return alone


def _nothing(size: int) -> NDArray[np.float64]:
    return np.full(size, np.nan)


def _accuracies(value: Any) -> dict[str, float | None]:
    return {name: getattr(value, name, None) for name in ACCURACIES}
