"""What the documentation prints, works as printed, and what it lists is what there is."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from protonorm.algorithms import ALGORITHMS
from protonorm.cli.app import app
from protonorm.config.experiment import Experiment
from protonorm.core.node import Client
from protonorm.runs import layout

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "protonorm"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page):
    return [match.groups() for match in BLOCK.finditer(read(page))]


def call(words, folder):
    if words[0] == "protonorm":
        words = [sys.executable, "-m", *words]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_script(text, folder):
    (folder / "script.py").write_text(text)
    return call([sys.executable, "script.py"], folder)


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/add-your-own.md"])
def test_every_command_and_script_of_the_page_runs(page, tmp_path):
    """In order, in one folder: files are written, commands run, Python runs as an unguarded script."""
    ran = 0
    for kind, title, text in blocks(page):
        if title:
            (tmp_path / title).write_text(text)
        elif kind == "bash":
            for line in text.replace("\\\n", " ").splitlines():
                call(line.split(), tmp_path)
                ran += 1
        elif kind == "python":
            run_script(text, tmp_path)
            ran += 1
    assert ran >= 4


def test_every_method_of_a_trained_client_on_its_page_runs(tmp_path):
    (text,) = [text for kind, title, text in blocks("docs/predict.md") if kind == "python" and not title]
    assert "(5, 128)" in run_script(text, tmp_path)


def test_the_readmes_python_runs_as_an_unguarded_script_and_has_ten_lines(tmp_path):
    scripts = [text for kind, _, text in blocks("README.md") if kind == "python"]
    for text in scripts:
        assert len(text.strip().splitlines()) <= 10
        run_script(text, tmp_path)
    assert scripts


def test_the_own_algorithm_has_at_most_40_lines():
    (text,) = [text for _, title, text in blocks("docs/add-your-own.md") if title == "median.py"]
    assert len(text.strip().splitlines()) <= 40


def test_a_refusal_is_printed_as_the_page_says(tmp_path):
    (text,) = [text for _, _, text in blocks("docs/add-your-own.md") if "print(error)" in text]
    said = re.search(r"print\(error\)  # (.*)", text)[1]
    assert run_script(text, tmp_path).strip() == said


def test_every_algorithm_has_a_page():
    for name in ALGORITHMS:
        page = read(f"docs/algorithms/{name}.md")
        assert f"algorithm={name}" in page or f"compare {name}" in page


def test_every_setting_is_in_the_tutorials_table():
    """With its default, where the table gives one number or word for it."""
    rows = [line.split("|")[1:4] for line in read("docs/tutorial.md").splitlines() if line.startswith("| `")]
    told = {}
    for names, defaults, _ in rows:
        keys = [name for name in re.findall(r"`([\w.…]+)`", names) if "." not in name]
        told |= dict(zip(keys, (value.strip() for value in defaults.split(",")), strict=False))
        assert len(keys) in (1, len(defaults.split(",")))
    assert told.keys() == Experiment.model_fields.keys()
    for name, field in Experiment.model_fields.items():
        default = f"{field.default:g}" if isinstance(field.default, float) else str(field.default).lower()
        if field.default is not None:
            assert told[name] == default, name


def test_every_file_of_a_record_is_described():
    page = read("docs/runs.md")
    names = [value for name, value in vars(layout).items() if name.isupper() and isinstance(value, str)]
    assert len(names) == 13
    for name in names:
        assert f"| `{name}` |" in page or f"| `{name}/" in page


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
        if module.startswith("protonorm."):
            found.append(f"{module.removeprefix('protonorm.')}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return found[::-1]
