"""Checks and defaults that depend on several settings, and the differences from the default experiment."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from protonorm.config.components import changed_fields, registered_name
from protonorm.config.kinds import COMPONENTS, KINDS
from protonorm.core.algorithm import Algorithm
from protonorm.core.outgoing import describe_outgoing
from protonorm.core.own_code import own_name
from protonorm.core.training import Training
from protonorm.core.types import shortened, shown
from protonorm.data.dataset import Dataset
from protonorm.data.partitions import Given
from protonorm.models import SCALABLE, base_and_width
from protonorm.models.choose import Choice, chosen, describe_choice, named, networks

if TYPE_CHECKING:
    from protonorm.config.experiment import Experiment

FEW = 100  # largest length of a list that is shown in full
SAID = 120  # characters of an error message of torch
MANY = 200  # clients above which only a round's cohort is evaluated by default, and all clients periodically
ALL_EVERY = 50  # default rounds between evaluations of all clients in that case


def check_device(name: str) -> None:
    """Raise ValueError for an invalid device name or a device that is not available."""
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", name):
        raise ValueError(f"device={shown(name)} is refused: expected cpu, cuda or cuda:1.")
    if name != "cpu" and (lacking := _lacking(name)):
        raise ValueError(f"device={name!r} cannot be used here: {lacking}; cpu always can.")


def _lacking(name: str) -> str:
    """Return why a device cannot be used; empty if it can."""
    if not torch.backends.cuda.is_built():
        return "this torch was built without CUDA"
    count = torch.cuda.device_count()
    if not count:
        return "torch finds no GPU"
    if int(name.partition(":")[2] or 0) >= count:
        return f"torch finds {count} GPU{'s' if count > 1 else ''}, counted from 0"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        first = re.split(r"[\n.;:]\s", str(error), maxsplit=1)[0]  # the rest describes torch internals
        return shortened(first, SAID) or "torch does not say why"
    return ""


class Evaluated(NamedTuple):
    """Clients that are evaluated."""

    evaluate: Literal["all", "cohort"]
    evaluate_all_every: int | None  # rounds; None for never, if evaluate is "cohort"


def who_is_evaluated(
    evaluate: Literal["all", "cohort"] | None, all_every: int | None, every: int, clients: int
) -> Evaluated:
    """Fill in missing evaluation settings; by default all clients are evaluated at most as often as the cohort."""
    if evaluate == "all" and all_every is not None:
        raise ValueError(
            f"evaluate_all_every={all_every} is refused: with evaluate=all everybody is evaluated each time; "
            "it is for evaluate=cohort."
        )
    if evaluate is not None or all_every is not None:
        return Evaluated(evaluate or "cohort", all_every)
    return Evaluated("all", None) if clients <= MANY else Evaluated("cohort", max(ALL_EVERY, every))


def usual_values(found: Evaluated, every: int, clients: int) -> dict[str, Any]:
    """Return both settings if they are the defaults; else None for both, so that both are listed as changed."""
    usual = found == who_is_evaluated(None, None, every, clients)
    return found._asdict() if usual else dict.fromkeys(found._fields)


def second_network(given: Any, algorithm: Algorithm, models: Choice) -> Any:
    """Return the second network of a method that uses one: the given network, or the first of the models."""
    if not algorithm.auxiliary:
        if given is not None:
            raise ValueError(f"auxiliary={shown(given)} is refused: {type(algorithm).__name__} has no second network.")
        return None
    found = networks(models)[:1] if given is None else networks(chosen(given, "auxiliary"))
    if len(found) > 1:
        raise ValueError(f"auxiliary={shown(given)} is refused: expected one network, not {len(found)}.")
    return found[0]


def refuse_contradictions(experiment: Experiment) -> None:
    """Raise ValueError for settings that contradict each other."""
    _refuse_different_networks(experiment)
    if experiment.early_stopping and not experiment.validation:
        raise ValueError("early_stopping needs a validation part; validation=0 turns it off.")
    if not experiment.tested and not experiment.validation:
        raise ValueError("tested=false needs a validation part: with validation=0 nothing would be evaluated.")


def _refuse_different_networks(experiment: Experiment) -> None:
    """Raise ValueError for different networks if the method averages whole ones; widths of a network may be allowed."""
    items, widths = networks(experiment.models), experiment.algorithm.widths
    kinds = {base_and_width(item)[0] if widths and isinstance(item, str) else item for item in items}
    if not experiment.algorithm.needs_shared_network or len(kinds) == 1:
        return
    name, told = type(experiment.algorithm).__name__, shown(describe_choice(experiment.models))
    if widths:
        raise ValueError(
            f"{name} cuts the clients' networks out of one, so that all need the same network at some width, "
            f"such as models={SCALABLE[0]}@1,0.5,0.25, but models={told} has {len(kinds)} different ones."
        )
    raise ValueError(
        f"{name} averages whole models, so that all clients need the same network, "
        f"but models={told} has {len(kinds)} different ones."
    )


def differences(experiment: Experiment, dataset: str, usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults of an experiment on this data set."""
    found: dict[str, Any] = {}
    fields = type(experiment).model_fields
    for name in sorted(fields, key=Training.model_fields.__contains__):  # method and data before the training settings
        value = getattr(experiment, name)
        if name in COMPONENTS:
            found |= _of_component(experiment, name, value, dataset)
        elif name == "protect":
            described = {f"{name}.{key}": one for key, one in describe_outgoing(value).items()}
            found |= {key.removesuffix(".name"): one for key, one in described.items() if one != "none"}
        elif name == "lr_schedule":
            found |= {key.removesuffix(".name"): one for key, one in changed_fields(value, name).items()}
        elif name == "auxiliary":
            found |= {name: value} if value not in (None, networks(experiment.models)[0]) else {}
        elif value != usual.get(name, fields[name].default):
            found[name] = value
    return found


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert differences to plain data; network functions and paths are replaced by their names."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values), default=_plain_name))
    return plain


def _of_component(experiment: Experiment, kind: str, value: Any, dataset: str) -> dict[str, Any]:
    known = registered_name(kind, value)
    if isinstance(value, Given):  # implied by the data set
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
    """Truncate settings of a user's class that cannot be typed on a command line, such as arrays."""
    return {name: one if _can_be_typed(one) else shortened(str(one)) for name, one in fields.items()}


def _can_be_typed(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= FEW and all(map(_can_be_typed, value))
    return value is None or callable(value) or isinstance(value, bool | int | float | str | Path)


def _plain_name(value: Any) -> str:
    return named(value) if callable(value) else str(value)
