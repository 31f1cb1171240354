"""Parsing of settings from YAML files and `key=value` arguments; later values override earlier ones.

Accepted values are plain data of limited size: numbers, strings, lists and maps.
"""

import os
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from protonorm.config.kinds import COMPONENTS, KINDS
from protonorm.core.own_code import name_missing
from protonorm.core.text import shortened
from protonorm.core.types import shown

NESTED = (*COMPONENTS, "lr_schedule", "protect", "system")  # settings with nested settings
QUOTES = "'\"[{"  # first characters of strings, lists and maps that are parsed as YAML
MARKS = "&*!"  # YAML indicators before a value that are read as text
LARGEST = 2**20  # bytes of a settings file
MOST_SEEDS = 1000
LONGEST = 300  # characters of a path or an error in a message
INTEGER, REAL, TIME = (f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))
DEEPEST = 16  # levels of nested lists and maps
LONGEST_TEXT = 4096  # characters of a string: the maximum length of a path
NESTS = f"more than {DEEPEST} lists and maps are inside each other"


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """Parse command-line arguments: a method, paths of YAML files, and `key=value` or `key.field=value`."""
    settings: dict[str, Any] = {}
    for name, value in read_pairs(words):
        assign(settings, name, value)
    return settings


def read_pairs(words: Sequence[str]) -> list[tuple[str, Any]]:
    """Parse command-line arguments as names and values in their order; a method is the value of `algorithm`."""
    pairs: list[tuple[str, Any]] = []
    registered = KINDS["algorithm"].table()
    sure = re.compile(r".*(\.py:|=)", re.DOTALL)  # with settings it is no path, even if its name is unknown
    methods = [word for word in words if is_method(word) and (word.partition(":")[0] in registered or sure.match(word))]
    if len(methods) > 1:
        raise ValueError(f"One run has one method, got {' and '.join(methods)}; `protonorm compare` runs several.")
    for word in words:
        name, equals, value = word.partition("=")
        if word in methods:
            pairs.append(("algorithm", word))
        elif equals:
            pairs.append((name.strip(), parse_value(name, value)))
        else:
            pairs += [(str(key), setting) for key, setting in read_yaml(Path(word)).items()]
    return pairs


def is_method(word: str) -> bool:
    """Return whether a word is a method (`protonorm:gamma=50`, `mine.py:Mine`), not `rounds=50` or `settings.yaml`."""
    return ":" in word.partition("=")[0] or not ("=" in word or word.endswith((".yaml", ".yml")))


def with_fields(component: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parse the name protonorm:gamma=5,lam=10 as the method `protonorm` with these settings; others go before them."""
    name = component.get("name")
    if not isinstance(name, str) or ":" not in name:
        return component
    base, _, fields = name.partition(":")
    if base.endswith(".py"):
        own, _, fields = fields.partition(":")
        base = f"{base}:{own}"
    settings: dict[str, Any] = {"name": base}
    seen: set[str] = set()
    for field in filter(None, split_values(fields)):
        key, equals, value = field.partition("=")
        if not equals or not all(key.split(".")):
            raise ValueError(f"A setting in {shown(name)} must be field=value, got {shown(field)}.")
        if key in seen:
            raise ValueError(f"{shown(name)} must have one {key}=…, got two.")
        seen.add(key)
        _assign_inside(settings, key, key.split("."), parse_value(key, value))
    return {**settings, **{key: value for key, value in component.items() if key != "name"}}


def read_seeds(value: Any) -> list[Any]:
    """Parse seeds: 3 means 0, 1 and 2; a list, also as 0,1,2, means itself; in Python also a range or an array."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MOST_SEEDS:
            raise ValueError(f"seeds must be a number from 1 to {MOST_SEEDS}, or a list as 0,1,2, got {shown(value)}.")
        return list(range(value))
    if isinstance(value, str):
        value = [parse_value("seeds", seed) for seed in value.split(",")]
    seeds = list(value) if isinstance(value, Sequence) else [value]
    if text := [seed for seed in seeds if isinstance(seed, str)]:
        raise ValueError(f"seeds must be a number, or a list as 0,1,2, got {shown(text[0])}.")
    if not seeds:
        raise ValueError("seeds must have at least one seed, as in seeds=0,1,2, got [].")
    if repeated := [seed for place, seed in enumerate(seeds) if seed in seeds[:place]]:
        raise ValueError(f"seeds must differ, got {shown(repeated[0])} twice.")
    return seeds


def seeds_word(seeds: Sequence[int]) -> str:
    """Return the word of a command that means these seeds."""
    return f"seed={seeds[0]}" if len(seeds) == 1 else f"seeds={','.join(map(str, seeds))}"


def split_values(text: str, separator: str = ",") -> list[str]:
    """Split a text at separators, except inside brackets or quotes that begin a value, or follow its name=."""
    parts, depth, quote, start = [], 0, "", 0
    for position, sign in enumerate(text):
        begins = text[start:position].strip()[-1:] in ("", "=")
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"" and begins:
            quote = sign
        elif sign in "[{" and (begins or depth):
            depth += 1
        elif sign in "]}" and depth:
            depth -= 1
        elif sign == separator and not depth:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def assign(settings: dict[str, Any], name: str, value: Any) -> None:
    """Set a key; `algorithm.gamma` is stored in the algorithm, which may be named before or after."""
    owner, *fields = name.split(".")
    if not name or (fields and (owner not in NESTED or not all(fields))):
        from protonorm.config.hints import hint_dotted  # it loads all components, which import torch

        expected = f"expected key=value, or {', '.join(NESTED)} with .field=value."
        raise ValueError(f"{shown(name)} is not a setting; {(fields and hint_dotted(name)) or expected}")
    if owner not in NESTED:
        settings[name] = value
        return
    component = dict(settings.get(owner, {}))
    if fields not in ([], ["name"]):
        _assign_inside(component, name, fields, value)
    else:
        mapping = {"name": value} if fields or not isinstance(value, Mapping) else value
        parsed = with_path(mapping) if owner == "dataset" else with_fields(mapping) if owner == "algorithm" else mapping
        if mapping is not value and component.get("name", parsed["name"]) != parsed["name"]:
            component = {}  # another component: the settings of the previous one do not apply
        component.update(parsed)
    settings[owner] = component


def with_path(dataset: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parse the name folder:PATH as the data set `folder` with the setting path=PATH."""
    name = dataset.get("name")
    if not isinstance(name, str) or ".py:" in name:
        return dataset
    base, colon, path = name.partition(":")
    if base not in KINDS["dataset"].table() and os.path.exists(name):
        raise ValueError(
            f"{shown(name)} is a path; say what it holds, as in dataset=folder:{shortened(name)}. Known: "
            f"{', '.join(entry for entry in KINDS['dataset'].table())}."
        )
    if not colon or base not in KINDS["dataset"].table():
        return dataset
    if dataset.get("path", path) != path:
        raise ValueError(f"dataset.path must be that of {shown(name)}, or left out, got {shown(dataset['path'])}.")
    return {**dataset, "name": base, "path": path}


def _assign_inside(settings: dict[str, Any], name: str, fields: Sequence[str], value: Any) -> None:
    """Set a field of a component, or a nested field: `schedule.epsilon`."""
    for field in fields[:-1]:
        inner = settings.get(field, {})
        if not isinstance(inner, Mapping):
            raise ValueError(
                f"{shown(name)} needs fields of {field}, but {shown(inner)} was given before; it has none."
            )
        settings[field] = dict(inner)
        settings = settings[field]
    settings[fields[-1]] = value


def parse_value(name: str, text: str) -> Any:
    """Parse a value as YAML; unquoted text is used literally: colons, dashes and # have no meaning in an argument."""
    bare = text.strip()
    try:
        value = load_plain(bare) if bare and bare[0] not in MARKS else text
        return bare if isinstance(value, str | list | dict) and bare and bare[0] not in QUOTES else value
    except ReaderError:
        return text  # characters that are invalid in YAML can only be text
    except Unfit as error:
        raise ValueError(f"The value of {shortened(name)}={shortened(text)} cannot be used: {error.problem}.") from None
    except yaml.YAMLError:
        if bare[0] not in QUOTES:
            return bare  # special characters in a YAML file, but plain text here
        problem = "put quotes around text with brackets"
        raise ValueError(f"The value of {shortened(name)}={shortened(text)} cannot be read; {problem}.") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of settings."""
    name = shortened(str(path), LONGEST)
    if path.suffix not in (".yaml", ".yml"):
        from protonorm.config.experiment import Experiment  # imports torch

        name_missing(str(path), "algorithm")
        close = get_close_matches(str(path), KINDS["algorithm"].table(), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        hint = f"; did you mean {path}=…?" if str(path) in Experiment.model_fields else hint
        raise ValueError(
            f"{shown(str(path))} is neither a setting (key=value) nor a YAML file (.yaml) nor a method{hint}"
        )
    if not os.path.isfile(path):  # a pipe or a device might never end
        raise ValueError(f"There is no file {name}.")
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError(f"{name} is larger than {LARGEST // 2**20} MB; expected lines of `key: value`.")
        settings = load_plain(content.decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} cannot be read ({shortened(str(error), LONGEST)}).") from error
    except yaml.YAMLError as error:
        hint = " YAML indents with spaces, not with tabs." if "'\\t'" in str(error) else ""
        reason = shortened(" ".join(str(error).split()), LONGEST)
        raise ValueError(f"{name} is not valid YAML for settings: {reason}.{hint}") from error
    if not isinstance(settings, dict | None):
        raise ValueError(f"{name} must hold lines of `key: value`, got a {type(settings).__name__}.")
    return settings or {}


class Unfit(yaml.MarkedYAMLError):
    """Error for valid YAML that is not accepted in settings."""


class PlainLoader(yaml.SafeLoader):
    """YAML loader without anchors, aliases, tags and duplicate names.

    Numbers are decimal: YAML 1.1 would read 010 as 8, 1:30 as 90, and 2024-01-01 as a date.
    """

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (INTEGER, REAL, TIME)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Raise `Unfit` for anchors, aliases and tags before the node is composed."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise Unfit(problem="anchors and aliases (& and *) are not for settings", problem_mark=event.start_mark)
        if event.tag is not None:
            raise Unfit(problem="tags (!) are not for settings", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Raise `Unfit` for a duplicate name in a map, whose value would be ambiguous."""
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for name in (name for name, count in names.items() if count > 1):
            raise Unfit(problem=f"{shown(name)} is given twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


PlainLoader.add_implicit_resolver(INTEGER, re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*$"), list("-+0123456789"))
FLOAT = r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
PlainLoader.add_implicit_resolver(REAL, re.compile(FLOAT), list("-+.0123456789"))
PlainLoader.add_constructor(INTEGER, lambda _, node: int(node.value))


def load_plain(text: str) -> Any:
    """Parse YAML; raise yaml.YAMLError for invalid YAML and for values not accepted in settings."""
    try:
        return yaml.load(text, Loader=PlainLoader)
    except ValueError as error:  # an integer of thousands of digits
        raise Unfit(problem=f"a value cannot be read ({shortened(str(error))})") from None
    except RecursionError:
        raise Unfit(problem=NESTS) from None


def check_plain(value: Any, name: str = "", depth: int = 0) -> None:
    """Raise ValueError for invalid strings and deep nesting; other objects are not checked here."""
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError(f"{name} must not hold the character NUL, got {shown(value)}.")
        if len(value) > LONGEST_TEXT:
            raise ValueError(f"{name} must have at most {LONGEST_TEXT} characters, got {len(value)}: {shown(value)}.")
    if depth > DEEPEST:
        raise ValueError(f"{name} cannot be used: {NESTS}.")
    if isinstance(value, Mapping):
        for key, item in value.items():
            text = key if isinstance(key, str) else shown(key)
            check_plain(item, shortened(f"{name}.{text}" if name else text), depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            check_plain(item, name, depth + 1)
