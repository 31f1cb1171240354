"""Groups of runs on the page, their names, and formatting of settings and numbers."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import yaml

from protonorm.analysis.settings import grouped, labels, run_settings
from protonorm.config.parsing import load_plain, parse_value
from protonorm.core.text import visible
from protonorm.runs.run import Run

Groups = Mapping[str, Sequence[Run]]  # runs of each method, by name

OWN = ("algorithm", "auxiliary", "control", "label", "seed")  # of a method, or in which its runs differ
WHOLE = 10**9  # integral floats below this are written without a decimal point


def by_method(runs: Iterable[Run]) -> Groups:
    """Group runs that differ only in the seed, and name the groups by their differences."""
    different = {run.folder.resolve(): run for run in runs}.values()
    plain = [(run.info.experiment.plain() | {"seed": None}, run) for run in different]
    alike = grouped((json.dumps(settings, sort_keys=True), run) for settings, run in plain).values()
    groups = [sorted(group, key=lambda run: run.info.experiment.seed) for group in alike]
    return dict(zip(_names([run_settings(group[0].info) for group in groups]), groups, strict=True))


def differences(groups: Groups) -> list[str]:
    """List the settings in which groups differ, other than the method, its second network and its control."""
    settings = [run_settings(runs[0].info, without=OWN) for runs in groups.values()]
    names = dict.fromkeys(name for item in settings for name in item)
    return [name for name in names if len({str(item.get(name)) for item in settings}) > 1]


def _names(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the name of each group: the method with its settings, then other differences in parentheses."""
    ordered = []  # without method and seed, and with the data first, as the most important difference
    for item in settings:
        own = [name for name in item if name.split(".")[0] not in OWN]
        first = [name for kind in ("dataset", "partition", "clients") for name in own if name.split(".")[0] == kind]
        ordered.append({name: item[name] for name in (*first, *own)})
    suffixes = labels(ordered)
    names: list[str] = []
    seen: Counter[str] = Counter()
    for item, other in zip(settings, suffixes, strict=True):
        solo = "solo" if item.get("control") == "solo" else ""  # as `compare --solo` names them
        words = ", ".join(filter(None, [solo, other]))
        name = _method(item, settings) + (f" ({words})" if words else "")
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} no. {seen[name]}")  # two classes may share a name
    return names


def _method(chosen: Mapping[str, Any], settings: Sequence[Mapping[str, Any]]) -> str:
    if chosen.get("label"):  # the user's own name
        return str(chosen["label"])
    same = ("algorithm", "dataset")  # defaults of a method's settings may depend on the data
    equals = [other for other in settings if all(other[name] == chosen[name] for name in same)]
    own = [name for name in chosen if name.split(".")[0] in ("algorithm", "auxiliary") and name != "algorithm"]
    differ = [name for name in own if len({str(other.get(name)) for other in equals}) > 1]
    words = [f"{name.removeprefix('algorithm.')}={setting_text(chosen[name])}" for name in differ]
    return f"{chosen['algorithm'].split(':')[-1]}{':' if words else ''}{','.join(words)}"


def per_cent(value: float | None) -> str:
    """Format a fraction in per cent."""
    return "–" if value is None else f"{100 * value:.2f} %"


def rounded(value: Any, digits: int = 2) -> float | None:
    """Round a number for the page; non-finite numbers become None."""
    if value is None or not math.isfinite(value):
        return None
    short = round(float(value), digits)
    return int(short) if short == int(short) else short


def significant(value: Any, digits: int = 4) -> float | None:
    """Round a number to significant digits; non-finite numbers become None."""
    return float(f"{float(value):.{digits}g}") if value is not None and math.isfinite(value) else None


def setting_text(value: Any, *, listed: bool = False) -> str:
    """Format the value of a setting, or a member of a list, so that the command line parses it back."""
    if isinstance(value, float):
        written = repr(int(value)) if value == int(value) and abs(value) < WHOLE else repr(value)
        mantissa, e, power = written.partition("e")
        return f"{mantissa}.0e{power}" if e and "." not in mantissa else written  # YAML requires the decimal point
    if isinstance(value, str):
        same = False
        with suppress(ValueError, yaml.YAMLError):  # the command line parses it as itself, without quotes
            same = load_plain(f"[{value}]") == [value] if listed else parse_value("", value) == value
        return value if same and visible(value) == value else visible(json.dumps(value, ensure_ascii=False))
    if isinstance(value, list):
        return f"[{', '.join(setting_text(member, listed=True) for member in value)}]"
    return json.dumps(value)
