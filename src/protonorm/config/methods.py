"""The experiments of a comparison: methods × seeds, from the words of a command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protonorm.algorithms import ALGORITHMS
from protonorm.config.experiment import Experiment
from protonorm.config.parsing import assign, parse_value, read_settings
from protonorm.core.types import shown


def experiments_of(words: Sequence[str]) -> dict[str, list[Experiment]]:
    """Make each method's experiments, one for each seed; `local` is always beside them."""
    methods = [word for word in words if is_method(word)]
    settings = read_settings([word for word in words if not is_method(word)])
    if not methods:
        raise ValueError(f"There is no method to compare; known: {', '.join(sorted(ALGORITHMS))}.")
    if "algorithm" in settings:
        raise ValueError("Name methods as words of their own (protonorm:gamma=50 fedproto), not as algorithm=….")
    settings.pop("tracker", None)
    seeds = read_seeds(settings.pop("seeds", settings.pop("seed", 0)))
    return {
        method: [Experiment.of(settings | {"algorithm": read_method(method), "seed": seed}) for seed in seeds]
        for method in dict.fromkeys([*methods, "local"])
    }


def tracker_of(words: Sequence[str]) -> Any:
    """Find the tracker among the words; it decides no number, so that no experiment has it."""
    return read_settings([word for word in words if not is_method(word)]).get("tracker")


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
    """Read seeds=3 or seeds=0,1,2."""
    if isinstance(value, str):
        return [seed.strip() for seed in value.split(",")]
    if value == []:
        raise ValueError("seeds=[] is refused: expected at least one seed, such as seeds=0,1,2.")
    return value if isinstance(value, list) else [value]
