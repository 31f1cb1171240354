"""Settings of an experiment that have to fit each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protonorm.core.algorithm import Algorithm
from protonorm.core.types import shown
from protonorm.models.choose import Choice, chosen, describe_choice, networks
from protonorm.models.widths import SCALABLE, base_and_width

if TYPE_CHECKING:
    from protonorm.config.experiment import Experiment


def second_network(given: Any, algorithm: Algorithm, models: Choice) -> Any:
    """Choose the second network of a method that has one: the one given, or the first of the models."""
    if not algorithm.auxiliary:
        if given is not None:
            raise ValueError(f"auxiliary={shown(given)} is refused: {type(algorithm).__name__} has no second network.")
        return None
    found = networks(models)[:1] if given is None else networks(chosen(given, "auxiliary"))
    if len(found) > 1:
        raise ValueError(f"auxiliary={shown(given)} is refused: expected one network, not {len(found)}.")
    return found[0]


def refuse_contradictions(experiment: Experiment) -> None:
    """Refuse settings that are fine by themselves, but not together."""
    _refuse_different_networks(experiment)
    if experiment.momentum and experiment.optimiser != "sgd":
        raise ValueError(
            f"momentum={experiment.momentum:g} is refused: {experiment.optimiser} has moments of its own; "
            "it is for sgd alone."
        )
    if experiment.early_stopping and not experiment.validation:
        raise ValueError("early_stopping needs a validation part; validation=0 turns it off.")
    if not experiment.tested and not experiment.validation:
        raise ValueError("tested=false needs a validation part: with validation=0 nothing would be evaluated.")


def _refuse_different_networks(experiment: Experiment) -> None:
    """Refuse different networks for a method that averages whole ones, but widths of one where it cuts them out."""
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
