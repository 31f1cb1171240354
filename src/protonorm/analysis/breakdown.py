"""Runs as plain data: summary texts, and rows by round, client, class and rule. Does not import torch."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.analysis.contrasts import EXACT, is_local, is_solo, pair_runs, reported_accuracies
from protonorm.analysis.settings import run_settings
from protonorm.analysis.statistics import Numbers
from protonorm.core.text import counted
from protonorm.core.types import rule_name, shown
from protonorm.metrics import METRICS, metrics
from protonorm.runs.layout import INFO, find_runs
from protonorm.runs.run import UNREADABLE, Population, Run, read_whole
from protonorm.runs.schema import Component, RoundRecord, RunInfo, read_info

Rows = list[dict[str, Any]]
Cells = tuple[NDArray[Any], NDArray[Any]]  # right answers and samples (M, K)

SHOWN = ("alpha", "classes_per_client")  # partition settings shown in a headline
SUMMARIES = ("pooled", "mean", "worst", "p10")
ACCURACIES = (*SUMMARIES, *METRICS)  # attributes of an Accuracy
ORDER = ("method", "client", "class", "round", "rule")
UNITS = ("round", "client", "class", "rule", "client,class", "client,round", "class,round", "client,class,round")
# Not settings of the data.
APART = ("algorithm", "auxiliary", "control", "rounds", "retries", "quorum", "deadline", "state_memory")


def headline(runs: Mapping[str, Sequence[Run]]) -> str:
    """Return the common settings of compared runs: data, partition, clients, rounds."""
    first = next(iter(runs.values()))[0].info.experiment
    partition = describe_partition(first.partition, SHOWN)
    size = f"{counted(first.clients, 'client')}, {counted(first.rounds, 'round')}"
    return f"{first.dataset.name}, {partition}, {size}"


def describe_partition(partition: Component, shown: Sequence[str]) -> str:
    """Return a partition's name with the settings in `shown`: dirichlet (alpha 0.1)."""
    settings = ", ".join(f"{name} {partition.settings[name]}" for name in shown if name in partition.settings)
    return f"{partition.name} ({settings})" if settings else partition.name


def standing(run: Run) -> str:
    """Describe the progress of a run."""
    if run.failure:
        return f"Stopped in round {run.failure.round}: {run.failure.reason}"
    progress = f"{len(run.rounds)} of {run.info.experiment.rounds} rounds are done"
    if run.stopped_early and len(run.rounds) < run.info.experiment.rounds:
        why = "the method is finished" if run.info.last_round else "the validation accuracy rose no more"
        return f"{progress}; it ended early, as {why}."
    return f"{progress}." if run.finished else f"{progress}; the same command goes on."


def plain_run(run: Run) -> dict[str, Any]:
    """Return a run as plain data, without its rounds.

    `chosen` is the reported round: how it was chosen, and its test accuracies under every rule.
    """
    record = _reported(run)
    rules = {rule: value and value.model_dump() for rule, value in record.rules.items()} if record else {}
    summaries = {rule: run.summary(rule) for rule in run.info.rules}
    return {
        "key": run.info.key,
        "folder": str(run.folder),
        "experiment": run.info.experiment.plain(),
        "rounds": len(run.rounds),
        "finished": run.finished,
        "headline": run.info.headline,
        "chosen": {"round": record.round, "by": _chosen_by(run), "rules": rules} if record else None,
        "summary": {
            rule: numbers
            and {"best": numbers.best._asdict(), "last": numbers.last._asdict(), "own_best": numbers.own_best}
            for rule, numbers in summaries.items()
        },
        "majority": run.majority.model_dump() if run.majority else None,
        "failure": run.failure.model_dump() if run.failure else None,
    }


def units_of(by: Any, known: Sequence[str] = UNITS) -> str:
    """Return the units of a frame's rows in their usual order, such as `client,class`; raise ValueError for others."""
    words = [word.strip() for word in by.split(",")] if isinstance(by, str) else []
    units = ",".join(sorted(words, key=lambda word: ORDER.index(word) if word in ORDER else 0))
    if units not in known:
        single = ", ".join(word for word in known if "," not in word).replace(", rule", " or rule")
        raise ValueError(f"by must be {single}, or several of client, class and round, got {shown(by)}.")
    return units


def rows_by(
    run: Run, by: str, rule: str | None = None, alone: Run | None = None, cells: Callable[[], Cells] | None = None
) -> list[dict[str, Any]]:
    """Build the rows of a frame of one run; `alone` is the run of the same clients without an exchange.

    `cells` counts answers by client and class in the reported round, if the record does not have them.
    """
    units = units_of(by)
    evaluated = [record for record in run.rounds if record.rules]
    match units:
        case "round":
            records = [(record, rule, value) for record in run.rounds for rule, value in record.rules.items()]
            return [
                about(run, item) | {"loss": item.loss, "rule": rule} | _accuracies(run, value, item, rule)
                for item, rule, value in records
            ]
        case "client":
            return client_rows(run, alone, rule)
        case "class":
            return class_rows(run, alone, rule)
        case "rule":
            return rule_rows(run)
        case "client,class":
            return cell_rows(run, _reported(run), rule, cells)
        case "client,round":
            return [row for record in evaluated for row in client_rows(run, None, rule, record)]
        case "class,round":
            return [row for record in evaluated for row in class_rows(run, None, rule, record)]
    return [row for record in evaluated for row in cell_rows(run, record, rule)]


def cell_rows(
    run: Run, record: RoundRecord | None, rule: str | None = None, cells: Callable[[], Cells] | None = None
) -> Rows:
    """Build a row for each client and class of which it has samples: its samples, right answers and accuracy."""
    rule = check_rule(run, rule)
    train, validation, test = run.population
    counts = run.by_cell(record, rule) if record else None
    if counts is None:
        counts = cells() if cells else None
    if counts is None:
        raise ValueError(
            f"{run.folder} has no answers by client and class together: keep_classes=true records them in every round. "
            "Without, by='client,class' counts those of the reported round anew, from the trained clients."
        )
    correct, support = counts
    return [
        about(run, record)
        | {"client": run.client_name(id), "number": id, "network": run.info.network_name(id)}
        | {"class": run.info.classes[k], "class_number": k}
        | {"train": int(train[id, k]), "validation": int(validation[id, k]), "test": int(test[id, k])}
        | {"rule": rule, "evaluated": int(support[id, k]), "correct": int(correct[id, k])}
        | {"accuracy": correct[id, k] / support[id, k] if support[id, k] else math.nan}
        for id, k in np.argwhere((train + validation + test + support) > 0).tolist()
    ]


def client_rows(run: Run, alone: Run | None = None, rule: str | None = None, record: RoundRecord | None = None) -> Rows:
    """Build a row for each client: its samples, and its accuracy under a rule and in the run `alone` if given.

    They are of the reported round, or of that of `record`.

    Accuracies of clients that were not evaluated are NaN; sample counts are None where the record lacks them. Raises a
    ValueError if the clients of `alone` differ.
    """
    given, clients = record, run.info.experiment.clients
    rule, record = check_rule(run, rule), record or _reported(run)
    measured = {name: run.measured(record, rule, name) if record else np.full(clients, np.nan) for name in run.measures}
    columns = _shares(run, rule, "client", alone, measured, given)
    if record and record.common:
        columns["common"] = run.by_client(record, rule, "common")
    sizes = {part: counts.sum(1).tolist() for part, counts in run.population._asdict().items()}  # (M,) each
    sizes["classes"] = (run.population.train > 0).sum(1).tolist()
    return [
        about(run, record)
        | {"client": run.client_name(id), "number": id, "network": run.info.network_name(id)}
        | {name: sizes[name][id] if run.knows_samples else None for name in (*Population._fields, "classes")}
        | {"rule": rule}
        | {name: float(values[id]) for name, values in columns.items()}
        for id in range(clients)
    ]


def class_rows(run: Run, alone: Run | None = None, rule: str | None = None, record: RoundRecord | None = None) -> Rows:
    """Build a row for each class: clients and samples that have it, and its accuracy over all clients."""
    given, rule, record = record, check_rule(run, rule), record or _reported(run)
    named = [name for name in run.measures if metrics()[name].by_class]
    measured = {name: run.by_class(record, rule, measure=name) for name in named} if record else {}
    columns = _shares(run, rule, "class", alone, measured, given)
    counts = {"clients": (run.population.train > 0).sum(0)}
    counts |= {part: samples.sum(0) for part, samples in run.population._asdict().items()}  # (K,) each
    return [
        about(run, record)
        | {"class": name, "number": k}
        | {part: int(count[k]) if run.knows_samples else None for part, count in counts.items()}
        | {"rule": rule}
        | {column: float(values[k]) for column, values in columns.items()}
        for k, name in enumerate(run.info.classes)
    ]


def rule_rows(run: Run) -> Rows:
    """Build a row for each prediction rule, over all clients."""
    record = _reported(run)
    summaries = {rule: run.summary(rule) for rule in run.info.rules}
    return [
        about(run, record)
        | {"rule": rule, "headline": rule == run.info.headline}
        | _accuracies(run, record.rules.get(rule) if record else None, record, rule)
        | {"best": numbers.best.pooled if numbers else None, "last": numbers.last.pooled if numbers else None}
        for rule, numbers in summaries.items()
    ]


def about(run: Run, record: RoundRecord | None) -> dict[str, Any]:
    """Return the method, seed and round of a row."""
    settings = run.info.experiment
    method = settings.algorithm.name.split(":")[-1] + (" (solo)" if is_solo(run) else "")
    return {"method": method, "seed": settings.seed, "round": record.round if record else None}


def check_rule(run: Run, rule: str | None) -> str:
    """Return `rule`, or the method's headline rule if None; raise a ValueError if the run has no such rule."""
    rules, requested = run.info.rules, rule_name(rule or run.info.headline)
    if requested not in rules:
        raise ValueError(f"There is no rule {requested!r} in this run; known: {', '.join(rules)}.")
    return requested


def matching_local(run: Run, local: Sequence[Run]) -> Run | None:
    """Find the run of Local with the same seed and clients, whose round was chosen in the same way."""
    if is_local(run):
        return None
    alike = (other for other in local if _chosen_by(other) == _chosen_by(run))
    return next((other for other in alike if not pair_runs([run], [other]).mismatch), None)


def locals_in(root: Path) -> dict[Path, RunInfo]:
    """Find the runs of Local in a folder of runs; damaged runs are skipped."""
    infos: dict[Path, RunInfo] = {}
    for folder in find_runs(root):
        with suppress(*UNREADABLE):
            infos[folder] = read_info(folder / INFO)
    return {folder: info for folder, info in infos.items() if info.experiment.algorithm.name == "local"}


def local_beside(run: Run, local_runs: Mapping[Path, RunInfo] | None = None) -> Run | None:
    """Find a run of Local with the same settings and enough rounds, in the run's folder or among `known` runs."""
    if is_local(run):
        return None
    settings, rounds = run_settings(run.info, without=APART), run.info.experiment.rounds
    runs = []
    for folder, info in (locals_in(run.folder.parent) if local_runs is None else local_runs).items():
        if run_settings(info, without=APART) == settings:
            with suppress(*UNREADABLE):
                runs.append(read_whole(folder, rounds))
    enough = [other for other in runs if len(other.rounds) >= rounds or other.stopped_early]
    return matching_local(run, enough)


def _reported(run: Run) -> RoundRecord | None:
    return run.chosen.record if run.chosen else None


def _chosen_by(run: Run) -> str:
    return run.chosen.by if run.chosen else "nothing"


def _shares(
    run: Run,
    rule: str,
    unit: str,
    alone: Run | None,
    measured: Mapping[str, Numbers],
    record: RoundRecord | None = None,
) -> dict[str, Numbers]:
    """Return the columns of clients or classes: accuracy, other measures, and the gain on the run `alone` if given."""
    find = run.by_client if unit == "client" else run.by_class
    accuracies = find(record, rule) if record else reported_accuracies(run, rule, unit)
    columns = {"accuracy": accuracies, **measured}
    if alone is None:
        return columns
    mismatch, choices = pair_runs([run], [alone]).mismatch, (_chosen_by(run), _chosen_by(alone))
    if not mismatch and choices[0] != choices[1]:
        mismatch = f"how their rounds were chosen (by {choices[0]}; by {choices[1]})"
    if mismatch:
        raise ValueError(f"The two runs cannot be put side by side client by client: they differ in {mismatch}.")
    reference = reported_accuracies(alone, None, unit)
    return columns | {"alone": reference, "gain": np.round(columns["accuracy"] - reference, EXACT)}


def _accuracies(run: Run, value: Any, record: RoundRecord | None, rule: str) -> dict[str, float | None]:
    parts = {"common": record.common, "newcomers": record.newcomers} if record else {}
    others = {name: part.get(rule) for name, part in parts.items() if part}  # only of runs that have them
    return {name: getattr(value, name, None) for name in (*SUMMARIES, *run.measures)} | {
        name: accuracy and accuracy.pooled for name, accuracy in others.items()
    }
