"""Tables in a terminal: what stands in them is text, whatever characters it has."""

from collections import Counter

import pytest
from rich.text import Text

from protonorm.analysis.comparison import COLUMNS, Cell, Row
from protonorm.cli import console
from protonorm.cli.console import Column, bold, entries_table, make_table, say
from protonorm.cli.run_tables import comparison_tables, curve, runs_table
from protonorm.core.registry import Entry
from protonorm.runs.run import read_run
from tests.support import run, run_folder, spiral

TRICKY = ["[red]cat[/red]", "[/]", "[link=x]", ":smile:", "[bold"]


@pytest.mark.parametrize("text", TRICKY)
def test_names_are_shown_as_they_are(capsys, text):
    """In the title, the headings, the cells and the caption; rich would take them for colours and links."""
    say(make_table(f"title {text}", [f"head {text}", Column("number", "right")], [[text, "1"]], f"caption {text}"))
    shown = capsys.readouterr().out
    for part in ("title ", "head ", "caption ", "\n  "):
        assert f"{part}{text}" in shown


@pytest.mark.parametrize("text", TRICKY)
def test_sentences_are_shown_as_they_are(capsys, text):
    say(f"Record: {text}")
    assert capsys.readouterr().out == f"Record: {text}\n"


def test_a_long_line_is_not_broken_where_there_is_no_terminal(capsys):
    say("x" * 500)
    assert capsys.readouterr().out == "x" * 500 + "\n"


def test_entries_have_a_column_for_each_detail(capsys):
    entries = {"one": Entry("a:B", "the first", {"needs": "[x]"}), "two": Entry("a:C", "the second")}
    say(entries_table("Things", entries))
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip(" ─")]
    assert lines[1:] == [
        ["name", "needs", "what", "it", "is"],
        ["one", "[x]", "the", "first"],
        ["two", "the", "second"],
    ]


def test_only_the_highest_headline_number_that_stands_out_is_bold():
    def row(method, value, headline=True, **more):
        return Row(method, "logits", headline, dict.fromkeys(COLUMNS, Cell(value, None)), **more)

    (table,) = comparison_tables(
        "mine", [row("a", 0.5), row("b", 0.75, leads=True), row("b", 0.9, headline=False)], 110
    )
    cells = [cell for cell in table.columns[2].cells if isinstance(cell, Text)]
    assert [(cell.plain, str(cell.style)) for cell in cells] == [("50.00", ""), ("75.00", "bold"), ("90.00", "")]
    (table,) = comparison_tables("mine", [row("a", 0.5), row("b", 0.75, leads=True, alike={"a": "one seed"})], 110)
    assert not any(str(cell.style) for cell in table.columns[2].cells if isinstance(cell, Text))
    assert bold("x").style == "bold"


def test_a_run_without_an_accuracy_is_listed(tmp_path, capsys):
    """One round is done, and nobody was evaluated after it."""

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spiral(evaluate_every=3), out=tmp_path, watch=stop)
    say(runs_table([read_run(run_folder(spiral(evaluate_every=3), tmp_path))]))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "1/3" in line]
    assert line.split()[1:] == ["1/3", "nearest-global", "–", "–", "–"]


def test_a_curve_of_characters():
    """Two rows of two columns: 0.5 fills the lower row, 1 fills both; what is not known stays blank."""
    assert curve([0.5, 1.0, None], height=2).splitlines() == [
        "  100 │ █ ",
        "   50 │██ ",
        "      └─── 3 rounds",
    ]


def test_a_curve_of_no_rounds():
    assert curve([]).splitlines()[-1].strip() == "└ 0 rounds"


@pytest.mark.parametrize("width", [24, 30, 45, 60])
def test_where_there_is_little_room_nothing_is_cut(capsys, monkeypatch, width):
    monkeypatch.setattr(console, "page_width", lambda: width)
    cells = ["protonorm", "+6.30 [−5.88, +18.05]", "not distinguishable"]
    columns = [Column("method"), Column("gain", no_wrap=True), Column("verdict", no_wrap=True)]
    say(make_table("", columns, [cells]))
    shown = Counter(capsys.readouterr().out)
    assert not Counter("".join(cells).replace(" ", "")) - shown
