"""Settings of an experiment that differ from their defaults, named as on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protonorm.config.components import registered_name
from protonorm.config.kinds import COMPONENTS, KINDS
from protonorm.core.own_code import own_name
from protonorm.core.settings import default_of
from protonorm.core.text import shortened
from protonorm.core.training import Training, describe_outgoing
from protonorm.data.dataset import Dataset
from protonorm.data.partitions import Given
from protonorm.models.choose import named, networks

if TYPE_CHECKING:
    from protonorm.config.experiment import Experiment

FEW = 100  # largest length of a list that is shown in full


def differences(experiment: Experiment, dataset: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults of an experiment on this data set."""
    changed: dict[str, Any] = {}
    model_fields = type(experiment).model_fields
    for name in sorted(
        model_fields, key=Training.model_fields.__contains__
    ):  # method and data before the training settings
        value = getattr(experiment, name)
        if name in COMPONENTS:
            changed |= _component_differences(experiment, name, value, dataset)
        elif name == "protect":
            described = {f"{name}.{key}": field for key, field in describe_outgoing(value).items()}
            changed |= {key.removesuffix(".name"): field for key, field in described.items() if field != "none"}
        elif name == "system":
            changed |= changed_fields(value, name)
        elif name == "lr_schedule":
            changed |= {key.removesuffix(".name"): field for key, field in changed_fields(value, name).items()}
        elif name == "auxiliary":
            changed |= {name: value} if value not in (None, networks(experiment.models)[0]) else {}
        elif value != defaults.get(name, model_fields[name].default):
            changed[name] = value
    return changed


def _component_differences(experiment: Experiment, kind: str, value: Any, dataset: str) -> dict[str, Any]:
    registered = registered_name(kind, value)
    if isinstance(value, Given):  # implied by the data set
        return changed_fields(value, kind)
    name = getattr(value, "name", None) or registered or own_name(type(value))
    changed = {} if name == KINDS[kind].default else {kind: name}
    if kind == "dataset" and isinstance(value, Dataset):
        return changed
    reference = None
    if kind == "algorithm" and registered:
        reference = type(value)().adapted(dataset, [named(item) for item in networks(experiment.models)])
    inner = changed_fields(value, kind, reference)
    if not registered:  # arrays, for example, cannot be typed on a command line
        inner = {field: item if _can_be_typed(item) else shortened(str(item)) for field, item in inner.items()}
    return changed | inner


def _can_be_typed(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= FEW and all(map(_can_be_typed, value))
    return value is None or callable(value) or isinstance(value, bool | int | float | str | Path)


def _are_equal(value: Any, other: Any) -> bool:
    """Return whether two settings are equal; arrays are compared by value, incomparable values differ."""
    if value is other:
        return True
    if isinstance(value, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(value, other)
    try:
        return bool(value == other) or bool(value != value and other != other)  # NaN equals NaN here
    except (ValueError, TypeError, RuntimeError):
        return False


def changed_fields(value: Any, prefix: str, reference: Any = None) -> dict[str, Any]:
    """Return the settings, named as on the command line, that differ from those of `usual`, or from their defaults."""
    changed: dict[str, Any] = {}
    for field in fields(value) if is_dataclass(value) else ():
        setting = getattr(value, field.name)
        default = getattr(reference, field.name) if reference is not None else default_of(field)
        if _are_equal(setting, default) or not field.compare or (field.name == "path" and hasattr(value, "name")):
            continue  # the name of file-based data contains the path
        name = f"{prefix}.{field.name}"
        changed |= changed_fields(setting, name) if is_dataclass(setting) else {name: setting}
    return changed
