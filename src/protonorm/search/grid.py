"""Grid of a sweep: methods × values × seeds as experiments, and chosen points as commands."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from protonorm.algorithms import ALGORITHMS
from protonorm.config.components import build
from protonorm.config.experiment import Experiment
from protonorm.config.hints import is_method_setting
from protonorm.config.methods import read_method
from protonorm.config.parsing import (
    NESTED,
    assign,
    is_method,
    parse_value,
    read_seeds,
    read_yaml,
    seeds_word,
    split_values,
)
from protonorm.core.settings import known_fields
from protonorm.core.types import shown
from protonorm.report.page.commands import shell_text
from protonorm.report.page.groups import setting_text

MAX_RUNS = 10_000  # maximum number of runs of a grid
DATA = ("dataset", "partition", "clients", "train", "validation")  # settings that change the learning problem
METHODS = ("methods", "algorithm")  # settings of a YAML file that name methods

Settings = dict[str, Any]
Entries = dict[str, list[Any]]  # values of each setting, as entered


@dataclass(frozen=True, eq=False)
class Point:
    """Choice of settings for one method, with an experiment per seed."""

    method: str  # as entered
    chosen: Settings  # values of the method's swept settings, named as entered
    fixed: Settings  # all other settings except seeds, named as entered
    settings: dict[int, Settings]  # by seed, as input of `Experiment.of`
    experiments: dict[int, Experiment]  # by seed

    @property
    def problem(self) -> tuple[tuple[str, str], ...]:
        """Swept settings of the data, as text: accuracies are only comparable on the same data."""
        return tuple((name, str(value)) for name, value in self.chosen.items() if name.split(".")[0] in DATA)


@dataclass(frozen=True)
class Grid:
    """Points of a sweep."""

    points: list[Point]
    swept: list[str]  # names of settings with several values, in the order entered
    seeds: list[int]
    remarks: list[str]  # messages for the user

    def runs(self) -> Iterator[tuple[Point, int, Experiment]]:
        """Iterate over all runs, seed by seed."""
        return ((point, seed, point.experiments[seed]) for seed in self.seeds for point in self.points)


def read_grid(words: Sequence[str]) -> Grid:
    """Parse a sweep from command-line words; raise a ValueError if they are invalid."""
    methods, entries = read_entries(words)
    seed = entries.pop("seed", [0])
    seeds = entries.pop("seeds", None) or seed  # `seeds` takes precedence, as in `compare`
    names = {method: _own_names(method, entries, methods) for method in methods}
    remarks = _remarks(entries, names)
    count = sum(math.prod(len(entries[name]) for name in own) for own in names.values()) * len(seeds)
    if count > MAX_RUNS:
        raise ValueError(f"This grid has {count} runs; one sweep runs {MAX_RUNS} at most.")
    swept = [name for name, values in entries.items() if len(values) > 1]
    points: dict[tuple[tuple[str, int], ...], Point] = {}
    for method, own in names.items():
        for values in product(*(entries[name] for name in own)):
            point = _point(method, dict(zip(own, values, strict=True)), swept, seeds)
            runs = tuple((run.key, run.rounds) for run in point.experiments.values())  # keys may not include rounds
            points.setdefault(runs, point)  # duplicates are run once
    unique = list(points.values())
    return Grid(unique, swept, list(unique[0].experiments), remarks)


def read_entries(words: Sequence[str]) -> tuple[list[str], Entries]:
    """Parse methods and values: key=a,b,c has three values, key=[a,b] has one; in a YAML file, a list has several."""
    entries = Entries()
    for word in words:
        name, equals, text = word.partition("=")
        if is_method(word):
            entries.setdefault("methods", []).append(word)
        else:
            entry = {name.strip(): [parse_value(name, part) for part in split_values(text)]} if equals else {}
            if name.strip() == "seeds":
                entry = {"seeds": read_seeds(parse_value(name, text))}
            for key, values in (entry or _flat(read_yaml(Path(word)))).items():
                entries.pop(key, None)  # a later entry replaces value and position
                entries[key] = values
    for name, values in entries.items():
        if not values:
            raise ValueError(f"{shown(name)} has an empty list; expected at least one value.")
    methods = [str(method) for name in METHODS for method in entries.pop(name, [])]
    if not methods:
        raise ValueError(f"There is no method to run; known: {', '.join(sorted(ALGORITHMS))}.")
    chosen = {name: values[0] for name, values in entries.items()}
    owned = {name: is_method_setting(name, methods, chosen) for name in entries}
    entries = {f"algorithm.{name}" if owned[name] else name: values for name, values in entries.items()}
    return list(dict.fromkeys(methods)), entries


def _flat(content: Mapping[str, Any]) -> Entries:
    """Flatten the settings of a YAML file: a list holds values, a list inside it is one value, a map is nested."""
    pairs: list[tuple[str, Any]] = []
    for name, value in content.items():
        nested = name in NESTED and isinstance(value, Mapping)
        inner = value.items() if nested else [("name", read_seeds(value) if name == "seeds" else value)]
        pairs += [(str(name) if field == "name" else f"{name}.{field}", values) for field, values in inner]
    return {name: values if isinstance(values, list) else [values] for name, values in pairs}


def settings_of(method: str, chosen: Mapping[str, Any], seed: Any) -> Settings:
    """Build the settings of a run."""
    settings: Settings = {"algorithm": read_method(method), "seed": seed}
    for name, value in chosen.items():
        assign(settings, real_name(method, name), value)
    return settings


def refuse_blind(experiment: Experiment) -> Experiment:
    """Return the experiment; raise a ValueError if it has no validation accuracy to select by."""
    if not experiment.validation:
        raise ValueError("validation must be above 0: settings are chosen by validation accuracy, never by test.")
    if experiment.evaluate != "all" and experiment.evaluate_all_every is None:
        raise ValueError(
            "evaluate=cohort needs evaluate_all_every=…: all clients must be evaluated to choose settings."
        )
    if not experiment.rounds:
        raise ValueError("rounds must be above 0: there is nothing to choose by.")
    return experiment


def real_name(method: str, name: str) -> str:
    """Convert a method-specific name such as protonorm.gamma to algorithm.gamma."""
    owner, dot, field = name.partition(".")
    return f"algorithm.{field}" if dot and owner == method.partition(":")[0] and owner not in NESTED else name


def commands(points: Sequence[Point]) -> list[str]:
    """Return shell commands that run the points; methods with equal other settings share one `compare` command."""
    groups: dict[str, list[tuple[Point, str, dict[str, str], Settings]]] = {}
    for point in points:
        name, fields, other_settings = _parts(point)
        groups.setdefault(str((point.problem, other_settings)), []).append((point, name, fields, other_settings))
    lines = []
    for group in groups.values():
        (first, _, _, other_settings), *_ = group
        seeds, words = list(first.experiments), [f"{key}={setting_text(item)}" for key, item in other_settings.items()]
        comma = any("," in value for _, _, fields, _ in group for value in fields.values())  # it would split fields
        if (len(group) == 1 and len(seeds) == 1) or comma or "auxiliary" in other_settings:
            for _, name, fields, _ in group:
                own = [f"algorithm={name}", *(f"algorithm.{field}={value}" for field, value in fields.items())]
                lines += [shell_text("run", [*own, *words, f"seed={seed}"]) for seed in seeds]
        else:
            texts = [",".join(f"{field}={value}" for field, value in fields.items()) for _, _, fields, _ in group]
            methods = [":".join(filter(None, [name, text])) for (_, name, _, _), text in zip(group, texts, strict=True)]
            lines.append(shell_text("compare", [*methods, *words, seeds_word(seeds)]))
    return lines


def _parts(point: Point) -> tuple[str, dict[str, str], Settings]:
    """Split a point into the method's name, the method's settings as text, and all other settings."""
    name, _, text = point.method.partition(":")
    if name.endswith(".py"):
        own, _, text = text.partition(":")
        name = f"{name}:{own}"
    fields, other_settings = dict(field.split("=", 1) for field in split_values(text) if field), Settings()
    for key, value in (point.fixed | point.chosen).items():
        owner, _, field = real_name(point.method, key).partition(".")
        if owner == "algorithm" and field:
            fields[field] = setting_text(value)
        else:
            other_settings[key] = value
    return name, fields, other_settings


def _point(method: str, chosen: Settings, swept: Sequence[str], seeds: Sequence[Any]) -> Point:
    per_seed = [settings_of(method, chosen, seed) for seed in seeds]
    experiments = [refuse_blind(Experiment.of(settings)) for settings in per_seed]
    return Point(
        method,
        chosen={name: value for name, value in chosen.items() if name in swept},
        fixed={name: value for name, value in chosen.items() if name not in swept},
        settings={run.seed: settings for run, settings in zip(experiments, per_seed, strict=True)},
        experiments={run.seed: run for run in experiments},
    )


def _own_names(method: str, entries: Entries, methods: Sequence[str]) -> list[str]:
    """List the settings that apply to a method: all except those that only others have, or that its word gives."""
    given = read_method(method)
    fields = known_fields(type(build("algorithm", read_method(method))))  # each with its nested settings
    bare_names = {name.partition(":")[0] for name in methods} - set(NESTED)

    def is_own(name: str) -> bool:
        owner, dot, field = name.partition(".")
        first, _, inner = field.partition(".")
        if owner == "algorithm":
            return first in fields and (not inner or inner in fields[first]) and first not in given
        return not dot or owner not in bare_names or owner == method.partition(":")[0]

    return [name for name in entries if is_own(name)]


def _remarks(entries: Entries, names: Mapping[str, Sequence[str]]) -> list[str]:
    """Return remarks on methods that lack a setting of others; raise a ValueError if all methods lack it."""
    remarks = []
    for name in entries:
        lacking = [method for method, own in names.items() if name not in own]
        given = [method for method in lacking if name.removeprefix("algorithm.") in read_method(method)]
        if len(lacking) == len(names):
            if given:
                raise ValueError(f"{shown(name)} must be given once: {' and '.join(given)} would not take it.")
            raise ValueError(f"{shown(name)} must be a setting of a method, and {' and '.join(names)} do not have it.")
        if name.startswith("algorithm.") and (others := [method for method in lacking if method not in given]):
            remarks.append(f"Without {name}, which is no setting of theirs: {', '.join(others)}.")
    return remarks
