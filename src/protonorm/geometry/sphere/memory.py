"""What L-BFGS remembers: the last moves, the changes of slope along them, and all products between these.

The usual two loops run over the (2m, 2m) products, not over vectors of length K·d, so a direction costs four passes
over the memory, whatever m is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LENGTH = 10  # m, moves remembered
CURVED = 1e-12  # least cosine between a move and the change of slope along it


class Memory:
    """The inverse Hessian, estimated from the last moves."""

    def __init__(self, like: Tensor) -> None:
        """Begin without moves, for points (K, d)."""
        self.rows = like.new_zeros(2 * LENGTH, like.numel())  # moves, then changes of slope
        self.products = np.zeros((2 * LENGTH, 2 * LENGTH))
        self.order: list[int] = []  # places in use, the oldest first

    def add(self, step: Tensor, change: Tensor) -> None:
        """Remember a move (K, d) and the change of slope along it, if the curvature along it is positive."""
        pair = torch.stack((step.flatten(), change.flatten()))
        inner = (pair @ pair.T).tolist()
        if inner[0][1] <= CURVED * (inner[0][0] * inner[1][1]) ** 0.5:
            return
        place = self.order.pop(0) if len(self.order) == LENGTH else len(self.order)
        self.order.append(place)
        both = [place, LENGTH + place]
        self.rows[both] = pair
        products = (self.rows @ pair.T).cpu().numpy()  # (2m, 2)
        self.products[:, both] = products
        self.products[both] = products.T

    def direction(self, gradient: Tensor, divide: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Apply minus the inverse Hessian to a gradient (K, d).

        `divide` applies the inverse Hessian that is assumed before the moves are heard; otherwise it is a number.
        """
        curvature = {place: self.products[place, LENGTH + place] for place in self.order}
        slopes, shares, taken = self._along(gradient), np.zeros(2 * LENGTH), {}
        for place in reversed(self.order):
            taken[place] = (slopes[place] - self.products[place] @ shares) / curvature[place]
            shares[LENGTH + place] = taken[place]
        rest = gradient - self._mixed(shares, gradient)
        newest = self.order[-1]
        scale = curvature[newest] / self.products[LENGTH + newest, LENGTH + newest]
        move = divide(rest) if divide else rest.mul_(scale)
        slopes, shares = self._along(move), np.zeros(2 * LENGTH)
        for place in self.order:
            along = slopes[LENGTH + place] + self.products[LENGTH + place] @ shares
            shares[place] = taken[place] - along / curvature[place]
        return move.add_(self._mixed(shares, move)).neg_()

    def _along(self, vector: Tensor) -> NDArray[np.float64]:
        """Multiply all rows by a (K, d) tensor, (2m,)."""
        return (self.rows @ vector.flatten()).cpu().numpy()

    def _mixed(self, shares: NDArray[np.float64], like: Tensor) -> Tensor:
        """Add up shares (2m,) of the rows, (K, d)."""
        return (torch.from_numpy(shares).to(self.rows) @ self.rows).view_as(like)
