"""What the two sides of each method say, for docs/wire.md: tensors, their types and shapes, and what holds of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from protonorm.algorithms import ALGORITHMS
from protonorm.algorithms.analytic import Analytic
from protonorm.config.components import build
from protonorm.core.schema import Field, Form, Size, Slot
from protonorm.deployment.agreement import Agreement
from protonorm.models.choose import Recipe
from protonorm.models.frozen import FrozenNetwork
from protonorm.tensors import floats, snapshot

CLASSES, WIDTH, NETWORK, SHAPE = 7, 24, "plain", (28, 28, 1)  # of the tables' example
TRUNK = "frozen:identity"  # of methods that need one: the samples themselves, D = 24 numbers, so that P = 25
NETWORKS = ("model", "student", "meme")  # before the names of a shared network's tensors


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def json_of(value: Any) -> str:
    """Write a value as JSON; whole numbers without a point."""
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def agreement(name: str, **settings: Any) -> Agreement:
    """Make the agreement of the tables' example, with a method's usual settings or others."""
    method = build("algorithm", {"name": name, **settings})
    needs_network = method.auxiliary or method.needs_shared_network
    shared = {"shared_network": NETWORK, "input": {"shape": list(SHAPE), "type": "uint8"}} if needs_network else {}
    terms = {"classes": [f"class {k}" for k in range(CLASSES)], "feature_dim": WIDTH, "rounds": 5, "seed": 0}
    if isinstance(method, Analytic):
        terms |= {"trunks": [TRUNK], "input": {"shape": [WIDTH], "type": "float32"}}
        shared = {"shared_network": TRUNK} if needs_network else {}
    return Agreement.of({"algorithm": {"name": name, **settings}, **terms, **shared})


def methods() -> str:
    """Describe what the two sides of each method say, with its usual settings and with those that change it."""
    return "\n\n".join(method(name).strip() for name in ALGORITHMS) + "\n"


def method(name: str) -> str:
    """Describe one method."""
    default = says(name)
    sections = [f"### {name}", message_table(default)]
    for setting, value in choices(name):
        other = says(name, **{setting: value})
        if other != default:
            sections.append(f"With `{setting}` = `{json_of(value)}`:")
            sections.append(message_table([row for row in other if row not in default] or other))
    return "\n\n".join(section.strip() for section in sections)


def message_table(rows: Sequence[Sequence[str]]) -> str:
    """Write a table of tensors."""
    return table(["who says it", "tensor", "type", "shape", "what holds"], rows)


def says(name: str, **settings: Any) -> list[list[str]]:
    """List the tensors that both sides of a method say."""
    schema = agreement(name, **settings).task.schema
    rows = []
    for side, slots in (("server", schema.down), ("client", schema.up)):
        lines = [line for slot in gathered(slots) for line in described(slot, schema.bounds)]
        rows += [[side, *line] for line in lines or [["nothing", "", "", ""]]]
    return rows


def choices(name: str) -> list[tuple[str, Any]]:
    """List the values of those settings of a method that have few."""
    kind = type(build("algorithm", name))
    choices = []
    for setting, hint in get_type_hints(kind).items():
        if setting in {item.name for item in fields(kind)}:
            values = [True, False] if hint is bool else get_args(hint) if get_origin(hint) is Literal else ()
            choices += [(setting, value) for value in values]
    return choices


def gathered(slots: tuple[Slot, ...]) -> list[Slot]:
    """Merge the tensors of a shared network: their names and shapes are the network's."""
    merged: list[Slot] = []
    networks: dict[str, list[Slot]] = {}
    for slot in slots:
        first = next(iter(filled(slot))).split(".")[0]
        (networks.setdefault(first, []) if first in NETWORKS else merged).append(slot)
    return [_network(name, parts) for name, parts in networks.items()] + merged


def _network(name: str, slots: Sequence[Slot]) -> Slot:
    """Describe the tensors of a network as one, with the number of them."""
    names = [name for slot in slots for name in slot[0]]
    start = f"{name}.features" if all(item.startswith(f"{name}.features.") for item in names) else name
    network: Form = {f"{start}.*": Field((f"{len(names)} tensors, those of the shared network",))}
    further = [form for slot in slots for form in slot[1:]]
    return (network, {}) if {} in further else (network, {"factors": Field(())}) if further else (network,)


def filled(slot: Slot) -> Form:
    """Return the first form of a slot that has tensors."""
    return next(filter(None, slot))


def described(slot: Slot, bounds: Mapping[str, int]) -> list[list[str]]:
    """Describe the tensors of a slot's first form that has any, and whether there may be others or none."""
    other = ""
    if not slot[0]:
        other = "none unless noise was added"
    elif {} in slot:
        other = "all or none"
    elif len(slot) > 1:
        other = "or in factors, see below"
    lines = []
    for name, field in filled(slot).items():
        shape = str(field.shape[0]) if name.endswith("*") else _shape(field.shape)
        holds = "; ".join(filter(None, [_bounds(field), _symbols(field.shape, bounds), other]))
        name = name.replace(FrozenNetwork(TRUNK.partition(":")[2]).digest[:12], "T")
        lines.append([f"`{name}`", str(field.dtype).removeprefix("torch."), shape, holds])
    return lines


def _shape(shape: tuple[Size, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _bounds(field: Field) -> str:
    limits = []
    if field.least is not None:
        last = field.below - 1 if isinstance(field.below, int) else f"{field.below} − 1"
        limits.append(f"{field.least} to {last}" if field.below is not None else f"from {field.least}")
    limits += ["no two alike"] * field.distinct + ["not all 0"] * field.some + ["0 to 1"] * field.share
    return ", ".join(limits)


def _symbols(shape: tuple[Size, ...], bounds: Mapping[str, int]) -> str:
    bounded = [size for size in shape if isinstance(size, str) and bounds.get(size) == CLASSES]
    return ", ".join(f"{size} ≤ K" for size in dict.fromkeys(bounded))


def network() -> str:
    """List the tensors of the example's shared network."""
    height, width, channels = SHAPE
    model = Recipe(NETWORK, (channels, height, width), WIDTH, CLASSES, lowered=False)()
    rows = [
        [f"`{name}`", "float32", _shape(tuple(value.shape))] for name, value in floats(snapshot("model", model)).items()
    ]
    return table(["tensor", "type", "shape"], rows)


def rules() -> str:
    """List the rules by which the clients of each method answer."""
    rows = []
    for name in ALGORITHMS:
        method = agreement(name).task.algorithm
        rows.append([name, ", ".join(f"`{rule}`" for rule in method.rules), f"`{method.headline}`"])
    return table(["method", "rules", "headline"], rows)
