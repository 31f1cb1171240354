import math

import pytest
import torch

from protonorm.geometry.alignment import align, energy
from protonorm.geometry.sphere import descent
from protonorm.geometry.sphere.descent import REST, stiffness
from protonorm.geometry.sphere.energy import project
from tests.geometry.arrangements import drawn, on_sphere


def resistance(points, move):
    """The gradient of half of ½‖1ᵀD‖² + ‖sym(CᵀD)‖² + a‖D‖², C centred, at D = move."""
    count, dimension = points.shape
    centred = points - points.mean(dim=0)
    stretch = centred.T @ move
    rest = REST * math.sqrt(count) / dimension
    return rest * move + 0.5 * move.sum(dim=0) + centred @ (stretch + stretch.T) / 2


@pytest.mark.parametrize(("count", "dimension"), [(7, 3), (9, 9), (12, 2)])
def test_division_undoes_resistance(count, dimension):
    """The linear map as a dense matrix, column by column, solved directly."""
    points = on_sphere(count, dimension)
    units = torch.eye(count * dimension, dtype=torch.float64)
    dense = torch.stack([resistance(points, unit.view(count, dimension)).flatten() for unit in units], dim=1)
    arrows = project(points, drawn(count, dimension, seed=1))
    solved = torch.linalg.solve(dense, arrows.flatten()).view(count, dimension)
    assert torch.allclose(stiffness(points).divide(arrows), project(points, solved), atol=1e-12)


def test_the_energy_resists_as_said():
    """The second difference of the energy along a shift and along a stretch of 400 points in 40 dimensions."""
    points = align(drawn(400, 40), "descent", limit=40).prototypes
    stretch = torch.zeros(40, 40, dtype=torch.float64)
    stretch[0, 1] = stretch[1, 0] = 1.0
    for move in (torch.ones(400, 1, dtype=torch.float64) * drawn(1, 40), points @ stretch):
        tangential = project(points, move) / move.norm()
        bent = sum(energy(torch.nn.functional.normalize(points + h * tangential)) for h in (1e-2, -1e-2))
        measured = (bent - 2 * energy(points)) / 1e-4
        promised = float((tangential * resistance(points, tangential)).sum())
        assert measured == pytest.approx(promised, rel=0.25)


def test_it_saves_steps(monkeypatch):
    """Thirty steps that know the stiffness lead lower than thirty that must learn it."""
    starts = [drawn(100, 32, seed).abs() for seed in range(3)]
    knowing = [align(start, "descent", limit=30).energy for start in starts]
    monkeypatch.setattr(descent, "divider", lambda place, s: None)
    learning = [align(start, "descent", limit=30).energy for start in starts]
    assert all(one < other - 0.1 for one, other in zip(knowing, learning, strict=True))
