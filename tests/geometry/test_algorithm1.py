import math
from itertools import islice

import numpy as np
import pytest
import torch

from protonorm.geometry.alignment import align, energy, forces, tangential
from protonorm.geometry.points import unit
from protonorm.geometry.prototypes import distances
from protonorm.geometry.sphere.energy import Schedule, updates
from tests.geometry.arrangements import drawn, on_sphere, plain_forces, simplex_side

ALL_STEPS = Schedule(patience=500)  # so that nothing stops before T = 500


def as_released(vectors: np.ndarray, small: float) -> tuple[np.ndarray, int]:
    """Do what the authors' program does, in differences; return the last t as well. Its small number is 1e-10."""
    points = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    velocity, rate, same, before = np.zeros_like(points), 0.1, 0, None
    for t in range(500):
        gaps = points[:, None] - points[None]
        weights = 1 / ((gaps**2).sum(2) + 1e-6 * np.eye(len(points)) + small)
        np.fill_diagonal(weights, 0)
        force = (weights[:, :, None] * gaps).sum(1)
        velocity = 0.9 * velocity + rate * force
        points = points + velocity
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        if t % 10 == 0:
            rate *= 0.95
        strength = round(float(np.linalg.norm(force, axis=1).mean()), 4)
        if t > 10:
            same = same + 1 if strength == before else 0
            if same == 10:
                return points, t
        before = strength
    return points, 499


@pytest.mark.parametrize(("count", "dimension"), [(10, 64), (20, 3), (6, 2), (12, 16), (40, 8), (5, 2)])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("crowded", "small", "error"), [(True, 0.0, 1e-9), (False, 1e-10, 1e-7)])
def test_rounding_is_the_released_program(count, dimension, seed, crowded, small, error):
    """Positive vectors are crowded. Without the small number, which the paper has not, there is no difference."""
    vectors = drawn(count, dimension, seed).numpy()
    vectors = np.abs(vectors) if crowded else vectors
    points, last = as_released(vectors, small)
    aligned = align(vectors, "paper", schedule=Schedule(stop="rounding"))
    assert aligned.steps == last + 1
    assert np.abs(aligned.prototypes - points).max() < error


def test_one_update_by_hand():
    """Points at 0 and 90 degrees: F_1 = (1, −1)/2, so c_1 + 0.1 F_1 = (1.05, −0.05)."""
    aligned = align(torch.eye(2, dtype=torch.float64), "paper", schedule=Schedule(steps=1))
    expected = torch.tensor([[1.05, -0.05], [-0.05, 1.05]], dtype=torch.float64) / math.hypot(1.05, 0.05)
    assert aligned.steps == 1
    assert torch.allclose(aligned.prototypes, expected, atol=1e-15)


def test_nearly_equal_points_are_left_to_the_algorithm():
    """Points 1e-9 apart are not equal: the first update must be exactly Eq. 11 to 14."""
    points = on_sphere(1, 5).repeat(4, 1) + 1e-9 * drawn(4, 5, seed=1)
    points /= points.norm(dim=1, keepdim=True)
    moved = points.numpy() + 0.1 * plain_forces(points.numpy())
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    assert np.abs(align(points.numpy(), "paper", schedule=Schedule(steps=1)).prototypes - moved).max() < 1e-6


def test_learning_rates():
    """0.1·0.95^⌈t/10⌉ as released, 0.1·0.95^⌊t/10⌋ as printed."""
    released, printed = Schedule(), Schedule(first_decay=10)
    assert [released.rate(t) for t in (0, 1, 10, 11, 20, 21)] == pytest.approx(
        [0.1, 0.095, 0.095, 0.09025, 0.09025, 0.0857375]
    )
    assert [printed.rate(t) for t in (0, 1, 9, 10, 19, 20)] == pytest.approx([0.1, 0.1, 0.1, 0.095, 0.095, 0.09025])
    for t in range(200):
        assert released.rate(t) == pytest.approx(0.1 * 0.95 ** math.ceil(t / 10))
        assert printed.rate(t) == pytest.approx(0.1 * 0.95 ** (t // 10))


def test_first_decay_changes_the_second_update_only_then():
    vectors = drawn(5, 3)
    one, two = (
        [align(vectors, "paper", schedule=Schedule(steps=steps, first_decay=first)).prototypes for first in (1, 10)]
        for steps in (1, 2)
    )
    assert torch.equal(*one)
    assert not torch.equal(*two)


@pytest.mark.parametrize(("stop", "steps"), [("rounding", 21), ("change", 11), ("tangential", 0)])
def test_earliest_stops(stop, steps):
    """At rest the force never changes. Released: t = 11 … 20 agree, 21 updates. Change: t = 1 … 10, 11 updates."""
    rest = align(drawn(4, 3)).prototypes
    assert align(rest, "paper", schedule=Schedule(stop=stop)).steps == steps


def test_stop_rules_at_their_word():
    vectors = drawn(12, 3)
    calm = align(vectors, "paper", schedule=Schedule(stop="tangential", epsilon=0.1))
    along = tangential(calm.prototypes, forces(calm.prototypes))
    assert along.norm(dim=1).max() < 0.1
    assert calm.steps < 500

    changed = align(vectors, "paper", schedule=Schedule(patience=4, epsilon=1e-2))
    strengths = []
    for steps in range(1, changed.steps):
        points = align(vectors, "paper", schedule=Schedule(patience=500, steps=steps)).prototypes
        strengths.append(forces(points).norm(dim=1).mean().item())
    gaps = np.abs(np.diff(strengths)) < 1e-2
    assert gaps[-4:].all()
    assert not any(gaps[first : first + 4].all() for first in range(len(gaps) - 4))


def test_the_default_stop_waits_for_changes_below_1e_minus_5():
    """Ten in a row at the end, and none before; with 1e-4 it would have stopped earlier, farther from the optimum."""
    vectors = drawn(100, 64)
    default, lax = align(vectors, "paper"), align(vectors, "paper", schedule=Schedule(epsilon=1e-4))
    assert Schedule().epsilon == 1e-5
    assert default.steps > lax.steps
    assert default.energy < lax.energy
    strengths = []
    for point in islice(updates(unit(vectors), 0.0, Schedule(patience=500)), default.steps):
        strengths.append(forces(point).norm(dim=1).mean().item())
    calm = np.abs(np.diff(strengths)) < 1e-5
    assert calm[-11:-1].all()
    assert not calm[-12]


def test_rounding_is_to_four_decimals_whatever_epsilon_is():
    vectors = drawn(12, 4)
    found = {align(vectors, "paper", schedule=Schedule(stop="rounding", epsilon=one)).steps for one in (1e-2, 1e-5)}
    assert found == {align(vectors, "paper", schedule=Schedule(stop="rounding")).steps}


@pytest.mark.parametrize(
    "settings",
    [
        {"eta": 0.2},
        {"mu": 0.5},
        {"decay": 0.8},
        {"decay_every": 3},
        {"first_decay": 10},
        {"steps": 9},
        {"epsilon": 1e-2},
        {"patience": 3},
        {"stop": "tangential"},
        {"stop": "rounding"},
    ],
)
def test_every_setting_of_the_schedule_counts(settings):
    vectors = drawn(12, 4)
    plain, changed = align(vectors, "paper"), align(vectors, "paper", schedule=Schedule(**settings))
    assert not torch.equal(plain.prototypes, changed.prototypes)


@pytest.mark.parametrize(
    ("count", "dimension", "nearest"),
    [(2, 3, 2.0), (3, 2, math.sqrt(3)), (4, 3, 1.6330), (6, 2, 1.0), (10, 512, 1.4907)],
)
def test_all_steps_lead_to_the_optimum(count, dimension, nearest):
    """Opposite points, triangle, tetrahedron √(8/3), hexagon, simplex √(20/9)."""
    vectors = drawn(count, dimension)
    aligned = align(vectors, "paper", schedule=ALL_STEPS)
    assert aligned.steps == 500
    assert aligned.min_distance == pytest.approx(nearest, abs=1e-3)
    assert torch.allclose(aligned.prototypes.norm(dim=1), torch.ones(count, dtype=torch.float64), atol=1e-14)
    radial = (forces(aligned.prototypes) * aligned.prototypes).sum(dim=1)
    assert (radial - (count - 1) / 2).abs().max() < 1e-6
    assert aligned.energy <= energy(vectors / vectors.norm(dim=1, keepdim=True)) + 1e-12


@pytest.mark.parametrize(("count", "dimension"), [(20, 30), (60, 64), (100, 512)])
def test_mean_distance_is_that_of_the_simplex(count, dimension):
    aligned = align(drawn(count, dimension).abs(), "paper", schedule=ALL_STEPS)
    assert distances(aligned.prototypes).mean().item() == pytest.approx(simplex_side(count), abs=1e-3)


def test_equal_starts_separate():
    """Six points of which two are equal become the hexagon, whose sides are 1."""
    vectors = drawn(6, 2)
    vectors[4] = 3 * vectors[1]
    aligned = align(vectors, "paper", schedule=ALL_STEPS)
    assert aligned.min_distance == pytest.approx(1.0, abs=1e-2)
    usual = align(vectors, "paper")
    assert usual.min_distance > 0.8


def test_other_exponents_move_down_as_well():
    """Five points, s = 1: from a calm start Algorithm 1 comes within 1e-3 of the known minimum 6.474691495."""
    aligned = align(drawn(5, 3), "paper", s=1.0, schedule=ALL_STEPS)
    assert aligned.energy == pytest.approx(6.474691495, abs=1e-3)


def test_a_force_that_overflows_is_refused():
    with pytest.raises(ValueError, match="too close for s = 40"):
        align(1 + 1e-9 * drawn(6, 3), "paper", s=40.0)
