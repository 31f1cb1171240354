"""Settings of an experiment that have to fit each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protonorm.core.algorithm import Algorithm
from protonorm.core.types import shown
from protonorm.models.choose import Choice, chosen, describe_choice, networks

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
    algorithm, different = experiment.algorithm, len(set(networks(experiment.models)))
    if algorithm.needs_shared_network and different > 1:
        raise ValueError(
            f"{type(algorithm).__name__} averages whole models, so that all clients need the same network, "
            f"but models={shown(describe_choice(experiment.models))} has {different} different ones."
        )
    if experiment.momentum and experiment.optimiser != "sgd":
        raise ValueError(
            f"momentum={experiment.momentum:g} is refused: {experiment.optimiser} has moments of its own; "
            "it is for sgd alone."
        )
    if experiment.early_stopping and not experiment.validation:
        raise ValueError("early_stopping needs a validation part; validation=0 turns it off.")
    if not experiment.tested and not experiment.validation:
        raise ValueError("tested=false needs a validation part: with validation=0 nothing would be evaluated.")
