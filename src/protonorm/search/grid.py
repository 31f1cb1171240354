"""The grid of a sweep: methods × values × seeds, as experiments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from protonorm.config.components import build, known_fields
from protonorm.config.experiment import Experiment
from protonorm.config.methods import read_method
from protonorm.config.parsing import NESTED, assign
from protonorm.core.types import shown
from protonorm.search.words import Entries, read_entries

MOST = 10_000  # runs of a grid
DATA = ("dataset", "partition", "clients", "train", "validation")  # settings that make another problem of it

Settings = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Point:
    """One choice of settings for one method, with its run for each seed."""

    method: str  # as it was given
    chosen: Settings  # values of the swept settings that the method has, named as they were given
    fixed: Settings  # all other settings but seeds, likewise
    settings: dict[int, Settings]  # by seed, as an experiment takes them
    experiments: dict[int, Experiment]  # by seed

    @property
    def problem(self) -> tuple[tuple[str, str], ...]:
        """Name the swept settings of its data: accuracies on other data cannot be compared."""
        return tuple((name, str(value)) for name, value in self.chosen.items() if name.split(".")[0] in DATA)

    @property
    def names(self) -> tuple[str, ...]:
        """Name its runs, with their rounds, which a run's key may leave out."""
        return tuple(f"{one.key} {one.rounds}" for one in self.experiments.values())


@dataclass(frozen=True)
class Grid:
    """All points of a sweep."""

    points: list[Point]
    swept: list[str]  # names of settings with several values, in the order given
    seeds: list[int]
    remarks: list[str]  # what whoever reads the screen should know

    def runs(self) -> Iterator[tuple[Point, int, Experiment]]:
        """Go through all runs, the first seed of every point first."""
        for seed in self.seeds:
            for point in self.points:
                yield point, seed, point.experiments[seed]


def read_grid(words: Sequence[str]) -> Grid:
    """Make all experiments of a sweep, or say in a sentence what is wrong with the words."""
    methods, entries = read_entries(words)
    seed = entries.pop("seed", [0])
    seeds = entries.pop("seeds", None) or seed  # seeds win, as in `compare`
    names = {method: _own_names(method, entries, methods) for method in methods}
    remarks = _remarks(entries, names)
    whole = sum(math.prod(len(entries[name]) for name in own) for own in names.values()) * len(seeds)
    if whole > MOST:
        raise ValueError(f"This grid has {whole} runs; one sweep runs {MOST} at most.")
    swept = [name for name, values in entries.items() if len(values) > 1]
    points: dict[tuple[str, ...], Point] = {}
    for method, own in names.items():
        for values in product(*(entries[name] for name in own)):
            point = _point(method, dict(zip(own, values, strict=True)), swept, seeds)
            points.setdefault(point.names, point)  # equal ones are run once
    made = list(points.values())
    return Grid(made, swept, list(made[0].experiments), remarks)


def settings_of(method: str, given: Mapping[str, Any], seed: Any) -> Settings:
    """Put the settings of one run together."""
    settings: Settings = {"algorithm": read_method(method), "seed": seed}
    for name, value in given.items():
        assign(settings, real_name(method, name), value)
    return settings


def refuse_blind(experiment: Experiment) -> Experiment:
    """Refuse an experiment that has no validation accuracy to choose by."""
    if not experiment.validation:
        raise ValueError("validation=0 is refused: settings are chosen by validation accuracy, never by the test part.")
    if experiment.evaluate != "all" and experiment.evaluate_all_every is None:
        raise ValueError(
            "evaluate=cohort is refused: settings are chosen by rounds in which everybody is evaluated; "
            "evaluate_all_every=… says how often that is."
        )
    if not experiment.rounds:
        raise ValueError("rounds=0 is refused: there is nothing to choose by.")
    return experiment


def method_fields(method: str) -> dict[str, list[str]]:
    """List the settings of a method, each with the settings that it has itself."""
    return known_fields(type(build("algorithm", read_method(method))))


def has_field(fields: Mapping[str, Sequence[str]], name: str) -> bool:
    """Tell whether a method has a setting: gamma, or schedule.eta."""
    first, _, inner = name.partition(".")
    return first in fields and (not inner or inner in fields[first])


def base_name(method: str) -> str:
    """Give a method's name without its settings."""
    return method.partition(":")[0]


def real_name(method: str, name: str) -> str:
    """Turn protonorm.gamma, which is for one method alone, into algorithm.gamma."""
    owner, dot, field = name.partition(".")
    return f"algorithm.{field}" if dot and owner == base_name(method) and owner not in NESTED else name


def _point(method: str, given: Settings, swept: Sequence[str], seeds: Sequence[Any]) -> Point:
    made = [settings_of(method, given, seed) for seed in seeds]
    experiments = [refuse_blind(Experiment.of(one)) for one in made]
    return Point(
        method,
        chosen={name: value for name, value in given.items() if name in swept},
        fixed={name: value for name, value in given.items() if name not in swept},
        settings={one.seed: settings for one, settings in zip(experiments, made, strict=True)},
        experiments={one.seed: one for one in experiments},
    )


def _own_names(method: str, entries: Entries, methods: Sequence[str]) -> list[str]:
    """List the settings that are for a method: all but those that only other methods have."""
    fields, named = method_fields(method), {base_name(one) for one in methods} - set(NESTED)

    def is_own(name: str) -> bool:
        owner, dot, field = name.partition(".")
        if owner == "algorithm":
            return has_field(fields, field)
        return not dot or owner not in named or owner == base_name(method)

    return [name for name in entries if is_own(name)]


def _remarks(entries: Entries, names: Mapping[str, Sequence[str]]) -> list[str]:
    """Say which methods run without a setting that others have; refuse one that no method has."""
    remarks = []
    for name in entries:
        lacking = [method for method, own in names.items() if name not in own]
        if len(lacking) == len(names):
            raise ValueError(f"{shown(name)} is refused: {' and '.join(names)} do not have this setting.")
        if lacking and name.startswith("algorithm."):
            remarks.append(f"Without {name}, which is no setting of theirs: {', '.join(lacking)}.")
    return remarks
