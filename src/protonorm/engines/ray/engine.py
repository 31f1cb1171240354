"""Clients in actors on a Ray cluster. Their states rest on the actors' nodes; a second copy is in the run's folder."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeVar

from protonorm.core.progress import report
from protonorm.core.task import Counts, Lost, Messages, Order, Reply, Task
from protonorm.engines.host import Host
from protonorm.engines.processes.handover import arrays_of, tell
from protonorm.engines.ray.cluster import connect, nodes
from protonorm.engines.ray.code import refer
from protonorm.engines.ray.crew import Crew
from protonorm.engines.ray.frames import pack
from protonorm.engines.ray.orders import Call, Make, Orders
from protonorm.engines.ray.placement import Placement
from protonorm.engines.ray.settings import ActorSettings
from protonorm.engines.ray.supply import Supply
from protonorm.federation.population import SimulatedPopulation
from protonorm.runs.states import CACHE, FolderStore
from protonorm.tensors import Tensors

Answer = TypeVar("Answer")

AHEAD = 16  # orders that an actor gets at a time: answers that come out of turn wait in memory
VERBS = {"train": "Training", "evaluate": "Evaluating"}


class Ray:
    """Run clients on a cluster."""

    def __init__(
        self,
        task: Task,
        population: SimulatedPopulation,
        store: FolderStore,
        workers: int | None = None,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
    ) -> None:
        settings = ActorSettings(num_cpus=num_cpus, num_gpus=num_gpus)
        settings.check_device(population.training.device)
        told = tell(task, population, refer)  # a user's own code may be refused
        ray = connect((workers or 0) * num_cpus)
        count = min(room(ray, settings, workers), len(population))
        self._host, self._store = Host(task, population, store), store
        self._placement = Placement(population.parts.sizes().sum(1).tolist(), len(population.networks))
        self._asked: dict[int, Order] = {}  # who was asked to train since the last commit
        told |= {"key": store.key, "cache": CACHE // count}
        self.crew = Crew(ray, settings, Supply(arrays_of(population)), told)
        self.orders = Orders(self.crew, self._placement, store)
        try:
            self.crew.start(count)
        except BaseException:
            self.crew.close(gently=False)
            raise

    def train(
        self, orders: Sequence[Order], messages: Messages, deadline: float | None = None
    ) -> Iterator[Reply | Lost]:
        """Let clients train; give replies in the order of the orders. Their new states are in the run's folder then."""
        self._placement.balance([order.id for order in orders], list(self.crew.members))
        self._asked |= {order.id: order for order in orders}
        return self._ask({"verb": "train"}, orders, messages, _reply, deadline)

    def evaluate(self, orders: Sequence[Order], messages: Messages, parts: Sequence[str]) -> Iterator[Counts | Lost]:
        """Let clients be evaluated; give counts in the order of the orders."""
        return self._ask({"verb": "evaluate", "parts": list(parts)}, orders, messages, _counts, None)

    def commit(self, round: int, replied: Collection[int], chosen: int = 0) -> None:
        """Drop the states that nobody can need any more, here and on the nodes, and note what clients cost."""
        said = set(replied)
        valid = {id: round if id in said else order.trained for id, order in self._asked.items()}
        for id, kept in valid.items():
            self._store.keep_only(id, kept, chosen)
        for member in self.crew.members.values():
            held = [id for id in valid if id in member.holds]
            gone = [id for id in held if valid[id] not in member.holds[id]]  # to another actor
            member.holds |= {id: {valid[id]} for id in held}
            for id in gone:
                del member.holds[id]
            header = {"round": round, "replied": [id for id in held if id in said], "gone": gone}
            member.handle.commit.remote(pack(header))
        self._placement.commit(said)
        self._asked = {}
        self.crew.refill()

    def fetch(self, id: int, trained: int) -> Tensors:
        """Give a client's state, from the run's folder."""
        return self._host.fetch(id, trained)

    def close(self) -> None:
        """End the actors; idle ones remove what they have written, and what the others have is removed after them."""
        self.crew.close(gently=not self.orders.owed)

    def _ask(
        self,
        header: dict[str, Any],
        orders: Sequence[Order],
        messages: Messages,
        make: Make[Answer],
        deadline: float | None,
    ) -> Iterator[Answer | Lost]:
        """Give orders to the actors, some at a time, and give the answers in the order of the orders."""
        call = Call(header, messages, make, deadline, None if deadline is None else time.monotonic() + deadline)
        self.orders.drop()
        self.crew.losses = 0
        self.crew.refill()
        early: dict[int, Answer | Lost] = {}
        sent = answered = 0
        for place, order in enumerate(orders):
            while sent < len(orders) and sent <= place + AHEAD * max(1, len(self.crew.members)):
                if call.is_late:
                    early[orders[sent].id] = Lost(orders[sent].id, call.lateness)
                else:
                    self.orders.give(call, orders[sent])
                sent += 1
            while order.id not in early:
                new = self.orders.hear(call)
                early |= new
                answered += len(new)
                what = f"{VERBS[header['verb']]} on {len(self.crew.members)} actors, clients that have answered"
                report(what, answered, len(orders))
            yield early.pop(order.id)


def room(ray: Any, settings: ActorSettings, workers: int | None) -> int:
    """Count the actors to start: as many as are asked for, or as the cluster has room for."""
    found = nodes(ray)
    most = sum(settings.fit(node.cpus, node.gpus) for node in found)
    if not most:
        has = "; ".join(f"{node} has {node.cpus:g} and {node.gpus:g}" for node in found) or "it has no node"
        raise ValueError(
            f"No node has room for an actor with {settings.num_cpus:g} cores and {settings.num_gpus:g} GPUs: {has}."
        )
    return min(workers, most) if workers else most


def _reply(id: int, header: dict[str, Any], tensors: Tensors) -> Reply:
    metrics = {str(name): float(value) for name, value in header["metrics"].items()}
    return Reply(id, tensors, metrics, float(header["seconds"]))


def _counts(id: int, header: dict[str, Any], tensors: Tensors) -> Counts:
    return Counts(id, tensors)
