import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protonorm.geometry import points as pairs
from protonorm.geometry.alignment import energy, forces, tangential
from tests.geometry.arrangements import OCTAHEDRON, drawn, on_sphere, plain_energy, plain_forces

SQUARE = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("s", "expected"),
    [(0.0, -4 * math.log(2)), (1.0, 4 / math.sqrt(2) + 1), (2.0, 2.5)],
)
def test_energy_of_a_square(s, expected):
    """Four sides √2 and two diagonals 2: −(4·½ log 2 + 2 log 2), 4/√2 + 2/2, 4/2 + 2/4."""
    assert energy(SQUARE, s) == pytest.approx(expected, abs=1e-14)
    assert energy(SQUARE.numpy(), s) == pytest.approx(expected, abs=1e-14)


def test_energy_of_the_octahedron():
    """Twelve pairs √2 apart and three pairs 2 apart: −(12·½ + 3) log 2."""
    assert energy(OCTAHEDRON) == pytest.approx(-9 * math.log(2), abs=1e-13)


def test_one_point_has_no_energy_and_feels_nothing():
    alone = torch.ones(1, 3)
    assert energy(alone) == energy(alone, 2.0) == 0.0
    assert forces(alone, 2.0).tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize(("s", "push"), [(0.0, 0.5), (1.0, 0.25), (2.0, 0.25)])
def test_forces_of_two_opposite_points(s, push):
    """The difference is 2: F = 2/2² for s = 0, and s·2·2^−(s+2) = 2/8, 4/16."""
    poles = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert torch.allclose(forces(poles, s), torch.tensor([[push, 0.0], [-push, 0.0]]))


@pytest.mark.parametrize("s", [0.0, 0.5, 1.0, 7.0])
@pytest.mark.parametrize("block", [1 << 22, 60])
def test_forces_are_minus_the_gradient(s, block, monkeypatch):
    """Against autograd of the difference form, for points of any length, in one block and in many."""
    monkeypatch.setattr(pairs, "BLOCK", block)
    points = drawn(23, 5).requires_grad_()
    value = plain_energy(points, s)
    (gradient,) = torch.autograd.grad(value, points)
    assert energy(points, s) == pytest.approx(value.item(), rel=1e-12)
    assert torch.allclose(forces(points, s), -gradient, rtol=1e-10, atol=1e-10 * gradient.abs().max().item())


@pytest.mark.parametrize("block", [1 << 22, 60])
def test_close_points_are_exact(block, monkeypatch):
    """Three clusters with gaps of 1e-9, where 2 − 2 c·c' alone would have no correct digit."""
    monkeypatch.setattr(pairs, "BLOCK", block)
    points = (on_sphere(3, 6).repeat(5, 1) + 1e-9 * drawn(15, 6, seed=1)).numpy()
    expected = plain_forces(points)
    assert np.abs(forces(points) - expected).max() < 1e-9 * np.abs(expected).max()
    assert energy(points) == pytest.approx(plain_energy(torch.from_numpy(points), 0.0).item(), rel=1e-12)


@pytest.mark.parametrize("s", [0.0, 2.0])
def test_coincident_points_have_infinite_energy_and_ignore_each_other(s):
    """Two points at the north pole and one at the south pole: the south feels both, each of the others only it."""
    points = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, -1.0]])
    assert energy(points, s) == math.inf
    single = forces(points[1:], s)
    assert torch.allclose(forces(points, s), torch.stack((single[0], single[0], 2 * single[1])))
    assert forces(torch.ones(4, 3), s).abs().max() == 0


def test_an_energy_too_large_for_a_number_is_infinite():
    assert energy(1e-3 * drawn(3, 2), 200.0) == math.inf


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(2, 30), st.integers(2, 12), st.integers(0, 1000))
def test_radial_force_says_nothing(count, dimension, seed):
    """(1 − c·c')/(2 − 2 c·c') = ½ for each of the K − 1 other unit points."""
    points = on_sphere(count, dimension, seed)
    radial = (forces(points) * points).sum(dim=1)
    assert torch.allclose(radial, torch.full((count,), (count - 1) / 2, dtype=torch.float64), atol=1e-6)


def test_radial_forces_of_a_riesz_energy_sum_to_s_times_the_energy():
    """F_j·c_j = s/2 Σ_k dist^−s, as (c_j − c_k)·c_j = dist²/2."""
    points = on_sphere(9, 4)
    assert (forces(points, 3.0) * points).sum().item() == pytest.approx(3 * energy(points, 3.0))


def test_tangential_takes_the_radial_part_away():
    points = on_sphere(7, 3)
    push = forces(points)
    along = tangential(points, push)
    assert (along * points).sum(dim=1).abs().max() < 1e-14
    assert torch.allclose(push - along, 3.0 * points)  # (K − 1)/2 = 3
    with pytest.raises(ValueError, match="one shape"):
        tangential(points, push[:5])


@pytest.mark.parametrize("s", [-1.0, math.nan, math.inf])
def test_exponents_that_make_no_sense_are_refused(s):
    with pytest.raises(ValueError, match="s must be"):
        energy(SQUARE, s)
    with pytest.raises(ValueError, match="s must be"):
        forces(SQUARE, s)
