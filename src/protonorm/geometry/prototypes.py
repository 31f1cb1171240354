"""Prototypes: class means, their distances, and fixed unit vectors for classes."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from protonorm.geometry.points import distance_range, nearest_distances, pair_distances, read_points, to_float64, unit

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


def class_sums(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Sum features (n, d) by label (n,): sums (K, d) in float64 and counts (K,), to be added over batches."""
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        shapes = f"{tuple(features.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"Features (n, d) and labels (n,) do not fit: their shapes are {shapes}.")
    rows = to_float64(features)
    index = labels.to(rows.device).long()
    sums = rows.new_zeros(num_classes, features.shape[1]).index_add_(0, index, rows)
    return sums, index.new_zeros(num_classes).index_add_(0, index, torch.ones_like(index))


def means_of(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Divide sums (K, d) by counts (K,): the classes with samples (K_i,) and their means (K_i, d), in float64."""
    classes = counts.nonzero().flatten()
    return classes, sums[classes] / counts[classes].unsqueeze(1)


def class_means(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Compute prototypes from features (n, d) and labels (n,) (Eq. 2): classes with samples (K_i,), means (K_i, d)."""
    if labels.dtype not in INTEGERS:
        raise ValueError(f"labels must be of an integer type, not {labels.dtype}.")
    outside = labels[(labels < 0) | (labels >= num_classes)]
    if len(outside):
        raise ValueError(f"labels must lie between 0 and {num_classes - 1}, but there is {int(outside[0])}.")
    classes, means = means_of(*class_sums(features, labels, num_classes))
    return classes, means.to(features)


def vectors_by_class(
    tensors: Mapping[str, Tensor], name: str, num_classes: int, width: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return classes (K',) and the named vectors (K', width) of a state or a message; raise if they do not fit."""
    classes, vectors = tensors.get("classes"), tensors[name]
    expected = f"expected as many of them as of whole numbers from 0 to {num_classes - 1}, their classes"
    if classes is None or classes.dtype not in INTEGERS or not vectors.is_floating_point():
        kind = "missing" if classes is None else classes.dtype
        raise ValueError(f"{name} are {vectors.dtype}, and their classes {kind}; {expected}.")
    if vectors.ndim != 2 or classes.shape != vectors.shape[:1] or vectors.shape[1] != (width or vectors.shape[1]):
        shapes = f"{tuple(vectors.shape)}, and their classes of {tuple(classes.shape)}"
        raise ValueError(f"{name} are of shape {shapes}; {expected}{f', and {width} numbers each' if width else ''}.")
    # On a device they came from the CPU, where they were checked; reading them here would wait for it.
    if len(classes) and classes.device.type == "cpu" and (int(classes.min()) < 0 or int(classes.max()) >= num_classes):
        raise ValueError(f"{name} are of classes from {int(classes.min())} to {int(classes.max())}; {expected}.")
    return classes.long(), vectors


def closeness(features: Tensor, classes: Tensor, prototypes: Tensor, num_classes: int) -> Tensor:
    """Score every class (B, K) in float64: higher for nearer prototypes, −∞ for classes without a prototype."""
    if features.ndim != 2 or prototypes.ndim != 2 or features.shape[1] != prototypes.shape[1]:
        shapes = f"{tuple(features.shape)} and {tuple(prototypes.shape)}"
        raise ValueError(f"Features (B, d) and prototypes (K', d) do not fit: their shapes are {shapes}.")
    points, centres = to_float64(features), to_float64(prototypes)
    scores = points.new_full((len(features), num_classes), -torch.inf)
    # ‖z‖² − ‖z − c‖² = 2 z·c − ‖c‖², (B, K'), without a (B, K', d) tensor
    scores[:, classes] = 2 * points @ centres.T - centres.square().sum(dim=1)
    return scores


def distances(prototypes: Tensor) -> Tensor:
    """Compute the distances between all pairs j < k of prototypes (K, d), (K(K−1)/2,)."""
    return pair_distances(read_points(prototypes)).to(prototypes)


def spread(prototypes: Tensor) -> tuple[float, float, float]:
    """Compute the minimum, mean and maximum distance between prototypes (K, d), without storing all distances."""
    smallest, mean, largest = distance_range(read_points(prototypes)).tolist()
    return smallest, mean, largest


def margins(prototypes: Tensor) -> Tensor:
    """Compute the distance of each prototype (K, d) to its nearest neighbour, (K,); empty if there is only one."""
    points = read_points(prototypes)
    return (nearest_distances(points) if len(points) > 1 else points.new_zeros(0)).to(prototypes)


def orthogonal(num_classes: int, feature_dim: int) -> Tensor:
    """Draw unit vectors (K, d): orthonormal if K ≤ d, else the rows of a matrix with orthonormal columns."""
    return unit(nn.init.orthogonal_(torch.empty(num_classes, feature_dim)))


def on_circle(num_classes: int, feature_dim: int) -> Tensor:
    """Place unit vectors (K, 2) at equal angles on the circle, the first at (1, 0)."""
    if feature_dim != 2:
        raise ValueError(f"Only vectors of two numbers stand on the circle, but feature_dim is {feature_dim}.")
    angles = torch.arange(num_classes, dtype=torch.float64) * (2 * math.pi / num_classes)
    return torch.stack([angles.cos(), angles.sin()], dim=1).float()


def in_blocks(num_classes: int, feature_dim: int) -> Tensor:
    """Assign each class its own run of coordinates: orthogonal unit vectors (K, d) without negative entries."""
    if num_classes > feature_dim:
        raise ValueError(f"{num_classes} classes do not have coordinates of their own: feature_dim is {feature_dim}.")
    coordinates = torch.arange(feature_dim)
    vectors = torch.zeros(num_classes, feature_dim)
    vectors[coordinates * num_classes // feature_dim, coordinates] = 1
    return unit(vectors)


def weighted_sums(classes: Tensor, prototypes: Tensor, counts: Tensor, num_classes: int) -> Tensor:
    """Scatter prototypes (K_i, d) of classes (K_i,), times their counts (K_i,), to all classes: (K, d) in float64."""
    sums = torch.zeros(num_classes, prototypes.shape[1], dtype=torch.float64)
    sums[classes] = prototypes.double() * counts.unsqueeze(1)
    return sums


def smoothed(directions: Tensor, sums: Tensor, rho: float) -> Tensor:
    """Move unit vectors W (K, d) towards sums a (K, d): W_j becomes the direction of ρ W_j + (1 − ρ) a_j/‖a_j‖.

    Where a_j is zero, or both cancel, the direction is undefined and W_j is kept.
    """
    towards = unit(to_float64(sums))
    moved = rho * to_float64(directions) + (1 - rho) * towards
    unchanged = (towards == 0).all(dim=1) | (moved == 0).all(dim=1)
    return torch.where(unchanged.unsqueeze(1), directions, unit(moved).to(directions))
