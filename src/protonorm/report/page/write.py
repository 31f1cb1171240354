"""Write the page: one file with all it needs inside.

The charts are drawn by a few hundred lines of JavaScript of our own. A plotting library would bring megabytes into
every page, need WebGL for the sphere, which remote and old browsers lack, and know nothing of the page's dark mode;
with SVG, colours are the style sheet's and a page stays small enough to be sent by mail.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from protonorm.core.text import visible
from protonorm.files import make_folder, replace
from protonorm.report.page.content import content
from protonorm.report.page.groups import Groups, by_method
from protonorm.report.palette import SLOTS, style_rules
from protonorm.runs.run import Run

SCRIPTS = ("draw", "tips", "lines", "dots", "heat", "bars", "gains", "sphere", "start")  # in this order
ENDINGS = (".html", ".htm")
MARK = b'<meta name="generator" content="protonorm report">'  # by which a page of ours is known …
HEAD = 4096  # … in its first bytes


def write_page(runs: Groups | Iterable[Run], path: str | Path) -> Path:
    """Write the report of runs, or of a comparison's runs by method, and return its path."""
    path = Path(path)
    refuse_to_overwrite(path)
    every = [run for found in runs.values() for run in found] if isinstance(runs, Mapping) else list(runs)
    if not every:
        raise ValueError("There is nothing to report: give at least one run.")
    found = content(runs if isinstance(runs, Mapping) else by_method(every))
    make_folder(path.parent)
    replace(path, render(found).encode())
    return path


def refuse_to_overwrite(path: Path) -> None:
    """Refuse a path whose ending is not that of a page, or where something other than a page is."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file that ends in {' or '.join(ENDINGS)}.")
    if path.suffix.lower() not in ENDINGS:
        raise ValueError(f"{path} is refused: the name of a report ends in {' or '.join(ENDINGS)}.")
    if os.path.lexists(path) and not is_page(path):
        raise ValueError(f"{path} exists and is not a report of protonorm; it is left as it is. Give another name.")


def is_page(path: Path) -> bool:
    """Tell whether a file is a report page."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(HEAD)
    return head.lstrip().startswith(b"<!doctype html>") and MARK in head


def render(found: dict[str, Any]) -> str:
    """Fill in the template. Every text is escaped; only the page's own style and script may take effect.

    What cannot be seen, such as marks that turn a line around, is shown; commands, which have lines, are safe already.
    """
    found = show_hidden(found) | {"commands": found["commands"]}
    environment = Environment(
        loader=PackageLoader("protonorm.report.page", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = f"{asset('page.css')}\n{style_rules()}"
    script = "\n".join(asset(f"{name}.js") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{script}\n}})();'
    policy = (
        f"default-src 'none'; style-src '{digest(style)}'; script-src '{digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return environment.get_template("page.html").render(
        found
        | {"style": Markup(style), "script": Markup(script), "policy": policy, "data": embedded(found["data"])}
        | {"slots": SLOTS}
    )


def show_hidden(value: Any) -> Any:
    """Write all texts in plain data so that nothing in them is hidden, each in one line."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {show_hidden(key): show_hidden(one) for key, one in value.items()}
    return [show_hidden(one) for one in value] if isinstance(value, list | tuple) else value


def embedded(data: dict[str, Any]) -> Markup:
    """Write data so that no text in it can end the script element that it stands in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)  # other than ASCII is escaped already
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def asset(name: str) -> str:
    """Read a file that travels with the package."""
    return files("protonorm.report.page").joinpath("assets", name).read_text(encoding="utf-8").strip()


def digest(text: str) -> str:
    """Hash a text as a content security policy wants it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
