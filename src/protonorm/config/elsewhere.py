"""Where a setting is that was looked for in the wrong place: in a component, at the top, or under another name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from protonorm.config.kinds import COMPONENTS, KINDS
from protonorm.config.synonyms import OTHERS, REMARKS, plain_name
from protonorm.core.complaints import known_fields
from protonorm.core.own_code import load_own
from protonorm.core.types import shortened

MOST = 6  # names in a sentence


def hint(name: str, given: Mapping[str, Any]) -> str | None:
    """Say what is meant by a setting that an experiment does not have; None if nobody knows."""
    plain = plain_name(name)
    places = [place for place in _places(given) if place.endswith(f".{plain}")]
    places += [OTHERS[plain]] if plain in OTHERS else []
    if places:
        return f"did you mean {_or(places)}?"
    if plain in REMARKS:
        return REMARKS[plain]
    if isinstance(section := given.get(name), Mapping):
        inside = [f"for {shortened(str(key))} {found}" for key in section if (found := hint_dotted(f"{name}.{key}"))]
        if inside:
            return f"settings stand in no section: {' '.join(inside[:MOST])}"
    told = [f"{place} of {_few(owners)}" for place, owners in _everywhere().items() if place.endswith(f".{plain}")]
    return f"there is {', and '.join(told)}." if told else None


def hint_inside(name: str, kind: str, known: Iterable[str]) -> str | None:
    """Say what is meant by a setting that a component does not have: one of the experiment, or of another name."""
    plain = plain_name(name)
    if plain in _settings():
        return f"{plain!r} is a setting of the experiment itself: {plain}=…."
    meant = OTHERS.get(plain, "")
    if meant in _settings():
        return f"did you mean {meant!r}, a setting of the experiment itself?"
    owner, _, field = meant.partition(".")
    return f"did you mean {field!r}?" if owner == kind and field in known else None


def hint_dotted(name: str) -> str | None:
    """Say what is meant by owner.field of an owner that there is not, such as optimizer.lr."""
    plain = plain_name(name.rpartition(".")[2])
    if plain in _settings():
        return f"did you mean {plain!r}?"
    return hint(plain, {}) if plain else None


def _settings() -> Iterable[str]:
    from protonorm.config.experiment import Experiment

    return Experiment.model_fields


def _places(given: Mapping[str, Any]) -> list[str]:
    """List all settings of the components that are chosen, with the names that they have on the command line."""
    from protonorm.core.training import LrSchedule

    chosen = {kind: _class(kind, given.get(kind)) for kind in COMPONENTS} | {"lr_schedule": LrSchedule}
    return [place for owner, cls in chosen.items() for place in _dotted(owner, cls)]


def _dotted(owner: str, cls: Any) -> Iterator[str]:
    """Go through the settings of a class, and of what it holds: algorithm.gamma, algorithm.schedule.eta."""
    for field, inner in known_fields(cls).items():
        yield f"{owner}.{field}"
        yield from (f"{owner}.{field}.{one}" for one in inner)


def _class(kind: str, value: Any) -> Any:
    """Find the class of a component as it was given; None if that cannot be said."""
    if value is not None and not isinstance(value, str | Mapping):
        return type(value)
    name = value if isinstance(value, str) else (value or {}).get("name", KINDS[kind].default)
    if not isinstance(name, str):
        return None
    if ".py:" in name:
        try:
            return load_own(name, kind)
        except ValueError:
            return None
    table = KINDS[kind].table()
    base = name.partition(":")[0]
    return table[base].load() if base in table else None


def _everywhere() -> dict[str, list[str]]:
    """List the settings of all components, each with the names of those that have it."""
    found: dict[str, list[str]] = {}
    for kind in COMPONENTS:
        for name, entry in KINDS[kind].table().items():
            for place in _dotted(kind, entry.load()):
                found.setdefault(place, []).append(name)
    return found


def _few(names: list[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more


def _or(names: list[str]) -> str:
    return " or ".join(repr(shortened(name)) for name in names)
