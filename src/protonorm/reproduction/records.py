"""Find the records of cells whose data are not on this machine: published records come without pictures. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protonorm.analysis.reading import UNREADABLE
from protonorm.runs.info import read_info
from protonorm.runs.layout import INFO, find_runs

if TYPE_CHECKING:
    from protonorm.config.experiment import Experiment

Description = Mapping[str, Any]  # of a data set: its name, samples and hash


def described_data(root: Path) -> list[Description]:
    """List the data sets that the records of a folder are of, each once; what cannot be read is left out."""
    found: dict[str, Description] = {}
    for folder in find_runs(root):
        with suppress(*UNREADABLE):
            dataset = read_info(folder / INFO).experiment.dataset.model_dump(mode="json")
            found[json.dumps(dataset, sort_keys=True)] = dataset
    return list(found.values())


def recorded_keys(experiment: Experiment, root: Path, known: Sequence[Description]) -> list[str]:
    """List the keys of an experiment's records: one, or several if they are of different pictures of the same name."""
    fits = getattr(experiment.dataset, "fits", None)
    keys = [experiment.key_with(one) for one in known if fits and fits(one)]
    return [key for key in keys if (root / key / INFO).exists()]
