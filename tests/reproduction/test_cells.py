import pytest
from experiments.reproduction.cells import Column, Printed, printed

COLUMNS = (Column("a", "Group"), Column("b"))


def test_lines_become_numbers_by_row_and_column():
    found = printed(COLUMNS, "First | 47.41 ± 0.40 | -\nSecond | 1.00 | 2.50 ± 0.05")
    assert found["First", "Group: a"] == Printed(47.41, 0.40)
    assert found["First", "b"] == Printed(None)
    assert found["Second", "Group: a"] == Printed(1.0, None)
    assert list(map(str, found.values())) == ["47.41 ± 0.40", "-", "1.00", "2.50 ± 0.05"]


@pytest.mark.parametrize(("line", "what"), [("Row | 1.00", "1 numbers for 2"), ("Row | 1.00 | 4x", "'4x'")])
def test_a_line_that_cannot_be_read_is_refused(line, what):
    with pytest.raises(ValueError, match=what):
        printed(COLUMNS, line)


def test_columns_of_the_same_name_are_told_apart_by_their_group():
    assert Column("CIFAR-10", "A").place != Column("CIFAR-10", "B").place
