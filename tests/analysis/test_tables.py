"""The table of a comparison in LaTeX, Markdown and CSV."""

import csv
import io
import re

import pytest

from protonorm.analysis.comparison import COLUMNS, Unread, rows
from protonorm.analysis.tables import (
    FIELDS,
    MARK,
    caption,
    csv_text,
    latex_table,
    markdown_table,
    printed_table,
    seed_lines,
)
from tests.records import hundred, made

NASTY = "50 % & #_{x} ~^ \\input{y} | *a* `b` <b> $z$ [c](d)\n\x1b[31m"


@pytest.fixture
def runs(tmp_path):
    """Make the runs of a method: clients with 100 samples and so many right answers, a row for each seed."""

    def make(name, *right, control="none", **settings):
        return [
            made(
                tmp_path / f"{name[:5]}-{control}-{seed}", method={"name": name}, seed=seed, control=control,
                clients=len(row), classes=1, rounds=1, population=hundred(len(row)), tested=[row], validated=[row],
                **settings,
            )
            for seed, row in enumerate(right)
        ]  # fmt: skip

    return make


@pytest.fixture
def table(runs):
    """`up` gains .1 and .2 with both seeds, in every draw of the bootstrap between .1 and .2; `low` loses .2."""
    groups = {
        "up": runs("up", [60, 70], [60, 70]),
        "low": runs("low", [30, 30], [30, 30]),
        "local": runs("local", [50, 50], [50, 50], rules=["logits"]),
    }
    return printed_table("mine", rows(groups))


def test_accuracies_gains_and_verdicts(table):
    assert [name for name, _ in table.columns] == [
        "method", "rule", "accuracy", "clients", "worst 10 %", "gain on local", "lose", "verdict",
    ]  # fmt: skip
    texts = [[cell.text for cell in line] for line in table.lines]
    up = ["up", "global", "65.00 ± 0.00", "65.00 ± 0.00", "60.00 ± 0.00", "+15.00 [+10.00, +20.00]", "0 %", "better"]
    assert texts[0] == up
    assert texts[1][:3] == ["", "logits", "32.50 ± 0.00"]
    assert texts[4] == ["local", "logits", *["50.00 ± 0.00"] * 3, "", "", ""]
    assert texts[5] == ["majority", "–", "100.00", "100.00", "100.00", "", "", ""]
    assert [cell.text for line in table.lines for cell in line if cell.bold] == ["65.00 ± 0.00"]


def test_the_caption_explains_what_is_there_and_nothing_else(table, runs):
    told = " ".join(table.caption)
    assert "Bold: the accuracy of up can be told apart from that of every other method under the rule global." in told
    assert "± is half of the 95 % interval of the mean over 2 seeds (Student's t)." in told
    assert "Clients: mean over clients, in that round; Worst 10 %: mean over the worst tenth" in told
    assert "Verdicts: better: the whole interval lies above zero; worse: the whole interval lies below zero." in told
    assert "Rules: global, nearest global prototype; logits, the model's own logits." in told
    assert "Majority: guessing" in told
    for absent in ("est*", "optimistic", "last", "not distinguishable", "practically equal", "Solo", "worst 10 %: the"):
        assert absent not in told, absent
    single = " ".join(printed_table("one", rows({"up": runs("alone", [60, 70])})).caption)
    assert "One seed: there is no interval" in single
    for absent in ("Gain", "Verdicts", "±", "Bold", "bold"):
        assert absent not in single, absent


def test_columns_that_are_shown_are_explained(runs):
    table = rows({"up": runs("up", [60, 70])})
    brief = " ".join(caption(table, ("accuracy", "best", "last")))
    assert "Best*: the best test round; Last: the last round. * chosen by looking at the test accuracy" in brief
    assert "Clients" not in brief


def test_a_solo_control_has_columns_of_its_own(runs):
    groups = {"up": runs("up", [60, 70]), "up (solo)": runs("up", [50, 50], control="solo")}
    table = printed_table("mine", rows(groups))
    assert [name for name, _ in table.columns][5:] == ["gain on solo", "lose", "verdict"]
    assert [cell.text for cell in table.lines[0]][5:] == ["+15.00", "0 %", "no interval"]
    assert "Solo: the same method" in " ".join(table.caption)


def test_latex(table):
    text = latex_table(table)
    assert text.startswith(f"% {MARK}\n% needs \\usepackage{{booktabs}}\n\\begin{{table*}}[t]\n")
    assert "  \\begin{tabular}{llrrrrrl}\n" in text
    assert (
        "    up & global & \\textbf{65.00 $\\pm$ 0.00} & 65.00 $\\pm$ 0.00 & 60.00 $\\pm$ 0.00 & "
        "+15.00 {[}+10.00, +20.00] & 0 \\% & better \\\\\n"
    ) in text
    assert "  \\caption{mine. Bold: the accuracy of up can" in text
    assert "  \\label{table:comparison}\n\\end{table*}\n" in text


def test_markdown(table):
    lines = markdown_table(table).splitlines()
    assert lines[:3] == [f"<!-- {MARK} -->", "### mine", ""]
    assert lines[3] == "| method | rule | accuracy | clients | worst 10 % | gain on local | lose | verdict |"
    assert lines[4] == "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |"
    assert lines[5] == (
        r"| up | global | **65.00 ± 0.00** | 65.00 ± 0.00 | 60.00 ± 0.00 | +15.00 \[+10.00, +20.00\] | 0 % | better |"
    )
    assert lines[11] == ""
    assert lines[12].startswith("Bold: the accuracy of up can be told apart")


def test_names_are_text_in_both(runs):
    """As many cells in each line as columns, no sign that means anything, and no line break from a name."""
    found = rows({NASTY: runs("up", [60, 70]), "local": runs("local", [50, 50])})
    table = printed_table(NASTY, found)
    latex, markdown = latex_table(table), markdown_table(table)
    assert "\x1b" not in latex + markdown
    body = re.sub(r"^%.*$", "", latex, flags=re.MULTILINE)
    assert "\\input" not in body
    bare = re.sub(r"\\[{}%&#_$]", "", body)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert {line.count("&") for line in bare.splitlines() if line.endswith("\\\\")} == {len(table.columns) - 1}
    rows_there = [line for line in markdown.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows_there} == {len(table.columns) + 1}
    assert "<b>" not in markdown.replace("\\<b\\>", "")
    assert len(markdown.splitlines()) == 3 + 2 + len(table.lines) + 2 * len(table.caption)


@pytest.fixture
def groups(tmp_path):
    """Two seeds of `one`: validation chooses round 2 and round 1; right answers of two clients are as given."""
    tested = [[[10, 20], [60, 70], [90, 90]], [[30, 50], [0, 0], [20, 20]]]
    validated = [[[1, 1], [9, 9], [2, 2]], [[9, 9], [1, 1], [2, 2]]]
    common = {"clients": 2, "classes": 1, "rounds": 3, "population": hundred(2), "method": {"name": "one"}}
    runs = [
        made(tmp_path / f"one{seed}", seed=seed, tested=tested[seed], validated=validated[seed], **common)
        for seed in (0, 1)
    ]
    return {"one": [*runs, runs[0], Unread("global", "A bit was flipped.")]}


def test_a_line_for_each_rule_and_seed_with_the_numbers_of_its_run(groups):
    """Pooled .65 of (.6, .7) in round 2, .4 of (.3, .5) in round 1, and half of that under `logits`.

    The best test rounds are 3 and 1, the last ones have .9 and .2; the clients' own best .9 and .9, .3 and .5.
    """
    lines = seed_lines(groups)
    assert [(line["rule"], line["headline"], line["seed"], line["round"]) for line in lines[:-1]] == [
        ("global", True, 0, 2),
        ("logits", False, 0, 2),
        ("global", True, 1, 1),
        ("logits", False, 1, 1),
    ]
    numbers = [[line[name] for name in COLUMNS] for line in lines[:-1]]
    assert numbers[0] == pytest.approx([0.65, 0.65, 0.6, 0.9, 0.9, 0.9])
    assert numbers[2] == pytest.approx([0.4, 0.4, 0.3, 0.4, 0.2, 0.4])
    assert numbers[1][0] == pytest.approx(0.325)
    assert [line["run"] for line in lines] == ["one0", "one0", "one1", "one1", None]
    assert {line["chosen_by"] for line in lines[:-1]} == {"validation"}
    assert (lines[0]["majority"], lines[0]["rounds_done"], lines[0]["note"]) == (1.0, 3, None)


def test_a_run_that_cannot_be_read_or_that_stopped_says_so(groups, tmp_path):
    stopped = made(tmp_path / "stopped", done=1, failure=(2, "It diverged."))
    lines = seed_lines({**groups, "two": [stopped]})
    assert {name: value for name, value in lines[4].items() if value is not None} == {
        "method": "one",
        "rule": "global",
        "headline": True,
        "note": "not read: A bit was flipped.",
    }
    head, other = lines[5:]
    assert (head["accuracy"], head["round"], head["seed"], head["note"]) == (None, None, 0, "stopped in round 2")
    assert (other["best"], other["accuracy"], other["round"]) == (0.125, None, None)


def test_the_csv_has_the_same_cells_in_every_line_and_no_formula(groups):
    lines = list(csv.reader(io.StringIO(csv_text({"=1+1": groups["one"]}))))
    assert lines[0] == list(FIELDS)
    assert {len(line) for line in lines} == {len(FIELDS)}
    assert {line[0] for line in lines[1:]} == {"'=1+1"}
    assert lines[1][:7] == ["'=1+1", "global", "True", "0", "2", "validation", "0.65"]
