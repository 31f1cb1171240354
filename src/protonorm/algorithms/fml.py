"""Methods in which a shared network and each client's own distil each other.

FML: on every client a shared network, the meme, and the client's own network distil each other.
Shen et al., "Federated Mutual Learning", 2020.
server state:    meme.* (floating tensors of the second network)
server message:  the same
client state:    model.*, the meme's integers, such as batch counters
client message:  meme.* as the server

FedKD: a shared student, sent in factors, and each client's own model, its mentor, distil each other.
Wu et al., "Communication-Efficient Federated Learning via Knowledge Distillation", Nature Communications 2022.
server state:    student.* (floating tensors of the second network)
server message:  the same; matrices as .u (m, q), .s (q,), .v (q, …) where that is smaller
client state:    model.*, projection.weight (d, d), the student's integers, such as batch counters
client message:  student.* as the server, or their change in training
"""

from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from protonorm.algorithms.parts.messages import Averaged, TwoNetworks, second_network
from protonorm.core import Additive, Client, Contribution, Server, SplitModel, Step, Sums, Task
from protonorm.core.node import Loss
from protonorm.core.schema import Field, Schema, Slot, slots_like
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Fraction, Positive
from protonorm.geometry.factors import compress, decompress, largest_rank
from protonorm.geometry.losses import Reduction, divergence
from protonorm.tensors import Tensors, floats, integers, numbers, prefixed, restore, snapshot


@dataclass(frozen=True, config=STRICT)
class FML(TwoNetworks, Averaged):
    """Mutual distillation between a client's own model and a shared meme."""

    alpha: Annotated[float, Ge(0), Le(1)] = 0.5  # α, the cross-entropy's share of the own model's loss
    beta: Annotated[float, Ge(0), Le(1)] = 0.5  # β, the cross-entropy's share of the meme's loss
    reduction: Reduction = "mean"  # of the KL; "batchmean" as in the authors' code is K times stronger
    detach: bool = False  # whether gradients of a student's loss stop at its teacher, as in the authors' code
    clip: Positive = 10.0  # bound of each network's gradient norm

    def schema(self, task: Task) -> Schema:
        """Return the schema: both sides send the meme."""
        meme = slots_like(floats(snapshot("meme", task.template)))
        return Schema(up=meme, down=meme)

    def init_server(self, server: Server) -> Step:
        """Create the initial meme of all clients."""
        meme = floats(snapshot("meme", second_network(server)))
        return Step(meme, meme)

    def init_client(self, client: Client) -> Tensors:
        """Create the client's model, and the meme's tensors that are not sent."""
        return snapshot("model", client.model) | integers(snapshot("meme", second_network(client)))

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train both networks on the sum of their losses; the gradients equal those of two backward passes."""
        model, meme = client.load(state), self.second(client, state, message)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            own, shared = self.losses(model(x), meme(x), y, client.cross_entropy)
            return own + shared

        mean = client.fit(loss, model, meme, clip=self.clip)
        trained = snapshot("meme", meme)
        return Step(snapshot("model", model) | integers(trained), floats(trained), {"loss": mean})

    def second(self, client: Client, state: Tensors, message: Tensors) -> SplitModel:
        """Load the average meme."""
        meme = second_network(client)
        restore("meme", meme, state | message)
        return meme.eval()

    def losses(self, o: Tensor, o_g: Tensor, y: Tensor, ce: Loss = cross_entropy) -> tuple[Tensor, Tensor]:
        """Compute α CE + (1 − α) KL(p_g‖p) of the own logits, β CE + (1 − β) KL(p‖p_g) of the meme's, both (B, K)."""
        teacher, teacher_g = (o.detach(), o_g.detach()) if self.detach else (o, o_g)
        own = self.alpha * ce(o, y) + (1 - self.alpha) * divergence(teacher_g, o, self.reduction)
        meme = self.beta * ce(o_g, y) + (1 - self.beta) * divergence(teacher, o_g, self.reduction)
        return own, meme


@dataclass(frozen=True, config=STRICT)
class FedKD(TwoNetworks, Additive):
    """Mutual distillation between a client's own model and a shared, compressed student."""

    t_start: Fraction = 0.95  # T_start, the share of ‖w‖² that the factors keep initially …
    t_end: Fraction = 0.98  # T_end, … and in the last round
    compressed: Literal["weights", "updates"] = "weights"  # "updates", which only clients send, is nearer to the paper
    reduction: Reduction = "mean"  # of the KL; "batchmean" is K times stronger
    detach: bool = False  # whether gradients of a student's loss stop at its teacher and at S
    floor: Positive = 1e-6  # lower bound of S: clients with a single class reach zero cross-entropy
    clip: Positive = 10.0  # bound of the gradient norm of each network and of the projection

    depends_on_rounds: ClassVar[bool] = True  # the kept energy rises from the first round to the last

    def schema(self, task: Task) -> Schema:
        """Return the schema: both sides send the student, whole or in factors; whole if clients send updates."""
        student = floats(snapshot("student", task.template))
        ranks = {_rank(name): largest_rank(value.shape) for name, value in student.items()}
        up = tuple(_whole_or_factors(name, value) for name, value in student.items())
        down = up if self.compressed == "weights" else slots_like(student)
        return Schema(up, down, bounds={symbol: rank for symbol, rank in ranks.items() if rank})

    def init_server(self, server: Server) -> Step:
        """Create the initial student of all clients."""
        return self._publish(floats(snapshot("student", second_network(server))), server)

    def init_client(self, client: Client) -> Tensors:
        """Create the client's own model and projection, and the student's tensors that are not sent."""
        own = snapshot("model", client.model) | snapshot("projection", _projection(client))
        return own | integers(snapshot("student", second_network(client)))

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train mentor, student and projection on the sum of the losses, then compress the student."""
        model, student, projection = client.load(state), second_network(client), _projection(client)
        received = _unpack(student, state, message)
        restore("projection", projection, state)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z, z_s = model.features(x), student.features(x)
            own, shared = self.losses(z, projection(z_s), model.head(z), student.head(z_s), y, client.cross_entropy)
            return own + shared

        mean = client.fit(loss, model, student, projection, clip=self.clip)
        trained = snapshot("student", student)
        new_state = snapshot("model", model) | snapshot("projection", projection) | integers(trained)
        sent = {name: trained[name] for name in received}
        if self.compressed == "updates":
            sent = {name: value - received[name] for name, value in sent.items()}
        return Step(new_state, compress(sent, self.energy(client.round, client.rounds)), {"loss": mean})

    def contribution(self, server: Server, state: Tensors, reply: Tensors) -> Contribution:
        """Rebuild a client's student, or its change; all clients have equal weight."""
        return Contribution(decompress(reply, state), torch.tensor(1))

    def conclude(self, server: Server, state: Tensors, sums: Sums) -> Step:
        """Publish the average student."""
        changed = self.compressed == "updates"
        student = {name: state[name] + mean if changed else mean for name, mean in sums.means.items()}
        return self._publish(student, server)

    def second(self, client: Client, state: Tensors, message: Tensors) -> SplitModel:
        """Load the average student for prediction."""
        student = second_network(client)
        _unpack(student, state, message)
        return student.eval()

    def losses(
        self, z: Tensor, z_s: Tensor, o: Tensor, o_s: Tensor, y: Tensor, entropy: Loss = cross_entropy
    ) -> tuple[Tensor, Tensor]:
        """Compute CE + (KL + MSE)/S of mentor and student, S the sum of both cross-entropies.

        z (B, d) and o (B, K) are the mentor's features and logits, z_s (B, d), projected, and o_s (B, K) the student's,
        y (B,) the labels. Dividing by S weakens the distillation where both networks err.
        """
        ce, ce_s = entropy(o, y), entropy(o_s, y)
        total = self._teacher(ce + ce_s).clamp(min=self.floor)  # S
        mentor = divergence(self._teacher(o_s), o, self.reduction) + mse_loss(z, self._teacher(z_s))
        student = divergence(self._teacher(o), o_s, self.reduction) + mse_loss(z_s, self._teacher(z))
        return ce + mentor / total, ce_s + student / total

    def energy(self, round: int, rounds: int) -> float:
        """Return the share of energy to keep, rising linearly from T_start before round 1 to T_end in round R."""
        return self.t_start + round / max(rounds, 1) * (self.t_end - self.t_start)

    def _teacher(self, value: Tensor) -> Tensor:
        return value.detach() if self.detach else value

    def _publish(self, student: Tensors, server: Server) -> Step:
        energy = self.energy(server.round, server.rounds)
        message = compress(student, energy) if self.compressed == "weights" else student
        return Step(student, message, {"energy": energy, "ratio": numbers(message) / numbers(student)})


def _unpack(student: SplitModel, state: Tensors, message: Tensors) -> Tensors:
    """Load the server's message and the tensors that are not sent into the student; return its floating tensors."""
    received = decompress(message, floats(prefixed("student", student.state_dict())))
    restore("student", student, state | received)
    return received


def _projection(client: Client) -> nn.Linear:
    """Create W_i (d, d), randomly initialised, which maps the student's features to the mentor's."""
    return nn.Linear(client.feature_dim, client.feature_dim, bias=False).to(client.device)


def _whole_or_factors(name: str, value: Tensor) -> Slot:
    """Describe a tensor (m, …), and its factors where they may be smaller."""
    tensor, q = {name: Field(tuple(value.shape), value.dtype)}, _rank(name)
    if not largest_rank(value.shape):
        return (tensor,)
    shapes = {"u": (len(value), q), "s": (q,), "v": (q, *value.shape[1:])}
    return tensor, {f"{name}.{tag}": Field(shape, value.dtype) for tag, shape in shapes.items()}


def _rank(name: str) -> str:
    """Return the symbol of a tensor's rank."""
    return f"q({name})"
