"""The command `reproduce`, as it is typed."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from protonorm import session
from protonorm.cli import app

MINE = """
from protonorm.reproduction.cells import Cell, Column, Printed

TITLE = "Mine"
COLUMNS = (Column("spiral"),)
ROWS = ("ProtoNorm", "FedProto")
SETTINGS = {
    "dataset": {"name": "spiral", "points": 20}, "partition": "iid", "clients": 2, "rounds": 2, "batch_size": 8,
    "models": "mlp",
}
CELLS = [Cell(row, "spiral", SETTINGS | {"algorithm": row.lower()}) for row in ROWS]
PAPER = {("ProtoNorm", "spiral"): Printed(50.0)}
TOLERANCE = {"cpu": 50.0}
"""


@pytest.fixture(autouse=True)
def _serial(monkeypatch):
    monkeypatch.setattr(session, "cores", lambda: 1)


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def call(*words):
    return CliRunner().invoke(app, ["reproduce", *map(str, words)])


def test_a_file_of_ones_own_is_run_written_and_checked(mine, tmp_path):
    done = call(mine, "--to", tmp_path / "out", "--check")
    assert done.exit_code == 0, done.output
    assert "agrees: mine, ProtoNorm, spiral" in done.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"mine.md", "mine.tex", "mine.csv"}


def test_check_fails_where_a_cell_is_outside_the_tolerance(tmp_path):
    path = tmp_path / "strict.py"
    path.write_text(MINE.replace('{"cpu": 50.0}', '{"cpu": 0.0}').replace("Printed(50.0)", "Printed(99.99)"))
    done = call(path, "--check")
    assert done.exit_code == 1
    assert "DIFFERS: strict, ProtoNorm, spiral" in done.output
    assert "1 of 1 checks differ" in done.stderr


def test_check_with_nothing_to_check_is_refused(mine):
    done = call(mine, "--check", "--render-only")
    assert done.exit_code == 2
    assert "nothing to check" in done.stderr


def test_render_only_runs_nothing(mine, monkeypatch, tmp_path):
    monkeypatch.setattr(session, "_run", lambda *_: pytest.fail("it was run"))
    done = call(mine, "--render-only", "--to", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "not run yet" in (tmp_path / "out" / "mine.md").read_text()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["tabel1"], "did you mean 'table1'"),
        ([], "no table or figure"),
        (["table1", "--profile", "cpo"], "did you mean 'cpu'"),
        (["table1", "--seeds", "a"], "--seeds a is refused"),
        (["nowhere.py"], "no Python file"),
    ],
)
def test_mistakes_are_refused_in_a_sentence(words, what):
    done = call(*words)
    assert done.exit_code == 2
    assert what in done.stderr


def test_a_file_that_is_no_table_is_refused(tmp_path):
    path = tmp_path / "other.py"
    path.write_text("X = 1\n")
    done = call(path)
    assert done.exit_code == 2
    assert "is not a table or figure" in done.stderr


def test_the_file_in_the_documentation_is_a_table(tmp_path):
    page = (Path(__file__).parent.parent / "docs" / "reproduce.md").read_text(encoding="utf-8")
    path = tmp_path / "documented.py"
    path.write_text(page.split('```python title="mine.py"\n')[1].split("```")[0])
    done = call(path, "--render-only", "--to", tmp_path)
    assert done.exit_code == 0, done.output
    assert "| FedProto | not run yet |" in (tmp_path / "documented.md").read_text()


def test_listing_does_without_torch():
    code = (
        "import sys; from protonorm.cli import app; app(['reproduce', '--list'], standalone_mode=False);"
        "heavy = {'torch', 'matplotlib', 'torchvision'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("table1", "spiral_clients", "communication"):
        assert name in done.stdout
