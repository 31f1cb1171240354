"""Export of a federation as a Flower app, which contains the agreement but no algorithm's code."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from jinja2 import Template

from protonorm.deployment.agreement import Agreement
from protonorm.files import refuse_existing

PACKAGE = "federation"  # package name of the app
TARGET = "1.41.0"  # Flower version that the app was tested with
DEFAULT_NODES = 2  # nodes of a simulation of Flower's, if not set

TEMPLATE = Path(__file__).parent / "template"


def export_app(agreement: Agreement, folder: Path, clients: int = DEFAULT_NODES) -> Path:
    """Write the app into a new folder and return the folder.

    Args:
        agreement: Its terms; amended ones become the first agreement of the app, whose rounds begin with 1.
        folder: New folder.
        clients: Number of clients, for the commands in the app's README.
    """
    refuse_existing(folder, "an app")
    agreement = agreement.as_first()
    method = str(agreement.algorithm["name"])
    values = {
        "name": f"protonorm-{method.lower()}",
        "summary": f"A federation by {method} over {len(agreement.classes)} classes",
        "title": f"{method} over {len(agreement.classes)} classes",
        "package": PACKAGE,
        "target": TARGET,
        "digest": agreement.digest,
        "clients": clients,
    }
    files = {
        "LICENSE": "Apache License, Version 2.0: https://www.apache.org/licenses/LICENSE-2.0\n",
        f"{PACKAGE}/__init__.py": '"""A federation, as an app for Flower."""\n',
        f"{PACKAGE}/agreement.json": agreement.write().decode(),
    }
    with suppress(PackageNotFoundError):
        files["LICENSE"] = distribution("protonorm").read_text("licenses/LICENSE") or files["LICENSE"]
    for name in ("pyproject.toml", "README.md", f"{PACKAGE}/server_app.py", f"{PACKAGE}/client_app.py"):
        text = (TEMPLATE / f"{Path(name).name}.j2").read_text(encoding="utf-8")
        files[name] = Template(text, keep_trailing_newline=True).render(values)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
