"""Which settings tell runs apart, in few words, and which data they were dealt. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protonorm.history import Run

DEAL = ("dataset", "partition", "clients", "train")  # what decides who holds which samples, but for seeds
LONGEST = 24  # characters of a value in a label


def flat(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Write settings as the command line names them: algorithm, algorithm.gamma, …"""
    found: dict[str, Any] = {}
    for name, value in experiment.items():
        if isinstance(value, dict) and "name" in value:
            found[name] = value["name"]
            found |= {f"{name}.{field}": one for field, one in value.items() if field != "name"}
        else:
            found[name] = value
    return found


def deal(run: Run) -> dict[str, Any]:
    """Give the settings of a run's data and of how they were dealt out, without seeds."""
    settings = flat({name: run.experiment[name] for name in DEAL if name in run.experiment})
    return {name: value for name, value in settings.items() if not name.endswith(".seed")}


def labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name each of several settings by no more than tells it from the others; a label is empty if nothing does."""
    names = dict.fromkeys(name for one in settings for name in one)
    return [", ".join(_words(one, settings, list(names))) for one in settings]


def data_sets(runs: Sequence[Run]) -> list[str]:
    """List the names of the data sets of runs, each once."""
    return list(dict.fromkeys(str(run.experiment["dataset"]["name"]) for run in runs))


def _words(one: Mapping[str, Any], others: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    words = []
    for name in names:
        twins = [other for other in others if str(other.get(name)) == str(one.get(name))]
        if len(twins) < len(others) and name in one:
            words.append(_word(name, one[name]))
        others = twins  # what is told apart already needs no more words
    return words


def _word(name: str, value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    short = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
    return short if name in ("dataset", "partition") else f"{name.split('.')[-1]}={short}"
