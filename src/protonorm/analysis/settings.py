"""Settings of runs, named as on the command line: labels and filters. Does not import torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from protonorm.config.parsing import parse_value
from protonorm.core.types import shortened, shown
from protonorm.runs.run import Run
from protonorm.runs.schema import RunInfo

DATA = (
    "dataset",
    "partition",
    "clients",
    "train",
    "validation",
)  # together with seeds, they determine each client's samples
STATE = "state"  # pseudo-setting: progress of a run
APART = ("rounds", STATE)  # shown in every list of runs anyway
FIRST = ("algorithm", "control", "dataset", "partition", "clients", "models")  # listed first, in this order
LISTED = 12  # maximum number of values or names in a sentence
LONGEST = 24  # maximum characters of a value in a label or a table

Filters = Mapping[str, Sequence[str]]  # accepted texts of each setting


def flatten_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten settings to the names that they have on the command line, such as algorithm.schedule.eta."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if not isinstance(value, Mapping):
            found[name] = value
            continue
        if "name" in value:
            found[name] = value["name"]
        found |= flatten_settings({f"{name}.{field}": one for field, one in value.items() if field != "name"})
    return found


def run_settings(info: RunInfo, only: Collection[str] = (), without: Collection[str] = ()) -> dict[str, Any]:
    """Return a run's flattened settings: all, only some parts, or all without some parts."""
    plain = info.experiment.plain().items()
    return flatten_settings({key: one for key, one in plain if (not only or key in only) and key not in without})


def data_settings(run: Run) -> dict[str, Any]:
    """Return the settings of a run's data and partition, without seeds."""
    return {name: value for name, value in run_settings(run.info, DATA).items() if not name.endswith(".seed")}


def settings_of(run: Run) -> dict[str, Any]:
    """Return a run's settings and its state."""
    state = "failed" if run.failure else "finished" if run.finished else "unfinished"
    return run_settings(run.info) | {STATE: state}


def labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the shortest distinguishing label of each run's settings; empty where nothing differs."""
    names = list(dict.fromkeys(name for one in settings for name in one))
    return [", ".join(_differences(one, settings, names)) for one in settings]


def client_label(run: Run, id: int) -> str:
    """Return a client's label: the name of its folder or file, or `client 3`."""
    name = run.client_name(id)
    return f"client {id}" if name == str(id) else name


def dataset_names(runs: Sequence[Run]) -> list[str]:
    """List the data sets of runs, each once."""
    return list(dict.fromkeys(run.info.experiment.dataset.name for run in runs))


def read_filters(words: Sequence[str]) -> dict[str, list[str]]:
    """Parse filters such as dataset=fashion and seed=0,1; a setting that is named twice may have either value."""
    found: dict[str, list[str]] = {}
    for word in words:
        name, _, value = (part.strip() for part in word.partition("="))
        if not name or not value:
            raise ValueError(f"{shown(word)} is refused: expected a filter such as dataset=fashion or seed=0,1.")
        parts = [value] if value[0] in "[{'\"" else [part.strip() for part in value.split(",")]
        found.setdefault(name, []).extend(filter(None, parts))
    return found


def matching(runs: Sequence[Run], filters: Filters) -> list[Run]:
    """Return the runs that match the filters; raise a ValueError for a name or a value that no run has."""
    settings = [settings_of(run) for run in runs]
    kept = list(zip(runs, settings, strict=True))
    for name, texts in filters.items() if runs else ():
        _check_name(name, settings)
        values = [one[name] for one in settings if name in one]
        for text in texts:
            if not any(_same(name, text, value) for value in values):
                known = list(dict.fromkeys(map(written, values)))
                raise ValueError(f"No run has {shortened(f'{name}={text}')}; there are: {_few(known)}.")
        kept = [(run, one) for run, one in kept if name in one and any(_same(name, text, one[name]) for text in texts)]
    return [run for run, _ in kept]


def differing(runs: Sequence[Run]) -> list[str]:
    """List the settings in which runs differ, the most important first, the seed last.

    A setting of a method, a data set or a partition counts only if runs with the same one differ in it.
    """
    settings = [settings_of(run) for run in runs]
    names = dict.fromkeys(name for one in settings for name in one if name not in APART)

    def place(name: str) -> tuple[bool, int]:
        owner = name.split(".")[0]
        return name == "seed", FIRST.index(owner) if owner in FIRST else len(FIRST)

    return sorted((name for name in names if _differs(name, settings)), key=place)


def written(value: Any) -> str:
    """Format the value of a setting, truncated."""
    if isinstance(value, float):
        return f"{value:g}"
    text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return shortened(text, LONGEST)


def _differences(one: Mapping[str, Any], others: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    words = []
    for name in names:
        alike = [other for other in others if str(other.get(name)) == str(one.get(name))]
        if len(alike) < len(others) and name in one:
            value = one[name]
            text = f"{value:g}" if isinstance(value, float) else str(value)
            short = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
            words.append(short if name in ("dataset", "partition") else f"{name.split('.')[-1]}={short}")
        others = alike  # only runs with equal labels so far need further words
    return words


def _differs(name: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    owner = name.split(".")[0]
    values: dict[str, set[str]] = {}
    for one in settings:
        alike = "" if owner == name else str(one.get(owner))
        values.setdefault(alike, set()).add(str(one.get(name)))
    return any(len(found) > 1 for found in values.values())


def _same(name: str, text: str, value: Any) -> bool:
    """Compare a value with a text of the command line; a user-defined class also matches by its name alone."""
    if isinstance(value, str):
        return text in (value, value.rsplit(":", 1)[-1])
    if isinstance(value, float) and text == written(value):  # as lists of runs print it
        return True
    given = parse_value(name, text)
    try:
        return bool((float(given) if isinstance(given, str) else given) == value)  # YAML reads 1e-3 as a string
    except ValueError:
        return False


def _check_name(name: str, settings: Sequence[Mapping[str, Any]]) -> None:
    known = list(dict.fromkeys(key for one in settings for key in one))
    if name in known:
        return
    inside = [key for key in known if key.split(".")[-1] == name]
    near = inside or get_close_matches(name, known, LISTED)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {_few(known)}."
    raise ValueError(f"{shown(name)} is not a setting of these runs; {hint}")


def _few(words: Sequence[str]) -> str:
    more = f" and {len(words) - LISTED} more" if len(words) > LISTED else ""
    return f"{', '.join(words[:LISTED])}{more}"
