"""FedKWAZ: a client's own network and a proxy that stays with it teach each other, guided by means of all clients.

"Transforming Gaps into Gains: Bridging Model and Data Heterogeneity in Federated Learning via Knowledge Weak-Aware
Zones", NeurIPS 2025.

server state:    classes (K',) and, of the networks and of the proxies, the means by class of features, prototypes and
                 proxy_prototypes (K', d), and of logits, logits and proxy_logits (K', K)
server message:  the same; empty without global_stage
client state:    model.*, proxy.*, mixing (3, 2), pairs of α and G: of features, logits, and the proxy's logits
client message:  as the server, of its classes (K_i,); empty without global_stage
"""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from protonorm.algorithms.parts.messages import TwoNetworks, class_vectors, make_schema, second_network
from protonorm.algorithms.parts.prototypes import RunningMeans, by_class, keep_missing, means_by_class, scatter_vectors
from protonorm.core import Additive, Client, Contribution, Schema, Server, SplitModel, Step, Sums, Task, optional
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count, Positive
from protonorm.geometry.losses import distillation_loss, divergence, prototype_loss
from protonorm.tensors import Tensors, restore, snapshot

WIDTHS = {"prototypes": "d", "logits": "K", "proxy_prototypes": "d", "proxy_logits": "K"}  # what is sent by class
ALPHAS = (0.1, 0.5, 1.0)  # candidates for α
SIDES = (8, 4, 2)  # candidates for √G
SMALLEST = 4  # side of a cell, below which it is not shifted
FIRST = (0.1, 16.0)  # α and G until they are chosen


@dataclass(frozen=True, config=STRICT)
class FedKWAZ(TwoNetworks, Additive):
    """Mutual distillation of a client's network and its proxy, also on mixed inputs, after training to global means."""

    global_stage: bool = True  # stage I, training towards all clients' means; without it nothing is exchanged
    alone: Literal["labels", "none"] = "labels"  # stage I without exchange: on labels alone, or left out
    temperature: Positive = 4.0  # T of the distillation
    period: Count = 30  # rounds between choices of how inputs are mixed
    clip: Positive = 10.0  # bound of each network's gradient norm

    def schema(self, task: Task) -> Schema:
        """Return the schema: both sides send four means of each class, the server from round 1 on."""
        if not self.global_stage:
            return Schema()
        up, down = (
            {key: field for name, width in WIDTHS.items() for key, field in class_vectors(count, name, width).items()}
            for count in ("K_i", "K'")
        )
        return make_schema(task, up=((up,),), down=(optional(down),))

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Raise if inputs are tokens, which cannot be mixed."""
        if task.input is not None and task.input.type == "int64":
            raise ValueError("FedKWAZ mixes inputs, so that they must be pictures or vectors, got tokens.")

    def init_client(self, client: Client) -> Tensors:
        """Create the client's network and proxy."""
        proxy = snapshot("proxy", second_network(client))
        return snapshot("model", client.model) | proxy | {"mixing": torch.tensor([FIRST] * 3)}

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train both networks towards the means of the other kind (stage I), then on each other (stage II)."""
        model, proxy, mixing = client.load(state), self.second(client, state, message), state["mixing"]
        means = {name: scatter_vectors(message, name, self._width(client, name), client)[0] for name in WIDTHS}
        known = scatter_vectors(message, "logits", client.num_classes, client)[1]
        running = {name: RunningMeans(client, name, self._width(client, name)) for name in WIDTHS}

        def towards(network: SplitModel, other: str, x: Tensor, y: Tensor) -> Tensor:
            z = network.features(x)
            o, taught = network.head(z), means[f"{other}logits"].softmax(1)
            imitation = distillation_loss(o, y, taught, known)
            return client.cross_entropy(o, y) + imitation + prototype_loss(z, y, means[f"{other}prototypes"], known)

        def stage_1(x: Tensor, y: Tensor) -> Tensor:
            return towards(model, "proxy_", x, y) + towards(proxy, "", x, y)

        def stage_2(x: Tensor, y: Tensor) -> Tensor:
            z, z_p = model.features(x), proxy.features(x)
            o, o_p = model.head(z), proxy.head(z_p)
            for name, outputs in zip(WIDTHS, (z, o, z_p, o_p), strict=True):
                running[name].add(outputs.detach(), y)
            labels = client.cross_entropy(o, y) + client.cross_entropy(o_p, y)
            mutual = 2 * mse_loss(z, z_p) + self.divergence(o_p, o) + self.divergence(o, o_p)
            mixed = self.imitation(model, proxy, x, features, logits)
            return labels + mutual + mixed + self.imitation(proxy, model, x, features, proxy_logits)

        guided = self.global_stage or self.alone == "labels"
        first = client.fit(stage_1, model, proxy, clip=self.clip) if guided else 0.0
        if client.round % self.period == 0:
            mixing = self.choose(client, model, proxy)
        features, logits, proxy_logits = mixing.tolist()
        mean = client.fit(stage_2, model, proxy, clip=self.clip)
        sent = {key: value for part in running.values() for key, value in part.result().items()}
        kept = snapshot("model", model) | snapshot("proxy", proxy) | {"mixing": mixing}
        return Step(kept, sent if self.global_stage else {}, {"loss": mean, "stage 1.loss": first})

    def second(self, client: Client, state: Tensors, message: Tensors) -> SplitModel:
        """Load the client's proxy."""
        proxy = second_network(client)
        restore("proxy", proxy, state)
        return proxy.eval()

    def divergence(self, teacher: Tensor, logits: Tensor) -> Tensor:
        """Compute T²·KL(q‖p) of the softmaxes q of a teacher's logits and p of logits (B, K), both over T."""
        return self.temperature**2 * divergence(teacher / self.temperature, logits / self.temperature, "batchmean")

    def imitation(
        self, student: SplitModel, teacher: SplitModel, x: Tensor, features: list[float], logits: list[float]
    ) -> Tensor:
        """Compare features and logits of two networks on inputs mixed with (α, G) of each; only the student learns."""
        first, second = mix(x, *features), mix(x, *logits)
        with torch.no_grad():
            z_t, o_t = teacher.features(first), teacher(second)
        return mse_loss(student.features(first), z_t) + self.divergence(o_t, student(second))

    @torch.no_grad()
    def choose(self, client: Client, model: SplitModel, proxy: SplitModel) -> Tensor:
        """Choose the α and G of mixing (3, 2) under which the two networks differ most, in features and in logits."""
        model.eval()
        proxy.eval()
        first, _ = client.train.batch(torch.arange(1))
        candidates = [(alpha, float(cells)) for alpha in ALPHAS for cells in cells_of(first)]
        totals = torch.zeros(3, len(candidates), device=client.device)
        for x, _ in client.train.sweep(client.batch_size, client.device):
            for column, pair in enumerate(candidates):
                mixed = mix(x, *pair)
                z, z_p = model.features(mixed), proxy.features(mixed)
                o, o_p = model.head(z), proxy.head(z_p)
                gaps = mse_loss(z, z_p), self.divergence(o_p, o), self.divergence(o, o_p)
                totals[:, column] += torch.stack(gaps)
        return torch.tensor(candidates)[totals.argmax(1).cpu()]

    def contribution(self, server: Server, state: Tensors, reply: Tensors) -> Contribution:
        """Scatter a client's means to all classes, with equal weights."""
        parts = [by_class(reply, server, name) for name in WIDTHS if name in reply]
        values = {name: value for part in parts for name, value in part.values.items()}
        return Contribution(values, parts[0].weight if parts else torch.tensor(1))

    def conclude(self, server: Server, state: Tensors, sums: Sums) -> Step:
        """Publish the means over the clients that have each class."""
        if not self.global_stage:
            return Step({}, {})
        means: Tensors = {}
        for name in WIDTHS:
            sent = means_by_class(sums, self._width(server, name), name)
            means |= keep_missing(state, sent, server, name)
        return Step(means, means)

    def _width(self, node: Client | Server, name: str) -> int:
        return node.feature_dim if WIDTHS[name] == "d" else node.num_classes


def mix(x: Tensor, alpha: float, cells: float) -> Tensor:
    """Mix each input with another of the batch, with a share λ ~ Beta(α, α) in each of G shifted cells (HAPM).

    Pictures (B, C, H, W) have √G cells on each side, vectors (B, D) a row of √G. What no cell covers is unchanged.
    """
    maps = x if x.ndim == 4 else x[:, None, None]
    height, width = maps.shape[2:]
    rows, columns = (min(math.isqrt(int(cells)), length) for length in (height, width))
    top, left = torch.meshgrid(
        torch.arange(rows) * (height // rows), torch.arange(columns) * (width // columns), indexing="ij"
    )
    top, left = top + shifts(height // rows, top.shape), left + shifts(width // columns, left.shape)  # (√G, √G)
    inside = covers(top, height // rows, height).unsqueeze(2) & covers(left, width // columns, width).unsqueeze(1)
    shares = torch.distributions.Beta(alpha, alpha, validate_args=False).sample((len(inside),))  # (G,)
    share = torch.where(inside.any(0), shares[inside.int().argmax(0)], 1.0)  # (H, W), of the first cell
    share = share.to(x, non_blocking=True)
    other = maps[torch.randperm(len(x)).to(x.device, non_blocking=True)]
    return (share * maps + (1 - share) * other).view_as(x)


def shifts(side: int, shape: tuple[int, ...]) -> Tensor:
    """Draw the shifts of cells of a side h, from ⌊−h/4⌋ to ⌊h/4⌋ − 1; small cells stay where they are."""
    return torch.randint(-side // 4, side // 4, shape) if side >= SMALLEST else torch.zeros(shape, dtype=torch.int64)


def covers(start: Tensor, side: int, length: int) -> Tensor:
    """Return which positions the cells that begin at `start` cover along an axis: (G, length)."""
    positions, first = torch.arange(length), start.flatten().unsqueeze(1)
    return (positions >= first) & (positions < first + side)


def cells_of(x: Tensor) -> list[int]:
    """List the candidates for G of inputs: no cell is smaller than four positions; 49, 16 and 4 for 28×28."""
    most = max(1, min(x.shape[2:] if x.ndim == 4 else x.shape[1:]) // SMALLEST)
    return sorted({min(side, most) ** 2 for side in SIDES})
