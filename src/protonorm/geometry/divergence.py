"""How far two networks' answers are apart."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn.functional import log_softmax

Reduction = Literal["mean", "batchmean"]  # divide by B·K, as PyTorch's "mean" does, or by B, which is the mean KL


def divergence(teacher: Tensor, logits: Tensor, reduction: Reduction) -> Tensor:
    """Measure KL(q‖p) = Σ q (log q − log p) of q, the softmax of a teacher's logits, and p, that of logits (B, K)."""
    log_q, log_p = log_softmax(teacher, dim=1), log_softmax(logits, dim=1)
    total = (log_q.exp() * (log_q - log_p)).sum()
    return total / (logits.numel() if reduction == "mean" else len(logits))
