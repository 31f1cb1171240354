import math
from itertools import pairwise

import numpy as np
import pymanopt
import pytest
import torch
from pymanopt.manifolds import Oblique
from pymanopt.optimizers import ConjugateGradient

from protonorm.geometry import points as pairs
from protonorm.geometry.alignment import align, energy, forces, tangential
from protonorm.geometry.sphere.descent import Settings, descend, step_limit
from tests.geometry.arrangements import CUBE, OCTAHEDRON, drawn, on_sphere, plain_energy, plain_forces, simplex_side

SIDE = 1 / math.sin(2 * math.pi / 5)  # of the icosahedron
GOLDEN = (1 + math.sqrt(5)) / 2


@pytest.mark.parametrize(("count", "least"), [(5, 6.474691495), (12, 49.165253058), (20, 150.881568334)])
def test_thomson_minima(count, least):
    """The published minima of Σ 1/dist on the sphere."""
    found = (align(drawn(count, 3, seed), "descent", s=1.0).energy for seed in range(20))
    assert any(value == pytest.approx(least, abs=2e-9) for value in found)


@pytest.mark.parametrize(
    ("vectors", "least"),
    [
        (drawn(6, 3), -9 * math.log(2)),  # octahedron: 12 pairs √2, 3 pairs 2
        (drawn(8, 4, seed=1), -16 * math.log(2)),  # cross-polytope: 24 pairs √2, 4 pairs 2
        (drawn(12, 3), -30 * math.log(SIDE) - 30 * math.log(SIDE * GOLDEN) - 6 * math.log(2)),  # icosahedron
    ],
)
def test_logarithmic_minima_by_hand(vectors, least):
    """The icosahedron has 30 sides, 30 diagonals of its pentagons, golden ratio longer, and 6 pairs of opposites."""
    assert align(vectors).energy == pytest.approx(least, abs=1e-11)


SIZES = [(4, 2), (7, 2), (5, 3), (9, 3), (14, 3), (8, 5), (12, 4), (20, 8), (10, 20), (16, 4)]


@pytest.mark.parametrize(("count", "dimension"), SIZES)
def test_never_above_algorithm_1(count, dimension):
    """A hundred starts in all, every third of them crowded, s = 0 and s = 1 in turn, and only a hundred steps."""
    for seed in range(10):
        vectors = drawn(count, dimension, seed) + (3.0 if seed % 3 == 0 else 0.0)
        s = float(seed % 2)
        published = align(vectors, "paper", s=s).energy
        assert align(vectors, "descent", s=s, limit=100).energy <= published + 1e-10 * abs(published)


def test_no_worse_than_an_independent_solver():
    """Conjugate gradients on the manifold of unit columns, from the same start, with forces from differences."""
    count, dimension = 30, 8
    manifold = Oblique(dimension, count)

    @pymanopt.function.numpy(manifold)
    def cost(columns):
        return plain_energy(torch.from_numpy(columns.T), 0.0).item()

    @pymanopt.function.numpy(manifold)
    def gradient(columns):
        return -plain_forces(columns.T).T

    problem = pymanopt.Problem(manifold, cost, euclidean_gradient=gradient)
    solver = ConjugateGradient(verbosity=0, max_iterations=2000, min_gradient_norm=1e-7)
    for seed in range(3):
        start = on_sphere(count, dimension, seed).numpy()
        oracle = solver.run(problem, initial_point=start.T.copy()).cost
        assert align(start, "descent").energy <= oracle + 1e-8


@pytest.mark.parametrize(("count", "dimension", "s"), [(10, 3, 0.0), (10, 3, 2.5), (40, 6, 0.0), (20, 3, 60.0)])
def test_the_end_is_at_rest(count, dimension, s):
    aligned = align(drawn(count, dimension), "descent", s=s)
    assert aligned.residual <= 1e-9
    push = forces(aligned.prototypes, s)
    along = tangential(aligned.prototypes, push).norm(dim=1).max()
    assert along <= 2e-9 * (push * aligned.prototypes).sum(dim=1).mean()


def test_descent_finds_the_simplex_too():
    aligned = align(drawn(40, 64).abs(), "descent")
    assert aligned.min_distance == pytest.approx(simplex_side(40), abs=1e-8)


@pytest.mark.parametrize("s", [0.0, 1.0, 50.0])
@pytest.mark.parametrize(
    "vectors",
    [
        torch.ones(12, 3, dtype=torch.float64),
        torch.zeros(12, 3, dtype=torch.float64),
        1 + 1e-9 * drawn(12, 3),
        torch.cat((1 + 1e-7 * drawn(6, 3), -1 + 1e-7 * drawn(6, 3, seed=1))),
    ],
    ids=["equal", "zero", "nearly equal", "two clusters"],
)
def test_crowded_starts_reach_the_icosahedron(vectors, s):
    """Twelve points: the icosahedron is best for every exponent."""
    assert align(vectors, "descent", s=s).min_distance == pytest.approx(SIDE, abs=1e-7)


def test_unused_dimensions_are_used():
    """Six points in a plane of space feel no force out of it, yet the hexagon must become the octahedron."""
    flat = torch.cat((drawn(6, 2), torch.zeros(6, 1, dtype=torch.float64)), dim=1)
    assert align(flat, "descent").energy == pytest.approx(-9 * math.log(2), abs=1e-10)


def test_a_saddle_is_left_and_a_minimum_kept():
    """The cube is at rest but not the best of eight; the octahedron is the best of six."""
    left = align(CUBE, "descent")
    assert left.energy < energy(CUBE) - 0.01
    assert left.residual < 1e-9
    kept = align(OCTAHEDRON, "descent")
    assert torch.allclose(kept.prototypes, OCTAHEDRON, atol=1e-15)
    assert kept.steps == 0


def test_twice_is_once():
    once = align(drawn(15, 4), "descent")
    again = align(once.prototypes, "descent")
    assert again.steps == 0
    assert torch.allclose(again.prototypes, once.prototypes, atol=1e-15)


def test_every_step_goes_down():
    start = on_sphere(25, 3)
    levels = [energy(start)] + [energy(points) for points in descend(start, Settings())]
    assert len(levels) > 10
    assert all(after <= before + 1e-9 for before, after in pairwise(levels))


def test_limits_hold():
    assert len(list(descend(on_sphere(40, 8), Settings(limit=7)))) == 7
    assert len(list(descend(on_sphere(40, 8), Settings(tolerance=1e-2)))) < 40
    assert step_limit(100, 64) == 500
    assert step_limit(5000, 512) == 26  # 4·10¹¹ / (5000²·612)
    assert step_limit(100_000, 512) == 20


def test_many_points_in_blocks(monkeypatch):
    """The same way with the distances in one block and in seven."""
    vectors = drawn(30, 4)
    whole = align(vectors, "descent", limit=20)
    monkeypatch.setattr(pairs, "BLOCK", 150)
    assert np.allclose(align(vectors, "descent", limit=20).prototypes, whole.prototypes, atol=1e-9)
