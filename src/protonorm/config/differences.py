"""In what an experiment differs from the usual one on its data, named as on the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protonorm.config.components import changed_fields, registered_name
from protonorm.config.kinds import COMPONENTS, KINDS
from protonorm.core.own_text import own_name
from protonorm.core.types import shortened
from protonorm.data.dataset import Dataset
from protonorm.data.partitions.given import Given
from protonorm.models.choose import named, networks

FEW = 100  # values in a list that somebody may have typed

if TYPE_CHECKING:
    from protonorm.config.experiment import Experiment


def differences(experiment: Experiment, dataset: str, usual: Mapping[str, Any]) -> dict[str, Any]:
    """List the settings that differ from what an experiment on these data has if nothing else is given."""
    found: dict[str, Any] = {}
    for name, field in type(experiment).model_fields.items():
        value = getattr(experiment, name)
        if name in COMPONENTS:
            found |= _of_component(experiment, name, value, dataset)
        elif name == "lr_schedule":
            found |= {key.removesuffix(".name"): one for key, one in changed_fields(value, name).items()}
        elif name == "auxiliary":
            found |= {name: value} if value not in (None, networks(experiment.models)[0]) else {}
        elif value != usual.get(name, field.default):
            found[name] = value
    return found


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Write differences as plain data: a network's function and a path by their names."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values), default=_plain_name))
    return plain


def _of_component(experiment: Experiment, kind: str, value: Any, dataset: str) -> dict[str, Any]:
    known = registered_name(kind, value)
    if isinstance(value, Given):  # the data say so themselves
        return changed_fields(value, kind)
    name = getattr(value, "name", None) or known or own_name(type(value))
    found = {} if name == KINDS[kind].default else {kind: name}
    if kind != "algorithm":
        held = {} if isinstance(value, Dataset) else changed_fields(value, kind)
        return found | (held if known else _in_short(held))
    if not known:
        return found | _in_short(changed_fields(value, kind))
    usual = type(value)().adapted(dataset, [named(item) for item in networks(experiment.models)])
    return found | changed_fields(value, kind, usual)


def _in_short(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Write settings of a user's own class that nobody could type, such as tables, by how their text begins."""
    return {name: one if _can_be_typed(one) else shortened(str(one)) for name, one in fields.items()}


def _can_be_typed(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= FEW and all(map(_can_be_typed, value))
    return value is None or callable(value) or isinstance(value, bool | int | float | str | Path)


def _plain_name(value: Any) -> str:
    return named(value) if callable(value) else str(value)
