"""Search space: ranges and choices of settings, and fixed settings."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from protonorm.config.experiment import Experiment
from protonorm.config.hints import is_method_setting
from protonorm.config.parsing import is_method, parse_value, read_yaml, split_values
from protonorm.core.types import shown
from protonorm.search.grid import DATA, METHODS, Settings, refuse_blind, settings_of

NUMBER = r"([-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?)"
RANGE = re.compile(rf"{NUMBER}\.\.{NUMBER}(:log)?", re.IGNORECASE)
LIKE_RANGE = re.compile(rf"{NUMBER}\.\..*", re.IGNORECASE)
# Settings that change the problem, so that validation accuracies are not comparable.
UNTUNED = (*DATA, "seed", "rounds", "evaluate", "evaluate_every", "evaluate_all_every", "tested", "control")
DIGITS = 4  # significant digits of suggested numbers, few enough to type
INSIDE = 0.3819660113  # position in a range that is neither an integer nor a simple fraction


@dataclass(frozen=True)
class Range:
    """Interval of numbers from low to high."""

    low: float
    high: float
    log: bool = False  # whether values are uniform on a logarithmic scale
    whole: bool = False

    def at(self, share: float) -> float | int:
        """Return the number at a relative position from 0 to 1."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        value = low + share * (high - low)
        return self.fitted(math.exp(value) if self.log else value)

    def fitted(self, value: float) -> float | int:
        """Round a number to DIGITS significant digits, inside the range."""
        inside = min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)
        return round(inside) if self.whole else inside


@dataclass(frozen=True)
class Choices:
    """Unordered set of values."""

    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """Return the value at a relative position from 0 to 1."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]


Dimension = Range | Choices


@dataclass(frozen=True)
class Space:
    """Search space of a method: fixed settings and searched dimensions."""

    method: str
    fixed: Settings
    dimensions: dict[str, Dimension]  # by name, as in `Experiment.of`
    seed: int

    @property
    def first(self) -> Settings:
        """First value of each searched setting."""
        return {name: dimension.at(0.0) for name, dimension in self.dimensions.items()}

    def experiment(self, values: Mapping[str, Any], seed: int | None = None, *, tested: bool) -> Experiment:
        """Build an experiment with the given values; during a search, `tested` is False."""
        settings = self.fixed | dict(values) | ({} if tested else {"tested": False})
        return refuse_blind(Experiment.of(settings_of(self.method, settings, self.seed if seed is None else seed)))

    @property
    def name(self) -> str:
        """Name of the search: readable words, and a hash of all that determines it except the number of trials."""
        base = self.experiment(self.first, tested=False)
        pairs = self.dimensions.items()
        plain = {name: [type(dimension).__name__, *vars(dimension).values()] for name, dimension in pairs}
        decisive = json.dumps([base.key, base.rounds, plain], default=str)
        words = base.key.rsplit("-", 2)[0]
        return f"{words}-{hashlib.sha256(decisive.encode()).hexdigest()[:10]}"


def read_space(words: Sequence[str]) -> Space:
    """Parse a method, settings, ranges such as gamma=10..1000:log, and choices such as optimiser=sgd|adam."""
    methods = [word for word in words if is_method(word)]
    settings: dict[str, Any] = {}
    for word in (word for word in words if word not in methods):  # values stay text: ranges are not YAML
        name, equals, text = word.partition("=")
        settings |= (
            {name.strip(): text} if equals else {str(key): value for key, value in read_yaml(Path(word)).items()}
        )
    for value in (settings.pop(key) for key in METHODS if isinstance(settings.get(key), str | list)):
        methods += [value] if isinstance(value, str) else map(str, value)
    if len(methods) != 1:
        problem = "none is given" if not methods else f"{' and '.join(methods)} are given"
        raise ValueError(f"A search is for one method, and {problem}; `protonorm sweep` runs several.")
    fixed, dimensions = Settings(), dict[str, Dimension]()
    for key, value in settings.items():
        name = f"algorithm.{key}" if is_method_setting(key, methods, settings) else key
        dimension = read_dimension(key, value) if isinstance(value, str) else None
        fixed.pop(name, None)
        dimensions.pop(name, None)
        if dimension is None:
            fixed[name] = parse_value(key, value) if isinstance(value, str) else value
        else:
            dimensions[name] = dimension
    return _checked(methods[0], fixed, dimensions)


def read_dimension(name: str, text: str) -> Dimension | None:
    """Parse a range or choices; return None for a plain value."""
    if match := RANGE.fullmatch(text.strip()):
        low, high = float(match[1]), float(match[2])
        if not (math.isfinite(low) and math.isfinite(high) and low < high and (low > 0 or not match[3])):
            raise ValueError(
                f"{name} must be a range of a lower and a higher number, such as 0.1..10, and :log only above 0, "
                f"got {shown(text)}."
            )
        return Range(low, high, bool(match[3]))
    if LIKE_RANGE.fullmatch(text.strip()):
        raise ValueError(f"{name} must be a range such as 10..1000 or 10..1000:log, got {shown(text)}.")
    parts = split_values(text, "|")
    return Choices(tuple(parse_value(name, part) for part in parts)) if len(parts) > 1 else None


def _checked(method: str, fixed: Settings, dimensions: dict[str, Dimension]) -> Space:
    """Build the space with integer ranges marked; raise a ValueError if any trial would be invalid."""
    if not dimensions:
        raise ValueError("There is nothing to search: give a range such as gamma=10..1000:log, or choices such as a|b.")
    for name in dimensions:
        if name.split(".")[0] in UNTUNED:
            raise ValueError(f"{name} cannot be searched: accuracies under other data, rounds or seeds do not compare.")
    if "seeds" in fixed:
        raise ValueError("A search has one seed=…, not seeds; --repeat 3 runs its best settings with 3 others.")
    if fixed.pop("tested", True) is not True:
        raise ValueError("A search has no setting tested: it never tests, and its best settings are tested in the end.")
    space = Space(method, fixed, dimensions, fixed.pop("seed", 0))
    for name, dimension in dimensions.items():
        if isinstance(dimension, Range) and not _takes_fractions(space, name, dimension):
            dimensions[name] = replace(dimension, whole=True)
    for name, dimension in dimensions.items():
        for value in dimension.values if isinstance(dimension, Choices) else (dimension.at(0.0), dimension.at(1.0)):
            space.experiment(space.first | {name: value}, tested=False)
    return Space(method, fixed, dict(sorted(dimensions.items())), space.experiment(space.first, tested=False).seed)


def _takes_fractions(space: Space, name: str, range: Range) -> bool:
    """Return whether a setting accepts fractions, by building an experiment with one."""
    if not (range.low.is_integer() and range.high.is_integer()):
        return True
    try:
        space.experiment(space.first | {name: range.low + INSIDE * (range.high - range.low)}, tested=False)
    except ValueError:
        return False
    return True
