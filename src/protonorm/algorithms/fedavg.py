"""FedAvg: the server averages the clients' models.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.

server state:    model.* (floating tensors; without buffers if those are local)
server message:  the same
client state:    model.*
client message:  model.* as the server, num_examples ()
"""

from __future__ import annotations

from protonorm.algorithms.parts.messages import AveragedModel, Buffers
from protonorm.algorithms.parts.training import fit_labels
from protonorm.core import Client, Step
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT
from protonorm.tensors import Tensors


@dataclass(frozen=True, config=STRICT)
class FedAvg(AveragedModel):
    """Federated averaging of whole models."""

    buffers: Buffers = "averaged"  # batch norm statistics; "local" as in PFLlib

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train the received model with cross-entropy."""
        model = client.load(self.receive(client, state, message))
        return self.trained(client, model, fit_labels(client, model))
