"""Fixed targets: features are pulled towards a fixed direction per class, known to all clients and never exchanged.

The control that shows how much of a prototype method is due to the exchange. Depending on its options it corresponds,
without the exchange, to ProtoNorm (Lee et al., ICCV 2025); FedETF (Li et al., "No Fear of Classifier Biases", ICCV
2023); FedTSP without its language model (arXiv 2503.13543, CVPR 2026); AlignFed (Zhu et al., ICDCS 2022).

server state:    empty; head.* (weight (K, d), and bias (K,) if there is one) if that is shared
server message:  the same
client state:    model.*, classes (K,) all, prototypes (K, d) unit vectors: the targets
client message:  empty; head.* and num_examples () if the head is shared
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor

from protonorm.algorithms.parts.common_inputs import TARGETS, digest_of, read_targets
from protonorm.algorithms.parts.heads import check_one_layer, head_of, initial_head, replace_head
from protonorm.algorithms.parts.messages import EXAMPLES, Averaged, examples, head_slots, make_schema
from protonorm.algorithms.parts.prototypes import prototype_scores
from protonorm.algorithms.protonorm import DEFAULT_GAMMA, GAMMA
from protonorm.core import Client, Schema, Server, SplitModel, Step, Task
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, NonNegative, Positive, Seed
from protonorm.geometry.alignment import equally_spread
from protonorm.geometry.losses import batch_alignment_loss, cosines, prototype_loss
from protonorm.geometry.prototypes import in_blocks
from protonorm.tensors import Tensors, on_device, snapshot

SPREAD, BLOCKS = "spread", "blocks"
SCALE = 16.0


@dataclass(frozen=True, config=STRICT)
class FixedTargets(Averaged):
    """Training towards class directions that are fixed before the first round."""

    targets: str = SPREAD  # t_j: maximally spread unit vectors, `blocks`, or the path of a .npy file
    # `blocks` are orthogonal and non-negative; a file has K rows of d numbers.
    sha256: str | None = None  # of that file; None computes it from the present content
    seed: Seed = 0  # of the spread targets
    loss: Literal["cosine", "squared", "batch"] = "cosine"  # R: cosine softmax, squared error, or batch softmax
    # "squared" is the error to γ·t_y, Eq. 15 of the ProtoNorm paper; "batch" runs over the batch, as in AlignFed.
    lam: NonNegative = 1.0  # λ, weight of R …
    lam_end: Positive | None = None  # λ_R, … towards which it decays by λ(λ_R/λ)^(r/R), AlignFed; None is constant
    scale: Positive = SCALE  # s of `cosine`, its inverse temperature; FedTSP has 100
    balanced: bool = False  # `cosine` with log n_ij added to its logits, FedETF's balanced softmax
    gamma: Positive | None = None  # γ of `squared`; None is ProtoNorm's value for the data set
    head: Literal["own", "shared", "probe"] = "own"  # shared: averaged as in AlignFed; probe: detached features

    @model_validator(mode="after")
    def _refuse_what_is_not_used(self) -> Self:
        uses = {
            "gamma": ("squared", self.gamma is not None),
            "scale": ("cosine", self.scale != SCALE),
            "balanced": ("cosine", self.balanced),
        }
        for name, (user, changed) in uses.items():
            if changed and self.loss != user:
                raise ValueError(f"{name} must be left out with loss={self.loss}; it is for loss={user}.")
        if self.targets != SPREAD and self.seed:
            raise ValueError(f"seed must be left out, got {self.seed}: the targets are given; it is for {SPREAD}.")
        if not self._from_file and self.sha256:
            raise ValueError("sha256 must be left out: the targets do not come from a file.")
        if self.lam_end is not None and not self.lam:
            raise ValueError("lam_end must be left out with lam=0, which cannot fall.")
        return self

    @property
    def rules(self) -> tuple[str, ...]:
        """Nearest target, the head as trained and, if shared, as received, and their combination."""
        return ("nearest-local", *(["received"] if self.head == "shared" else []), "logits", "joint")

    @property
    def headline(self) -> str:
        """Nearest target; for the loss over the batch, which does not separate classes, the head."""
        return "nearest-local" if self.loss != "batch" else "received" if self.head == "shared" else "logits"

    @property
    def depends_on_rounds(self) -> bool:
        """Whether λ decays, and therefore depends on the number of rounds."""
        return self.lam_end is not None

    def adapted(self, dataset: str, networks: Sequence[str]) -> Self:
        """Fill in the data set's γ and the digest of the file of targets if they are not set."""
        method = self
        if self.loss == "squared" and self.gamma is None:
            method = replace(method, gamma=GAMMA.get(dataset, DEFAULT_GAMMA))
        if self._from_file and self.sha256 is None:
            method = replace(method, sha256=digest_of(self.targets, TARGETS))
        return method

    def schema(self, task: Task) -> Schema:
        """Return the schema: no messages, or heads and the clients' numbers of samples."""
        if self.head != "shared":
            return Schema()
        head = head_slots(task)
        return make_schema(task, up=(*head, EXAMPLES), down=head)

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Raise if a shared head has parameters other than a single linear layer's, or targets do not fit."""
        if self.head == "shared":
            check_one_layer(model, task)
        if self.targets != SPREAD:
            self._vectors(task.num_classes, task.feature_dim)

    def init_server(self, server: Server) -> Step:
        """Return an empty message, or the initial head of all clients."""
        head = initial_head(server) if self.head == "shared" else {}
        return Step(head, head)

    def init_client(self, client: Client) -> Tensors:
        """Create the client's model and the common targets."""
        vectors = self._vectors(client.num_classes, client.feature_dim)
        return snapshot("model", client.model) | {"classes": torch.arange(len(vectors)), "prototypes": vectors}

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors | None:
        """Replace the client's head by the shared head."""
        return replace_head(state, message) if self.head == "shared" else None

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE + λR towards the targets."""
        model = client.load(self.receive(client, state, message) or state)
        regulariser, lam = self._regulariser(client, on_device(state["prototypes"], client.device)), self.weight(client)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = model.features(x)
            logits = model.head(z.detach() if self.head == "probe" else z)
            return client.cross_entropy(logits, y) + lam * regulariser(z, y)

        mean = client.fit(loss, model)
        trained = snapshot("model", model)
        reply = head_of(trained) | examples(client) if self.head == "shared" else {}
        return Step(state | trained, reply, {"loss": mean})

    def weight(self, client: Client) -> float:
        """Return λ of the client's round, after r completed rounds on the way from λ to λ_R."""
        if self.lam_end is None:
            return self.lam
        share: float = (self.lam_end / self.lam) ** ((client.round - 1) / max(client.rounds, 1))
        return self.lam * share

    def _regulariser(self, client: Client, targets: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """Create R, a function of features z (B, d) and labels y (B,), given the targets (K, d)."""
        if self.loss == "batch":
            return lambda z, y: batch_alignment_loss(z, y, targets)
        if self.loss == "squared":
            if self.gamma is None:
                raise ValueError("FixedTargets has no gamma: give one, or let adapted(dataset, networks) take it.")
            scaled, known = self.gamma * targets, torch.ones(len(targets), dtype=torch.bool, device=targets.device)
            return lambda z, y: prototype_loss(z, y, scaled, known)
        counts = client.train.class_counts(client.num_classes).to(targets.device)
        prior = counts.clamp(min=1).log() if self.balanced else targets.new_zeros(())  # (K,) log n_ij, at least 0
        return lambda z, y: client.cross_entropy(self.scale * cosines(z, targets) + prior, y)

    @property
    def _from_file(self) -> bool:
        return self.targets not in (SPREAD, BLOCKS)

    def _vectors(self, num_classes: int, feature_dim: int) -> Tensor:
        """Return the targets (K, d)."""
        if self.targets == SPREAD:
            return equally_spread(num_classes, feature_dim, self.seed)
        if self.targets == BLOCKS:
            return in_blocks(num_classes, feature_dim)
        return read_targets(self.targets, num_classes, feature_dim, self.sha256)

    scores = prototype_scores
