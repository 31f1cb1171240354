"""Tables: numbers, bold, difference, what is missing; in Markdown, LaTeX and CSV."""

import csv
import io
import re

import pytest

from protonorm.reproduction.accuracy import accuracy_tables, value
from protonorm.reproduction.cells import Cell, Column
from protonorm.reproduction.csvfile import accuracy_csv
from protonorm.reproduction.latex import escape, latex
from protonorm.reproduction.markdown import markdown
from protonorm.reproduction.table import Entry, Table
from protonorm.reproduction.writing import cuts, page, remarks
from tests.reproduction.studies import fake_findings, fake_run, small_study

ONE, TWO = "Group: one", "Group: two"
FULL = {
    ("ProtoNorm", ONE): [0.46, 0.48],
    ("FedProto", ONE): [0.30],
    ("ProtoNorm", TWO): [0.10],
    ("FedProto", TWO): [0.20],
    ("Local", ONE): [0.99],
}


def table(accuracies=FULL, profile="paper", **study):
    return accuracy_tables(fake_findings(small_study(**study), accuracies, profile))[0]


def entries(found):
    return {row: list(cells) for row, cells in found.rows}


def test_seeds_become_mean_and_deviation_beside_the_printed_number():
    """(46 + 48)/2 = 47, deviation √2, and 47 − 47.41 = −0.41."""
    found = entries(table())["ProtoNorm"][0]
    assert found.text == "47.00 ± 1.41"
    assert found.below == "47.41 ± 0.40 (−0.41)"


def test_the_best_of_each_column_is_bold_and_rows_that_are_not_printed_do_not_compete():
    found = entries(table())
    assert [entry.bold for entry in found["ProtoNorm"]] == [True, False]
    assert [entry.bold for entry in found["FedProto"]] == [False, True]
    assert "Local" not in found


def test_the_best_can_be_sought_along_rows():
    found = entries(table(best="row"))
    assert [entry.bold for entry in found["FedProto"]] == [True, False]


def test_a_lone_number_is_not_the_best_of_anything():
    assert not any(entry.bold for entry in entries(table({("ProtoNorm", ONE): [0.5]}))["ProtoNorm"])


def test_smoke_has_no_printed_numbers():
    assert not any(entry.below for _, cells in table(profile="smoke").rows for entry in cells)
    text = page(fake_findings(small_study(), FULL, "smoke"), (), ())
    assert text.startswith("## SMOKE: A small table")


def test_what_is_not_there_is_named_and_never_a_number():
    diverged = fake_run(0.5, rounds=9, done=4, failure={"round": 5, "reason": "x"})
    findings = fake_findings(
        small_study(),
        {
            ("ProtoNorm", ONE): [diverged],
            ("ProtoNorm", TWO): ["CIFAR-10 is not prepared: no file."],
            ("FedProto", ONE): [fake_run(0.5, rounds=9, done=4)],
        },
    )
    found = entries(accuracy_tables(findings)[0])
    assert [entry.text for entry in found["ProtoNorm"]] == ["-", "no data"]
    assert [entry.text for entry in found["FedProto"]] == ["4 of 9 rounds", "not run yet"]
    assert not any(entry.bold for cells in found.values() for entry in cells)
    told = "\n".join(remarks(findings))
    assert "Diverged in round 5: ProtoNorm, Group: one (seed 0)" in told
    assert "CIFAR-10 is not prepared: no file: ProtoNorm, Group: two" in told
    assert "Begun: 4 of 9 rounds: FedProto, Group: one" in told
    assert "Not run yet: FedProto, Group: two" in told


def test_only_what_is_asked_for_is_in_the_table():
    study = small_study()
    findings = fake_findings(study, FULL)
    some = type(findings)(study, findings.profile, tuple(one for one in findings.outcomes if one.place[1] == TWO))
    found = accuracy_tables(some)[0]
    assert (list(found.columns), list(found.groups)) == (["two"], ["Group"])


def test_long_lists_of_what_is_missing_are_cut():
    cells = [Cell(f"row {number}", ONE, {}) for number in range(20)]
    (told,) = remarks(fake_findings(small_study(cells=cells), {}))
    assert told.endswith("row 5, Group: one (seed 0); and 14 others.")


def test_one_seed_that_diverged_makes_the_cell_a_dash():
    diverged = fake_run(0.5, rounds=9, done=4, failure={"round": 5, "reason": "x"})
    findings = fake_findings(small_study(), {("ProtoNorm", ONE): [0.4, diverged]})
    found = value(findings.at("ProtoNorm", ONE))
    assert (found.mean, found.text) == (None, "-")
    assert "round 5 with seed 1" in found.note


def test_some_seeds_are_shown_and_said_to_be_some():
    findings = fake_findings(small_study(), {("ProtoNorm", ONE): [0.4, None]})
    found = value(findings.at("ProtoNorm", ONE))
    assert (found.text, found.note, found.complete) == ("40.00", "1 of 2 seeds", False)


def test_the_second_table_has_the_other_rules_and_local():
    _, second = accuracy_tables(fake_findings(small_study(), FULL))
    rows = [row for row, _ in second.rows]
    assert rows == ["ProtoNorm, local", "FedProto, local", "Local"]


def test_markdown_is_a_table_with_bold_and_escapes():
    text = markdown(Table("T", "Row", ["a|b"], [("x_y", [Entry("1.00", "2.00", bold=True)])], explanation="E"))
    assert "| Row | a\\|b |" in text
    assert "| x\\_y | **1.00**<br>2.00 |" in text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("50 % & #1_a {b}", r"50 \% \& \#1\_a \{b\}"),
        ("γ ± −", r"$\gamma$ $\pm$ $-$"),
        ("a\\b~c^d", r"a\textbackslash{}b\textasciitilde{}c\textasciicircum{}d"),
        ("Σ |φ_i|·2", r"$\Sigma$ $|$$\phi$\_i$|$$\cdot$2"),
    ],
)
def test_latex_escapes(text, written):
    assert escape(text) == written


def test_latex_refuses_a_sign_without_a_name():
    with pytest.raises(ValueError, match="♥"):
        escape("♥")


def test_latex_has_balanced_braces_rules_and_as_many_cells_in_each_row():
    text = latex(table(), "small", ["made by a test"])
    body = re.sub(r"^%.*$", "", text, flags=re.MULTILINE)
    plain = re.sub(r"\\[{}%&#_$]", "", body)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    rows = [
        line for line in body.splitlines() if line.rstrip().endswith(("\\\\", "[2pt]")) and "multicolumn" not in line
    ]
    assert {re.sub(r"\\&", "", row).count("&") for row in rows} == {2}
    assert r"\cmidrule(lr){2-3}" in text
    assert r"\multicolumn{2}{c}{Group}" in text
    assert r"\textbf{47.00 $\pm$ 1.41}" in text
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    assert text.isascii()


def test_csv_has_a_line_for_each_cell_seed_and_rule():
    found = list(csv.DictReader(io.StringIO(accuracy_csv(fake_findings(small_study(), FULL)))))
    first = [line for line in found if line["row"] == "ProtoNorm" and line["column"] == ONE]
    assert [(line["seed"], line["rule"], line["best"]) for line in first] == [
        ("0", "global", "46.0000"),
        ("0", "local", "46.0000"),
        ("1", "global", "48.0000"),
        ("1", "local", "48.0000"),
    ]
    assert first[0]["paper"] == "47.41"
    assert (first[0]["profile"], first[0]["command"]) == ("paper", "protonorm reproduce small")
    assert "SMOKE" in accuracy_csv(fake_findings(small_study(), FULL, "smoke"))
    absent = [line for line in found if line["row"] == "Local" and line["column"] == TWO]
    assert [line["state"] for line in absent] == ["absent"]


def test_columns_of_the_same_name_are_told_apart_by_their_group():
    assert Column("CIFAR-10", "A").place != Column("CIFAR-10", "B").place


def test_a_line_break_in_the_command_stays_inside_the_comment():
    text = latex(table(), "small", ["protonorm reproduce 'a\n\\input{b}'"])
    assert text.startswith("% protonorm reproduce 'a \\input{b}'\n% needs")


def test_cuts_are_named_only_where_something_was_cut():
    assert not cuts(fake_findings(small_study(cells=[Cell("ProtoNorm", ONE, {"dataset": "spiral"})]), {}, "cpu"))
    assert cuts(fake_findings(small_study(cells=[Cell("ProtoNorm", ONE, {"dataset": "cifar10"})]), {}, "cpu"))
