"""LG-FedAvg: every client has its own features, and all clients share a head.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", 2020.

server state:    head.* (weight (K, d), and bias (K,) if there is one)
server message:  the same
client state:    model.*
client message:  head.*; num_examples () if weighted
"""

from __future__ import annotations

from protonorm.algorithms.parts.heads import SharedHead, check_one_layer, head_of
from protonorm.algorithms.parts.messages import Averaged, Weighting, examples, examples_slots, head_slots, make_schema
from protonorm.algorithms.parts.training import fit_labels
from protonorm.core import Client, Schema, SplitModel, Step, Task
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT
from protonorm.tensors import Tensors, snapshot


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
