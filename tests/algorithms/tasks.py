"""Small tasks with their clients, for tests of single algorithms."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import protonorm as pn
from protonorm.core import SERVER, Algorithm, Client, Samples, Server, Task, seeded
from protonorm.federation.population import SimulatedPopulation
from protonorm.session.build import build
from protonorm.tensors import Tensors
from tests.support import spiral


class Federation(NamedTuple):
    """A task and the clients that work on it."""

    task: Task
    population: SimulatedPopulation

    @property
    def method(self) -> Any:
        """The algorithm, adapted to data and networks."""
        return self.task.algorithm

    def server(self, round: int = 0) -> Server:
        with seeded(self.task.seed, round, SERVER):
            return self.task.server(round)

    def client(self, id: int = 0) -> Client:
        """A client with newly drawn networks."""
        return self.population.site(id).fresh_client()

    def started(self, id: int = 0) -> tuple[Client, Tensors, Tensors]:
        """A client, its first state, and the server's first message, drawn as in a run."""
        client = self.client(id)
        with seeded(self.task.seed, 0, id, "state"):
            state = self.method.init_client(client)
        with seeded(self.task.seed, 0, SERVER):
            return client, state, self.method.init_server(self.task.server(0)).message


def federation(algorithm: Algorithm, **settings: Any) -> Federation:
    """Make the spiral's task and clients, with changed settings."""
    return Federation(*build(spiral(algorithm=algorithm, **settings)))


def server(round: int = 1, classes: int = 3, width: int = 2, **more: Any) -> Server:
    """A server without networks."""
    return Server(round, num_classes=classes, feature_dim=width, **{"rounds": 10, **more})


def task_of(algorithm: Algorithm, classes: int = 3, width: int = 2, **more: Any) -> Task:
    """A task without data or networks."""
    return Task(algorithm, tuple(f"class {k}" for k in range(classes)), width, rounds=10, seed=0, **more)


def vectors(classes: list[int], rows: Any, name: str = "prototypes") -> Tensors:
    """What a client says of its classes."""
    return {"classes": torch.tensor(classes), name: torch.tensor(rows, dtype=torch.float32)}


def all_classes(value: float = 0.5) -> Tensors:
    """Prototypes (value, value) of the spiral's six classes."""
    return {"classes": torch.arange(6), "prototypes": torch.full((6, 2), value)}


def first_batch_loss(algorithm: Algorithm, message: Tensors) -> tuple[float, float, Tensor, Tensor]:
    """The loss of one batch of everything at the start, its cross-entropy, features and labels: lr is almost zero."""
    one = federation(algorithm, batch_size=4096, lr=1e-12, rounds=1)
    client = one.client()
    state = one.method.init_client(client)
    loss = one.method.local_update(client, state, message).metrics["loss"]
    client.load(state).train()
    x, y = client.train.batch(torch.arange(len(client.train)))
    with torch.no_grad():
        z = client.model.features(x)
        return loss, float(cross_entropy(client.model.head(z), y)), z, y


class OneNetwork(NamedTuple):
    """A recipe that always gives the same kind of network, for tasks without data."""

    make: Any
    name: str = "own"

    def __call__(self) -> pn.SplitModel:
        made: pn.SplitModel = self.make()
        return made

    def describe(self) -> Any:
        return self.name


def normalising() -> pn.SplitModel:
    """A network whose features are its normalised inputs (n, 2), of two classes."""
    return pn.SplitModel(nn.Sequential(nn.BatchNorm1d(2)), nn.Linear(2, 2))


def normalising_client(round: int = 1) -> Client:
    """A client with the samples (0, 0) and (2, 4), a batch of mean (1, 2), which almost does not move its weights."""
    samples = Samples(torch.tensor([[0.0, 0.0], [2.0, 4.0]]), torch.tensor([0, 1]), torch.arange(2))
    parts = {"train": samples, "validation": samples, "test": samples}
    return Client(
        0, round, 1, normalising(), normalising(), **parts, num_classes=2, feature_dim=2, lr=1e-12, batch_size=2
    )
