"""FedGen: the server trains a generator of features for each class, and the clients' heads learn from what it makes.

Zhu et al., "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021.

server remembers: head.* (weight (K, d), and bias (K,) if the networks have one), generator.* (floating tensors)
server says:      the same, counts (K,) of the cohort's samples by class; before the first round head.* alone
client remembers: model.*
client says:      head.*, counts (K,) of its samples by class
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from protonorm.algorithms.parts.heads import check_linear, first_head, linear, said_head, take_head
from protonorm.algorithms.parts.messages import class_counts, head_slots, make_schema
from protonorm.algorithms.parts.server_training import descend
from protonorm.core import Algorithm, Client, Field, Schema, Server, SplitModel, Step, Task, optional
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count, NonNegative, Positive
from protonorm.tensors import Tensors, floats, prefixed, restore, snapshot, under, weighted_mean


@dataclass(frozen=True, config=STRICT)
class FedGen(Algorithm):
    """Train heads on real features and on generated ones of classes that a client may lack."""

    alpha: NonNegative = 1.0  # α, weight of the generated features in the clients' loss
    noise: Count = 32  # q, random numbers that the generator starts from
    hidden: Count = 512  # h, units of the generator's hidden layer
    server_steps: Count = 100  # steps of the generator in a round, a batch each
    server_lr: Positive = 0.005  # of its Adam

    rules: ClassVar[tuple[str, ...]] = ("received", "logits", "joint")
    headline: ClassVar[str] = "received"

    def schema(self, task: Task) -> Schema:
        """Both sides send a head; clients add counts, the server from round 1 on counts and generator."""
        head, counts = head_slots(task), class_counts("K", least=0)
        with torch.device("meta"):  # names and shapes alone: no weight is drawn
            generator = Generator(self.noise, task.num_classes, self.hidden, task.feature_dim)
        weights = floats(prefixed("generator", generator.state_dict()))
        taught = {name: Field(tuple(value.shape), value.dtype) for name, value in weights.items()}
        return make_schema(task, up=(*head, (counts,)), down=(*head, optional({**taught, **counts})))

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Refuse a head that is more than one linear layer."""
        check_linear(model, task)

    def init_server(self, server: Server) -> Step:
        """Begin with one head for all; the generator is not sent until it is trained."""
        head, generator = first_head(server), self._generator(server)
        return Step(head | floats(snapshot("generator", generator)), head)

    def receive(self, client: Client, state: Tensors, message: Tensors) -> Tensors:
        """Take over the average head."""
        return take_head(state, message)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE(g(f(x)), y) + α·CE(g(G(ỹ)), ỹ), as many ỹ as y, drawn from everybody's labels."""
        model = client.load(self.receive(client, state, message))
        generator = self._generator(client, message).to(client.device).eval().requires_grad_(False)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            value = client.cross_entropy(model(x), y)
            if "counts" not in message:
                return value
            labels = draw(message["counts"], len(y)).to(client.device)
            return value + self.alpha * client.cross_entropy(model.head(generator(labels)), labels)

        mean = client.fit(loss, model)
        trained, counts = snapshot("model", model), client.train.class_counts(client.num_classes)
        return Step(trained, said_head(trained) | {"counts": counts}, {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Average the heads by numbers of samples, then train the generator so that the average knows its features.

        For linear heads the average of the clients' logits, Σ n_i g_i(z) / Σ n_i, is what the average head gives.
        """
        counts = torch.zeros(server.num_classes, dtype=torch.int64)
        average = weighted_mean(heads_of(replies, counts))
        head, generator = linear(average).requires_grad_(False), self._generator(server, state).train()

        def loss(labels: Tensor) -> Tensor:
            return cross_entropy(head(generator(labels)), labels)

        batches = ((draw(counts, server.batch_size),) for _ in range(self.server_steps))
        mean = descend(loss, batches, torch.optim.Adam(generator.parameters(), self.server_lr), server)
        kept = prefixed("head", average) | floats(snapshot("generator", generator))
        return Step(kept, kept | {"counts": counts}, {"generator.loss": mean})

    def _generator(self, node: Client | Server, tensors: Tensors | None = None) -> Generator:
        """Build the generator, with the weights in a state or message if there are any."""
        generator = Generator(self.noise, node.num_classes, self.hidden, node.feature_dim)
        restore("generator", generator, snapshot("generator", generator) | (tensors or {}))
        return generator


class Generator(nn.Module):
    """Make features of a class from noise, G: y -> (d,)."""

    def __init__(self, noise: int, num_classes: int, hidden: int, feature_dim: int) -> None:
        super().__init__()
        self.noise, self.num_classes = noise, num_classes
        into, out = nn.Linear(noise + num_classes, hidden), nn.Linear(hidden, feature_dim)
        self.layers = nn.Sequential(into, nn.BatchNorm1d(hidden), nn.ReLU(), out)

    def forward(self, labels: Tensor) -> Tensor:
        """Draw noise from [0, 1) and map it with the labels (B,) to features (B, d)."""
        noise = torch.rand(len(labels), self.noise, device=labels.device)
        features: Tensor = self.layers(torch.cat([noise, one_hot(labels, self.num_classes)], dim=1))
        return features


def draw(counts: Tensor, size: int) -> Tensor:
    """Draw labels (size,) with the frequencies of their counts (K,)."""
    return counts.double().multinomial(size, replacement=True)


def heads_of(replies: Iterator[Tensors], counts: Tensor) -> Iterator[tuple[float, Tensors]]:
    """Pass on each client's number of samples and head, and add its samples by class to the counts (K,)."""
    for reply in replies:
        counts += reply["counts"]
        yield float(reply["counts"].sum()), under(reply, "head")
