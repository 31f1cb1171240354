"""A user's own code on the nodes: it travels as the text of its file, and is imported there under the same rules."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from protonorm.core.own_code import load_file, reference, refuse_own_code
from protonorm.core.own_text import is_installed
from protonorm.core.torchvision_import import importable_torchvision
from protonorm.files import make_folder, replace

BYTES = "latin-1"  # every byte is a letter of it, so that a file of any encoding stays what it is


def refer(thing: Any) -> dict[str, str]:
    """Say where a class or function is: in an installed package, or in a file, whose text goes along."""
    place = reference(thing)
    if is_installed(thing):
        return {"module": place["module"], "name": place["name"]}
    path = Path(place["file"])
    refuse_own_code(path)
    return {"name": place["name"], "file": str(path), "text": path.read_bytes().decode(BYTES)}


class NodeCode:
    """What was sent, in files of a node's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, str] = {}  # from a file here to what it is called where the run was started

    def resolve(self, place: dict[str, str]) -> Any:
        """Find what `refer` told of."""
        found: Any = self._load(place) if "text" in place else _import(place["module"])
        for name in place["name"].split("."):
            found = getattr(found, name)
        return found

    def translate(self, text: str) -> str:
        """Name files in a sentence as the user does."""
        for here, there in self._files.items():
            text = text.replace(here, there)
        return text

    def _load(self, place: dict[str, str]) -> Any:
        content = place["text"].encode(BYTES)
        path = self._folder / hashlib.sha256(content).hexdigest()[:16] / Path(place["file"]).name
        make_folder(path.parent)
        if not path.exists():
            replace(path, content)
        self._files[str(path)] = place["file"]
        with suppress(OSError):
            self._files[str(path.resolve())] = place["file"]
        try:
            return load_file(path)
        except ValueError as error:
            raise ValueError(self.translate(str(error))) from error


def _import(module: str) -> Any:
    try:
        with importable_torchvision():
            return import_module(module)
    except ImportError as error:
        raise ValueError(f"{module} cannot be imported on this node: {error}.") from error
