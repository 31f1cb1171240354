"""Methods whose clients share features and keep a head of their own.

FedPer: features and head are trained together.
Arivazhagan et al., "Federated Learning with Personalization Layers", 2019.
FedRep: the head is trained first, on fixed features, then the features under the fixed head.
Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021.

server state:    model.features.* (floating tensors; without buffers if those are local)
server message:  the same
client state:    model.*
client message:  model.features.* as the server, num_examples ()
"""

from dataclasses import replace

from protonorm.algorithms.fedavg import FedAvg
from protonorm.algorithms.parts.messages import shared
from protonorm.algorithms.parts.training import fit_labels, fixed
from protonorm.core import Client, SplitModel, Step, Task
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count
from protonorm.tensors import Tensors


@dataclass(frozen=True, config=STRICT)
class FedPer(FedAvg):
    """Federated averaging of features; each client keeps its head."""

    def sent(self, model: SplitModel) -> Tensors:
        """Copy the features of a model, which are shared."""
        return shared("model.features", model.features, self.buffers)


@dataclass(frozen=True, config=STRICT)
class FedRep(FedPer):
    """Federated averaging of features, trained under heads that are trained before them."""

    head_epochs: Count = 1  # passes over the training part in which the head alone is trained

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Raise if the head has no parameters."""
        check_head(model, self)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train the own head on the received features with cross-entropy, then the features under that head."""
        model = client.load(self.receive(client, state, message))
        with fixed(model.features):
            first = fit_labels(replace(client, epochs=self.head_epochs), model)
        with fixed(model.head):
            step = self.trained(client, model, fit_labels(client, model))
        return step._replace(metrics={**step.metrics, "head.loss": first})


def check_head(model: SplitModel, method: object) -> None:
    """Raise if a network has no parameters in its head, or none in its features."""
    for name, part in (("head", model.head), ("features", model.features)):
        if not any(weight.requires_grad for weight in part.parameters()):
            raise ValueError(f"{type(method).__name__} trains features and head in turn; the {name} has no weights.")
