"""Settings of runs, named as on the command line: labels and filters. Does not import torch."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from protonorm.config.parsing import parse_value
from protonorm.core.text import shortened
from protonorm.core.types import shown
from protonorm.runs.run import Run
from protonorm.runs.schema import RunInfo

DATA = ("dataset", "partition", "clients", "train", "validation")  # with seeds, they determine each client's samples
STATE = "state"  # pseudo-setting: progress of a run
APART = ("rounds", STATE)  # shown in every list of runs anyway
FIRST = ("algorithm", "control", "dataset", "partition", "clients", "models")  # listed first, in this order
LONGEST = 24  # maximum characters of a value in a label or a table

Key = TypeVar("Key")
Item = TypeVar("Item")


def grouped(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """Collect the second items of pairs by the first."""
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def flatten_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten settings to the names that they have on the command line, such as algorithm.schedule.eta."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= {name: value["name"]} if "name" in value else {}
            flat |= flatten_settings({f"{name}.{field}": item for field, item in value.items() if field != "name"})
        else:
            flat[name] = value
    return flat


def run_settings(info: RunInfo, only: Collection[str] = (), without: Collection[str] = ()) -> dict[str, Any]:
    """Return a run's flattened settings: all, only some parts, or all without some parts."""
    plain = info.experiment.plain().items()
    return flatten_settings({key: item for key, item in plain if (not only or key in only) and key not in without})


def data_settings(run: Run) -> dict[str, Any]:
    """Return the settings of a run's data and partition, without seeds."""
    return {name: value for name, value in run_settings(run.info, DATA).items() if not name.endswith(".seed")}


def settings_of(run: Run) -> dict[str, Any]:
    """Return a run's settings and its state."""
    state = "failed" if run.failure else "finished" if run.finished else "unfinished"
    return run_settings(run.info) | {STATE: state}


def labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the shortest distinguishing label of each run's settings; empty where nothing differs."""
    names = dict.fromkeys(name for item in settings for name in item)
    texts = []
    for plain in settings:
        words, rivals = [], settings
        for name in names:
            equals = [other for other in rivals if str(other.get(name)) == str(plain.get(name))]
            if len(equals) < len(rivals) and name in plain:
                text = f"{plain[name]:g}" if isinstance(plain[name], float) else str(plain[name])
                short = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
                words.append(short if name in ("dataset", "partition") else f"{name.split('.')[-1]}={short}")
            rivals = equals  # only runs with equal labels so far need further words
        texts.append(", ".join(words))
    return texts


def client_label(run: Run, id: int) -> str:
    """Return a client's label: the name of its folder or file, or `client 3`."""
    name = run.client_name(id)
    return f"client {id}" if name == str(id) else name


def read_filters(words: Sequence[str]) -> dict[str, list[str]]:
    """Parse filters such as dataset=fashion and seed=0,1; a setting that is named twice may have either value."""
    filters: dict[str, list[str]] = {}
    for word in words:
        name, _, value = (part.strip() for part in word.partition("="))
        if not name or not value:
            raise ValueError(f"A filter must look like dataset=fashion or seed=0,1, got {shown(word)}.")
        parts = [value] if value[0] in "[{'\"" else [part.strip() for part in value.split(",")]
        filters.setdefault(name, []).extend(filter(None, parts))
    return filters


def matching(runs: Sequence[Run], filters: Mapping[str, Sequence[str]]) -> list[Run]:
    """Return the runs that match the filters; raise a ValueError for a name or a value that no run has."""
    settings = [settings_of(run) for run in runs]
    kept, names = list(zip(runs, settings, strict=True)), list(dict.fromkeys(key for item in settings for key in item))
    for name, texts in filters.items() if runs else ():
        if name not in names:
            near = [key for key in names if key.split(".")[-1] == name] or get_close_matches(name, names)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {shortened(', '.join(names))}."
            raise ValueError(f"{shown(name)} is not a setting of these runs; {hint}")
        values = [item[name] for item in settings if name in item]
        for text in texts:
            if not any(_same(name, text, value) for value in values):
                available = dict.fromkeys(map(written, values))
                raise ValueError(
                    f"No run has {shortened(f'{name}={text}')}; there are: {shortened(', '.join(available))}."
                )
        having = [(run, item) for run, item in kept if name in item]
        kept = [(run, item) for run, item in having if any(_same(name, text, item[name]) for text in texts)]
    return [run for run, _ in kept]


def differing(runs: Sequence[Run]) -> list[str]:
    """List the settings in which runs differ, the most important first, the seed last.

    A setting of a method, a data set or a partition counts only if runs with the same one differ in it.
    """
    settings = [settings_of(run) for run in runs]
    names = dict.fromkeys(name for item in settings for name in item if name not in APART)

    def differs(name: str) -> bool:
        owner = name.split(".")[0]
        pairs = {("" if owner == name else str(item.get(owner)), str(item.get(name))) for item in settings}
        return len(pairs) > len({first for first, _ in pairs})

    def place(name: str) -> tuple[bool, int]:
        return name == "seed", [*FIRST, name.split(".")[0]].index(name.split(".")[0])

    return sorted(filter(differs, names), key=place)


def written(value: Any) -> str:
    """Format the value of a setting, truncated."""
    if isinstance(value, float):
        return f"{value:g}"
    text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return shortened(text, LONGEST)


def _same(name: str, text: str, value: Any) -> bool:
    """Compare a value with a text of the command line; a user-defined class also matches by its name alone."""
    if isinstance(value, str):
        return text in (value, value.rsplit(":", 1)[-1])
    if isinstance(value, float) and text == written(value):  # as lists of runs print it
        return True
    wanted = parse_value(name, text)
    try:
        return bool((float(wanted) if isinstance(wanted, str) else wanted) == value)  # YAML reads 1e-3 as a string
    except ValueError:
        return False
