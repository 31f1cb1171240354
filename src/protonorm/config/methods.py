"""The experiments of a comparison: methods × seeds, from the words of a command line or from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protonorm.algorithms import ALGORITHMS
from protonorm.algorithms.local import Local
from protonorm.config.components import build, registered_name
from protonorm.config.experiment import Experiment
from protonorm.config.parsing import assign, parse_value, read_settings
from protonorm.core.types import shown

Experiments = dict[str, list[Experiment]]  # of each method, one for each seed


def experiments_of(methods: Sequence[Any], given: Mapping[str, Any] | None = None) -> Experiments:
    """Make each method's experiments, one for each seed; `local` is always beside them.

    Methods are words or objects; words that are no methods are settings, and so are those that are given.
    """
    named = [one for one in methods if not isinstance(one, str) or is_method(one)]
    settings = _settings_in(methods)
    for name, value in (given or {}).items():
        if isinstance(value, str | Mapping) or "." in name:
            assign(settings, name, value)
        else:
            settings[name] = value
    if not named:
        raise ValueError(f"There is no method to compare; known: {', '.join(sorted(ALGORITHMS))}.")
    if "algorithm" in settings:
        raise ValueError("Give methods by themselves, such as protonorm:gamma=50 and fedproto, not as algorithm=….")
    settings.pop("tracker", None)
    seeds = read_seeds(settings.pop("seeds", settings.pop("seed", 0)))
    return {
        name: [Experiment.of(settings | {"algorithm": method, "seed": seed}) for seed in seeds]
        for name, method in _by_name([*named, "local"]).items()
    }


def beside_controls(experiments: Experiments, controls: Experiments) -> Experiments:
    """Put each method's solo control after it; Local needs none, as nothing is exchanged in it."""
    if any(one.control == "solo" for some in experiments.values() for one in some):
        raise ValueError("control=solo is refused with --solo (solo=True), which runs each method with and without it.")
    found = {}
    for method, some in experiments.items():
        found[method] = some
        if not isinstance(some[0].algorithm, Local):
            found[f"{method} (solo)"] = controls[method]
    return found


def tracker_of(words: Sequence[Any]) -> Any:
    """Find the tracker among the words; it decides no number, so that no experiment has it."""
    return _settings_in(words).get("tracker")


def is_method(word: str) -> bool:
    """Tell `protonorm`, `protonorm:gamma=50` and `mine.py:Mine` from `rounds=50` and `settings.yaml`."""
    return ":" in word.partition("=")[0] or not ("=" in word or word.endswith((".yaml", ".yml")))


def read_method(method: str) -> dict[str, Any]:
    """Read a method: a name or a user's own file.py:Class, and perhaps :field=value,field=value."""
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
    """Read seeds=3 or seeds=0,1,2; in Python also a list, a range or an array of them."""
    if isinstance(value, str):
        return [seed.strip() for seed in value.split(",")]
    if hasattr(value, "tolist"):
        value = value.tolist()
    seeds = list(value) if isinstance(value, Sequence) else [value]
    if not seeds:
        raise ValueError("seeds=[] is refused: expected at least one seed, such as seeds=0,1,2.")
    return seeds


def _settings_in(words: Sequence[Any]) -> dict[str, Any]:
    return read_settings([word for word in words if isinstance(word, str) and not is_method(word)])


def _by_name(given: Sequence[Any]) -> dict[str, Any]:
    """Name the methods as a table does; of two different ones with one name the second has a number."""
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
    """Name a method that was given as an object or a class."""
    try:
        method = given() if isinstance(given, type) else given
    except TypeError:
        raise ValueError(f"{shown(given)} needs settings; give an object of it.") from None
    return registered_name("algorithm", method) or type(method).__name__, method
