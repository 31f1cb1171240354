"""What prototype methods say to each other: `classes` (K',) and `prototypes` (K', d), of the classes there are."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from protonorm.core import Algorithm, Client, Server
from protonorm.geometry.prototypes import average, closeness
from protonorm.tensors import Tensors


def targets(message: Tensors, client: Client) -> tuple[Tensor, Tensor]:
    """Lay a message out over all classes: prototypes (K, d), and which of them are known (K,)."""
    laid = torch.zeros(client.num_classes, client.feature_dim, device=client.device)
    known = torch.zeros(client.num_classes, dtype=torch.bool, device=client.device)
    if "prototypes" in message:
        classes = message["classes"].to(client.device)
        laid[classes] = message["prototypes"].to(client.device)
        known[classes] = True
    return laid, known


def joined(state: Tensors, replies: Iterable[Tensors], server: Server) -> Tensors:
    """Average the clients' prototypes class by class (Eq. 7); a class that nobody sent keeps its last one.

    Replies with `counts` (K_i,) are weighted by them.
    """
    uploads = ((reply["classes"], reply["prototypes"], reply.get("counts")) for reply in replies)
    mean, seen = average(uploads, server.num_classes, server.feature_dim)  # (K, d), (K,)
    if "prototypes" in state:
        missed = ~seen[state["classes"]]
        mean[state["classes"][missed]] = state["prototypes"][missed].to(mean.dtype)
        seen[state["classes"]] = True
    return {"classes": seen.nonzero().flatten(), "prototypes": mean[seen].float()}


def prototype_scores(
    algorithm: Algorithm, client: Client, state: Tensors, message: Tensors, x: Tensor
) -> dict[str, Tensor]:
    """Score by the nearest global prototype, the nearest local one (Eq. 6), and the logits, in one pass."""
    z = client.model.features(x)
    scores = {
        rule: closeness(z, said["classes"].to(z.device), said["prototypes"].to(z.device), client.num_classes)
        for rule, said in (("global", message), ("local", state))
        if "prototypes" in said
    }
    return scores | {"logits": client.model.head(z)}
