"""What a comparison runs: methods × seeds, from the words of a command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protonorm.algorithms import ALGORITHMS
from protonorm.configuration import assign, parse_value, read_settings
from protonorm.experiment import Experiment
from protonorm.registry import find


def plan(words: Sequence[str]) -> dict[str, list[Experiment]]:
    """Give each method's experiments, one a seed; `local` is always beside them."""
    methods = [word for word in words if _is_method(word)]
    settings = read_settings([word for word in words if not _is_method(word)])
    if not methods:
        raise ValueError(f"There is no method to compare; known: {', '.join(sorted(ALGORITHMS))}.")
    if "algorithm" in settings:
        raise ValueError("Name methods as words of their own (protonorm:gamma=50 fedproto), not as algorithm=….")
    seeds = _seeds(settings.pop("seeds", settings.pop("seed", 0)))
    return {
        method: [Experiment.of(settings | {"algorithm": _algorithm(method), "seed": seed}) for seed in seeds]
        for method in dict.fromkeys([*methods, "local"])
    }


def _is_method(word: str) -> bool:
    """Tell `protonorm:gamma=50` and `protonorm` from `rounds=50` and `settings.yaml`."""
    return ":" in word.partition("=")[0] or not ("=" in word or word.endswith((".yaml", ".yml")))


def _algorithm(method: str) -> dict[str, Any]:
    name, _, fields = method.partition(":")
    find(ALGORITHMS, name, "algorithm")
    found: dict[str, Any] = {"algorithm": {"name": name}}
    for field in filter(None, fields.split(",")):
        key, equals, value = field.partition("=")
        if not equals:
            raise ValueError(f"{field!r} in {method!r} is refused: expected field=value.")
        assign(found, f"algorithm.{key}", parse_value(key, value))
    return dict(found["algorithm"])


def _seeds(value: Any) -> list[Any]:
    return [seed.strip() for seed in value.split(",")] if isinstance(value, str) else value if isinstance(value, list) else [value]
