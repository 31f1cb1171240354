"""FjORD: clients train the first channels of every layer; their number is drawn per batch, up to the own width.

Horváth et al., "FjORD: Fair and Accurate Federated Learning under heterogeneous targets with Ordered Dropout",
NeurIPS 2021.

server state:    model.* (parameters of the widest network)
server message:  the same
client state:    model.* of its own width
client message:  model.* (parameters of its own width), num_examples ()
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from protonorm.algorithms.parts.messages import EXAMPLES, examples
from protonorm.algorithms.parts.widths import AveragedParts, cut, measure, parameters, width_schema
from protonorm.core import Client, Schema, SplitModel, Step, Task
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class FjORD(AveragedParts):
    """Ordered dropout: a model that works at every width."""

    steps: Count = 5  # widths to draw from: 1/5, 2/5, …, 1, up to the client's own
    distillation: bool = False  # whether the client's whole network is trained too, and teaches the narrower network

    def schema(self, task: Task) -> Schema:
        """Return the schema: the server sends the whole model, clients their parts and numbers of samples."""
        return width_schema(task, EXAMPLES)

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Raise if a network is not available at other widths."""
        if model.at_width is None:
            raise ValueError("FjORD trains a network at several widths, but one of the networks has only one.")

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with cross-entropy at a random width p per batch; with distillation CE(o, y) + CE(o_p, softmax o)."""
        model = client.load(state | cut(message, state))
        masks = self.masks(model)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            kept = masks[np.random.randint(len(masks))]
            weights = {name: weight * kept[name] for name, weight in model.named_parameters()}
            logits: Tensor = functional_call(model, weights, (x,))
            if not self.distillation:
                return client.cross_entropy(logits, y)
            whole = model(x)
            return client.cross_entropy(whole, y) + client.cross_entropy(logits, whole.detach().softmax(dim=1))

        mean = client.fit(loss, model)
        measure(client, model)  # statistics from training mix all widths
        return Step(snapshot("model", model), parameters(model) | examples(client), {"loss": mean})

    def masks(self, model: SplitModel) -> list[Tensors]:
        """Build, for each width up to the model's own, masks that are 1 where a network of that width has weights."""
        assert model.at_width is not None
        drawn = [step / self.steps for step in range(1, self.steps + 1) if step / self.steps < model.width]
        found = []
        for width in [*drawn, model.width]:
            with torch.device("meta"):  # shapes only: no weights are drawn
                sizes = {name: weight.shape for name, weight in model.at_width(width).named_parameters()}
            masks = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
            for name, size in sizes.items():
                masks[name][tuple(slice(length) for length in size)] = 1.0
            found.append(masks)
        return found
