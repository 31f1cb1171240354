"""Which engine is meant by a word such as `serial` or `ray:num_gpus=0.5`: its name and its settings."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from protonorm.config.parsing import parse_value
from protonorm.core.complaints import known_fields, sentences
from protonorm.core.registry import Entry, find
from protonorm.core.types import shortened, shown
from protonorm.engines import ENGINES

SETTINGS: dict[str, Entry] = {  # of the engines that have any
    "ray": Entry("protonorm.engines.ray.settings:ActorSettings", "what each actor gets of its node"),
}


class EngineChoice(NamedTuple):
    """An engine, and settings for its constructor."""

    name: str
    settings: dict[str, Any]


def check_workers(choice: EngineChoice, workers: int | None) -> None:
    """Refuse several processes where there is one."""
    if choice.name == "serial" and (workers or 1) > 1:
        raise ValueError(f"workers={workers} is refused: the engine serial has all clients in one process.")


def read_engine(word: str) -> EngineChoice:
    """Read the name of an engine, and perhaps :field=value,field=value; refuse what there is not."""
    name, colon, text = word.partition(":")
    extra = find(ENGINES, shortened(name), "engine").details.get("extra")
    if extra and find_spec(extra) is None:
        raise ValueError(f"The engine {name} needs a package that is not installed: pip install 'protonorm[{extra}]'.")
    if not colon:
        return EngineChoice(name, {})
    if name not in SETTINGS:
        raise ValueError(f"{shown(word)} is refused: the engine {name} has no settings.")
    given: dict[str, Any] = {}
    for field in text.split(","):
        key, equals, value = field.partition("=")
        if not equals:
            raise ValueError(f"{shown(field)} in {shown(word)} is refused: expected field=value.")
        given[key.strip()] = parse_value(key, value)
    cls = SETTINGS[name].load()
    try:
        made = TypeAdapter(cls).validate_python(given)
    except ValidationError as error:
        raise ValueError(sentences(error, known_fields(cls), f"The engine {name}", f"{name}:")) from None
    return EngineChoice(name, {key: getattr(made, key) for key in given})
