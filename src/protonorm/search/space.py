"""What a search may choose: ranges and choices of settings, beside those that are fixed."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protonorm.config.experiment import Experiment
from protonorm.config.methods import is_method
from protonorm.config.parsing import parse_value, read_yaml
from protonorm.core.types import shown
from protonorm.search.grid import DATA, Settings, has_field, method_fields, refuse_blind, settings_of
from protonorm.search.words import split_values

NUMBER = r"([-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?)"
RANGE = re.compile(rf"{NUMBER}\.\.{NUMBER}(:log)?", re.IGNORECASE)
LIKE_RANGE = re.compile(rf"{NUMBER}\.\..*", re.IGNORECASE)
UNTUNED = (
    *DATA,
    "seed",
    "rounds",
    "evaluate",
    "evaluate_every",
    "evaluate_all_every",
    "tested",
    "control",
)  # they make another problem of it
DIGITS = 4  # of a number that is tried: enough to choose by, few enough to be typed again
INSIDE = 0.3819660113  # a place in a range that is no whole number, and no simple fraction


@dataclass(frozen=True)
class Range:
    """Numbers from low to high."""

    low: float
    high: float
    log: bool = False  # whether each factor of ten is tried as often as any other
    whole: bool = False

    def at(self, share: float) -> float | int:
        """Give the number at a share, from 0 to 1, of the way."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        value = low + share * (high - low)
        return self.fitted(math.exp(value) if self.log else value)

    def fitted(self, value: float) -> float | int:
        """Write a number with few digits, inside the range."""
        inside = min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)
        return round(inside) if self.whole else inside


@dataclass(frozen=True)
class Choices:
    """Some values, none nearer to another than to all others."""

    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """Give the value at a share, from 0 to 1, of the list."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]


Dimension = Range | Choices


@dataclass(frozen=True)
class Space:
    """A method, its fixed settings, and those that are searched."""

    method: str
    fixed: Settings
    dimensions: dict[str, Dimension]  # by name, as an experiment takes it
    seed: int

    def experiment(self, values: Mapping[str, Any], seed: int | None = None, *, tested: bool) -> Experiment:
        """Make an experiment with chosen values; while settings are searched for, nothing is tested."""
        given = self.fixed | dict(values) | ({} if tested else {"tested": False})
        return refuse_blind(Experiment.of(settings_of(self.method, given, self.seed if seed is None else seed)))

    @property
    def name(self) -> str:
        """Name the search: readable words, and a hash of all that decides it but the number of trials."""
        base = self.experiment({name: one.at(0.0) for name, one in self.dimensions.items()}, tested=False)
        plain = {name: [type(one).__name__, *vars(one).values()] for name, one in self.dimensions.items()}
        decisive = json.dumps([base.key, base.rounds, plain], default=str)
        words = base.key.rsplit("-", 2)[0]
        return f"{words}-{hashlib.sha256(decisive.encode()).hexdigest()[:10]}"


def read_space(words: Sequence[str]) -> Space:
    """Read a method, settings, ranges such as gamma=10..1000:log, and choices such as optimiser=sgd|adam."""
    methods = [word for word in words if is_method(word)]
    if len(methods) != 1:
        found = "none is given" if not methods else f"{' and '.join(methods)} are given"
        raise ValueError(f"A search is for one method, and {found}; `protonorm sweep` runs several.")
    fields = method_fields(methods[0])
    fixed: Settings = {}
    dimensions: dict[str, Dimension] = {}
    for given, value in _settings([word for word in words if not is_method(word)]).items():
        name = f"algorithm.{given}" if has_field(fields, given) else given
        found_dimension = read_dimension(given, value) if isinstance(value, str) else None
        fixed.pop(name, None)
        dimensions.pop(name, None)
        if found_dimension is None:
            fixed[name] = parse_value(given, value) if isinstance(value, str) else value
        else:
            dimensions[name] = found_dimension
    return _checked(methods[0], fixed, dimensions)


def read_dimension(name: str, text: str) -> Dimension | None:
    """Read a range or a choice; None for a plain value."""
    if match := RANGE.fullmatch(text.strip()):
        low, high = float(match[1]), float(match[2])
        if not (math.isfinite(low) and math.isfinite(high) and low < high and (low > 0 or not match[3])):
            raise ValueError(
                f"{name}={shown(text)} is refused: expected a lower and a higher number, such as 0.1..10, "
                "and :log for numbers above 0 alone."
            )
        return Range(low, high, bool(match[3]))
    if LIKE_RANGE.fullmatch(text.strip()):
        raise ValueError(f"{name}={shown(text)} is refused: expected a range such as 10..1000 or 10..1000:log.")
    parts = split_values(text, "|")
    return Choices(tuple(parse_value(name, part) for part in parts)) if len(parts) > 1 else None


def _settings(words: Sequence[str]) -> dict[str, Any]:
    """Join the words; values stay as they were written, as ranges are no YAML."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        found |= {name.strip(): text} if equals else {str(key): value for key, value in read_yaml(Path(word)).items()}
    return found


def _checked(method: str, fixed: Settings, dimensions: dict[str, Dimension]) -> Space:
    """Refuse before anything is run what some trial would be refused for, and find out what is whole."""
    if not dimensions:
        raise ValueError("There is nothing to search: give a range such as gamma=10..1000:log, or choices such as a|b.")
    for name in dimensions:
        if name.split(".")[0] in UNTUNED:
            raise ValueError(f"{name} cannot be searched: accuracies under other data, rounds or seeds do not compare.")
    if "seeds" in fixed:
        raise ValueError("seeds is refused: a search has one seed, and its best settings are run again with others.")
    if fixed.pop("tested", True) is not True:
        raise ValueError("tested is refused: a search never tests, and its best settings are tested in the end.")
    seed = fixed.pop("seed", 0)
    space = Space(method, fixed, dimensions, seed)
    usual = {name: one.at(0.0) for name, one in dimensions.items()}
    for name, one in dimensions.items():
        if isinstance(one, Range) and not _takes_fractions(space, usual, name, one):
            dimensions[name] = one = Range(one.low, one.high, one.log, whole=True)
            usual[name] = one.at(0.0)
    for name, one in dimensions.items():
        values = one.values if isinstance(one, Choices) else (one.low, one.high)
        for value in values:
            space.experiment(usual | {name: one.fitted(value) if isinstance(one, Range) else value}, tested=False)
    return Space(method, fixed, dict(sorted(dimensions.items())), space.experiment(usual, tested=False).seed)


def _takes_fractions(space: Space, usual: Settings, name: str, one: Range) -> bool:
    """Find out whether a setting takes fractions by giving it one."""
    if not (one.low.is_integer() and one.high.is_integer()):
        return True
    others = {key: value for key, value in usual.items() if key != name}
    try:
        space.experiment(others | {name: one.low + INSIDE * (one.high - one.low)}, tested=False)
    except ValueError:
        return False
    return True
