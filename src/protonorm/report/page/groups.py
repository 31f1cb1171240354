"""Which runs belong together: a method's runs with several seeds are one group, and each group gets a name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protonorm.history import Run
from protonorm.report.page.again import text

Groups = Mapping[str, Sequence[Run]]  # the runs of each method, by its name


def by_method(runs: Iterable[Run]) -> Groups:
    """Group runs that differ in nothing but the seed, and name the groups by what tells them apart."""
    found: dict[str, list[Run]] = {}
    for run in {run.folder.resolve(): run for run in runs}.values():
        plain = {name: value for name, value in run.experiment.items() if name != "seed"}
        found.setdefault(json.dumps(plain, sort_keys=True), []).append(run)
    groups = [sorted(group, key=lambda run: int(run.experiment["seed"])) for group in found.values()]
    return dict(zip(_names([flat(group[0].experiment) for group in groups]), groups, strict=True))


def differences(groups: Groups) -> list[str]:
    """List the settings in which groups differ, other than the method."""
    settings = [flat(found[0].experiment) for found in groups.values()]
    names = dict.fromkeys(name for one in settings for name in one)
    return [
        name
        for name in names
        if not name.startswith("algorithm") and name != "seed" and len({str(one.get(name)) for one in settings}) > 1
    ]


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


def _names(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    names = []
    for one in settings:
        twins = [other for other in settings if other["algorithm"] == one["algorithm"]]
        told = {name: one[name] for name in one if len({str(twin.get(name)) for twin in twins}) > 1}
        told.pop("seed", None)
        words = [f"{name.removeprefix('algorithm.')}={text(value)}" for name, value in told.items()]
        names.append(f"{one['algorithm'].split(':')[-1]}{':' if words else ''}{','.join(words)}")
    return names
