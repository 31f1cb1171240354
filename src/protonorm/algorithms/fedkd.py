"""FedKD: a student travels in factors; on every client it and the client's own model, its mentor, teach each other.

Wu et al., "Communication-Efficient Federated Learning via Knowledge Distillation", Nature Communications 2022.

server remembers: student.* (floating tensors of the second network)
server says:      the same; matrices as .u (m, q), .s (q,), .v (q, …) where that is smaller
client remembers: model.*, projection.weight (d, d), the student's integers, such as batch counters
client says:      student.* as the server, or what training changed in them
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from protonorm.core import Algorithm, Client, Field, Schema, Server, Slot, SplitModel, Step, Task, slots_like
from protonorm.core.settings import dataclass
from protonorm.core.training import Loss
from protonorm.core.types import STRICT, Fraction, Positive
from protonorm.geometry.factors import compress, decompress, largest_rank
from protonorm.geometry.losses import Reduction, divergence
from protonorm.tensors import Tensors, floats, integers, numbers, prefixed, restore, snapshot, weighted_mean


@dataclass(frozen=True, config=STRICT)
class FedKD(Algorithm):
    """Train a client's own model and a shared student that teach each other."""

    t_start: Fraction = 0.95  # T_start, the share of ‖w‖² that the factors keep at first …
    t_end: Fraction = 0.98  # T_end, … and in the last round
    compressed: Literal["weights", "updates"] = "weights"  # "updates", the clients' alone, is nearer to the paper
    reduction: Reduction = "mean"  # of the KL; "batchmean" is K times stronger
    detach: bool = False  # whether a teacher, and S, are left as they are by the pupil's loss
    floor: Positive = 1e-6  # the least S: one-class clients reach a cross-entropy of zero
    clip: Positive = 10.0  # bound of the gradient norm of each network and of the projection

    auxiliary: ClassVar[bool] = True
    rules: ClassVar[tuple[str, ...]] = ("logits", "shared", "joint")
    depends_on_rounds: ClassVar[bool] = True  # the energy rises from the first round to the last

    def schema(self, task: Task) -> Schema:
        """Both sides send the student, whole or in factors; the server sends it whole if clients send updates."""
        student = floats(snapshot("student", task.template))
        ranks = {_rank(name): largest_rank(value.shape) for name, value in student.items()}
        up = tuple(_whole_or_factors(name, value) for name, value in student.items())
        down = up if self.compressed == "weights" else slots_like(student)
        return Schema(up, down, bounds={symbol: rank for symbol, rank in ranks.items() if rank})

    def init_server(self, server: Server) -> Step:
        """Begin with one student for all."""
        assert server.auxiliary is not None
        return self._publish(floats(snapshot("student", server.auxiliary)), server)

    def init_client(self, client: Client) -> Tensors:
        """Begin with a model and a projection of one's own; of the student only what never travels."""
        assert client.auxiliary is not None
        own = snapshot("model", client.model) | snapshot("projection", _projection(client))
        return own | integers(snapshot("student", client.auxiliary))

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train mentor, student and projection on the sum of the losses, then compress the student."""
        model, student, projection = client.load(state), client.auxiliary, _projection(client)
        assert student is not None
        received = _unpack(student, state, message)
        restore("projection", projection, state)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z, z_s = model.features(x), student.features(x)
            own, shared = self.losses(z, projection(z_s), model.head(z), student.head(z_s), y, client.cross_entropy)
            return own + shared

        mean = client.fit(loss, model, student, projection, clip=self.clip)
        trained = snapshot("student", student)
        kept = snapshot("model", model) | snapshot("projection", projection) | integers(trained)
        said = {
            name: trained[name] - value if self.compressed == "updates" else trained[name]
            for name, value in received.items()
        }
        return Step(kept, compress(said, self.energy(client.round, client.rounds)), {"loss": mean})

    def aggregate(self, server: Server, state: Tensors, replies: Iterator[Tensors]) -> Step:
        """Rebuild the students, or what changed in them, average that, all alike, and publish the student."""
        mean = weighted_mean((1.0, decompress(reply, state)) for reply in replies)
        if self.compressed == "updates":
            mean = {name: state[name] + change for name, change in mean.items()}
        return self._publish(mean, server)

    def scores(self, client: Client, state: Tensors, message: Tensors, x: Tensor) -> dict[str, Tensor]:
        """Score by the own model, and by the average student where that network is at hand."""
        own = {"logits": client.model(x)}
        return own if client.auxiliary is None else own | {"shared": self.second(client, state, message)(x)}

    def second(self, client: Client, state: Tensors, message: Tensors) -> SplitModel:
        """Load the average student, to predict with."""
        assert client.auxiliary is not None
        _unpack(client.auxiliary, state, message)
        return client.auxiliary.eval()

    def losses(
        self, z: Tensor, z_s: Tensor, o: Tensor, o_s: Tensor, y: Tensor, entropy: Loss = cross_entropy
    ) -> tuple[Tensor, Tensor]:
        """Give CE + (KL + MSE)/S of mentor and student, S the sum of both cross-entropies: where both err, trust less.

        z and the projected z_s are (B, d), the logits o and o_s (B, K).
        """
        ce, ce_s = entropy(o, y), entropy(o_s, y)
        total = self._teacher(ce + ce_s).clamp(min=self.floor)  # S
        mentor = divergence(self._teacher(o_s), o, self.reduction) + mse_loss(z, self._teacher(z_s))
        student = divergence(self._teacher(o), o_s, self.reduction) + mse_loss(z_s, self._teacher(z))
        return ce + mentor / total, ce_s + student / total

    def energy(self, round: int, rounds: int) -> float:
        """Raise the share that is kept from T_start before round 1 to T_end in round R, evenly."""
        return self.t_start + round / max(rounds, 1) * (self.t_end - self.t_start)

    def _teacher(self, value: Tensor) -> Tensor:
        return value.detach() if self.detach else value

    def _publish(self, student: Tensors, server: Server) -> Step:
        energy = self.energy(server.round, server.rounds)
        said = compress(student, energy) if self.compressed == "weights" else student
        return Step(student, said, {"energy": energy, "ratio": numbers(said) / numbers(student)})


def _unpack(student: SplitModel, state: Tensors, message: Tensors) -> Tensors:
    """Put what the server said, and what never travels, into the student; return its floating tensors."""
    received = decompress(message, floats(prefixed("student", student.state_dict())))
    restore("student", student, state | received)
    return received


def _projection(client: Client) -> nn.Linear:
    """Make W_i (d, d), newly drawn, which brings the student's features to the mentor's."""
    return nn.Linear(client.feature_dim, client.feature_dim, bias=False).to(client.device)


def _whole_or_factors(name: str, value: Tensor) -> Slot:
    """Describe a tensor (m, …), and its factors where they may be smaller."""
    whole, q = {name: Field(tuple(value.shape), value.dtype)}, _rank(name)
    if not largest_rank(value.shape):
        return (whole,)
    shapes = {"u": (len(value), q), "s": (q,), "v": (q, *value.shape[1:])}
    return whole, {f"{name}.{tag}": Field(shape, value.dtype) for tag, shape in shapes.items()}


def _rank(name: str) -> str:
    """Name the symbol of a tensor's rank."""
    return f"q({name})"
