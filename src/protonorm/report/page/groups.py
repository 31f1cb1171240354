"""Which runs belong together: a method's runs with several seeds are one group, and each group gets a name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protonorm.analysis.labels import flatten_settings, labels
from protonorm.report.page.text import setting_text
from protonorm.runs.run import Run

Groups = Mapping[str, Sequence[Run]]  # the runs of each method, by its name

OWN = ("algorithm", "auxiliary", "control", "seed")  # settings that belong to a method, or that its runs differ in


def by_method(runs: Iterable[Run]) -> Groups:
    """Group runs that differ in nothing but the seed, and name the groups by what tells them apart."""
    found: dict[str, list[Run]] = {}
    for run in {run.folder.resolve(): run for run in runs}.values():
        plain = {name: value for name, value in run.info.experiment.plain().items() if name != "seed"}
        found.setdefault(json.dumps(plain, sort_keys=True), []).append(run)
    groups = [sorted(group, key=lambda run: run.info.experiment.seed) for group in found.values()]
    return dict(zip(_names([_settings(group[0]) for group in groups]), groups, strict=True))


def differences(groups: Groups) -> list[str]:
    """List the settings in which groups differ, other than the method, its second network and its control."""
    settings = [_settings(found[0]) for found in groups.values()]
    names = dict.fromkeys(name for one in settings for name in one)
    return [
        name for name in names if name.split(".")[0] not in OWN and len({str(one.get(name)) for one in settings}) > 1
    ]


def _settings(run: Run) -> dict[str, Any]:
    return flatten_settings(run.info.experiment.plain())


def _names(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name each group by its method and the method's settings, then, in brackets, by what else tells it apart."""
    methods = [_method(one, settings) for one in settings]
    others = labels([_data_first(one) for one in settings])
    solo = ["solo" if one.get("control") == "solo" else "" for one in settings]  # as `compare --solo` names them
    told = [", ".join(filter(None, words)) for words in zip(solo, others, strict=True)]
    names = [f"{method} ({words})" if words else method for method, words in zip(methods, told, strict=True)]
    seen: Counter[str] = Counter()
    for place, name in enumerate(names):
        seen[name] += 1
        names[place] = name if seen[name] == 1 else f"{name} no. {seen[name]}"  # two classes may have one name
    return names


def _method(one: Mapping[str, Any], settings: Sequence[Mapping[str, Any]]) -> str:
    same = ("algorithm", "dataset")  # defaults of a method's settings may follow from the data
    alike = [other for other in settings if all(other[name] == one[name] for name in same)]
    own = [name for name in one if name.split(".")[0] in ("algorithm", "auxiliary") and name != "algorithm"]
    told = [name for name in own if len({str(other.get(name)) for other in alike}) > 1]
    words = [f"{name.removeprefix('algorithm.')}={setting_text(one[name])}" for name in told]
    return f"{one['algorithm'].split(':')[-1]}{':' if words else ''}{','.join(words)}"


def _data_first(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out method and seed, and put the data first: what they are is the plainest difference."""
    names = [name for name in settings if name.split(".")[0] not in OWN]
    first = [name for kind in ("dataset", "partition", "clients") for name in names if name.split(".")[0] == kind]
    return {name: settings[name] for name in dict.fromkeys([*first, *names])}
