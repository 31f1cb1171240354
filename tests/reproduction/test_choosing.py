"""What --only chooses, and what the part is called."""

import pytest

from protonorm.reproduction.cells import Cell
from protonorm.reproduction.choosing import narrowed
from tests.reproduction.studies import small_study

COLUMNS = ("A: CIFAR-10", "A: CIFAR-100", "B: CIFAR-100")
STUDY = small_study(cells=[Cell(row, column, {}) for row in ("Proto", "ProtoNorm") for column in COLUMNS])


def chosen(*only, study=STUDY):
    (found,) = narrowed([study], only)
    return found


def places(*only):
    return [(cell.row, cell.column) for cell in chosen(*only).cells]


@pytest.mark.parametrize(
    ("only", "count"),
    [(["cifar-10"], 2), (["CIFAR-1"], 6), (["CIFAR-100"], 4), (["A: CIFAR-100"], 2), (["proto"], 3), (["ProtoN"], 3)],
)
def test_a_whole_name_wins_over_texts_that_hold_it(only, count):
    assert len(places(*only)) == count


def test_several_texts_must_all_fit():
    assert places("ProtoNorm", "B") == [("ProtoNorm", "B: CIFAR-100")]


def test_a_whole_name_of_another_table_counts_too():
    other = small_study(name="other", cells=[Cell("Proto", "CIFAR-100", {})])
    with pytest.raises(ValueError, match="no cell of other fits"):
        narrowed([STUDY, other], ["CIFAR-10"])


def test_a_part_has_a_name_of_its_own_and_all_cells_are_no_part():
    part = chosen("CIFAR-10")
    assert (part.name, part.ending) == ("small-only-cifar-10", "-only-cifar-10")
    assert part.part == "A part: 2 of 6 cells, those with 'CIFAR-10'."
    assert chosen("CIFAR") is STUDY
    assert chosen("A: CIFAR-10").name != part.name.replace("only-", "only-a-")


@pytest.mark.parametrize(
    ("only", "what"),
    [
        (["MNIST"], "no cell of small fits. Its rows: Proto; ProtoNorm. Its columns: A: CIFAR-10;"),
        (["CIFAR-10", "B"], "one cell must fit all of them"),
        ([" "], "empty text"),
    ],
)
def test_what_fits_nothing_is_refused(only, what):
    with pytest.raises(ValueError, match=what):
        chosen(*only)
