"""Which settings tell runs apart, in few words. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protonorm.runs.run import Run

DATA = ("dataset", "partition", "clients", "train", "validation")  # they decide, but for seeds, who holds which samples
LONGEST = 24  # characters of a value in a label


def flatten_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Name settings as the command line does: algorithm, algorithm.gamma, algorithm.schedule.eta, …"""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if not isinstance(value, Mapping):
            found[name] = value
            continue
        if "name" in value:
            found[name] = value["name"]
        found |= flatten_settings({f"{name}.{field}": one for field, one in value.items() if field != "name"})
    return found


def data_settings(run: Run) -> dict[str, Any]:
    """List the settings of a run's data and of how they were assigned to clients, without seeds."""
    plain = run.info.experiment.plain()
    settings = flatten_settings({name: plain[name] for name in DATA if name in plain})
    return {name: value for name, value in settings.items() if not name.endswith(".seed")}


def labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Give each of several runs' settings the shortest distinguishing label; it is empty where nothing differs."""
    names = dict.fromkeys(name for one in settings for name in one)
    return [", ".join(_differences(one, settings, list(names))) for one in settings]


def client_label(run: Run, id: int) -> str:
    """Name a client in a sentence or a chart: by the name of its folder or file, or as `client 3`."""
    name = run.client_name(id)
    return f"client {id}" if name == str(id) else name


def dataset_names(runs: Sequence[Run]) -> list[str]:
    """List the data sets of runs, each once."""
    return list(dict.fromkeys(run.info.experiment.dataset.name for run in runs))


def _differences(one: Mapping[str, Any], others: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    words = []
    for name in names:
        alike = [other for other in others if str(other.get(name)) == str(one.get(name))]
        if len(alike) < len(others) and name in one:
            words.append(_word(name, one[name]))
        others = alike  # what is told apart already needs no more words
    return words


def _word(name: str, value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    short = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
    return short if name in ("dataset", "partition") else f"{name.split('.')[-1]}={short}"
