"""Read what a run is: its settings, and the names of its classes and clients. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from protonorm.core.registry import nearest
from protonorm.core.types import shortened, shown
from protonorm.files import damaged, format_of, unsealed
from protonorm.runs.schema import FORMAT, RunInfo

Model = TypeVar("Model", bound=BaseModel)


def read_info(path: Path) -> RunInfo:
    """Read what a run is; the record of another version is refused."""
    content = path.read_bytes()
    if (version := format_of(content, path)) != FORMAT:
        raise ValueError(
            f"{path.parent} was written by another version of protonorm (format {version}); this version reads "
            f"format {FORMAT}. Run the experiment again, or read it with the version that wrote it."
        )
    return typed(RunInfo, unsealed(content, path, pretty=True), path)


def find_client(info: RunInfo, client: str | int) -> int:
    """Find a client's number by its name or its number; of a text, a name counts first."""
    names, clients, text = info.client_names or [], info.experiment.clients, str(client)
    if isinstance(client, str) and client in names:
        return names.index(client)
    if text.isascii() and text.isdecimal() and int(text) < clients:
        return int(text)
    known = nearest(shortened(text), names) if names else f"the run has clients 0 to {clients - 1}."
    raise ValueError(f"There is no client {shortened(text)}; {known}")


def typed(model: type[Model], value: dict[str, Any], path: Path) -> Model:
    """Check plain data against a type of the record, or say what is wrong with the file."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        reason = first["ctx"]["error"] if first["type"] == "value_error" else first["msg"]
        told = f"{where}: {str(reason)[0].lower()}{str(reason)[1:]}" if where else str(reason)
        raise damaged(path, told) from None


def refuse_other_names(
    folder: Path, found: RunInfo, classes: Sequence[str], client_names: Sequence[str] | None
) -> None:
    """Refuse to take a run for one of data whose classes or clients have other names, which are in no key."""
    pairs = {"classes": (found.classes, classes), "clients": (found.client_names, client_names)}
    for what, (before, now) in pairs.items():
        for number, (was, new) in enumerate(zip_longest(before or (), now or ())):
            if was != new:
                raise ValueError(
                    f"{folder} is a run of data with other names of {what}: number {number} was {_named(was)}, and is "
                    f"{_named(new)} now. The run is left as it is; give another folder with --out (out=… in Python), "
                    "or move this one away."
                )


def _named(name: str | None) -> str:
    return "without a name" if name is None else shown(name)
