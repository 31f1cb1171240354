"""Experiments of a comparison, methods × seeds, from command-line arguments or from Python."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from protonorm.algorithms import ALGORITHMS
from protonorm.config.components import build, registered_name
from protonorm.config.experiment import Experiment
from protonorm.config.hints import component_class, is_method_setting
from protonorm.config.parsing import assign, is_method, read_pairs, read_seeds, with_fields
from protonorm.core.settings import known_fields
from protonorm.core.text import shortened
from protonorm.core.types import shown

Experiments = dict[str, list[Experiment]]  # by method, with an experiment for each seed


class Compared(NamedTuple):
    """Parsed arguments of a comparison."""

    experiments: Experiments
    tracker: Any = None  # not in the experiments, because it does not affect results


def read_comparison(
    methods: Sequence[Any], further: Mapping[str, Any] | None = None, *, solo: bool = False
) -> Compared:
    """Parse the methods and settings of a comparison.

    The method `local` is always included, and all experiments share one data set object.

    Args:
        methods: Names or objects of methods, or mappings of labels to them; strings that are not methods are parsed as
            settings.
        further: Further settings.
        solo: Whether to add a solo control after each method except Local, which exchanges nothing.
    """
    labels = {id(method): label for item in methods if isinstance(item, Mapping) for label, method in item.items()}
    methods = [method for item in methods for method in (item.values() if isinstance(item, Mapping) else [item])]
    chosen = [method for method in methods if not isinstance(method, str) or is_method(method)]
    pairs = read_pairs([word for word in methods if isinstance(word, str) and not is_method(word)])
    for name, value in [*pairs, *(further or {}).items()]:
        if name == "methods":  # of a YAML file
            chosen += [value] if isinstance(value, str) else value
    if not chosen:
        raise ValueError(f"There is no method to compare; known: {', '.join(sorted(ALGORITHMS))}.")
    settings = assigned(pairs, further or {}, chosen)
    settings.pop("methods", None)
    common = settings.pop("algorithm", {})
    if not isinstance(common, Mapping) or "name" in common:
        raise ValueError("Give methods by themselves, such as protonorm:gamma=50 and fedproto, not as algorithm=….")
    tracker, seed = settings.pop("tracker", None), settings.pop("seed", 0)
    seeds = read_seeds(settings.pop("seeds") if "seeds" in settings else [seed] if isinstance(seed, int) else seed)
    experiments: Experiments = {}
    for name, method in _by_name([*chosen, "local"], common, labels).items():
        experiments[name] = []
        for seed in seeds:
            experiments[name].append(Experiment.of(settings | {"algorithm": method, "seed": seed}))
            settings["dataset"] = experiments[name][0].dataset
    return Compared(_beside_controls(experiments) if solo else experiments, tracker)


def read_experiment(words: Sequence[str]) -> dict[str, Any]:
    """Parse the settings of one run; a name without owner may mean a setting of its method."""
    pairs = read_pairs(words)
    method = [value for name, value in pairs if name in ("algorithm", "algorithm.name")][-1:]
    return assigned(pairs, {}, method or [None])


def assigned(pairs: Sequence[tuple[str, Any]], further: Mapping[str, Any], methods: Sequence[Any]) -> dict[str, Any]:
    """Collect settings; gamma=5 is algorithm.gamma=5 if methods have it and nothing else is called so."""
    settings: dict[str, Any] = {}
    chosen = {name.removesuffix(".name"): value for name, value in [*pairs, *further.items()]}
    for name, value in [*pairs, *further.items()]:
        owned = f"algorithm.{name}" if is_method_setting(name, methods, chosen) else name
        if name in further and not isinstance(value, str | Mapping) and "." not in owned:
            settings[name] = value  # an object, in Python
        else:
            assign(settings, owned, value)
    return settings


def _beside_controls(experiments: Experiments) -> Experiments:
    """Add the solo control of each method after it."""
    from protonorm.algorithms.local import Local  # of comparisons alone

    if any(experiment.control == "solo" for group in experiments.values() for experiment in group):
        raise ValueError("control must be left out with --solo (solo=True), which runs methods with and without it.")
    extended: Experiments = {}
    for method, repeated in experiments.items():
        extended[method] = repeated
        if not isinstance(repeated[0].algorithm, Local):
            extended[f"{method} (solo)"] = [
                experiment.model_copy(update={"control": "solo"}) for experiment in repeated
            ]
    return extended


def read_method(method: str) -> dict[str, Any]:
    """Parse a method: a name or a user's file.py:Class, optionally followed by :field=value,field=value."""
    return dict(with_fields({"name": method}))


def _by_name(chosen: Sequence[Any], common: Mapping[str, Any], labels: Mapping[int, Any]) -> dict[str, Any]:
    """Return methods by name, different ones of a name numbered; those given by name get `common` settings.

    `labels` has the names of some, by the id of the item.
    """
    methods: dict[str, Any] = {}
    used: set[str] = set()
    overridden: set[str] = set()
    for item in chosen:
        name, method = (item, read_method(item)) if isinstance(item, str) else _object(item)
        label = labels.get(id(item), method.pop("label", name) if isinstance(item, str) else name)
        if label != name and (not isinstance(label, str) or not label or label in ALGORITHMS):
            raise ValueError(f"label must be a text that is not the name of a method, got {shown(label)}.")
        name = label
        if isinstance(item, str):
            own = known_fields(component_class("algorithm", item)).keys() & common.keys()
            overridden |= own & method.keys()
            used |= own - method.keys()
            method = {"name": method["name"], **{field: common[field] for field in common if field in own}} | method
        rivals = [other for key, other in methods.items() if key == name or not isinstance(item, str)]
        if any(other == method or build("algorithm", other) == build("algorithm", method) for other in rivals):
            continue
        number = sum(key == name or key.startswith(f"{name} no. ") for key in methods) + 1
        methods[name if number == 1 else f"{name} no. {number}"] = method
    if unused := [field for field in common if field not in used]:
        if unused[0] in overridden:
            raise ValueError(
                f"{unused[0]} must be given once: each method with it has its own, so {unused[0]}="
                f"{shown(common[unused[0]])} would change nothing."
            )
        raise ValueError(
            f"algorithm.{unused[0]} must be a setting of a method; {', '.join(map(shortened, methods))} lack it."
        )
    return methods


def _object(value: Any) -> tuple[str, Any]:
    """Return the name and the object of a method given as an object or a class."""
    try:
        method = value() if isinstance(value, type) else value
    except TypeError:
        raise ValueError(f"{shown(value)} needs settings; give an object of it.") from None
    return registered_name("algorithm", method) or type(method).__name__, method
