"""Which runs may be compared client by client: same seeds, same samples, same networks. Nothing here needs torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from protonorm.analysis.labels import DATA, flatten_settings
from protonorm.runs.run import Run

UNLIKE = ("control", "retries")  # settings in which a method and its solo control may differ


class Pair(NamedTuple):
    """Two runs whose clients are the same."""

    run: Run
    reference: Run


class Pairs(NamedTuple):
    """Runs of a method beside those of a reference, by seed; or in what they do not match."""

    pairs: list[Pair]
    mismatch: str = ""


def is_local(run: Run) -> bool:
    """Tell whether clients trained alone, by the method Local."""
    return run.info.experiment.algorithm.name == "local" and not is_solo(run)


def is_solo(run: Run) -> bool:
    """Tell whether each client federated with itself alone."""
    return getattr(run.info.experiment, "control", "none") == "solo"


def same_clients(run: Run, other: Run) -> str:
    """Say in what the clients of two runs differ: data, names, networks, samples; nothing if they are the same."""
    if told := _difference(_data(run), _data(other)):
        return told
    if run.info.client_names != other.info.client_names:
        return "who the clients are"
    if _networks(run) != _networks(other):
        return "the clients' networks"
    if any(not np.array_equal(one, two) for one, two in zip(run.population, other.population, strict=True)):
        return "who holds which samples"
    if not run.knows_samples and run.chosen and other.chosen:  # all that is known is how many each was tested on
        ours, theirs = (one.support(one.chosen.record) for one in (run, other) if one.chosen)
        tested = (ours > 0) & (theirs > 0)
        return "how many samples clients test on" if (ours[tested] != theirs[tested]).any() else ""
    return ""


def same_but_control(run: Run, other: Run) -> str:
    """Say in what a run and the solo control of a method differ besides the control; nothing if in nothing."""
    settings = [one.info.experiment.plain() for one in (run, other)]
    first, second = (
        flatten_settings({name: value for name, value in one.items() if name not in UNLIKE}) for one in settings
    )
    return _difference(first, second) or same_clients(run, other)


def pair_runs(
    runs: Sequence[Run], references: Sequence[Run], differ: Callable[[Run, Run], str] = same_clients
) -> Pairs:
    """Put each run beside the reference with the same seed and data, if there is one for all of them."""
    ours, theirs = sorted(runs, key=_place), sorted(references, key=_place)
    seeds, others = _seeds(ours), _seeds(theirs)
    if seeds != others:
        return Pairs([], f"seeds ({_listed(seeds)}; {_listed(others)})")
    pairs = [Pair(run, reference) for run, reference in zip(ours, theirs, strict=True)]
    told = next((told for run, reference in pairs if (told := differ(run, reference))), "")
    return Pairs([] if told else pairs, told)


def _place(run: Run) -> tuple[int, str]:
    return run.info.experiment.seed, json.dumps(_data(run), sort_keys=True)


def _data(run: Run) -> dict[str, Any]:
    """List the settings that decide, seeds included, who holds which samples."""
    plain = run.info.experiment.plain()
    return flatten_settings({name: plain[name] for name in DATA if name in plain})


def _networks(run: Run) -> list[Any]:
    """List what network each client has, and how wide its features are."""
    experiment = run.info.experiment
    return [experiment.feature_dim, *(run.info.network(id) for id in range(experiment.clients))]


def _seeds(runs: Sequence[Run]) -> list[int]:
    return [run.info.experiment.seed for run in runs]


def _difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Name the first setting that differs, with both values."""
    names = [name for name in dict.fromkeys([*first, *second]) if first.get(name) != second.get(name)]
    return f"{names[0]} ({first.get(names[0])}; {second.get(names[0])})" if names else ""


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "none"
