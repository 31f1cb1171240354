"""Settings as people give them: a YAML file, `key=value` words, or both; the later one wins."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from protonorm.config.kinds import COMPONENTS, KINDS
from protonorm.config.plain import Unfit, load_plain
from protonorm.core.types import shortened, shown

NESTED = (*COMPONENTS, "lr_schedule")  # settings that have settings of their own
QUOTES = "'\"[{"  # what begins a text, a list or a map that YAML has to read
MARKS = "&*!"  # what means something to YAML before a value, and nothing to us
LARGEST = 2**20  # bytes of a settings file
LONGEST = 300  # characters of a path, or of what is wrong with a file, in a sentence


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """Join the words of a command line: names of YAML files, and `key=value` or `key.field=value`."""
    settings: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            assign(settings, name.strip(), parse_value(name, value))
        else:
            for key, found in read_yaml(Path(word)).items():
                assign(settings, str(key), found)
    return settings


def assign(settings: dict[str, Any], name: str, value: Any) -> None:
    """Set one key; `algorithm.gamma` goes into the algorithm that was named before or is named later."""
    owner, *fields = name.split(".")
    if not name or (fields and (owner not in NESTED or not all(fields))):
        raise ValueError(f"{shown(name)} is not a setting; {_expected(name)}")
    if owner not in NESTED:
        settings[name] = value
        return
    held = _without_path(settings.get(owner, {}), owner, fields, value)
    if fields:
        _assign_inside(held, name, fields, value)
    elif isinstance(value, Mapping):
        held.update(value)
    elif held.get("name", value) == value:
        held["name"] = value
    else:
        held = {"name": value}  # another component: settings of the one before do not fit it
    settings[owner] = held


def _without_path(held: Mapping[str, Any], owner: str, fields: Sequence[str], value: Any) -> dict[str, Any]:
    """Let `dataset.path=NEW` win over an earlier folder:OLD, and folder:NEW over an earlier `dataset.path`."""
    kept, name = dict(held), held.get("name")
    if owner == "dataset" and list(fields) == ["path"] and isinstance(name, str):
        kept["name"] = without_path(name)
    named = value.get("name") if isinstance(value, Mapping) else value
    if (
        owner == "dataset"
        and list(fields) in ([], ["name"])
        and isinstance(named, str)
        and without_path(named) != named
    ):
        kept.pop("path", None)
        kept |= {"name": named} if isinstance(name, str) and without_path(name) == without_path(named) else {}
    return kept


def without_path(name: str) -> str:
    """Read `folder` in folder:PATH, a data set of the package with the path of its files; other names stay."""
    base, _, _ = name.partition(":")
    return base if base in KINDS["dataset"].table() else name


def _expected(name: str) -> str:
    """Say what may be meant by a name that has a point in the wrong place, or what was expected."""
    from protonorm.config.elsewhere import hint_dotted  # it looks through all components, which takes torch

    found = hint_dotted(name) if "." in name else None
    return found or f"expected key=value, or {', '.join(NESTED)} with .field=value."


def _assign_inside(held: dict[str, Any], name: str, fields: Sequence[str], value: Any) -> None:
    """Set a field of a component, or a field of a field: `schedule.epsilon`."""
    for field in fields[:-1]:
        inner = held.get(field, {})
        if not isinstance(inner, Mapping):
            raise ValueError(f"{shown(name)} is refused: {field}={shown(inner)} was given before, which has no fields.")
        held[field] = dict(inner)
        held = held[field]
    held[fields[-1]] = value


def parse_value(name: str, text: str) -> Any:
    """Read a value as YAML does: numbers, true and false, null, text in quotes, lists and maps in brackets, else text.

    A text without quotes is taken as it stands: colons, dashes and # have no meaning in a word of a command line.
    """
    bare = text.strip()
    try:
        found = load_plain(bare) if bare and bare[0] not in MARKS else text
        return bare if isinstance(found, str | list | dict) and bare and bare[0] not in QUOTES else found
    except ReaderError:
        return text  # it has characters that YAML does not take, so that it is nothing but text
    except Unfit as error:
        raise ValueError(f"The value of {shortened(name)}={shortened(text)} is refused: {error.problem}.") from None
    except yaml.YAMLError:
        if bare[0] not in QUOTES:
            return bare  # signs that mean something in a file
        raise ValueError(
            f"The value of {shortened(name)}={shortened(text)} cannot be read; put quotes around text with brackets."
        ) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a settings file."""
    name = shortened(str(path), LONGEST)
    if path.suffix not in (".yaml", ".yml"):
        raise ValueError(f"{shown(str(path))} is neither a setting (key=value) nor a YAML file (.yaml).")
    if not os.path.isfile(path):  # a pipe or a device might never end
        raise ValueError(f"There is no file {name}.")
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError(f"{name} is larger than {LARGEST // 2**20} MB; expected lines of `key: value`.")
        found = load_plain(content.decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} cannot be read ({shortened(str(error), LONGEST)}).") from error
    except yaml.YAMLError as error:
        hint = " YAML indents with spaces, not with tabs." if "'\\t'" in str(error) else ""
        reason = shortened(" ".join(str(error).split()), LONGEST)
        raise ValueError(f"{name} is not valid YAML for settings: {reason}.{hint}") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ValueError(f"{name} holds a {type(found).__name__}; expected lines of `key: value`.")
    return found
