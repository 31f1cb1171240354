"""FedL2G: clients train towards guiding vectors of each class, which the server learns from how they help.

Zhang et al., "FedL2G: Learning to Guide Local Training in Heterogeneous Federated Learning", arXiv 2410.06490, 2024.

server state:    guides V (K, d), of features, or (K, K), of logits
server message:  the same
client state:    model.*, quiz (B,), positions of samples that are never trained on; none with fewer than 2B samples
client message:  classes (K_i,) of a study batch, gradients (K_i, d) or (K_i, K) of V's rows
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import mse_loss

from protonorm.algorithms.parts.messages import class_vectors, make_schema
from protonorm.algorithms.parts.prototypes import by_class
from protonorm.core import Additive, Client, Contribution, Field, Schema, Server, SplitModel, Step, Sums, Task
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Positive, Whole
from protonorm.tensors import Tensors, snapshot

BOUND = 100.0  # of the norms of a client's gradient and of the server's
RATES = {"features": 100.0, "logits": 0.1}  # η_s of the authors' scripts


@dataclass(frozen=True, config=STRICT)
class FedL2G(Additive):
    """Training towards guiding vectors that lower the loss of samples which are not trained on."""

    target: Literal["features", "logits"] = "features"  # what is guided: FedL2G-f or FedL2G-l
    server_lr: Positive | None = None  # η_s; None is 100 for features, 0.1 for logits
    warmup: Whole = 0  # first rounds in which only V moves; 50 in the authors' code

    def schema(self, task: Task) -> Schema:
        """Return the schema: clients send gradients of the rows of their classes, the server V."""
        width = "d" if self.target == "features" else "K"
        guides = {"guides": Field(("K", width))}
        return make_schema(task, up=((class_vectors("K_i", "gradients", width),),), down=((guides,),))

    def init_server(self, server: Server) -> Step:
        """Draw V from N(0, 1)."""
        width = server.feature_dim if self.target == "features" else server.num_classes
        guides = {"guides": torch.randn(server.num_classes, width)}
        return Step(guides, guides)

    def init_client(self, client: Client) -> Tensors:
        """Create the client's model and draw its quiz samples."""
        size = client.batch_size if len(client.train) >= 2 * client.batch_size else 0
        return super().init_client(client) | {"quiz": torch.randperm(len(client.train))[:size]}

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE + mean (h − V_y)², then compute the gradient of the quiz loss after one more step."""
        model, guides, quiz = client.load(state), message["guides"].to(client.device), state["quiz"]
        index = client.train.index
        rest = torch.ones(len(index), dtype=torch.bool).index_fill(0, quiz, False).to(index.device)
        studied = replace(client, train=replace(client.train, index=index[rest]))

        def outputs(x: Tensor) -> tuple[Tensor, Tensor]:
            z = model.features(x)
            o = model.head(z)
            return (z, o) if self.target == "features" else (o, o)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            h, o = outputs(x)
            return client.cross_entropy(o, y) + mse_loss(h, guides[y])

        metrics = {"loss": studied.fit(loss, model, clip=BOUND)} if not 0 < client.round <= self.warmup else {}
        trained = snapshot("model", model) | {"quiz": quiz}  # before the statistics of batch norm move
        gradients, classes = torch.zeros_like(guides), torch.zeros(0, dtype=torch.int64)
        if len(quiz):
            x, y = studied.train.batch(torch.randperm(len(studied.train))[: client.batch_size], client.device)
            model.train()
            h, o = outputs(x)
            step = client.cross_entropy(o, y) + mse_loss(h, guides[y])
            rows = guide_gradients(client, model, h, step, client.train.batch(quiz, client.device))
            gradients.index_add_(0, y, rows)
            classes = y.unique().cpu()
        return Step(trained, {"classes": classes, "gradients": gradients.cpu()[classes]}, metrics)

    def contribution(self, server: Server, state: Tensors, reply: Tensors) -> Contribution:
        """Scatter a client's gradients to all classes, with equal weights."""
        return by_class(reply, server, "gradients")

    def conclude(self, server: Server, state: Tensors, sums: Sums) -> Step:
        """Step V ← V − η_s G along the mean gradient of each class, bounded as a whole."""
        mean = sums.means.get("gradients", torch.zeros_like(state["guides"]))
        norm = float(torch.linalg.vector_norm(mean))
        bounded = mean * min(1.0, BOUND / norm) if norm else mean
        guides = {"guides": state["guides"] - (self.server_lr or RATES[self.target]) * bounded}
        return Step(guides, guides, {"gradient": norm})


def guide_gradients(client: Client, model: SplitModel, h: Tensor, loss: Tensor, quiz: tuple[Tensor, Tensor]) -> Tensor:
    """Compute ∂Q/∂V_y of each row of a study batch, (B, width), Q the cross-entropy of the quiz batch at θ − η∇loss.

    V_y appears in the loss as mean (h − V_y)² alone, so that the row is 2η/(B·width) · (∂h_b/∂θ) u with u = ∇Q.
    """
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    weights = list(named.values())
    steps = torch.autograd.grad(loss, weights, retain_graph=True, materialize_grads=True)
    moved = [(weight - client.lr * step).detach().requires_grad_() for weight, step in zip(weights, steps, strict=True)]
    x, y = quiz
    logits = functional_call(model, dict(zip(named, moved, strict=True)), (x,))
    u = torch.autograd.grad(client.cross_entropy(logits, y), moved, materialize_grads=True)
    return 2 * client.lr / h.numel() * derivative_along(h, weights, u)


def derivative_along(h: Tensor, weights: Sequence[Tensor], u: Sequence[Tensor]) -> Tensor:
    """Compute the derivative of h along u in the weights, by two reverse passes, which every layer has."""
    if not h.requires_grad:
        return torch.zeros_like(h)
    probe = torch.zeros_like(h, requires_grad=True)
    back = torch.autograd.grad(h, weights, probe, create_graph=True, allow_unused=True)
    pairs = [(one, along) for one, along in zip(back, u, strict=True) if one is not None]  # h depends on these weights
    gradients, directions = zip(*pairs, strict=True)
    (result,) = torch.autograd.grad(gradients, probe, directions)
    return result
