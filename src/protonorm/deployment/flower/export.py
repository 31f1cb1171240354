"""Export of a federation as a Flower app, which contains the agreement but no algorithm's code."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from jinja2 import Template

from protonorm.deployment.agreement import Agreement

PACKAGE = "federation"  # package name of the app
TARGET = "1.41.0"  # Flower version that the app was tested with

TEMPLATE = Path(__file__).parent / "template"


def export_app(agreement: Agreement, folder: Path) -> Path:
    """Write the app into a new folder and return the folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already, and it is not empty; an app gets a folder of its own.")
    method = str(agreement.algorithm["name"])
    about = {
        "name": f"protonorm-{method.lower()}",
        "summary": f"A federation by {method} over {len(agreement.classes)} classes",
        "title": f"{method} over {len(agreement.classes)} classes",
        "package": PACKAGE,
        "target": TARGET,
        "digest": agreement.digest,
    }
    files = {
        "pyproject.toml": _filled("pyproject.toml", about),
        "README.md": _filled("README.md", about),
        "LICENSE": _licence(),
        f"{PACKAGE}/__init__.py": '"""A federation, as an app for Flower."""\n',
        f"{PACKAGE}/server_app.py": _filled("server_app.py", about),
        f"{PACKAGE}/client_app.py": _filled("client_app.py", about),
        f"{PACKAGE}/agreement.json": agreement.write().decode(),
    }
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


def _filled(name: str, about: dict[str, str]) -> str:
    text = (TEMPLATE / f"{name}.j2").read_text(encoding="utf-8")
    filled: str = Template(text, keep_trailing_newline=True).render(about)
    return filled


def _licence() -> str:
    """Return the text of the licence."""
    try:
        found = distribution("protonorm").read_text("licenses/LICENSE")
    except PackageNotFoundError:
        found = None
    return found or "Apache License, Version 2.0: https://www.apache.org/licenses/LICENSE-2.0\n"
