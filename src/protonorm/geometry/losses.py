"""Losses that several methods share: distances of features to prototypes, and between two networks' answers."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

Reduction = Literal["mean", "batchmean"]  # divide by B·K, as PyTorch's "mean" does, or by B, which is the mean KL


def prototype_loss(z: Tensor, y: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    """Average the squared error between features z (B, d) and the targets (K, d) of their classes y (B,).

    This is R of Eq. 15 as the authors code it. Samples of classes that are not known (K,) add nothing but count.
    """
    apart = torch.where(known[y].unsqueeze(1), z - targets[y], 0.0)  # (B, d)
    return apart.square().sum() / z.numel()


def class_euclidean(z: Tensor, y: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    """Sum the distances between the means of z (B, d) by class y (B,) and the targets (K, d) of the known classes (K,).

    This is R of Eq. 15 as printed, with the class means of the batch for the local prototypes.
    """
    sums = z.new_zeros(len(targets), z.shape[1]).index_add(0, y, z)
    counts = torch.bincount(y, minlength=len(targets))
    classes = (known & (counts > 0)).nonzero().flatten()
    gaps: Tensor = sums[classes] / counts[classes].unsqueeze(1) - targets[classes]
    lengths: Tensor = torch.linalg.vector_norm(gaps, dim=1)  # its gradient at zero is zero
    return lengths.sum()


def divergence(teacher: Tensor, logits: Tensor, reduction: Reduction) -> Tensor:
    """Measure KL(q‖p) = Σ q (log q − log p) of q, the softmax of a teacher's logits, and p, that of logits (B, K)."""
    log_q, log_p = log_softmax(teacher, dim=1), log_softmax(logits, dim=1)
    total = (log_q.exp() * (log_q - log_p)).sum()
    return total / (logits.numel() if reduction == "mean" else len(logits))
