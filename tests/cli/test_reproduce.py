"""The command `reproduce`, as it is typed."""

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest
from experiments.reproduction.accuracy import accuracy_tables
from experiments.reproduction.cells import Table, TableEntry
from experiments.reproduction.profiles import PROFILES
from experiments.reproduction.running import Reproduction
from experiments.reproduction.writing import Written
from rich.console import Console
from typer.testing import CliRunner

from protonorm.cli.app import app
from protonorm.cli.reproduce import judge, terminal_table
from protonorm.runs.run import read_run
from protonorm.session import running
from tests.reproduction.studies import fake_findings, small_study

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
    monkeypatch.setattr(running, "cores", lambda: 1)


@pytest.fixture
def nothing_runs(monkeypatch):
    monkeypatch.setattr(running, "run", lambda *_, **__: pytest.fail("it was run"))


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
    assert "who leads" not in done.output  # the file states nothing of it
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "mine.md", "mine.tex", "mine.csv", "mine-curves.png", "mine-curves.pdf",
    }  # fmt: skip


def test_check_fails_where_a_cell_is_outside_the_tolerance(tmp_path):
    path = tmp_path / "strict.py"
    path.write_text(MINE.replace('{"cpu": 50.0}', '{"cpu": 0.0}').replace("Printed(50.0)", "Printed(99.99)"))
    done = call(path, "--check")
    assert done.exit_code == 1
    assert "DIFFERS: strict, ProtoNorm, spiral" in done.output
    assert "1 of 1 checks differ" in done.stderr


def test_fewer_rounds_have_a_folder_of_their_own_and_can_go_on(mine, tmp_path):
    runs = tmp_path / "runs"
    short = call(mine, "--out", runs, "--rounds", "1")
    assert short.exit_code == 0, short.output
    folder = runs / "reproduction" / "cpu-1-rounds"
    assert "1 round instead of 2" in (folder / "mine.md").read_text(encoding="utf-8")
    whole = call(mine, "--out", runs, "--render-only")
    assert "1 of 2 rounds" in whole.output
    assert call(mine, "--out", runs).exit_code == 0
    again = call(mine, "--out", runs, "--rounds", "1", "--render-only")
    assert again.exit_code == 0
    assert "1 of 2 rounds" not in again.output
    assert call(mine, "--rounds", "0").exit_code == 2


def test_check_with_nothing_to_check_is_refused(mine):
    done = call(mine, "--check", "--render-only")
    assert done.exit_code == 2
    assert "nothing to check" in done.stderr


def test_cells_with_other_tests_have_lines_and_columns_of_their_own(mine, tmp_path):
    done = call(mine, "--out", tmp_path, "--only", "FedProto")
    folder = tmp_path / "reproduction" / "cpu"
    assert "newcomers" not in done.output
    assert b"newcomers" not in (folder / "mine-only-fedproto.csv").read_bytes()
    text = MINE.replace('"clients": 2', '"clients": 4, "common_test": 0.25, "held_out": 0.25').replace("Mine", "Tests")
    (tmp_path / "tests.py").write_text(text)
    done = call(tmp_path / "tests.py", "--out", tmp_path, "--only", "FedProto")
    assert done.exit_code == 0, done.output
    stem = folder / "tests-only-fedproto"
    lines = list(csv.DictReader(io.StringIO(stem.with_suffix(".csv").read_text("utf-8"))))
    head = next(line for line in lines if line["headline"] == "True")
    record = read_run(tmp_path / head["key"]).chosen.record
    for part in ("common", "newcomers"):
        expected = 100 * getattr(record, part)["nearest-global"].pooled
        assert float(head[part]) == pytest.approx(expected, abs=1e-3)
        assert f"<br>{part} {expected:.2f}" in stem.with_suffix(".md").read_text("utf-8")
        assert f"quad {part}}}" in stem.with_suffix(".tex").read_text("utf-8")
    assert "Newcomers: of the clients that never train" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("words", "protocol", "by", "folder"),
    [
        ([], "validated", "validation", "cpu"),
        (["--protocol", "validated"], "validated", "validation", "cpu"),
        (["--protocol", "paper"], "paper", "test", "cpu-paper"),
        (["--profile", "paper", "--seeds", "0"], "paper", "test", "paper"),
        (
            ["--profile", "paper", "--seeds", "0", "--protocol", "validated"],
            "validated",
            "validation",
            "paper-validated",
        ),
    ],
)
def test_the_protocol_decides_how_rounds_are_chosen_and_where_tables_are_written(
    mine, tmp_path, words, protocol, by, folder
):
    done = call(mine, "--out", tmp_path / "mine", *words)
    assert done.exit_code == 0, done.output
    table = (tmp_path / "mine" / "reproduction" / folder / "mine.csv").read_text(encoding="utf-8")
    lines = list(csv.DictReader(io.StringIO(table)))
    assert {line["protocol"] for line in lines} == {protocol}
    assert {line["chosen_by"] for line in lines} == {by}
    for line in lines:
        held_out = read_run(tmp_path / "mine" / line["key"]).population.validation.sum()
        assert (held_out > 0) == (protocol == "validated")
    assert ("best*" in done.output) == (protocol == "validated")


def test_what_is_not_decided_is_said_and_is_no_error(tmp_path, capsys):
    study = small_study(leads="ProtoNorm", slack={"cpu": 1.0})
    given = {("ProtoNorm", "Group: one"): [0.40, 0.45], ("FedProto", "Group: one"): [0.43, 0.41]}
    findings = fake_findings(tmp_path, study, given, "cpu")
    judge([Written(findings, (), [], [])])
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("not decided: small, Group: one: ProtoNorm is the highest; whether it may be more than")
    assert told.endswith("With fewer than 5 seeds intervals may be too narrow: what is said of who leads is a hint.")


def test_where_nobody_is_said_to_lead_nothing_is_a_hint(tmp_path, capsys):
    """The file states who should lead, but a row by itself leads nobody."""
    study = small_study(leads="ProtoNorm", slack={"paper": 1.0}, tolerance={"paper": 3.0})
    findings = fake_findings(tmp_path, study, {("ProtoNorm", "Group: one"): [0.47, 0.48]})
    judge([Written(findings, (), [], [])])
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("agrees: small, ProtoNorm, Group: one: 47.50")
    assert "who leads" not in told


@pytest.mark.usefixtures("nothing_runs")
def test_render_only_runs_nothing(mine, tmp_path):
    done = call(mine, "--render-only", "--to", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "not run yet" in (tmp_path / "out" / "mine.md").read_text()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["tabel1"], "did you mean 'table1'"),
        ([], "no table or figure"),
        (["table1", "--profile", "cpo"], "did you mean 'cpu'"),
        (["table1", "--protocol", "papr"], "did you mean 'paper'"),
        (["table1", "--check"], "one seed does not tell a difference from chance. Give several, such as --seeds 0,1,2"),
        (["table1", "--seeds", "a"], "--seeds must be whole numbers with commas between them, as 0,1,2, got a"),
        (["nowhere.py"], "no Python file"),
        (["table1", "--engine", "nosuch"], "Unknown engine 'nosuch'"),
        (["table1", "--only", "MNIST"], "no cell of table1 matches"),
        (["table1", "--to", ""], "--to must be a folder for tables and figures, got an empty text"),
        (["spiral", "--check"], "nothing to check: spiral states no tolerance for the profile 'cpu'"),
        (["elsewhere/table1.py"], "is a table or figure of the paper"),
        (["a/mine.py", "b/mine.py"], "both are named 'mine'"),
    ],
)
@pytest.mark.usefixtures("nothing_runs")
def test_mistakes_are_refused_in_a_sentence(words, what, monkeypatch):
    monkeypatch.setattr(Reproduction, "write", lambda *_: pytest.fail("something was written"))
    done = call(*words)
    assert done.exit_code == 2
    assert what in " ".join(done.stderr.split())


def test_a_file_that_is_no_table_is_refused(tmp_path):
    path = tmp_path / "other.py"
    path.write_text("X = 1\n")
    done = call(path)
    assert done.exit_code == 2
    assert "is not a table or figure" in done.stderr


def test_the_file_in_the_documentation_is_a_table(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    path = tmp_path / "documented.py"
    path.write_text(page.split('```python title="mine.py"\n')[1].split("```")[0])
    done = call(path, "--render-only", "--to", tmp_path)
    assert done.exit_code == 0, done.output
    assert "| FedProto | not run yet |" in (tmp_path / "documented.md").read_text()


def test_listing_does_without_torch():
    code = (
        "import sys; from protonorm.cli.app import app; app(['reproduce', '--list'], standalone_mode=False);"
        "heavy = {'torch', 'matplotlib', 'torchvision'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("table1", "spiral_clients", "communication"):
        assert name in done.stdout


def text_of(table, width=200):
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(table)
    return console.file.getvalue()


def test_a_table_in_the_terminal_says_how_many_seeds_and_what_is_printed(tmp_path):
    findings = fake_findings(tmp_path, small_study(), {("ProtoNorm", "Group: one"): [0.4741, None, None]})
    text = text_of(terminal_table(accuracy_tables(findings)[0], findings.profile))
    assert "47.41 (1 of 3 seeds)" in text
    assert "47.41 ± 0.40 (+0.00)" in text
    assert text.count("Group") == 1  # above the first of its columns only


def test_text_in_the_terminal_is_never_markup_and_smoke_is_stamped():
    table = Table("[red]T", "[b]", ["[i]a"], [("[/u]", [TableEntry("[1]", "[2]", bold=True)])], explanation="[/x]")
    text = text_of(terminal_table(table, PROFILES["smoke"]))
    assert "SMOKE: [red]T" in text
    assert all(shown in text for shown in ("[b]", "[i]a", "[/u]", "[1]", "[2]", "[/x]"))


def test_a_command_with_bytes_that_are_no_text_can_be_written(mine, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["protonorm", "reproduce", "--to", "\udcff"])
    done = call(mine, "--render-only", "--to", tmp_path / "out")
    assert done.exit_code == 0, done.output
    for ending in ("md", "tex", "csv"):
        assert "\\udcff" in (tmp_path / "out" / f"mine.{ending}").read_text(encoding="utf-8")


def test_a_file_named_in_two_ways_is_one(mine, tmp_path):
    done = call(mine, mine.parent / "x" / ".." / "mine.py", "--render-only", "--to", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert done.output.count("mine.md") == 1


def test_a_part_does_not_replace_the_whole(mine, tmp_path):
    call(mine, "--render-only", "--to", tmp_path)
    done = call(mine, "--render-only", "--to", tmp_path, "--only", "FedProto")
    assert done.exit_code == 0, done.output
    assert "ProtoNorm" in (tmp_path / "mine.md").read_text()
    assert "A part: 1 of 2 cells" in (tmp_path / "mine-only-fedproto.md").read_text()


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("option", ["--to", "--out"])
def test_a_file_where_a_folder_should_be_is_refused_first(mine, option):
    for place in (mine, mine / "below"):
        done = call(mine, option, place)
        assert done.exit_code == 2
        assert "it is, or is inside, a file" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("X = 1\nif\n", "broken.py, line 2: this is not valid Python: invalid syntax."),
        ("\nimport nosuchthing\n", "broken.py, line 2: it imports 'nosuchthing', which is not installed."),
        (
            "def f():\n    return 1 / 0\n\nf()\n",
            "broken.py, line 2: it fails when it is imported: ZeroDivisionError: division by zero.",
        ),
        ("TITLE = 3\nCOLUMNS = ()\n", "broken.py cannot be used: TITLE must be a text"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(tmp_path, text, what):
    path = tmp_path / "broken.py"
    path.write_text(text)
    done = call(path)
    assert done.exit_code == 2
    assert what in " ".join(done.stderr.split())


@pytest.mark.usefixtures("nothing_runs")
def test_a_folder_that_cannot_be_written_to_is_refused_first(mine, tmp_path, monkeypatch):
    def forbidden(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("experiments.reproduction.running.tempfile.TemporaryFile", forbidden)
    done = call(mine, "--to", tmp_path / "out")
    assert done.exit_code == 2
    assert "Nothing can be written to the folder" in done.stderr
    assert "Permission denied" in done.stderr
