"""Tables in Markdown, LaTeX and CSV, and the page of a study."""

import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from experiments.reproduction.accuracy import accuracy_tables
from experiments.reproduction.cells import Cell, Table, TableEntry, find_studies
from experiments.reproduction.writing import (
    accuracy_csv,
    latex,
    latex_page,
    make_tables,
    markdown,
    page,
    remarks,
    write,
)

from protonorm.core.text import latex_text
from tests.reproduction.studies import TINY, Fake, fake_findings, small_study
from tests.reproduction.test_accuracy import FULL, ONE, TWO

TABLE = Table("T", "Row", ["a|b"], [("x_y", [TableEntry("1.00", "2.00", bold=True)])], explanation="E")


def test_markdown_is_a_table_with_bold_and_escapes():
    text = markdown(TABLE)
    assert "| Row | a\\|b |" in text
    assert "| x\\_y | **1.00**<br>2.00 |" in text


def test_a_line_break_in_a_name_does_not_end_the_row_of_a_table():
    broken = Table("T", "Row", ["a"], [("x\ny", [TableEntry("1\u2028\x000")])])
    assert r"| x\\ny | 1\\u2028\\x000 |" in markdown(broken)
    text = (
        r"    \raggedright x\textbackslash{}ny & \raggedleft 1\textbackslash{}u2028\textbackslash{}x000 \tabularnewline"
    )
    assert text in latex(broken, "t", ())


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("50 % & #1_a {b}", r"50 \% \& \#1\_a \{b\}"),
        ("γ ± −", r"$\gamma$ $\pm$ $-$"),
        ("a\\b~c^d", r"a\textbackslash{}b\textasciitilde{}c\textasciicircum{}d"),
        ("Σ |φ_i|·2", r"$\Sigma$ $|$$\phi$\_i$|$$\cdot$2"),
        ("Öl, garçon, Łódź, 中文, é, ♥", "Öl, garçon, Łódź, 中文, é, ♥"),
        ("x₂² ≥ Ω → ∞", r"x$_2$$^2$ $\ge$ $\Omega$ $\to$ $\infty$"),
        ("[a] *", "{[}a] {*}"),
        ("a\tb\r\n", r"a\textbackslash{}tb\textbackslash{}r\textbackslash{}n"),
        ("\x00\x7f\udcff\u202e", "".join(rf"\textbackslash{{}}{one}" for one in ("x00", "x7f", "udcff", "u202e"))),
    ],
)
def test_latex_escapes_its_own_signs_and_leaves_letters_of_all_languages(text, written):
    assert latex_text(text) == written


def test_latex_has_balanced_braces_rules_and_as_many_cells_in_each_row(tmp_path):
    table = accuracy_tables(fake_findings(tmp_path, small_study(), FULL))[0]
    text = latex(table, "small", ["made by a test"])
    body = re.sub(r"^%.*$", "", text, flags=re.MULTILINE)
    plain = re.sub(r"\\[{}%&#_$]", "", body)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    rows = [line for line in body.splitlines() if line.endswith("\\tabularnewline") and "multicolumn" not in line]
    assert len(rows) == 1 + 2 + 2 + 1  # headings, ours, printed, and the difference where there is a number
    assert {re.sub(r"\\&", "", row).count("&") for row in rows} == {2}
    assert r"\cmidrule(lr){2-3}" in text
    assert r"\multicolumn{2}{c@{}}{\parbox{" in text
    assert r"{\centering Group}}" in text
    assert r"\textbf{47.00 $\pm$~1.41}" in text
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    assert text.isascii()  # nothing of ours needs more


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="LaTeX is not installed")
def test_latex_of_the_papers_tables_fits_a_two_column_page(tmp_path):
    """Some seeds of some cells, wide numbers, long names: no box may be overfull, and captions are short."""
    texts = []
    for study in find_studies(["table1", "table2", "table5", "controls", "ablation", "communication", "spiral"]):
        cells = [replace(cell, settings=TINY | {"algorithm": cell.settings["algorithm"]}) for cell in study.cells]
        shown = cells[::4] if study.columns else []
        given = {cell.place: [[1.0, 0.5], [1.0, None]][number % 2] for number, cell in enumerate(shown)}
        findings = fake_findings(tmp_path, replace(study, cells=cells), given, protocol="validated")
        texts.append(latex_page(findings, make_tables(findings), remarks(findings)))
    captions = re.findall(r"\\caption\{(.*)\}$", "\n".join(texts), re.MULTILINE)
    assert len(captions) >= 10
    assert max(len(caption.split()) for caption in captions) <= 40
    start = "\\documentclass[twocolumn]{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
    page = start + "\n\\clearpage\n".join(texts) + "\\end{document}\n"
    (tmp_path / "page.tex").write_text(page, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout[-2000:]
    assert not re.findall("^Overfull.*|.*Float too large.*", result.stdout, re.MULTILINE)


def test_a_line_break_in_the_command_stays_inside_the_comment():
    text = latex(TABLE, "small", ["protonorm reproduce 'a\n\\input{b}'\x85\\input{c}"])
    assert text.startswith("% protonorm reproduce 'a \\input{b}' \\input{c}\n% needs")


def test_a_label_has_no_signs_of_latex():
    assert r"\label{table:Größe-50-a_1}" in latex(TABLE, "Größe {50%} a_1".replace("} ", "}"), ())


def test_names_in_any_language_are_written_after_a_run(tmp_path):
    cells = [Cell("Ölçü 中", ONE, {**cell.settings}) for cell in small_study().cells[:1]]
    study = small_study(title="Łódź", cells=cells, rows=("Ölçü 中",), beside=(), paper={})
    written = write(fake_findings(tmp_path, study, {("Ölçü 中", ONE): [0.5]}), tmp_path / "out")
    assert not written.remarks
    assert r"Ölçü 中 & \raggedleft 50.00 \tabularnewline" in (tmp_path / "out" / "small.tex").read_text(
        encoding="utf-8"
    )
    assert r"\caption{Łódź.}" in (tmp_path / "out" / "small.tex").read_text(encoding="utf-8")
    for ending in ("md", "csv"):
        assert "Ölçü 中" in (tmp_path / "out" / f"small.{ending}").read_text(encoding="utf-8")


def test_csv_has_a_line_for_each_cell_seed_and_rule(tmp_path):
    findings = fake_findings(tmp_path, small_study(), FULL)
    found = list(csv.DictReader(io.StringIO(accuracy_csv(findings))))
    first = [line for line in found if line["row"] == "ProtoNorm" and line["column"] == ONE]
    assert [(line["seed"], line["rule"], line["best"]) for line in first] == [
        (seed, rule, best)
        for seed, best in (("0", "46.0000"), ("1", "48.0000"))
        for rule in ("nearest-global", "nearest-local", "logits", "joint")
    ]
    assert [line["headline"] for line in first[:3]] == ["True", "False", "False"]
    assert first[0]["paper"] == "47.41"
    assert (first[0]["best_round"], first[0]["own_best"], first[0]["note"]) == ("1", "46.0000", "")
    assert (first[0]["accuracy"], first[0]["round"], first[0]["chosen_by"]) == ("46.0000", "1", "test")
    assert (first[0]["protocol"], first[0]["profile"]) == ("paper", "paper")
    assert (first[0]["seeds"], first[0]["command"]) == ("2", "protonorm reproduce small")
    assert "SMOKE" in accuracy_csv(fake_findings(tmp_path, small_study(), {}, "smoke"))
    absent = [line for line in found if line["row"] == "Local" and line["column"] == TWO]
    assert [line["state"] for line in absent] == ["absent"]


def test_csv_has_no_number_of_a_run_that_is_not_finished(tmp_path):
    cells = [Cell("ProtoNorm", ONE, TINY | {"algorithm": "protonorm", "rounds": 9})]
    given = {("ProtoNorm", ONE): [Fake(0.4, done=3), Fake(0.4, done=3, diverged=4), 0.5]}
    findings = fake_findings(tmp_path, small_study(cells=cells), given)
    first, second, *third = csv.DictReader(io.StringIO(accuracy_csv(findings)))
    assert (first["state"], first["note"], first["accuracy"], first["best"]) == ("begun", "3 of 9 rounds", "", "")
    assert (second["state"], second["note"], second["accuracy"]) == ("diverged", "round 4", "")
    assert [line["accuracy"] for line in third] == ["50.0000"] * 4


def test_every_form_says_that_a_number_comes_from_some_seeds(tmp_path):
    findings = fake_findings(tmp_path, small_study(), {("ProtoNorm", ONE): [0.4741, None, None]})
    write(findings, tmp_path / "out")
    for ending in ("md", "tex"):
        assert "47.41 (1 of 3 seeds)" in (tmp_path / "out" / f"small.{ending}").read_text(encoding="utf-8")
    lines = csv.DictReader(io.StringIO((tmp_path / "out" / "small.csv").read_text(encoding="utf-8")))
    notes = {(line["seed"], line["note"]) for line in lines if (line["row"], line["column"]) == ("ProtoNorm", ONE)}
    assert ("0", "1 of 3 seeds") in notes


def test_a_page_that_is_no_result_is_stamped(tmp_path):
    assert page(fake_findings(tmp_path, small_study(), {}, "smoke"), (), (), ()).startswith("## SMOKE: A small table")


def test_long_lists_of_what_is_missing_are_cut(tmp_path):
    cells = [Cell(f"row {number}", ONE, {"dataset": "spiral"}) for number in range(20)]
    (told,) = remarks(fake_findings(tmp_path, small_study(cells=cells), {}))
    assert told.endswith("row 5, Group: one (seed 0); and 14 others.")
