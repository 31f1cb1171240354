"""Runs in a sentence, and in plain data. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protonorm.runs.run import Run, Summary
from protonorm.runs.schema import Component

SHOWN = ("alpha", "classes_per_client")  # settings of a partition that a reader wants to know at once


def headline(runs: Mapping[str, Sequence[Run]]) -> str:
    """Say what the runs of a comparison have in common: data, partition, clients, rounds."""
    first = next(iter(runs.values()))[0].info.experiment
    partition = describe_partition(first.partition, SHOWN)
    return f"{first.dataset.name}, {partition}, {first.clients} clients, {first.rounds} rounds"


def describe_partition(partition: Component, shown: Sequence[str]) -> str:
    """Name a partition, with those of its settings that are to be shown: dirichlet (alpha 0.1)."""
    settings = partition.settings
    told = ", ".join(f"{name} {settings[name]}" for name in shown if name in settings)
    return f"{partition.name} ({told})" if told else partition.name


def standing(run: Run) -> str:
    """Say how far a run is."""
    if run.failure:
        return f"Stopped in round {run.failure.round}: {run.failure.reason}"
    told = f"{len(run.rounds)} of {run.info.experiment.rounds} rounds are done"
    if run.stopped_early and len(run.rounds) < run.info.experiment.rounds:
        return f"{told}; it ended early, as the validation accuracy rose no more."
    return f"{told}." if run.finished else f"{told}; the same command goes on."


def plain_run(run: Run) -> dict[str, Any]:
    """Give a run as plain data, without its rounds."""
    return {
        "key": run.info.key,
        "folder": str(run.folder),
        "experiment": run.info.experiment.plain(),
        "rounds": len(run.rounds),
        "finished": run.finished,
        "headline": run.info.headline,
        "chosen": plain_choice(run),
        "summary": {rule: plain_summary(run.summary(rule)) for rule in run.info.rules},
        "majority": run.majority.model_dump() if run.majority else None,
        "failure": run.failure.model_dump() if run.failure else None,
    }


def plain_choice(run: Run) -> dict[str, Any] | None:
    """Give the reported round as plain data: how it was chosen, and its test accuracies under every rule."""
    if run.chosen is None:
        return None
    record, by = run.chosen
    rules = {rule: found.model_dump() if found else None for rule, found in record.rules.items()}
    return {"round": record.round, "by": by, "rules": rules}


def plain_summary(summary: Summary | None) -> dict[str, Any] | None:
    """Give a summary as plain data."""
    if summary is None:
        return None
    return {"best": summary.best._asdict(), "last": summary.last._asdict(), "own_best": summary.own_best}
