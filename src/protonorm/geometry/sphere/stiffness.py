"""The stiff part of the logarithmic energy's curvature, which is known beforehand: L-BFGS need not learn it.

With small products g = c_j·c_k the energy of a pair is −½ log 2 + ½(g + g²/2 + …). Its first two terms resist a common
shift of all points, and any move C·S with a symmetric S (d, d) that stretches the cloud along some axes; to all other
moves they are indifferent. Beside points at rest the second derivative along a tangential move D (K, d) is therefore

    ½‖1ᵀD‖² + ‖sym(CᵀD)‖² + a‖D‖²,

where a, of the order of √K/d, stands for what all further terms add.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from protonorm.geometry.sphere.energy import project

REST = 4.0  # a in units of √K/d: with less, first trials of a line search go too far; with more, steps are short


class Stiffness(NamedTuple):
    """The resistance to moves of unit points, prepared for division by it."""

    points: Tensor  # (K, d)
    centred: Tensor  # (K, d), points minus their mean
    squares: Tensor  # (d,) of the extents along the axes
    axes: Tensor  # (d, d)
    rest: float  # a

    def divide(self, arrows: Tensor) -> Tensor:
        """Find the tangential move (K, d) to which tangential forces (K, d) would push the points."""
        turned = self.axes.T @ (self.centred.T @ arrows) @ self.axes
        stretch = (turned + turned.T) / (2 * self.rest + self.squares.unsqueeze(1) + self.squares)  # aS + ½(GS + SG)
        move = arrows - self.centred @ (self.axes @ stretch @ self.axes.T)
        shift = move.mean(dim=0) / (1 + 2 * self.rest / len(arrows))  # centred points: shift and stretch do not mix
        return project(self.points, move.sub_(shift)).div_(self.rest)


def stiffness(points: Tensor) -> Stiffness:
    """Measure the stiffness of unit points (K, d)."""
    centred = points - points.mean(dim=0)
    squares, axes = torch.linalg.eigh(centred.T @ centred)
    return Stiffness(points, centred, squares, axes, REST * math.sqrt(len(points)) / points.shape[1])
