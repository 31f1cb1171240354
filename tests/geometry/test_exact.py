import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protonorm.geometry.alignment import align, helmert
from protonorm.geometry.prototypes import distances
from tests.geometry.arrangements import drawn, on_sphere, rotation, simplex_side

STARTS = {
    "random": lambda count, dimension: drawn(count, dimension),
    "positive": lambda count, dimension: drawn(count, dimension).abs(),
    "nearly equal": lambda count, dimension: 1 + 1e-9 * drawn(count, dimension),
    "equal": lambda count, dimension: torch.ones(count, dimension, dtype=torch.float64),
    "zero": lambda count, dimension: torch.zeros(count, dimension, dtype=torch.float64),
}


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-9), (torch.float32, 1e-6)])
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("count", "dimension"), [(2, 2), (3, 2), (10, 512), (100, 512), (200, 512), (513, 512)])
def test_the_simplex_is_reached_from_everywhere(count, dimension, start, dtype, error):
    aligned = align(STARTS[start](count, dimension).to(dtype))
    assert aligned.method == "exact"
    assert (distances(aligned.prototypes.double()) - simplex_side(count)).abs().max() < error
    assert aligned.min_distance == pytest.approx(simplex_side(count), abs=1e-9)
    assert aligned.residual < 1e-12


def test_simplex_values_printed_elsewhere():
    """√(2K/(K−1)) to four digits: 1.4907 for K = 10, 1.4213 for 100, 1.4178 for 200."""
    assert [round(align(drawn(count, 512)).min_distance, 4) for count in (10, 100, 200)] == [1.4907, 1.4213, 1.4178]


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(2, 9), st.integers(0, 3), st.integers(0, 1000))
def test_no_other_simplex_is_nearer(count, more, seed):
    """All regular simplices with numbered corners are rotations and reflections of one another."""
    points = on_sphere(count, count - 1 + more, seed) if count + more > 2 else drawn(2, 1, seed).sign()
    best = align(points).prototypes
    other = best @ rotation(points.shape[1], seed + 1)
    assert (points - best).norm() <= (points - other).norm() + 1e-12


def test_a_simplex_stays():
    simplex = align(drawn(6, 8)).prototypes
    assert torch.allclose(align(3 * simplex).prototypes, simplex, atol=1e-14)


def test_helmert_by_hand():
    """K = 3: (1, −1, 0)/√2 and (1, 1, −2)/√6."""
    expected = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]], dtype=torch.float64).T
    assert torch.allclose(helmert(3), expected / torch.tensor([2.0, 6.0], dtype=torch.float64).sqrt())
    basis = helmert(40)
    assert torch.allclose(basis.T @ basis, torch.eye(39, dtype=torch.float64), atol=1e-14)
    assert basis.sum(dim=0).abs().max() < 1e-13


def on_circle(*degrees: float) -> torch.Tensor:
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def test_polygon_keeps_order_and_turns_as_little_as_possible():
    """In their order −20, 20, 70 and 180 degrees lie 70, 20, −20 and 0 degrees from −90, 0, 90 and 180.

    The best turn of that square is the angle of Σ exp(i·gap) = (cos 70 + 2 cos 20 + 1, sin 70), 16.26 degrees.
    """
    seventy, twenty = math.radians(70), math.radians(20)
    turn = math.degrees(math.atan2(math.sin(seventy), math.cos(seventy) + 2 * math.cos(twenty) + 1))
    lengths = torch.tensor([[2.0], [1.0], [5.0], [1.0]], dtype=torch.float64)
    aligned = align(lengths * on_circle(180, 340, 70, 20))
    assert turn == pytest.approx(16.26, abs=0.01)
    assert torch.allclose(aligned.prototypes, on_circle(180 + turn, -90 + turn, 90 + turn, turn), atol=1e-14)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("count", [4, 6, 25])
def test_circles_are_divided_equally(count, start):
    """Neighbours are 2 sin(π/K) apart."""
    aligned = align(STARTS[start](count, 2))
    assert aligned.min_distance == pytest.approx(2 * math.sin(math.pi / count), abs=1e-12)
    assert aligned.residual < 1e-12


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.integers(4, 12), st.integers(0, 1000), st.floats(0, 6.3))
def test_no_other_turn_is_nearer(count, seed, turn):
    points = on_sphere(count, 2, seed)
    best = align(points).prototypes
    spin = torch.tensor([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]], dtype=torch.float64)
    assert (points - best).norm() <= (points - best @ spin).norm() + 1e-12
    order = torch.atan2(points[:, 1], points[:, 0]).argsort()
    ends = best[order].roll(-1, 0)
    steps = torch.atan2(best[order, 0] * ends[:, 1] - best[order, 1] * ends[:, 0], (best[order] * ends).sum(dim=1))
    assert torch.allclose(steps, torch.full_like(steps, 2 * math.pi / count))  # the same way round, one by one


@pytest.mark.parametrize("signs", [[3.0, 5.0], [3.0, -5.0], [-1.0, 2.0], [0.0, 0.0], [0.0, -2.0]])
@pytest.mark.parametrize("method", ["auto", "exact", "paper", "descent"])
def test_two_points_on_a_line_are_opposite(signs, method):
    aligned = align(torch.tensor(signs).unsqueeze(1), method)
    assert sorted(aligned.prototypes.flatten().tolist()) == [-1.0, 1.0]
    if signs[0] * signs[1] < 0:
        assert aligned.prototypes.flatten().tolist() == [math.copysign(1, sign) for sign in signs]


def test_exact_is_refused_where_no_closed_form_is_known():
    with pytest.raises(ValueError, match="5 prototypes in 3 dimensions.*'descent'"):
        align(drawn(5, 3), "exact")
