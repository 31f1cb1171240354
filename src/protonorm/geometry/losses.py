"""Losses that several methods share: prototype distances, distillation, margins and structural similarity."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, normalize

Reduction = Literal["mean", "batchmean"]  # divide by B·K, as PyTorch's "mean" does, or by B, which is the mean KL
Comparison = Literal["cka", "distances", "squared-distances"]


def prototype_loss(z: Tensor, y: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    """Compute the mean squared error between features z (B, d) and the targets (K, d) of their classes y (B,).

    This is R of Eq. 15 as in the authors' code. Samples of classes that are not known (K,) contribute zero but are
    counted.
    """
    differences = torch.where(known[y].unsqueeze(1), z - targets[y], 0.0)  # (B, d)
    return differences.square().sum() / z.numel()


def class_euclidean(z: Tensor, y: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    """Sum the distances between class means of z (B, d), y (B,) and the targets (K, d) of known classes (K,).

    This is R of Eq. 15 as printed, with the class means of the batch as the local prototypes.
    """
    sums = z.new_zeros(len(targets), z.shape[1]).index_add(0, y, z)
    counts = torch.bincount(y, minlength=len(targets))
    classes = (known & (counts > 0)).nonzero().flatten()
    gaps: Tensor = sums[classes] / counts[classes].unsqueeze(1) - targets[classes]
    lengths: Tensor = torch.linalg.vector_norm(gaps, dim=1)  # the gradient at zero is zero
    return lengths.sum()


def divergence(teacher: Tensor, logits: Tensor, reduction: Reduction) -> Tensor:
    """Compute KL(q‖p) = Σ q (log q − log p) of the softmaxes q of a teacher's logits and p of logits (B, K)."""
    log_q, log_p = log_softmax(teacher, dim=1), log_softmax(logits, dim=1)
    total = (log_q.exp() * (log_q - log_p)).sum()
    return total / (logits.numel() if reduction == "mean" else len(logits))


def distillation_loss(logits: Tensor, y: Tensor, teacher: Tensor, known: Tensor) -> Tensor:
    """Average −Σ_k t_k log p_k of logits (B, K) to targets t (K, K) of labels y (B,); zero if not known (K,)."""
    losses = -(teacher[y] * log_softmax(logits, dim=1)).sum(dim=1)  # (B,)
    return torch.where(known[y], losses, 0.0).sum() / len(y)


def cosines(z: Tensor, directions: Tensor) -> Tensor:
    """Compute cos(z_b, t_k), (B, K), of features z (B, d) and directions t (K, d) of any length; 0 for zero vectors."""
    return normalize(z) @ normalize(directions).T


def batch_alignment_loss(z: Tensor, y: Tensor, directions: Tensor) -> Tensor:
    """Average −log of e^ℓ_by / Σ_b' e^ℓ_b'y, ℓ_bj = cos(z_b, t_j), over the samples of each class, then over all K.

    The softmax runs over the batch, not over the classes: each direction selects among the features z (B, d). Classes
    without samples contribute zero but are counted.
    """
    chosen = log_softmax(cosines(z, directions), dim=0).gather(1, y.unsqueeze(1)).squeeze(1)  # (B,)
    counts = chosen.new_zeros(len(directions)).index_add(0, y, torch.ones_like(chosen))  # (K,)
    return -(chosen / counts[y]).sum() / len(directions)


def margin_loss(points: Tensor, labels: Tensor, prototypes: Tensor, margin: float) -> Tensor:
    """Average −log of exp(−d_y − δ) over itself plus Σ_{j≠y} exp(−d_j), d_j = ‖c − ĉ_j‖: points (B, d), labels (B,).

    Distances are computed from differences: the expanded square loses small distances and their gradients.
    """
    distance = torch.cdist(points, prototypes, compute_mode="donot_use_mm_for_euclid_dist")  # (B, K)
    own = labels.unsqueeze(1) == torch.arange(len(prototypes), device=labels.device)  # (B, K)
    return cross_entropy(-(distance + margin * own), labels)


def structural_loss(x: Tensor, y: Tensor, rows: Tensor, by: Comparison) -> Tensor:
    """Compute 1 − the similarity of two arrangements x (n, d) and y (n, d), of which rows (n,) count.

    Rows that do not count are masked, not removed, so that shapes do not depend on values.

    The loss is invariant to translation, rotation and scale. It is zero for equal arrangements, and where there is
    nothing to compare: fewer than two rows, or coincident rows.
    """
    first, second = (gram(x, rows), gram(y, rows)) if by == "cka" else (distances(x, rows), distances(y, rows))
    if by == "squared-distances":
        first, second = first.square(), second.square()
    sizes = torch.linalg.vector_norm(first) * torch.linalg.vector_norm(second)  # the gradient at zero is zero
    comparable = sizes > 0
    similarity = (first * second).sum() / torch.where(comparable, sizes, 1.0)
    return torch.where(comparable, 1 - similarity, 0.0)


def gram(x: Tensor, rows: Tensor) -> Tensor:
    """Compute the Gram matrix (n, n) of the centred rows of x (n, d) that count; zero for the others."""
    counted = rows.to(x.dtype).unsqueeze(1)  # (n, 1)
    first = rows.to(torch.uint8).argmax(dim=0, keepdim=True)  # (1,); indexing with a 0-d tensor would synchronise
    shifted = x - x[first].detach()  # relative to the first row that counts: coincident rows become exactly zero
    mean = (counted * shifted).sum(dim=0) / counted.sum().clamp(min=1.0)
    centred = counted * (shifted - mean)
    return centred @ centred.T


def distances(x: Tensor, rows: Tensor) -> Tensor:
    """Compute the distances (n, n) between the rows of x (n, d) that count; zero for the others."""
    counted = rows.to(x.dtype).unsqueeze(1)
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist") * counted * counted.T


def batch_means(z: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Compute differentiable means of features z (B, d) by class y (B,): (K, d), and which classes occur (K,)."""
    sums = z.new_zeros(num_classes, z.shape[1]).index_add(0, y, z)
    counts = z.new_zeros(num_classes).index_add(0, y, torch.ones_like(y, dtype=z.dtype))
    return sums / counts.clamp(min=1.0).unsqueeze(1), counts > 0


def rotate_rows(x: Tensor, y: Tensor) -> Tensor:
    """Rotate the rows of x (n, d) about the origin to be nearest to those of y (n, d): x·R, R orthogonal.

    R = U·Vᵀ of the singular value decomposition of xᵀ·y; both span at most n dimensions, and R matters only there.
    """
    left_basis, left_factor = torch.linalg.qr(x.T)  # (d, k), (k, n)
    right_basis, right_factor = torch.linalg.qr(y.T)
    u, _, v = torch.linalg.svd(left_factor @ right_factor.T, full_matrices=False)  # (k, k): xᵀ·y between the two bases
    rows: Tensor = x @ left_basis @ u @ v @ right_basis.T
    return rows
