"""Prototypes: class means, their average over clients, the nearest of them, how far they are apart, losses to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from protonorm.geometry.pairs import closest, pair_distances
from protonorm.geometry.points import take, to_float64

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


def class_sums(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Sum features (n, d) by label (n,): sums (K, d) in float64 and counts (K,), to be added up over batches."""
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(
            f"Features (n, d) and labels (n,) do not fit: their shapes are {tuple(features.shape)} "
            f"and {tuple(labels.shape)}."
        )
    rows = to_float64(features)
    index = labels.to(rows.device).long()
    sums = rows.new_zeros(num_classes, features.shape[1]).index_add_(0, index, rows)
    counts = torch.zeros(num_classes, dtype=torch.int64, device=rows.device).index_add_(
        0, index, torch.ones_like(index)
    )
    return sums, counts


def means_of(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Divide sums (K, d) by counts (K,): the classes there are (K_i,) and their means (K_i, d), still in float64."""
    classes = counts.nonzero().flatten()
    return classes, sums[classes] / counts[classes].unsqueeze(1)


def class_means(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Average features (n, d) by label (n,) (Eq. 2): the classes there are (K_i,) and their prototypes (K_i, d)."""
    check_classes(labels, num_classes, "labels")
    classes, means = means_of(*class_sums(features, labels, num_classes))
    return classes, means.to(features)


def average(uploads: Iterable[Sequence[Tensor | None]], num_classes: int, feature_dim: int) -> tuple[Tensor, Tensor]:
    """Average what clients send, class by class (Eq. 7): mean (K, d), zero where nobody has the class, and seen (K,).

    An upload is (classes (K_i,), prototypes (K_i, d)), or has weights (K_i,) or None as a third element. Weights such
    as the n_ij of Eq. 3 are made to sum to one. Uploads are folded in order and only one is held at a time.
    """
    sums = torch.zeros(num_classes, feature_dim, dtype=torch.float64)
    totals = torch.zeros(num_classes, dtype=torch.float64)
    like, weighted = torch.zeros(0), None
    for number, upload in enumerate(uploads):
        classes, prototypes, weights = read_upload(upload, num_classes, feature_dim, f"Upload {number}")
        if weighted is None:
            like, weighted = prototypes, weights is not None
        if weighted != (weights is not None):
            raise ValueError(f"Upload {number} differs from those before: either all have weights or none has.")
        index, rows = classes.cpu().long(), to_float64(prototypes).cpu()
        shares = torch.ones(len(classes), dtype=torch.float64) if weights is None else to_float64(weights).cpu()
        sums.index_add_(0, index, rows if weights is None else rows * shares.unsqueeze(1))
        totals.index_add_(0, index, shares)
    seen = totals > 0
    return (sums / torch.where(seen, totals, 1.0).unsqueeze(1)).to(like), seen.to(like.device)


def read_upload(
    upload: Sequence[Tensor | None], num_classes: int, feature_dim: int, name: str
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Take an upload apart, or say what is wrong with it."""
    classes, prototypes, weights = (*upload, None, None, None)[:3]
    if classes is None or prototypes is None or len(upload) > 3:
        raise ValueError(f"{name} must hold classes, prototypes and perhaps weights, not {len(upload)} elements.")
    if classes.ndim != 1 or prototypes.shape != (len(classes), feature_dim):
        raise ValueError(
            f"{name} must hold classes (K_i,) and prototypes (K_i, {feature_dim}), but their shapes are "
            f"{tuple(classes.shape)} and {tuple(prototypes.shape)}."
        )
    check_classes(classes, num_classes, f"{name}: classes")
    if bool((torch.bincount(classes) > 1).any()):
        raise ValueError(f"{name} holds a class more than once.")
    if not prototypes.is_floating_point() or not all_finite(prototypes):
        raise ValueError(f"{name} must hold prototypes of finite floating numbers.")
    if weights is not None:
        check_weights(weights, len(classes), name)
    return classes, prototypes, weights


def all_finite(numbers: Tensor) -> bool:
    """Say whether no number is NaN or infinite: by the extremes, which NaN spoils, in one pass."""
    return numbers.numel() == 0 or bool(torch.stack(torch.aminmax(numbers)).isfinite().all())


def check_classes(classes: Tensor, num_classes: int, name: str) -> None:
    """Refuse what are not numbers of classes."""
    if classes.dtype not in INTEGERS:
        raise ValueError(f"{name} must be of an integer type, not {classes.dtype}.")
    outside = classes[(classes < 0) | (classes >= num_classes)]
    if len(outside):
        raise ValueError(f"{name} must lie between 0 and {num_classes - 1}, but there is {int(outside[0])}.")


def check_weights(weights: Tensor, count: int, name: str) -> None:
    """Refuse weights that no mean can have."""
    if weights.shape != (count,) or not bool((weights.isfinite() & (weights > 0)).all()):
        raise ValueError(f"{name} must hold one finite weight above zero for each of its {count} classes.")


def nearest(features: Tensor, prototypes: Tensor, classes: Tensor) -> Tensor:
    """Predict the class (B,) of the prototype (K', d) nearest to each feature (B, d) (Eq. 6), the first of equals."""
    if not len(prototypes):
        raise ValueError("There is no prototype to be nearest to: at least one is needed.")
    return classes[_scores(features, prototypes).argmax(dim=1)]


def closeness(features: Tensor, classes: Tensor, prototypes: Tensor, num_classes: int) -> Tensor:
    """Score every class (B, K): the nearer its prototype the higher, −∞ for a class without one."""
    scores = _scores(features, prototypes)
    laid = scores.new_full((len(features), num_classes), -torch.inf)
    laid[:, classes] = scores
    return laid


def _scores(features: Tensor, prototypes: Tensor) -> Tensor:
    """Compute ‖z‖² − ‖z − c‖² = 2 z·c − ‖c‖², (B, K'), in float64: no (B, K', d) tensor."""
    if features.ndim != 2 or prototypes.ndim != 2 or features.shape[1] != prototypes.shape[1]:
        raise ValueError(
            f"Features (B, d) and prototypes (K', d) do not fit: their shapes are {tuple(features.shape)} "
            f"and {tuple(prototypes.shape)}."
        )
    points, centres = to_float64(features), to_float64(prototypes)
    return 2 * points @ centres.T - centres.square().sum(dim=1)


def distances(prototypes: Tensor) -> Tensor:
    """List the distances between all pairs j < k of prototypes (K, d), (K(K−1)/2,)."""
    return pair_distances(take(prototypes)).to(prototypes)


def margins(prototypes: Tensor) -> Tensor:
    """Measure the distance of each prototype (K, d) to the nearest other one, (K,); empty when there is only one."""
    points = take(prototypes)
    return (closest(points) if len(points) > 1 else points.new_zeros(0)).to(prototypes)


def normalised_margins(prototypes: Tensor) -> Tensor:
    """Divide the margins by the largest, (K,); all zero when all prototypes coincide."""
    apart = margins(prototypes)
    return apart / apart.max() if bool((apart > 0).any()) else apart


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
