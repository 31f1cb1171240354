"""Prototypes: class means, their average over clients, the nearest of them, and how far they are apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from protonorm.geometry.points import read_points, to_float64
from protonorm.geometry.sphere.pairs import distance_range, nearest_distances, pair_distances

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
    if labels.dtype not in INTEGERS:
        raise ValueError(f"labels must be of an integer type, not {labels.dtype}.")
    outside = labels[(labels < 0) | (labels >= num_classes)]
    if len(outside):
        raise ValueError(f"labels must lie between 0 and {num_classes - 1}, but there is {int(outside[0])}.")
    classes, means = means_of(*class_sums(features, labels, num_classes))
    return classes, means.to(features)


def average(
    uploads: Iterable[tuple[Tensor, Tensor, Tensor | None]], num_classes: int, feature_dim: int
) -> tuple[Tensor, Tensor]:
    """Average the prototypes of several clients by class (Eq. 7): mean (K, d) in float64, and which were seen (K,).

    An upload holds different classes (K_i,), their prototypes (K_i, d), and weights (K_i,) above zero or None. Weights
    such as the n_ij of Eq. 3 need not sum to one. Uploads are added one after the other; only one is held at a time.
    """
    sums = torch.zeros(num_classes, feature_dim, dtype=torch.float64)
    totals = torch.zeros(num_classes, dtype=torch.float64)
    for classes, prototypes, weights in uploads:
        rows = to_float64(prototypes)  # (K_i, d)
        shares = torch.ones(len(classes), dtype=torch.float64) if weights is None else to_float64(weights)
        sums.index_add_(0, classes, rows if weights is None else rows * shares.unsqueeze(1))
        totals.index_add_(0, classes, shares)
    seen = totals > 0
    return sums / torch.where(seen, totals, 1.0).unsqueeze(1), seen


def vectors_by_class(
    held: Mapping[str, Tensor], name: str, num_classes: int, width: int | None = None
) -> tuple[Tensor, Tensor]:
    """Take classes (K',) and the vectors (K', width) under a name out of a state or a message, if they fit."""
    classes, vectors = held.get("classes"), held[name]
    wanted = f"expected as many of them as of whole numbers from 0 to {num_classes - 1}, their classes"
    if classes is None or classes.dtype not in INTEGERS or not vectors.is_floating_point():
        kind = "missing" if classes is None else classes.dtype
        raise ValueError(f"{name} are {vectors.dtype}, and their classes {kind}; {wanted}.")
    if vectors.ndim != 2 or classes.shape != vectors.shape[:1] or vectors.shape[1] != (width or vectors.shape[1]):
        shapes = f"{tuple(vectors.shape)}, and their classes of {tuple(classes.shape)}"
        raise ValueError(f"{name} are of shape {shapes}; {wanted}{f', and {width} numbers each' if width else ''}.")
    if len(classes) and (int(classes.min()) < 0 or int(classes.max()) >= num_classes):
        raise ValueError(f"{name} are of classes from {int(classes.min())} to {int(classes.max())}; {wanted}.")
    return classes.long(), vectors


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
    return pair_distances(read_points(prototypes)).to(prototypes)


def spread(prototypes: Tensor) -> tuple[float, float, float]:
    """Measure the least, the mean and the greatest distance between two prototypes (K, d), without listing them all."""
    least, mean, greatest = distance_range(read_points(prototypes)).tolist()
    return least, mean, greatest


def margins(prototypes: Tensor) -> Tensor:
    """Measure the distance of each prototype (K, d) to the nearest other one, (K,); empty when there is only one."""
    points = read_points(prototypes)
    return (nearest_distances(points) if len(points) > 1 else points.new_zeros(0)).to(prototypes)


def normalised_margins(prototypes: Tensor) -> Tensor:
    """Divide the margins by the largest, (K,); all zero when all prototypes coincide."""
    apart = margins(prototypes)
    return apart / apart.max() if bool((apart > 0).any()) else apart
