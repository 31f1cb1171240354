import math

import pytest
import torch

from protonorm.geometry.losses import batch_means, rotate_rows, structural_loss

EVERY = ("cka", "distances", "squared-distances")
TRIANGLE = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(0.75)]])  # all distances 1
LINE = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])


def all_rows(x):
    return torch.ones(len(x), dtype=torch.bool)


def rotation(width, seed=0):
    return torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(seed)))[0]


@pytest.mark.parametrize(
    ("by", "similarity"), [("cka", math.sqrt(0.5)), ("distances", 4 / math.sqrt(18)), ("squared-distances", 0.81650)]
)
def test_a_triangle_and_three_points_on_a_line(by, similarity):
    """Distances (1, 1, 1) and (1, 1, 2): 4/√(3·6); squared (1, 1, 4): 6/√(3·18) = 0.81650.

    The triangle's centred Gram matrix is ½(I − 11ᵀ/3), with norm ½√2; the line's has (1, 0, 1) on its diagonal and −1
    in two corners, with norm 2; the trace of their product is ½·(1 + 1) = 1, and 1/√2 remains.
    """
    found = structural_loss(TRIANGLE, LINE, all_rows(LINE), by)
    assert found.item() == pytest.approx(1 - similarity, abs=1e-5)


@pytest.mark.parametrize("by", EVERY)
def test_place_direction_and_size_do_not_matter(by):
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    moved = 3 * x @ rotation(4) + torch.tensor([5.0, -2.0, 0.0, 1.0])
    assert structural_loss(x, moved, all_rows(x), by).item() == pytest.approx(0.0, abs=1e-5)
    assert structural_loss(x, x.flip(0) ** 2, all_rows(x), by).item() > 0.01


@pytest.mark.parametrize("by", EVERY)
def test_rows_that_do_not_count_are_as_if_cut_out(by):
    x, y = TRIANGLE.repeat(2, 1)[:5], torch.cat([LINE, torch.tensor([[9.0, 7.0], [-3.0, 4.0]])])
    rows = torch.tensor([True, True, True, False, False])
    torch.testing.assert_close(structural_loss(x, y, rows, by), structural_loss(TRIANGLE, LINE, all_rows(LINE), by))


@pytest.mark.parametrize("by", EVERY)
def test_two_points_have_no_structure(by):
    """One distance is always as one distance: no loss and no gradient; what lies along a line stays so."""
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0]], requires_grad=True)
    value = structural_loss(x, torch.tensor([[0.0, 0.0], [5.0, 5.0]]), all_rows(x), by)
    value.backward()
    assert value.item() == pytest.approx(0.0, abs=1e-6)
    assert x.grad.abs().max().item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("by", EVERY)
@pytest.mark.parametrize("rows", [[False, False, False], [True, False, False], [True, True, True]])
def test_where_there_is_nothing_to_compare_there_is_no_loss_and_no_nan(by, rows):
    """No row, one row, or three rows whose targets coincide, as in a batch of one class."""
    x = TRIANGLE.clone().requires_grad_()
    value = structural_loss(x, torch.ones(3, 2), torch.tensor(rows), by)
    value.backward()
    assert value.item() == 0.0
    assert x.grad.abs().max().item() == 0.0


def test_class_means_of_a_batch_have_gradients():
    """Class 0 has (1, 2) and (3, 4), class 2 (5, 6): means (2, 3) and (5, 6); each of class 0 has half a say."""
    z = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
    means, there = batch_means(z, torch.tensor([0, 0, 2]), 3)
    assert means.tolist() == [[2.0, 3.0], [0.0, 0.0], [5.0, 6.0]]
    assert there.tolist() == [True, False, True]
    means.sum().backward()
    assert z.grad.tolist() == [[0.5, 0.5], [0.5, 0.5], [1.0, 1.0]]


@pytest.mark.parametrize(("count", "width"), [(3, 5), (5, 3), (2, 2)])
def test_what_was_turned_is_turned_back(count, width):
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(rotate_rows(x @ rotation(width), x), x, atol=1e-5, rtol=1e-4)


def test_turning_changes_no_length():
    """(2, 0) turned towards (0, 7) is (0, 2)."""
    assert rotate_rows(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 7.0]])).tolist() == [[pytest.approx(0.0), 2.0]]


@pytest.mark.parametrize(("count", "width"), [(7, 16), (10, 512), (32, 512)])
@pytest.mark.parametrize("by", EVERY)
def test_rows_that_coincide_have_no_structure_wherever_they_are(by, count, width):
    """Equal rows of any numbers, as the prototypes of a batch of one class: their mean may be rounded."""
    drawn = torch.Generator().manual_seed(0)
    x = torch.randn(count, width, generator=drawn, requires_grad=True)
    value = structural_loss(x, torch.randn(width, generator=drawn).expand(count, width), all_rows(x), by)
    value.backward()
    assert value.item() == 0.0
    assert not x.grad.any()
