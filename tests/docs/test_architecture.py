"""The page on architecture tells of the package as it is: its rooms, who imports whom, and what a round crosses."""

import ast
import re
import sys

from typer.testing import CliRunner

from protonorm.cli.app import app
from protonorm.core.node import Client
from tests.docs.pages import ROOT, read

PACKAGE = ROOT / "src" / "protonorm"


def rooms():
    """Read the table of rooms, in its order."""
    table = read("docs/architecture.md").partition("## Rooms")[2].partition("## ")[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def test_the_rooms_are_those_of_the_package():
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set(rooms()) == there - {"__init__", "__main__"}


def test_rooms_import_only_from_rooms_above_them():
    order = rooms()
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for name in imports(path) if room in order else ():
            assert order.index(name) <= order.index(room), f"{path} imports {name}"


def imports(path):
    """Name the rooms that a module imports anything from, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        found = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "protonorm":
            found = [f"protonorm.{alias.name}" for alias in node.names if alias.name in rooms()]
        elif isinstance(node, ast.ImportFrom):
            found = [node.module or ""]
        yield from (name.split(".")[1] for name in found if name.startswith("protonorm."))


def test_a_round_crosses_the_functions_that_are_listed(monkeypatch):
    """From the command to the loss, twelve at most."""
    section = read("docs/architecture.md").partition("## A round is three verbs")[2].partition("\n## ")[0]
    listed = re.findall(r"^\d+\. `([\w.<>]+)`", section, re.MULTILINE)
    assert len(listed) <= 12
    real, seen = Client.cross_entropy, []

    def spy(*inputs):
        if not seen:
            seen.extend(functions())
        return real(*inputs)

    monkeypatch.setattr(Client, "cross_entropy", spy)
    words = ["dataset=spiral", "dataset.points=60", "partition=iid", "clients=2", "rounds=1", "algorithm=local"]
    CliRunner().invoke(app, ["run", *words, "--engine", "serial"])
    assert seen == listed


def functions():
    """Name the package's functions that are being run, the outermost first."""
    frame, found = sys._getframe(2), []
    while frame:
        module = frame.f_globals["__name__"]
        if module.startswith("protonorm.") and module != "protonorm.cli.app":  # which only finds the command
            found.append(f"{module.removeprefix('protonorm.')}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return found[::-1]
