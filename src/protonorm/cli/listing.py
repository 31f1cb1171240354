"""Commands `list` (components, and settings of an experiment or a method), `data …` and `backbones …`.

All but the last do without torch.

Settings are read from the sources of their classes, whose comments explain them.
"""

import ast
import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from protonorm.cli.console import Column, entries_table, make_table, print_json, reporting, say
from protonorm.cli.options import Json
from protonorm.config.kinds import KINDS, PACKAGE
from protonorm.core.text import visible

TOPIC = "A kind of component, `settings`, or a method's name or file.py:Name; the topics if not given."
Topic = Annotated[str | None, typer.Argument(metavar="[TOPIC]", help=TOPIC)]
EXPERIMENT = "protonorm.config.experiment:Experiment"
TRAINING = ("protonorm.core.training", "Training")
TYPES = {
    "Count": "1, 2, …", "Size": "2, 3, …", "Width": "1, 2, …", "Whole": "0, 1, …", "Seed": "0, 1, …", "Positive": "> 0",
    "NonNegative": "≥ 0", "Fraction": "0 < x ≤ 1", "Share": "0 < x < 1", "Below1": "0 ≤ x < 1", "bool": "true | false",
    "str": "text", "int": "whole number", "float": "number", "Any": "a name", "PerClient": "a list",
}  # fmt: skip
CAPTION = (
    "algorithm, dataset, partition, lr_schedule and protect have settings of their own: partition.alpha=0.1. "
    "`protonorm list protonorm` has those of a method; `protonorm list datasets` and others, the names."
)


class Setting(NamedTuple):
    """Setting as it is declared in a class."""

    name: str
    type: str
    default: str
    meaning: str


def list_(topic: Topic = None, as_json: Json = False) -> None:
    """List components that can be chosen by name; or all `settings` of an experiment, or those of a method."""
    with reporting(quiet=as_json):
        tables = {kind.plural: kind.table for kind in KINDS.values()}
        methods = KINDS["algorithm"].table()
        if topic is None:
            topics = [*tables, "settings"]
            print_json({"topics": topics}) if as_json else say(f"protonorm list {' | '.join(topics)} | METHOD")
        elif topic in tables:
            entries = tables[topic]()
            if as_json:
                print_json({key: {"summary": entry.summary, **entry.details} for key, entry in entries.items()})
            else:
                say(entries_table(topic.capitalize(), entries))
        elif topic == "settings":
            say_settings("Settings of an experiment", CAPTION, EXPERIMENT, as_json=as_json)
        elif topic in methods:
            entry = methods[topic]
            title = f"{topic}: {entry.summary} ({entry.details['paper']})"
            say_settings(title, exchanged(entry.target), entry.target, as_json=as_json)
        elif ".py:" in topic:
            say_own(topic, as_json=as_json)
        else:
            from protonorm.core.registry import nearest
            from protonorm.core.text import shortened

            name, topics = shortened(topic), [*tables, "settings", *methods]
            raise ValueError(f"There is nothing to list about {name!r}; {nearest(name, topics)}")


def say_settings(title: str, description: str, target: str, *, as_json: bool) -> None:
    """Print the settings of a class."""
    settings = list(read_class(*target.split(":")).values())
    settings.sort(key=lambda item: target == EXPERIMENT and item.name in read_class(*TRAINING))  # method and data first
    print_settings(title, description, settings, as_json=as_json)


def print_settings(title: str, description: str, settings: Sequence[Setting], *, as_json: bool) -> None:
    """Print settings as a table, or as JSON."""
    if as_json:
        print_json({"title": title, "settings": [item._asdict() for item in settings], "about": description})
        return
    columns = [Column("setting", no_wrap=True), Column("values"), Column("default"), Column("meaning")]
    say(make_table(title, columns, settings))
    say(description)


def say_own(location: str, *, as_json: bool) -> None:
    """Print the settings of a method in the user's own file, which is executed."""
    from protonorm.core.own_code import load_own
    from protonorm.core.types import shown

    method = load_own(location, "algorithm")
    if not is_dataclass(method):
        raise ValueError(f"{location} must be a dataclass, whose fields are settings, got {shown(method)}.")
    rows = [
        Setting(field.name, str(getattr(field.type, "__name__", field.type)), str(field.default), "")
        for field in fields(method)
    ]
    first = (method.__doc__ or "").partition("\n")[0]  # without a docstring, a dataclass's is its signature
    print_settings(
        location, "" if first.startswith(f"{location.rpartition(':')[2]}(") else first, rows, as_json=as_json
    )


@cache
def parse(module: str) -> tuple[ast.Module, list[str]]:
    """Return the syntax tree and the lines of a module of this package."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    text = (Path(f"{path}.py") if Path(f"{path}.py").exists() else path / "__init__.py").read_text("utf-8")
    return ast.parse(text), text.splitlines()


def find(module: str, name: str) -> tuple[str, Any]:
    """Return where a module's name is defined in this package, and the class or the value; None for other packages."""
    for node in parse(module)[0].body:
        match node:
            case ast.ClassDef(name=found) if found == name:
                return module, node
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                return module, value
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for target, value in zip(targets, values, strict=False):
                    if isinstance(target, ast.Name) and target.id == name:
                        return module, value
            case ast.ImportFrom(module=str(place), names=names) if any(item.name == name for item in names):
                return find(place, name) if place.startswith("protonorm.") else (place, None)
    return module, None


def read_class(module: str, name: str, prefix: str = "") -> dict[str, Setting]:
    """Return the settings of a class and its bases in this package, by name; those of a nested class with its name."""
    module, definition = find(module, name)
    settings: dict[str, Setting] = {}
    for base in definition.bases if definition else ():
        settings |= read_class(module, ast.unparse(base).partition("[")[0])
    for node in definition.body if definition else ():
        kind = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else "ClassVar"
        if kind.startswith("ClassVar") or node.target.id.startswith("_"):
            continue
        field = f"{prefix}{node.target.id}"
        if kind.isidentifier() and isinstance(find(module, kind)[1], ast.ClassDef):
            settings |= read_class(module, kind, f"{field}.")
        else:
            settings[field] = Setting(field, type_text(module, node.annotation), *default_and_meaning(module, node))
    return settings


def type_text(module: str, node: Any) -> str:
    """Describe the values that a type allows."""
    match node:
        case ast.BinOp(left=left, right=right):
            return f"{type_text(module, left)} | {type_text(module, right)}"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
            return " | ".join(str(value.value) for value in getattr(values, "elts", [values]))
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[first, *_])):
            return type_text(module, first)
        case ast.Subscript(value=ast.Name(id=name)) | ast.Name(id=name) if name in TYPES:
            return TYPES[name]
        case ast.Name(id=name) if (defined := find(module, name))[1] is not None:
            return type_text(*defined)
    return "null" if ast.unparse(node) == "None" else ast.unparse(node)


def default_and_meaning(module: str, node: ast.AnnAssign) -> tuple[str, str]:
    """Return the default of a field, and its meaning: the description, or the comments behind and below it."""
    value: Any = node.value
    value = find(module, value.id)[1] if isinstance(value, ast.Name) else value
    keywords = {item.arg: item.value for item in value.keywords} if isinstance(value, ast.Call) else {}
    default = keywords.get("default", value)
    text = json.dumps(default.value) if isinstance(default, ast.Constant) else ast.unparse(default) if default else "–"
    if "description" in keywords:
        return text.strip('"'), str(ast.literal_eval(keywords["description"]))
    _, lines = parse(module)
    end = node.end_lineno or node.lineno
    below = takewhile(lambda line: line.startswith("#"), map(str.strip, lines[end:]))
    comments = [lines[end - 1].partition("  # ")[2], *(line.strip("# ") for line in below)]
    return text.strip('"'), "; ".join(filter(None, comments))


def exchanged(target: str) -> str:
    """Return what a method exchanges: the lines of its module about states and messages."""
    text = ast.get_docstring(parse(target.partition(":")[0])[0]) or ""
    return next((part for part in text.split("\n\n") if "message:" in part), "")


data = typer.Typer(no_args_is_help=True, help="See which data sets are there, and prepare others.")

Name = Annotated[str, typer.Argument(help="A data set: see `protonorm data list`.")]
ROOT = "Folder of prepared data; PROTONORM_DATA or the user's cache if not given."
Root = Annotated[Path | None, typer.Option(help=ROOT)]
Archives = Annotated[Path, typer.Option("--from", help="Folder with the official archives.")]
Check = Annotated[bool, typer.Option("--check/--no-check", help="Refuse archives with another checksum.")]
Mirror = Annotated[str | None, typer.Option(help="Address of a folder to download from instead of the official one.")]
GET_DATA = (
    "protonorm data download NAME fetches the official archives; protonorm data prepare NAME --from FOLDER takes "
    "those in a folder. Pictures of your own need neither: protonorm run dataset=folder:PATH."
)


@data.command("list")
def list_data(root: Root = None, as_json: Json = False) -> None:
    """List the data sets: which are available, which are missing, and how to get them."""
    with reporting():
        from protonorm.data import DATASETS
        from protonorm.data.prepared import data_root

        folder = data_root(root)
        states = [state(name, folder) for name, entry in DATASETS.items() if "samples" in entry.details]
        if as_json:
            print_json({"root": str(folder), "datasets": states})
            return
        rows = [[item["name"], "yes" if item["there"] else "no", item["what"]] for item in states]
        columns = [Column("data set", no_wrap=True), Column("there", no_wrap=True), Column("what")]
        say(make_table(f"Data in {folder}", columns, rows, GET_DATA))


@data.command()
def prepare(name: Name, source: Archives, root: Root = None, check: Check = True) -> None:
    """Prepare a data set's file from the official archives in a folder."""
    with reporting():
        _prepare(name, source, root, check)


@data.command()
def download(name: Name, root: Root = None, mirror: Mirror = None, check: Check = True) -> None:
    """Download a data set's official archives and prepare it; an interrupted download is resumed."""
    with reporting():
        from protonorm.data.prepared import data_root
        from protonorm.data.published.prepare import download as fetch_archives

        folder = data_root(root) / "archives" / name
        fetch_archives(name, folder, mirror=mirror, checked=check)
        _prepare(name, folder, root, check)
        say(visible(f"The archives are in {folder}; they are no longer needed."))


def _prepare(name: str, source: Path, root: Path | None, check: bool) -> None:
    from protonorm.data.published.prepare import prepare as prepare_archives

    path, arrays = prepare_archives(name, source, root, checked=check)
    samples, *size = arrays.images.shape
    say(f"{visible(str(path))}: {samples} pictures, {'×'.join(map(str, size))}, {len(arrays.classes)} classes.")


def state(name: str, root: Path) -> dict[str, Any]:
    """Return whether a data set is available."""
    from protonorm.data.prepared import read_shape
    from protonorm.data.published.prepare import SOURCES, wanted

    if name not in SOURCES:
        return {"name": name, "there": True, "what": "in the package"}
    path = root / f"{name}.npz"
    if not path.exists():
        return {"name": name, "there": False, "what": f"missing: download it, or prepare it from {wanted(name)}"}
    try:
        samples, *size = read_shape(path)
    except ValueError as error:
        return {"name": name, "there": False, "what": str(error)}
    return {"name": name, "there": True, "what": f"{samples} pictures, {'×'.join(map(str, size))}"}


backbones = typer.Typer(no_args_is_help=True, help="See which frozen networks are there, and get weights of others.")
GET_BACKBONES = (
    "protonorm backbones download timm:NAME gets weights into the library's own cache; nothing else downloads. "
    "models=frozen:timm:NAME=FILE takes a file."
)


@backbones.command("list")
def list_backbones(as_json: Json = False) -> None:
    """List the frozen networks whose weights are here, and those of packages that can be installed."""
    with reporting(quiet=as_json):
        from protonorm.models import FROZEN
        from protonorm.models.frozen import backbones
        from protonorm.models.weights import PACKAGES, cached

        networks = list(backbones([*(f"{FROZEN}{name}" for name in PACKAGES), *cached()]))
        if as_json:
            print_json({"backbones": [item._asdict() for item in networks]})
            return
        rows = []
        for item in networks:
            size = f"{(item.bytes or 0) / 1e6:.0f} MB" if item.here else ""
            rows.append([item.name, str(item.width or ""), size, item.licence, f"{item.sha256}  {item.what}".strip()])
        columns = [Column("network", no_wrap=True)]
        columns += map(Column, ("features", "size", "licence", "SHA-256 and place of the weights"))
        say(make_table("Frozen networks", columns, rows, GET_BACKBONES))


@backbones.command("download")
def download_backbone(name: Annotated[str, typer.Argument(help="timm:NAME, torchvision:NAME or hf:NAME.")]) -> None:
    """Download the weights of a library's network into the library's own cache."""
    with reporting():
        from protonorm.models.weights import download as fetch_weights

        say(visible(str(fetch_weights(name))))
