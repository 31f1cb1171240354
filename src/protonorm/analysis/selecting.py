"""Which runs are meant, and in what runs differ: by their settings, named as on the command line. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from protonorm.analysis.labels import flatten_settings
from protonorm.config.parsing import parse_value
from protonorm.core.types import shortened, shown
from protonorm.runs.run import Run

STATE = "state"  # beside the settings: how far a run is
APART = ("rounds",)  # settings that a list of runs tells of anyway
FIRST = ("algorithm", "control", "dataset", "partition", "clients", "models")  # the plainest differences; then others
LISTED = 12  # values or names in a sentence; of more, the first ones
LONGEST = 24  # characters of a value in a table

Filters = Mapping[str, Sequence[str]]  # the texts that a setting may have


def read_filters(words: Sequence[str]) -> dict[str, list[str]]:
    """Read words such as dataset=fashion and seed=0,1; a setting that is named twice may have either value."""
    found: dict[str, list[str]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise ValueError(f"{shown(word)} is refused: expected a filter such as dataset=fashion or seed=0,1.")
        bracketed = value.strip()[0] in "[{'\""
        found.setdefault(name.strip(), []).extend([value.strip()] if bracketed else _parts(value))
    return found


def matching(runs: Sequence[Run], filters: Filters) -> list[Run]:
    """Keep the runs whose settings are those asked for; a name or a value that no run has is refused."""
    if not runs:
        return []
    settings = [settings_of(run) for run in runs]
    for name, texts in filters.items():
        _refuse_unknown(name, settings)
        values = [one[name] for one in settings if name in one]
        for text in texts:
            if not any(_same(name, text, value) for value in values):
                known = list(dict.fromkeys(written(value) for value in values))
                raise ValueError(f"No run has {shortened(f'{name}={text}')}; there are: {_few(known)}.")
    return [run for run, one in zip(runs, settings, strict=True) if _fits(one, filters)]


def settings_of(run: Run) -> dict[str, Any]:
    """List a run's settings, and how far it is."""
    state = "failed" if run.failure else "finished" if run.finished else "unfinished"
    return flatten_settings(run.info.experiment.plain()) | {STATE: state}


def differing(runs: Sequence[Run]) -> list[str]:
    """Name the settings in which runs differ, the plainest first, the seed last.

    A setting of a method, a data set or a partition counts only if runs with the same one differ in it.
    """
    settings = [settings_of(run) for run in runs]
    names = dict.fromkeys(name for one in settings for name in one)
    found = [name for name in names if name not in (*APART, STATE) and _differs(name, settings)]
    owners = {name: name.split(".")[0] for name in found}
    places = {name: FIRST.index(owner) if owner in FIRST else len(FIRST) for name, owner in owners.items()}
    return sorted(found, key=lambda name: (name == "seed", places[name]))


def written(value: Any) -> str:
    """Write the value of a setting in few characters."""
    if isinstance(value, float):
        return f"{value:g}"
    text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return shortened(text, LONGEST)


def _parts(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _differs(name: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    owner = name.split(".")[0]
    values: dict[str, set[str]] = {}
    for one in settings:
        alike = "" if owner == name else str(one.get(owner))
        values.setdefault(alike, set()).add(str(one.get(name)))
    return any(len(found) > 1 for found in values.values())


def _fits(settings: Mapping[str, Any], filters: Filters) -> bool:
    return all(
        name in settings and any(_same(name, text, settings[name]) for text in texts) for name, texts in filters.items()
    )


def _same(name: str, text: str, value: Any) -> bool:
    """Compare a value with a text of the command line; a class of a user's own file is also known by its name alone."""
    names = (str(value), str(value).rsplit(":", 1)[-1]) if isinstance(value, str) else ()
    if isinstance(value, float) and text == written(value):  # as lists of runs print it
        return True
    return text in names or (_number(parse_value(name, text)) == value and not isinstance(value, str))


def _number(value: Any) -> Any:
    """Read 1e-3, which is a text to YAML, as a number too."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _refuse_unknown(name: str, settings: Sequence[Mapping[str, Any]]) -> None:
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
