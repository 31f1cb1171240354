"""What L-BFGS remembers: the last moves, the changes of slope along them, and all products between these.

The usual two loops run over the (2m, 2m) products, not over vectors of length K·d, so a direction costs three passes
over the memory, whatever m is.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

LENGTH = 10  # m, moves remembered
CURVED = 1e-12  # least cosine between a move and the change of slope along it


class Memory:
    """The inverse Hessian that the last moves suggest."""

    def __init__(self, like: Tensor) -> None:
        """Begin with nothing, for points shaped (K, d)."""
        self.rows = like.new_zeros(2 * LENGTH, like.numel())  # moves, then changes of slope
        self.products = np.zeros((2 * LENGTH, 2 * LENGTH))
        self.order: list[int] = []  # places in use, the oldest first

    def add(self, step: Tensor, change: Tensor) -> None:
        """Remember a move (K, d) and the change of slope along it, if it tells of a positive curvature."""
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

    def direction(self, gradient: Tensor) -> Tensor:
        """Apply minus the inverse Hessian to a gradient (K, d)."""
        slopes = (self.rows @ gradient.flatten()).cpu().numpy()  # (2m,)
        shares, own = np.zeros(2 * LENGTH), -1.0  # of the rows and of the gradient in the direction

        def along(row: int) -> float:
            return float(self.products[row] @ shares + own * slopes[row])

        curvature = {place: self.products[place, LENGTH + place] for place in self.order}
        taken = {}
        for place in reversed(self.order):
            taken[place] = along(place) / curvature[place]
            shares[LENGTH + place] -= taken[place]
        scale = curvature[self.order[-1]] / self.products[LENGTH + self.order[-1], LENGTH + self.order[-1]]
        shares, own = shares * scale, own * scale
        for place in self.order:
            shares[place] += taken[place] - along(LENGTH + place) / curvature[place]
        move = torch.from_numpy(shares).to(self.rows) @ self.rows
        return move.add_(gradient.flatten(), alpha=own).view_as(gradient)
