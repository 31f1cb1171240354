"""The table of a comparison in LaTeX, Markdown and CSV."""

import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from protonorm.analysis.comparison import COLUMNS, OPTIONAL, Cell, Unread, display_names, rows
from protonorm.analysis.tables import (
    FIELDS,
    MARK,
    caption,
    csv_text,
    latex_table,
    markdown_table,
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
                tmp_path / f"{len(list(tmp_path.iterdir()))}", method={"name": name}, seed=seed, control=control,
                clients=len(row), classes=1, rounds=1, population=hundred(len(row)), tested=[row], validated=[row],
                **settings,
            )
            for seed, row in enumerate(right)
        ]  # fmt: skip

    return make


@pytest.fixture
def table(runs):
    """`up` gains .1 and .2 with both seeds, in every draw of the bootstrap between .1 and .2; `low` loses .2."""
    return rows(
        {
            "up": runs("up", [60, 70], [60, 80]),
            "low": runs("low", [30, 30], [30, 30]),
            "local": runs("local", [50, 50], [50, 50], rules=["logits"]),
        }
    )


def with_tests(row, tests):
    """Add accuracies on other tests than the clients' own to a method's row."""
    others = {name: Cell.of([share, share]) for name, share in tests.items()}
    return row if row.is_majority else replace(row, cells={**row.cells, **others})


def cells(text):
    """Read the lines of a Markdown table, the heading first."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in (lines[0], *lines[2:])]


def test_accuracies_gains_and_verdicts(table):
    head, *lines = cells(markdown_table("mine", table))
    assert head == ["method", "rule", "accuracy", "clients", "worst 10 %", "gain on local", "lose", "verdict"]
    assert lines[0][:5] == ["up", "nearest-global", "**65.00–70.00**", "65.00–70.00", "60.00–60.00"]
    assert lines[0][5:] == [r"+17.50 \[+10.00, +25.00\]", "0 %", "better"]
    assert lines[1][:3] == ["", "logits", "32.50–35.00"]
    assert lines[4] == ["Local", "logits", *["50.00–50.00"] * 3, "", "", ""]
    assert lines[5] == ["majority", "–", "100.00", "100.00", "100.00", "", "", ""]
    assert sum("**" in cell for line in lines for cell in line) == 1


def test_the_caption_explains_what_is_there_and_nothing_else(table, runs):
    told = " ".join(caption(table))
    assert (
        "Bold: the accuracy of up can be told apart from that of every other method under the rule nearest-global."
        in told
    )
    assert "A range holds the values of the two seeds." in told
    assert "docs/statistics.md. With fewer than 5 seeds intervals of gains may be too narrow." in told
    for absent in ("optimistic", "last", "not distinguishable", "±"):
        assert absent not in told, absent
    single = " ".join(caption(rows({"up": runs("alone", [60, 70])})))
    assert "One seed: there is no interval" in single
    for absent in ("intervals of gains", "±", "Bold", "bold"):
        assert absent not in single, absent


def test_what_a_caption_explains_of_every_table_fits_two_lines(runs):
    """Beside findings: how accuracies were made, and where the terms are explained."""
    told = caption(rows({"up": runs("up", [60, 70])}))
    assert [line.partition(":")[0] for line in told] == ["Accuracy", "Columns, rules, gains and verdicts"]
    page = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")
    for term in ("`accuracy`", "`best*`", "`last`", "`own best*`", "Local", "solo", "not distinguishable", "bootstrap"):
        assert term in page, term


def test_a_solo_control_has_columns_of_its_own(runs):
    table = rows({"up": runs("up", [60, 70]), "up (solo)": runs("up", [50, 50], control="solo")})
    head, first, *_ = cells(markdown_table("mine", table))
    assert (head[5:], first[5:]) == (["gain on solo", "lose", "verdict"], ["+15.00", "0 %", "no interval"])


def test_latex_has_headline_rules_display_names_and_notes(table):
    text = latex_table("mine", table)
    assert text.startswith(f"% {MARK}\n% needs \\usepackage{{booktabs}}\n% Bold: the accuracy of up can")
    assert "\n\\begin{table}[t]\n" in text
    assert "  \\begin{tabular}{@{}lrrr@{}}\n" in text
    assert "    Method & Accuracy & Worst & Gain on local \\\\\n" in text
    assert "    up & \\textbf{65.0--70.0} & 60.0 & +17.5 {[}+10.0, +25.0] \\\\\n" in text
    assert "    Local & 50.0--50.0 & 50.0 &  \\\\\n" in text
    body = text[text.index("\\midrule") : text.index("\\bottomrule")]
    assert body.count("\\\\") == 4
    for note in ("A range holds the values of the two seeds.", "Judged by nearest global prototype: up and low;"):
        assert note in text[text.index("\\begin{minipage}") :]
    assert "  \\label{table:comparison}\n" in text


def test_other_tests_have_columns_where_runs_have_them(table):
    """The common test and newcomers take the place of the worst tenth in LaTeX; a reader is told what they are."""
    usual, further = caption(table), [with_tests(row, {"common": 0.25, "newcomers": 0.125}) for row in table]
    assert not {"common", "newcomers"} & {*cells(markdown_table("mine", table))[0]}
    about = "Common: accuracy on the samples that test all clients alike. Newcomers: accuracy of the clients that never"
    assert next(line for line in caption(further) if line not in usual).startswith(about)
    head, first, *_ = cells(markdown_table("mine", further))
    assert (head[4:7], first[4:7]) == (
        ["worst 10 %", "common", "newcomers"],
        ["60.00–60.00", *["25.00–25.00", "12.50–12.50"]],
    )
    text = latex_table("mine", further, "mine.1")
    assert "    Method & Accuracy & Common & Newcomers & Gain on local \\\\\n" in text
    assert "    up & \\textbf{65.0--70.0} & 25.0 & 12.5 & +17.5 {[}+10.0, +25.0] \\\\\n" in text
    assert "\\begin{table*}" in text
    assert about in text[text.index("\\begin{minipage}") :]
    assert "Worst" not in text
    assert "  \\label{table:mine.1}\n" in text


def test_with_gains_over_both_references_a_star_takes_the_place_of_brackets(runs):
    groups = {
        "protonorm": runs("protonorm", *[[60, 70]] * 5),
        "protonorm (solo)": runs("protonorm", *[[50, 50]] * 5, control="solo"),
        "local": runs("local", *[[50, 50]] * 5),
    }
    text = latex_table("mine", rows(groups))
    assert "    Method & Accuracy & Gain on local & Gain on solo \\\\\n" in text
    assert "\\raggedright ProtoNorm & \\textbf{65.0 $\\pm$ 0.0} & +15.0{*} & +15.0{*} \\\\\n" in text
    assert "\\raggedright ProtoNorm (solo) & 50.0 $\\pm$ 0.0 & +0.0 &  \\\\\n" in text
    assert "a star: its 95 \\% bootstrap interval excludes zero." in text


def test_a_loss_that_is_sure_has_a_star_too(runs):
    groups = {
        "protonorm": runs("protonorm", *[[30, 40]] * 5),
        "protonorm (solo)": runs("protonorm", *[[50, 50]] * 5, control="solo"),
        "local": runs("local", *[[50, 50]] * 5),
    }
    assert "& -15.0{*} & -15.0{*} " in latex_table("mine", rows(groups)).replace("$-$", "-").replace("−", "-")


def caption_words(text):
    return re.search(r"\\caption\{(.*)\}$", text, re.MULTILINE)[1].split()


def test_a_caption_is_short_whatever_the_title(table):
    assert len(caption_words(latex_table("a title of data", table))) < 30
    assert len(caption_words(latex_table("word " * 50, table))) <= 40


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="LaTeX is not installed")
@pytest.mark.parametrize("tests", [(), ("common",), ("common", "newcomers")], ids=len)
@pytest.mark.parametrize("solo", [False, True])
def test_latex_fits_a_column_of_a_two_column_page(runs, tmp_path, solo, tests):
    """Wide numbers, long names, three seeds or two: no box may be overfull."""
    names = ["protonorm", "lgfedavg", "feddistill", "protonorm:gamma=100,lam=0.25", "local", "Ours_with & 100 % of it"]
    wide = [[100, 0], [0, 100], [100, 100]]
    groups = {
        name: runs(name.partition(":")[0], *(wide if "lg" in name else wide[:2]), lr=n) for n, name in enumerate(names)
    }
    if solo:
        groups["protonorm (solo)"] = runs("protonorm", *wide[:2], control="solo", lr=0)
    title = "fashion, dirichlet (alpha 0.1), 20 clients, 100 rounds"
    text = "\\documentclass[twocolumn]{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
    table = [with_tests(row, dict.fromkeys(tests, 1.0)) for row in rows(groups)]
    (tmp_path / "page.tex").write_text(f"{text}{latex_table(title, table)}\\end{{document}}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout[-2000:]
    assert "Overfull \\hbox" not in result.stdout, result.stdout[-2000:]
    assert (tmp_path / "page.pdf").stat().st_size > 1000


def test_markdown(table):
    lines = markdown_table("mine", table).splitlines()
    assert lines[:3] == [f"<!-- {MARK} -->", "### mine", ""]
    assert lines[4] == "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |"
    assert lines[11] == ""
    assert lines[12].startswith("Bold: the accuracy of up can be told apart")


def test_names_are_text_in_both(runs):
    """As many cells in each line as columns, no sign that means anything, and no line break from a name."""
    found = rows({NASTY: runs("up", [60, 70]), "local": runs("local", [50, 50])})
    latex, markdown = latex_table(NASTY, found), markdown_table(NASTY, found)
    assert "\x1b" not in latex + markdown
    body = re.sub(r"^%.*$", "", latex, flags=re.MULTILINE)
    assert "\\input" not in body
    bare = re.sub(r"\\[{}%&#_$]", "", body)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert {line.count("&") for line in bare.splitlines() if line.endswith("\\\\")} == {3}
    rows_there = [line for line in markdown.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows_there} == {8 + 1}
    assert "<b>" not in markdown.replace("\\<b\\>", "")
    assert len(markdown.splitlines()) == 3 + 2 + len(found) + 2 * len(caption(found))


def test_display_names_are_those_of_papers_and_labels_stay():
    wanted = {
        "protonorm": "ProtoNorm",
        "lgfedavg": "LG-FedAvg",
        "protonorm:gamma=5,lam=2": "ProtoNorm (gamma=5, lam=2)",
        "protonorm:gamma=5 (solo)": "ProtoNorm (gamma=5, solo)",
        "Ours": "Ours",
        "mine.py:Mine": "mine.py:Mine",
    }
    assert display_names(list(wanted)) == wanted
    assert display_names(["ProtoNorm", "protonorm"]) == {"ProtoNorm": "ProtoNorm", "protonorm": "protonorm"}


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
    return {"one": [*runs, runs[0], Unread("nearest-global", "A bit was flipped.")]}


def test_a_line_for_each_rule_and_seed_with_the_numbers_of_its_run(groups):
    """Pooled .65 of (.6, .7) in round 2, .4 of (.3, .5) in round 1, and half of that under `logits`.

    The best test rounds are 3 and 1, the last ones have .9 and .2; the clients' own best .9 and .9, .3 and .5.
    """
    lines = seed_lines(groups)
    assert [(line["rule"], line["headline"], line["seed"], line["round"]) for line in lines[:-1]] == [
        ("nearest-global", True, 0, 2),
        ("logits", False, 0, 2),
        ("nearest-global", True, 1, 1),
        ("logits", False, 1, 1),
    ]
    numbers = [[line[name] for name in COLUMNS if name not in OPTIONAL] for line in lines[:-1]]
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
        "rule": "nearest-global",
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
    assert lines[1][:7] == ["'=1+1", "nearest-global", "True", "0", "2", "validation", "0.65"]
