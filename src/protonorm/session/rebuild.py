"""The experiment of a recorded run, made again from its record and from what the record does not hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from protonorm.config.experiment import Experiment
from protonorm.core.types import shown
from protonorm.data import DATASETS, PARTITIONS
from protonorm.data.partitions.given import Given
from protonorm.runs.run import Run
from protonorm.runs.schema import Component

MISSING = "pn.load_run(…, {name}=…) takes it, or pn.run the experiment itself."


def experiment_of(run: Run, given: Mapping[str, Any] | None = None) -> Experiment:
    """Make the experiment of a run again; `given` are settings of which the record holds no more than a name.

    These are data and code of the user's own: they are never looked for, and never run, unless they are given.
    """
    given, info = dict(given or {}), run.info.experiment
    if unknown := given.keys() - Experiment.model_fields.keys():
        raise ValueError(f"An experiment has no setting {shown(sorted(unknown)[0])}.")
    settings = info.plain()
    settings["dataset"] = given["dataset"] if "dataset" in given else _dataset(run)
    settings["partition"] = given["partition"] if "partition" in given else _partition(run)
    if "algorithm" not in given and "source" in info.algorithm.settings:
        raise _not_held(run, "algorithm", info.algorithm.name)
    for name in ("models", "auxiliary"):
        if name not in given and (own := _own_network(settings.get(name))):
            raise _not_held(run, name, own)
    experiment = Experiment.of(settings | given)
    if experiment.key != run.info.key:
        told = f"with {', '.join(sorted(given))} as given" if given else "with the data and the version that are here"
        raise ValueError(
            f"The record of {run.info.key} {told} is another experiment, {experiment.key}: data or code have changed."
        )
    return experiment


def holds_own_code(run: Run) -> bool:
    """Tell whether a run used code of the user's own, of which its record holds nothing but the name."""
    return "source" in run.info.experiment.algorithm.settings or bool(_own_network(run.info.networks))


def _own_network(choice: Any) -> str:
    """Name the first network of the user's own in a choice; nothing if there is none."""
    items = choice if isinstance(choice, list) else [choice]
    return next((str(one["name"]) for one in items if isinstance(one, Mapping)), "")


def _dataset(run: Run) -> dict[str, Any]:
    """Name the data of a run with their settings; what the record tells of their content is compared by the key."""
    found = run.info.experiment.dataset
    if found.name not in DATASETS or "path" in (known := _fields(found)):
        raise _not_held(run, "dataset", found.name)
    left_out = {"samples"} if "sha256" in found.settings and "of" not in found.settings else set()  # all were taken
    kept = {name: value for name, value in found.settings.items() if name in known and name not in left_out}
    return {"name": found.name, **kept}


def _partition(run: Run) -> Any:
    found = run.info.experiment.partition
    if found.name == "given" and found.settings.keys() == {"seed"}:
        return Given(**found.settings)
    if found.name not in PARTITIONS:
        raise _not_held(run, "partition", found.name)
    return found.model_dump()


def _fields(dataset: Component) -> set[str]:
    return {field.name for field in fields(DATASETS[dataset.name].load())}


def _not_held(run: Run, name: str, value: str) -> ValueError:
    return ValueError(
        f"The {name} {value} of {run.info.key} is the user's own: its record holds no more than the name. "
        f"{MISSING.format(name=name)}"
    )
