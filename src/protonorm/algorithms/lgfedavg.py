"""Methods that average heads; features stay with the client.

LG-FedAvg: every client has its own features, and all clients share a head.
Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", 2020.
server state:    head.* (weight (K, d), and bias (K,) if there is one)
server message:  the same
client state:    model.*
client message:  head.*; num_examples () if weighted

FedGen: the server trains a generator of class-conditional features, on which the clients train their heads.
Zhu et al., "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021.
server state:    head.* (weight (K, d), and bias (K,) if the networks have one), generator.* (floating tensors)
server message:  the same, counts (K,) of the cohort's samples by class; before the first round head.* only
client state:    model.*
client message:  head.*, counts (K,) of its samples by class
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from protonorm.algorithms.parts.heads import SharedHead, check_one_layer, head_of, initial_head, linear
from protonorm.algorithms.parts.messages import (
    Averaged,
    Weighting,
    class_counts,
    examples,
    examples_slots,
    head_slots,
    make_schema,
)
from protonorm.algorithms.parts.training import descend, fit_labels
from protonorm.core import Additive, Client, Contribution, Field, Schema, Server, SplitModel, Step, Sums, Task, optional
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count, NonNegative, Positive
from protonorm.tensors import Tensors, floats, prefixed, restore, snapshot, strip_prefix


@dataclass(frozen=True, config=STRICT)
class LGFedAvg(SharedHead, Averaged):
    """Federated averaging of the heads; features stay local."""

    weighting: Weighting = "samples"  # by n_i, or equal as in the authors' code

    def schema(self, task: Task) -> Schema:
        """Return the schema: both sides send a head; clients add their numbers of samples if weighted."""
        head = head_slots(task)
        return make_schema(task, up=(*head, *examples_slots(self.weighting)), down=head)

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Raise if the head has parameters other than those of a single linear layer."""
        check_one_layer(model, task)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train features and head together with cross-entropy."""
        model = client.load(self.receive(client, state, message))
        mean = fit_labels(client, model)
        trained = snapshot("model", model)
        return Step(trained, head_of(trained) | examples(client, self.weighting), {"loss": mean})


@dataclass(frozen=True, config=STRICT)
class FedGen(SharedHead, Additive):
    """Heads trained on real features and on generated features of all classes."""

    alpha: NonNegative = 1.0  # α, weight of the generated features in the clients' loss
    noise: Count = 32  # q, dimension of the generator's noise
    hidden: Count = 512  # h, units of the generator's hidden layer
    server_steps: Count = 100  # generator steps per round, each on a batch
    server_lr: Positive = 0.005  # learning rate of the generator's Adam

    def schema(self, task: Task) -> Schema:
        """Return the schema: both send a head; clients add counts, the server from round 1 counts and generator."""
        head, counts, sums = head_slots(task), class_counts("K", least=0), class_counts("K", least=0, below=None)
        with torch.device("meta"):  # names and shapes only: no weights are drawn
            generator = Generator(self.noise, task.num_classes, self.hidden, task.feature_dim)
        weights = floats(prefixed("generator", generator.state_dict()))
        fields = {name: Field(tuple(value.shape), value.dtype) for name, value in weights.items()}
        return make_schema(task, up=(*head, (counts,)), down=(*head, optional({**fields, **sums})))

    def init_server(self, server: Server) -> Step:
        """Create the initial head; the generator is not sent before it is trained."""
        head, generator = initial_head(server), self._generator(server)
        return Step(head | floats(snapshot("generator", generator)), head)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE(g(f(x)), y) + α·CE(g(G(ỹ)), ỹ), as many ỹ as y, drawn from the cohort's labels."""
        model = client.load(self.receive(client, state, message))
        generator = self._generator(client, message).to(client.device).eval().requires_grad_(False)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            value = client.cross_entropy(model(x), y)
            if "counts" not in message:
                return value
            labels = draw(message["counts"], len(y)).to(client.device, non_blocking=True)
            return value + self.alpha * client.cross_entropy(model.head(generator(labels)), labels)

        mean = client.fit(loss, model)
        trained, counts = snapshot("model", model), client.train.class_counts(client.num_classes)
        return Step(trained, head_of(trained) | {"counts": counts}, {"loss": mean})

    def contribution(self, server: Server, state: Tensors, reply: Tensors) -> Contribution:
        """Weight a client's head by its number of samples; sum the samples of each class."""
        return Contribution(strip_prefix(reply, "head"), reply["counts"].sum(), {"counts": reply["counts"]})

    def conclude(self, server: Server, state: Tensors, sums: Sums) -> Step:
        """Train the generator on the average head, whose logits average the clients', as heads are linear."""
        average, counts = sums.means, sums.totals["counts"]
        head, generator = linear(average).requires_grad_(False), self._generator(server, state).train()

        def loss(labels: Tensor) -> Tensor:
            return cross_entropy(head(generator(labels)), labels)

        batches = ((draw(counts, server.batch_size),) for _ in range(self.server_steps))
        mean = descend(loss, batches, torch.optim.Adam(generator.parameters(), self.server_lr), server)
        new_state = prefixed("head", average) | floats(snapshot("generator", generator))
        return Step(new_state, new_state | {"counts": counts}, {"generator.loss": mean})

    def _generator(self, node: Client | Server, tensors: Tensors | None = None) -> "Generator":
        """Build the generator, with the weights of a state or message if it contains them."""
        generator = Generator(self.noise, node.num_classes, self.hidden, node.feature_dim)
        restore("generator", generator, snapshot("generator", generator) | (tensors or {}))
        return generator


class Generator(nn.Module):
    """Generator of class-conditional features from noise, G: y -> (d,)."""

    def __init__(self, noise: int, num_classes: int, hidden: int, feature_dim: int) -> None:
        super().__init__()
        self.noise, self.num_classes = noise, num_classes
        first, second = nn.Linear(noise + num_classes, hidden), nn.Linear(hidden, feature_dim)
        self.layers = nn.Sequential(first, nn.BatchNorm1d(hidden), nn.ReLU(), second)

    def forward(self, labels: Tensor) -> Tensor:
        """Draw noise from [0, 1) and map it with the labels (B,) to features (B, d)."""
        noise = torch.rand(len(labels), self.noise, device=labels.device)
        features: Tensor = self.layers(torch.cat([noise, one_hot(labels, self.num_classes)], dim=1))
        return features


def draw(counts: Tensor, size: int) -> Tensor:
    """Draw labels (size,) with frequencies proportional to their counts (K,)."""
    return counts.double().multinomial(size, replacement=True)
