"""Methods that exchange logits.

FedDistill: clients distil the average logits of each class.
Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation under
Non-IID Private Data", NeurIPS 2018 workshop.
server state:    classes (K',), logits (K', K) of the classes received so far
server message:  the same
client state:    model.*
client message:  classes (K_i,), logits (K_i, K)

FedMD: clients send their logits on public inputs and are trained towards the average logits.
Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS workshop 2019.
server state:    empty
server message:  logits (N, K) on a round's public inputs, round () of these; empty before the first round
client state:    model.*
client message:  logits (N, K) on the round's public inputs
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from annotated_types import Ge
from pydantic import model_validator
from torch import Tensor
from torch.nn.functional import softmax

from protonorm.algorithms.parts.common_inputs import digest_of_public, draw_positions, noise, read_public, same_inputs
from protonorm.algorithms.parts.messages import Averaged, class_vectors, make_schema
from protonorm.algorithms.parts.prototypes import AveragedByClass, RunningMeans, mean_outputs, scatter_vectors
from protonorm.algorithms.parts.training import fit_labels
from protonorm.core import Client, Field, Samples, Schema, Server, SplitModel, Step, Sums, Task, optional
from protonorm.core.settings import dataclass
from protonorm.core.types import STRICT, Count, InputSpec, NonNegative, Positive, Seed
from protonorm.geometry.losses import distillation_loss
from protonorm.tensors import Tensors, snapshot


@dataclass(frozen=True, config=STRICT)
class FedDistill(AveragedByClass):
    """Training with labels and with the average logits of each class."""

    lam: NonNegative = 1.0  # weight of the distillation; γ in the ProtoNorm paper
    measured: Literal["after", "during"] = "after"  # logits of the trained model, or running means during training

    averaged: ClassVar[str] = "logits"

    def schema(self, task: Task) -> Schema:
        """Return the schema: both sides send logits by class, the server from round 1 on."""
        up, down = class_vectors("K_i", "logits", "K"), class_vectors("K'", "logits", "K")
        return make_schema(task, up=((up,),), down=(optional(down),))

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Train with CE(o, y) + λ·CE(o, softmax ō_y), then compute the mean logits of each class."""
        model = client.load(state)
        means, known = scatter_vectors(message, "logits", client.num_classes, client)  # (K, K), (K,)
        teacher = softmax(means, dim=1)
        running = RunningMeans(client, "logits", client.num_classes)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits = model(x)
            if self.measured == "during":
                running.add(logits.detach(), y)
            return client.cross_entropy(logits, y) + self.lam * distillation_loss(logits, y, teacher, known)

        mean = client.fit(loss, model)
        during = self.measured == "during"
        own = running.result() if during else mean_outputs(client, model, "logits", client.num_classes)
        return Step(snapshot("model", model), own, {"loss": mean})


ONE_SET = {"fashion", "fashion-mnist"}  # the first is a subset of the second


@dataclass(frozen=True, config=STRICT)
class FedMD(Averaged):
    """Training towards the average logits on public inputs, then on the client's own samples."""

    public: str | None = None  # public inputs: a data set, NAME or KIND:PATH, or a .npy file; None is noise
    # A file contains inputs as they are stored, such as (P, H, W, C) bytes.
    sha256: str | None = None  # of the public inputs; None computes it from the present content
    samples: Count = 1000  # N, public inputs per round, drawn anew
    digest_lr: Positive = 0.001  # learning rate of the Adam that digests the consensus
    digest_batch_size: Annotated[Count, Ge(2)] = 256  # batch norm needs two rows
    seed: Seed = 0  # of the draws and of the noise

    @model_validator(mode="after")
    def _refuse_what_is_not_used(self) -> Self:
        if self.public is None and self.sha256:
            raise ValueError("sha256 must be left out: the public inputs are noise; it is for public=DATASET or FILE.")
        return self

    def adapted(self, dataset: str, networks: Sequence[str]) -> Self:
        """Check the public inputs against the data set, and fill in their digest."""
        if self.public == dataset or {self.public, dataset} == ONE_SET:
            raise self._refused()
        return self if self.public is None or self.sha256 else replace(self, sha256=digest_of_public(self.public))

    def schema(self, task: Task) -> Schema:
        """Return the schema: both sides send logits on public inputs; the server from round 1 on, with their round."""
        logits = {"logits": Field((self.samples, "K"))}
        round = {"round": Field((), torch.int64, least=1)}
        return make_schema(task, up=((logits,),), down=(optional(logits | round),))

    def check_network(self, model: SplitModel, task: Task) -> None:
        """Raise if the public inputs do not fit the clients' networks."""
        if model.trunk is not None:
            raise ValueError(f"FedMD compares networks on common inputs, of which {model.trunk.name} has no features.")
        if task.input is None:
            return
        if self.public is not None:
            read_public(self.public, task.input, self.samples, self.sha256)
        else:
            noise(torch.zeros(0, *task.input.shape, dtype=getattr(torch, task.input.type)), 1, self.seed)

    def init_client(self, client: Client) -> Tensors:
        """Create the client's model; raise if the public inputs are the data set of its samples."""
        if self.public is not None and same_inputs(self.inputs(client), client.train.inputs):
            raise self._refused()
        return super().init_client(client)

    def local_update(self, client: Client, state: Tensors, message: Tensors) -> Step:
        """Digest the last consensus by mean absolute error, train on the own samples, then compute public logits."""
        model, public = client.load(state), self.inputs(client)
        if "logits" in message:
            self._digest(client, model, self._chosen(public, int(message["round"])), message["logits"])
        mean = fit_labels(client, model)
        reply = {"logits": public_logits(client, model, self._chosen(public, client.round))}
        return Step(snapshot("model", model), reply, {"loss": mean})

    def conclude(self, server: Server, state: Tensors, sums: Sums) -> Step:
        """Publish the average logits; an empty message if there are none."""
        return Step({}, sums.means | {"round": torch.tensor(server.round)} if sums.means else {})

    def inputs(self, client: Client) -> Tensor:
        """Return the public inputs (P, …) as they are stored."""
        if self.public is None:
            return noise(client.train.inputs, self.samples, self.seed)
        like = client.train.inputs
        dtype: Any = str(like.dtype).removeprefix("torch.")
        kind = InputSpec(shape=tuple(like.shape[1:]), type=dtype)
        return read_public(self.public, kind, self.samples, self.sha256)

    def _chosen(self, public: Tensor, round: int) -> Samples:
        """Select the public inputs of a round; the label of each is its index among them."""
        positions = draw_positions(len(public), self.samples, self.seed, round)
        labels = torch.zeros(len(public), dtype=torch.int64)
        labels[positions] = torch.arange(self.samples)
        return Samples(public, labels, positions)

    def _digest(self, client: Client, model: SplitModel, samples: Samples, consensus: Tensor) -> None:
        """Train for an epoch on a consensus's public inputs, with the mean of |o − consensus| over their logits."""
        targets = consensus.to(client.device)  # (N, K)
        overrides = {"optimiser": "adam", "weight_decay": 0.0, "augment": "none"}
        size, training = self.digest_batch_size, client.training.model_copy(update=overrides)
        reader = replace(client, train=samples, lr=self.digest_lr, epochs=1, batch_size=size, training=training)
        reader = replace(reader, local_steps=None, memory=None)  # an epoch, by an optimiser that is new in each round
        reader.fit(lambda x, labels: digest_loss(model(x), targets[labels]), model)

    def _refused(self) -> ValueError:
        return ValueError(f"public must be other than the clients' own samples, got {self.public}.")


def digest_loss(logits: Tensor, consensus: Tensor) -> Tensor:
    """Compute the mean of |o − consensus| over samples and classes, (B, K) both."""
    return (logits - consensus).abs().mean()


@torch.no_grad()
def public_logits(client: Client, model: SplitModel, chosen: Samples) -> Tensor:
    """Compute the logits (N, K) of samples in evaluation mode, on the CPU."""
    model.eval()
    outputs = []
    for x, _ in chosen.sweep(device=client.device):
        with client.autocast():
            outputs.append(model(x).float().cpu())
    return torch.cat(outputs)
