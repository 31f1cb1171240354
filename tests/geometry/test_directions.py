import pytest
import torch

from protonorm.geometry import alignment
from protonorm.geometry.alignment import equally_spread
from protonorm.geometry.prototypes import in_blocks, on_circle, orthogonal, smoothed, weighted_sums


@pytest.mark.parametrize(("classes", "width"), [(1, 1), (3, 3), (10, 64)])
def test_orthogonal_directions_are_orthonormal_where_there_is_room(classes, width):
    drawn = orthogonal(classes, width)
    torch.testing.assert_close(drawn @ drawn.T, torch.eye(classes), atol=1e-6, rtol=0)


def test_directions_have_unit_length_where_there_is_no_room():
    assert orthogonal(6, 2).norm(dim=1).tolist() == pytest.approx([1.0] * 6)


def test_four_directions_on_the_circle():
    wanted = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    torch.testing.assert_close(on_circle(4, 2), wanted)


def test_six_directions_on_the_circle_are_a_hexagon():
    """The sides of a hexagon in the unit circle are 1 long."""
    hexagon = on_circle(6, 2)
    assert (hexagon - hexagon.roll(1, 0)).norm(dim=1).tolist() == pytest.approx([1.0] * 6)


def test_blocks_share_the_coordinates_out():
    """Of five coordinates two classes have three and two: ⌊2i/5⌋ is 0, 0, 0, 1, 1."""
    a, b = 3**-0.5, 2**-0.5
    torch.testing.assert_close(in_blocks(2, 5), torch.tensor([[a, a, a, 0, 0], [0, 0, 0, b, b]]))
    found = in_blocks(10, 64)
    torch.testing.assert_close(found @ found.T, torch.eye(10))
    assert found.min() == 0
    assert torch.equal(in_blocks(3, 3), torch.eye(3))
    with pytest.raises(ValueError, match="4 classes do not have coordinates of their own"):
        in_blocks(4, 3)


def test_the_circle_is_refused_in_space():
    with pytest.raises(ValueError, match="feature_dim is 3"):
        on_circle(4, 3)


def test_spreading_is_solved_once_and_everybody_has_a_copy(monkeypatch):
    solved, solve = [], alignment.align
    monkeypatch.setattr(alignment, "align", lambda start: solved.append(start.shape) or solve(start))
    alignment._spread.cache_clear()
    one, other = equally_spread(4, 2, seed=5), equally_spread(4, 2, seed=5)
    assert torch.equal(one, other)
    assert len(solved) == 1
    one.zero_()
    assert other.norm(dim=1).tolist() == pytest.approx([1.0] * 4)
    assert torch.equal(equally_spread(4, 2, seed=5), other)
    assert not torch.equal(equally_spread(4, 2, seed=6), other)
    assert equally_spread(4, 3, seed=5).shape == (4, 3)
    assert solved == [(4, 2), (4, 2), (4, 3)]


def test_smoothing_by_hand():
    """W = (1, 0), a ∥ (4, 3) → (0.8, 0.6): ½W + ½a = (0.9, 0.3), of length √0.9."""
    moved = smoothed(torch.tensor([[1.0, 0.0]]), torch.tensor([[4.0, 3.0]]), rho=0.5)
    torch.testing.assert_close(moved, torch.tensor([[0.9, 0.3]]) / 0.9**0.5)


@pytest.mark.parametrize("sums", [[0.0, 0.0], [-7.0, 0.0]])
def test_a_direction_without_a_new_one_stays(sums):
    """Nothing was sent; or ½(1, 0) + ½(−1, 0) = 0, which has no direction."""
    before = torch.tensor([[1.0, 0.0]])
    assert torch.equal(smoothed(before, torch.tensor([sums]), rho=0.5), before)


def test_rho_of_zero_and_one():
    before, sums = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1e-30]])
    assert smoothed(before, sums, 0.0).tolist() == [[0.0, 1.0]]  # however short the sum is
    assert smoothed(before, sums, 1.0).tolist() == [[1.0, 0.0]]


def test_prototypes_are_laid_out_times_their_counts():
    """3·(0, 1) of class 2, 5·(0.6, 0.8) of class 0, and nothing of class 1."""
    classes, prototypes, counts = torch.tensor([2, 0]), torch.tensor([[0.0, 1.0], [0.6, 0.8]]), torch.tensor([3, 5])
    expected = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(weighted_sums(classes, prototypes, counts, 3), expected)
