"""What --only selects, and what the part is called."""

import pytest
from experiments.reproduction.cells import Cell, select_cells

from tests.reproduction.studies import small_study

COLUMNS = ("A: CIFAR-10", "A: CIFAR-100", "B: CIFAR-100")
STUDY = small_study(cells=[Cell(row, column, {}) for row in ("Proto", "ProtoNorm") for column in COLUMNS])


def selected(*only, study=STUDY):
    (found,) = select_cells([study], only)
    return found


def places(*only):
    return [cell.place for cell in selected(*only).cells]


@pytest.mark.parametrize(
    ("only", "count"),
    [(["cifar-10"], 2), (["CIFAR-1"], 6), (["CIFAR-100"], 4), (["A: CIFAR-100"], 2), (["proto"], 3), (["ProtoN"], 3)],
)
def test_a_whole_name_wins_over_texts_that_hold_it(only, count):
    assert len(places(*only)) == count


@pytest.mark.parametrize(
    ("only", "rows"), [("duet", ["Duet"]), ("alone", ["Duet, alone", "FML, alone"]), ("FML", ["FML, alone"])]
)
def test_a_whole_row_wins_over_rows_that_it_is_a_part_of(only, rows):
    study = small_study(cells=[Cell(row, "A", {}) for row in ("Duet", "Duet, alone", "FML, alone")])
    assert [cell.row for cell in selected(only, study=study).cells] == rows


def test_several_texts_must_all_match():
    assert places("ProtoNorm", "B") == [("ProtoNorm", "B: CIFAR-100")]


def test_a_whole_name_of_another_table_counts_too():
    other = small_study(name="other", cells=[Cell("Proto", "CIFAR-100", {})])
    with pytest.raises(ValueError, match="no cell of other matches"):
        select_cells([STUDY, other], ["CIFAR-10"])


def test_a_part_has_a_name_of_its_own_and_all_cells_are_no_part():
    part = selected("CIFAR-10")
    assert (part.name, part.ending) == ("small-only-cifar-10", "-only-cifar-10")
    assert part.part == "A part: 2 of 6 cells, those with 'CIFAR-10'."
    assert selected("CIFAR") is STUDY


def test_texts_that_lose_signs_in_a_file_name_are_told_apart_by_digits():
    study = small_study(cells=[Cell("x", "é a", {}), Cell("x", "ü a", {}), Cell("x", "b", {})])
    names = [selected(text, study=study).name for text in ("é a", "ü a")]
    assert len(set(names)) == 2
    assert all(name.startswith("small-only-a-") for name in names)


@pytest.mark.parametrize(
    ("only", "what"),
    [
        (["MNIST"], "no cell of small matches. Its rows: Proto; ProtoNorm. Its columns: A: CIFAR-10;"),
        (["CIFAR-10", "B"], "one cell must match all of them"),
        ([" "], "empty text"),
    ],
)
def test_what_matches_nothing_is_refused(only, what):
    with pytest.raises(ValueError, match=what):
        selected(*only)
