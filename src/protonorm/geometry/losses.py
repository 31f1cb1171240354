"""Losses that several methods share: distances of features to prototypes, and between two networks' answers."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, normalize

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


def cosines(z: Tensor, directions: Tensor) -> Tensor:
    """Give cos(z_b, t_k), (B, K), of features z (B, d) and directions t (K, d) of any length; 0 with a zero vector."""
    return normalize(z) @ normalize(directions).T


def batch_alignment_loss(z: Tensor, y: Tensor, directions: Tensor) -> Tensor:
    """Average over all K classes, and over the samples of each, −log of e^ℓ_by / Σ_b' e^ℓ_b'y, ℓ_bj = cos(z_b, t_j).

    The softmax runs over the batch, not over the classes: each direction chooses among the features z (B, d). Classes
    that no sample has add nothing but count.
    """
    chosen = log_softmax(cosines(z, directions), dim=0).gather(1, y.unsqueeze(1)).squeeze(1)  # (B,)
    counts = chosen.new_zeros(len(directions)).index_add(0, y, torch.ones_like(chosen))  # (K,)
    return -(chosen / counts[y]).sum() / len(directions)


def margin_loss(points: Tensor, labels: Tensor, prototypes: Tensor, margin: float) -> Tensor:
    """Average −log of exp(−d_y − δ) over itself plus Σ_{j≠y} exp(−d_j), d_j = ‖c − ĉ_j‖: points (B, d), labels (B,).

    Distances come from differences, not from the expanded square: it loses small ones, and their gradients with them.
    """
    apart = torch.cdist(points, prototypes, compute_mode="donot_use_mm_for_euclid_dist")  # (B, K)
    own = labels.unsqueeze(1) == torch.arange(len(prototypes), device=labels.device)  # (B, K)
    return cross_entropy(-(apart + margin * own), labels)
