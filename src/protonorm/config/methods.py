"""Experiments of a comparison, methods × seeds, from command-line arguments or from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from protonorm.algorithms import ALGORITHMS
from protonorm.algorithms.local import Local
from protonorm.config.components import build, registered_name
from protonorm.config.experiment import Experiment
from protonorm.config.parsing import assign, parse_value, read_settings
from protonorm.core.types import shown

Experiments = dict[str, list[Experiment]]  # by method, with an experiment for each seed


class Compared(NamedTuple):
    """Parsed arguments of a comparison."""

    experiments: Experiments
    tracker: Any = None  # not in the experiments, because it does not affect results


def experiments_of(methods: Sequence[Any], given: Mapping[str, Any] | None = None) -> Experiments:
    """Create the experiments of each method, one for each seed; `local` is always included."""
    return read_comparison(methods, given).experiments


def read_comparison(methods: Sequence[Any], given: Mapping[str, Any] | None = None, *, solo: bool = False) -> Compared:
    """Parse the methods and settings of a comparison.

    All experiments share one data set object.

    Args:
        methods: Names or objects of methods; strings that are not methods are parsed as settings.
        given: Further settings.
        solo: Whether to add a solo control after each method except Local, which exchanges nothing.
    """
    named = [one for one in methods if not isinstance(one, str) or is_method(one)]
    settings = read_settings([one for one in methods if isinstance(one, str) and not is_method(one)])
    for name, value in (given or {}).items():
        if isinstance(value, str | Mapping) or "." in name:
            assign(settings, name, value)
        else:
            settings[name] = value
    if not named:
        raise ValueError(f"There is no method to compare; known: {', '.join(sorted(ALGORITHMS))}.")
    if "algorithm" in settings:
        raise ValueError("Give methods by themselves, such as protonorm:gamma=50 and fedproto, not as algorithm=….")
    tracker = settings.pop("tracker", None)
    seeds = read_seeds(settings.pop("seeds", settings.pop("seed", 0)))
    experiments: Experiments = {}
    for name, method in _by_name([*named, "local"]).items():
        experiments[name] = []
        for seed in seeds:
            experiments[name].append(Experiment.of(settings | {"algorithm": method, "seed": seed}))
            settings["dataset"] = experiments[name][0].dataset
    return Compared(_beside_controls(experiments) if solo else experiments, tracker)


def _beside_controls(experiments: Experiments) -> Experiments:
    """Add the solo control of each method after it."""
    if any(one.control == "solo" for some in experiments.values() for one in some):
        raise ValueError("control=solo is refused with --solo (solo=True), which runs each method with and without it.")
    both: Experiments = {}
    for method, some in experiments.items():
        both[method] = some
        if not isinstance(some[0].algorithm, Local):
            both[f"{method} (solo)"] = [one.model_copy(update={"control": "solo"}) for one in some]
    return both


def is_method(word: str) -> bool:
    """Return whether a word is a method (`protonorm:gamma=50`, `mine.py:Mine`), not `rounds=50` or `settings.yaml`."""
    return ":" in word.partition("=")[0] or not ("=" in word or word.endswith((".yaml", ".yml")))


def read_method(method: str) -> dict[str, Any]:
    """Parse a method: a name or a user's file.py:Class, optionally followed by :field=value,field=value."""
    name, _, fields = method.partition(":")
    if name.endswith(".py"):
        own, _, fields = fields.partition(":")
        name = f"{name}:{own}"
    found: dict[str, Any] = {"algorithm": {"name": name}}
    for field in filter(None, fields.split(",")):
        key, equals, value = field.partition("=")
        if not equals:
            raise ValueError(f"{shown(field)} in {shown(method)} is refused: expected field=value.")
        assign(found, f"algorithm.{key}", parse_value(key, value))
    return dict(found["algorithm"])


def read_seeds(value: Any) -> list[Any]:
    """Parse seeds=3 or seeds=0,1,2; in Python also a list, a range or an array."""
    if isinstance(value, str):
        return [seed.strip() for seed in value.split(",")]
    if hasattr(value, "tolist"):
        value = value.tolist()
    seeds = list(value) if isinstance(value, Sequence) else [value]
    if not seeds:
        raise ValueError("seeds=[] is refused: expected at least one seed, such as seeds=0,1,2.")
    return seeds


def _by_name(given: Sequence[Any]) -> dict[str, Any]:
    """Return the methods by name, without duplicates; different methods of the same name are numbered."""
    found: dict[str, Any] = {}
    for one in given:
        name, method = (one, read_method(one)) if isinstance(one, str) else _object(one)
        rivals = [other for key, other in found.items() if key == name or not isinstance(one, str)]
        if any(other == method or build("algorithm", other) == build("algorithm", method) for other in rivals):
            continue
        number = sum(key == name or key.startswith(f"{name} no. ") for key in found) + 1
        found[name if number == 1 else f"{name} no. {number}"] = method
    return found


def _object(given: Any) -> tuple[str, Any]:
    """Return the name and the object of a method given as an object or a class."""
    try:
        method = given() if isinstance(given, type) else given
    except TypeError:
        raise ValueError(f"{shown(given)} needs settings; give an object of it.") from None
    return registered_name("algorithm", method) or type(method).__name__, method
