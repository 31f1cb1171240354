"""FML: on every client a shared network, the meme, and the client's own network distil each other.

Shen et al., "Federated Mutual Learning", 2020.

server state:    meme.* (floating tensors of the second network)
server message:  the same
client state:    model.*, the meme's integers, such as batch counters
client message:  meme.* as the server
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le
from torch import Tensor
from torch.nn.functional import cross_entropy

from protonorm.algorithms.parts.messages import Averaged, TwoNetworks, second_network
from protonorm.core import Client, Schema, Server, SplitModel, Step, Task, slots_like
from protonorm.core.node import Loss
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Positive
from protonorm.geometry.losses import Reduction, divergence
from protonorm.tensors import Tensors, floats, integers, restore, snapshot


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
