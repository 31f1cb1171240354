"""Curves beside a table: what is drawn of whom, and where it is written."""

import pytest
from experiments.figures import accuracy_panels
from experiments.reproduction.cells import Printed
from experiments.reproduction.writing import draw_curves, refuse_foreign_files, write
from matplotlib.figure import Figure

import protonorm as pn
from tests.reproduction.studies import Fake, fake_findings, small_study, task
from tests.reproduction.test_accuracy import ONE, TWO
from tests.support import spiral


def study(**more):
    """Record three rounds of all cells of the small table; ProtoNorm has a printed number in its first column."""
    small = small_study()
    cells = [cell.__class__(cell.row, cell.column, cell.settings | {"rounds": 3}) for cell in small.cells]
    return small_study(
        cells=cells, paper={("ProtoNorm", ONE): Printed(47.41), ("FedProto", ONE): Printed(None)}, **more
    )


def curves(figure):
    """Return each panel's curves with more than one point, as {rounds: accuracies}, in the order drawn."""
    return [
        [
            [(int(x), round(float(y), 2)) for x, y in zip(*line.get_data(), strict=True)]
            for line in axes.lines
            if len(line.get_xdata()) > 1
        ]
        for axes in figure.axes
    ]


def points(figure, panel, marker):
    """List the single points of a panel with a marker, not those of the legend."""
    lines = [line for line in figure.axes[panel].lines if line.get_marker() == marker and len(line.get_xdata()) == 1]
    return [(float(line.get_xdata()[0]), round(float(line.get_ydata()[0]), 2)) for line in lines]


def test_a_panel_has_a_column_and_a_curve_each_run_that_has_begun(tmp_path):
    """Of FedProto's seeds the first is drawn; its second, and what was never begun, is not."""
    given = {
        ("ProtoNorm", ONE): [Fake((0.5, 0.75, 0.25))],
        ("FedProto", ONE): [Fake((0.25, 0.5, 0.5)), Fake(0.9)],
        ("Local", TWO): [Fake((0.5, 0.6, 0.7), done=2)],
    }
    (figure,) = draw_curves(fake_findings(tmp_path, study(), given)).values()
    assert curves(figure) == [
        [[(1, 50.0), (2, 75.0), (3, 25.0)], [(1, 25.0), (2, 50.0), (3, 50.0)]],
        [[(1, 50.0), (2, 60.0)]],
    ]
    assert [axes.get_title() for axes in figure.axes] == [f"(a) {ONE}", f"(b) {TWO}"]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[:3] == ["ProtoNorm (nearest-global)", "FedProto (nearest-global)", "Local (logits)"]
    assert names[3:] == ["reported round", "printed", "not finished"]
    assert points(figure, 0, "o") == [(2, 75.0), (2, 50.0)]
    assert points(figure, 0, "<") == [(1.02, 47.41)]
    assert points(figure, 0, "x") == []
    assert points(figure, 1, "x") == [(2, 60.0)]


def test_a_curve_looks_alike_in_every_panel(tmp_path):
    given = {("ProtoNorm", ONE): [Fake(0.5)], ("Local", ONE): [Fake(0.4)], ("Local", TWO): [Fake(0.3)]}
    (figure,) = draw_curves(fake_findings(tmp_path, study(), given)).values()
    first, second = ([line for line in axes.lines if len(line.get_xdata()) == 3] for axes in figure.axes)
    assert first[1].get_color() == second[0].get_color() != first[0].get_color()


def test_nothing_is_drawn_where_nothing_has_begun(tmp_path):
    assert draw_curves(fake_findings(tmp_path, study(), {})) == {}


def test_a_profile_without_results_has_no_printed_numbers(tmp_path):
    given = {("ProtoNorm", ONE): [Fake(0.5)]}
    (figure,) = draw_curves(fake_findings(tmp_path, study(), given, profile="smoke")).values()
    assert points(figure, 0, "<") == []


def test_curves_are_written_with_the_table_and_shown_on_its_page(tmp_path):
    written = write(fake_findings(tmp_path / "runs", study(), {("ProtoNorm", ONE): [Fake(0.5)]}), tmp_path / "out")
    assert {path.name for path in written.paths} >= {"small-curves.png", "small-curves.pdf"}
    assert "![small-curves](small-curves.png)" in (tmp_path / "out" / "small.md").read_text(encoding="utf-8")


def test_a_round_that_was_not_tested_has_no_ring(tmp_path):
    """It is chosen by validation; nothing is drawn of a run without test accuracies, and nothing goes wrong."""
    run = pn.run(spiral(tested=False, rounds=2), out=tmp_path, engine="serial").run
    figure = accuracy_panels({"a": {"mine": run}}, {})
    assert run.chosen
    assert points(figure, 0, "o") == []


def test_curves_that_cannot_be_drawn_take_nothing_else_with_them(tmp_path, monkeypatch):
    def fail(findings):
        raise KeyError(1)

    monkeypatch.setattr("experiments.reproduction.writing.draw_curves", fail)
    findings = fake_findings(tmp_path / "runs", study(draw=lambda found: {"own": Figure()}), {})
    written = write(findings, tmp_path / "out")
    assert (tmp_path / "out" / "own.png").exists()
    assert "The curves were not drawn: KeyError: 1." in written.remarks


@pytest.mark.parametrize(("only", "name"), [((), "small-curves.png"), (("Local",), "small-curves-only-local.pdf")])
def test_a_picture_of_somebody_else_is_not_drawn_over(tmp_path, only, name):
    (tmp_path / name).write_bytes(b"mine")
    (chosen,) = task(tmp_path, study(), only=only).studies
    with pytest.raises(ValueError, match=f"{name} exists and is not a figure of protonorm"):
        refuse_foreign_files(chosen, tmp_path)
