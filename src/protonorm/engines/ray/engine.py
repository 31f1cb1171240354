"""Execution backend on a Ray cluster. Client states are stored on the actors' nodes and in the run's folder.

The driver tracks which actor has which state, and sends a state only where it is missing. Pending orders of a lost
actor are sent to other actors, from the states of the last committed round: the round continues, with bit-identical
results.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from protonorm.core.frames import BadFrame, pack, unpack
from protonorm.core.progress import report
from protonorm.core.task import ByClient, Counts, Lost, Messages, Order, Reply, Task, message_for
from protonorm.engines.balance import Placement
from protonorm.engines.choice import ActorSettings
from protonorm.engines.handover import arrays_of, describe_run, raise_error, read_answer, refer_by_text
from protonorm.engines.ray.cluster import connect, nodes, reason
from protonorm.engines.ray.crew import START, Crew, Member, Supply
from protonorm.engines.serial import Deadline, Replies
from protonorm.errors import Failed
from protonorm.federation.population import SimulatedPopulation
from protonorm.runs.states import FolderStore

AHEAD = 16  # orders per actor queued ahead; bounded because out-of-order answers are buffered in memory
VERBS = {"train": "Training", "evaluate": "Evaluating"}
DEPTH = 3  # orders in flight per actor: enough to keep it busy, with little work lost if it fails
TRIES = 3  # lost actors that a client may have been running in before it counts as lost itself


class Ray:
    """Execution backend that runs clients in actors on a Ray cluster."""

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
        setup = describe_run(task, population, refer_by_text)  # first, because it may raise on user code
        ray = connect((workers or 0) * num_cpus)
        count = min(room(ray, settings, workers), len(population))
        self._store = store
        self._placement = Placement(population.parts.sizes().sum(1).tolist(), len(population.networks))
        self._orders: dict[int, Order] = {}  # by client: training order since the last commit
        setup |= {"key": store.key, "cache": store.cache.limit // count}
        self.crew = Crew(ray, settings, Supply(arrays_of(population)), setup)
        self.orders = Orders(self.crew, self._placement, store)
        try:
            self.crew.start(count)
        except BaseException:
            self.crew.close(gently=False)
            raise

    def train(self, orders: Sequence[Order], messages: Messages, deadline: float | None = None) -> Replies:
        """Train clients; yield replies in the sequence of `orders`, after their new states are in the run's folder."""
        self._placement.balance([order.id for order in orders], list(self.crew.members))
        self._orders |= {order.id: order for order in orders}
        return self._ask({"verb": "train"}, orders, messages, deadline)

    def evaluate(self, orders: Sequence[Order], messages: Messages, parts: Sequence[str]) -> Iterator[Counts | Lost]:
        """Evaluate clients; yield counts in the sequence of `orders`."""
        return self._ask({"verb": "evaluate", "parts": list(parts)}, orders, messages, None)

    def commit(self, round: int, replied: Collection[int], chosen: int = 0) -> None:
        """Remove replaced states, here and on the nodes, and record the seconds of clients."""
        replied = set(replied)
        valid = {id: round if id in replied else order.trained for id, order in self._orders.items()}
        for id, kept_round in valid.items():
            self._store.keep_only(id, kept_round, chosen)
        for member in self.crew.members.values():
            stored = [id for id in valid if id in member.holds]
            moved = [id for id in stored if valid[id] not in member.holds[id]]  # moved to another actor
            member.holds |= {id: {valid[id]} for id in stored}
            for id in moved:
                del member.holds[id]
            header = {"round": round, "replied": [id for id in stored if id in replied], "gone": moved}
            member.handle.commit.remote(pack(header))
        self._placement.commit(replied)
        self._orders = {}
        self.crew.refill()

    def close(self) -> None:
        """End the actors and remove their files; idle actors remove their own."""
        self.crew.close(gently=not self.orders.pending)

    def _ask(
        self, header: dict[str, Any], orders: Sequence[Order], messages: Messages, deadline: float | None
    ) -> Iterator[Any]:
        """Send orders to the actors, some ahead, and yield the answers in the sequence of `orders`."""
        call = Call(header, messages, Deadline(deadline))
        self.orders.drop()
        self.crew.losses = 0
        self.crew.refill()
        early: dict[int, Reply | Counts | Lost] = {}
        sent = answered = 0
        for position, order in enumerate(orders):
            while sent < len(orders) and sent <= position + AHEAD * max(1, len(self.crew.members)):
                if call.limit.passed:
                    early |= call.limit.lost([orders[sent]])
                else:
                    self.orders.give(call, orders[sent])
                sent += 1
            while order.id not in early:
                new = self.orders.receive(call)
                early |= new
                answered += len(new)
                description = f"{VERBS[header['verb']]} on {len(self.crew.members)} actors, clients that have answered"
                report(description, answered, len(orders))
            yield early.pop(order.id)


def room(ray: Any, settings: ActorSettings, workers: int | None) -> int:
    """Return the number of actors to start: `workers`, at most as many as fit into the cluster."""
    alive = nodes(ray)
    capacity = sum(settings.fit(node.cpus, node.gpus) for node in alive)
    if not capacity:
        has = "; ".join(f"{node} has {node.cpus:g} and {node.gpus:g}" for node in alive) or "it has no node"
        resources = f"{settings.num_cpus:g} cores and {settings.num_gpus:g} GPUs"
        raise ValueError(f"No node has room for an actor with {resources}: {has}.")
    return min(workers, capacity) if workers else capacity


class Call(NamedTuple):
    """Request to train or evaluate clients, and its deadline."""

    header: dict[str, Any]
    messages: Messages
    limit: Deadline


class Orders:
    """Queued and pending orders of the current call."""

    def __init__(self, crew: Crew, placement: Placement, store: FolderStore) -> None:
        self._crew, self._placement, self._store, self._ray = crew, placement, store, crew.ray
        self.pending: dict[Any, tuple[Member, Order]] = {}  # unanswered, by Ray reference, in the sequence of sending
        self._queues: dict[int, deque[Order]] = {}  # by actor: orders to send
        self._unassigned: list[Order] = []  # orders without an actor
        self._failures: Counter[int] = Counter()  # by client: actors lost while it was running
        self._sent: tuple[Messages | None, int, Any] = None, 0, b""  # last message, its number, its Ray reference

    def give(self, call: Call, order: Order) -> None:
        """Queue an order at the client's actor."""
        loads = Counter({number: len(self._queues.get(number, ())) for number in self._crew.members})
        loads.update(member.number for member, _ in self.pending.values())
        if not loads:
            self._unassigned.append(order)
            return
        number = self._placement.actor_of(order.id, loads)
        self._queues.setdefault(number, deque()).append(order)
        self._send(call, self._crew.members[number])

    def _send(self, call: Call, member: Member) -> None:
        """Send an actor its next orders, with the message and states that it lacks.

        Sent orders are never cancelled: Ray's actors would wait forever for a call cancelled in transit.
        """
        queue, running = self._queues.get(member.number), sum(other is member for other, _ in self.pending.values())
        while queue and running < DEPTH and not call.limit.passed:
            order, file = queue.popleft(), b""
            if order.trained and order.trained not in member.holds.get(order.id, ()):
                file = self._store.copy_out(order.id, order.trained)
                member.holds.setdefault(order.id, set()).add(order.trained)
            solo = isinstance(call.messages, ByClient)
            number, message = (0, b"") if solo else self._message(member, call.messages)
            header = call.header | {"order": list(order), "message": number, "own": solo}
            own = message_for(call.messages, order.id) if solo else None
            self.pending[member.handle.act.remote(pack(header, own, file), message)] = member, order
            running += 1

    def receive(self, call: Call) -> dict[int, Any]:
        """Wait for the next answer; late clients are lost, and lost actors are replaced."""
        pending = [*self.pending, *self._crew.coming]
        if not pending:
            late = call.limit.passed
            return self._give_up(call.limit.reason if late else "no actor is left, and none can be started")
        patience = None if self.pending else START  # Ray reports lost actors by itself
        left = call.limit.left
        ready, _ = self._ray.wait(pending, timeout=patience if left is None else left)
        if not ready:
            return self._give_up(call.limit.reason or f"no actor has begun after {START:g} seconds")
        if ready[0] not in self._crew.coming:
            return self._take(call, ready[0])
        if self._crew.try_advance(ready[0]):  # an actor is ready
            stranded, self._unassigned = self._unassigned, []
            for order in stranded:
                self.give(call, order)
        return {}

    def drop(self) -> None:
        """Discard all queued and pending orders."""
        self.pending, self._queues, self._unassigned, self._failures = {}, {}, [], Counter()

    def _message(self, member: Member, message: Messages) -> tuple[int, Any]:
        """Return the message's number, and its reference if the actor lacks it; a node receives a message once."""
        previous, number, ref = self._sent
        if previous is not message:
            assert not isinstance(message, ByClient)
            number, ref = number + 1, self._ray.put(pack({}, message))
            self._sent = message, number, ref
        received, member.message = member.message == number, number
        return number, b"" if received else ref

    def _take(self, call: Call, ref: Any) -> dict[int, Any]:
        """Process an actor's answer; an invalid answer marks the actor as lost."""
        member, order = self.pending[ref]
        try:
            header, tensors, file = unpack(self._ray.get(ref))
            if "error" not in header and "lacks" not in header:
                answer = read_answer(call.header["verb"], order.id, header, tensors)
                if file:  # the new state is in the run's folder before the reply is passed on
                    self._store.copy_in(order.id, order.round, file)
                    member.holds.setdefault(order.id, set()).add(order.round)
                self._crew.losses = 0
                self._placement.note(order.id, float(header["seconds"]))
                del self.pending[ref]
                self._send(call, member)
                return {order.id: answer}
        except self._ray.exceptions.RayTaskError as error:
            raise Failed(f"An actor on node {member} failed: {error}") from error
        except self._ray.exceptions.RayError as error:
            return self._lose(call, member, reason(error))
        except (BadFrame, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            return self._lose(call, member, f"its reply is unusable ({error})")
        del self.pending[ref]
        if "error" in header:
            if header["error"] == "file":
                header["text"] = f"{header.get('text')} (on node {member})"
            raise_error(header)
        member.message = 0  # the actor lacks a message or state; send both again
        member.holds.pop(order.id, None)
        self.give(call, order)
        return {}

    def _lose(self, call: Call, member: Member, cause: str) -> dict[int, Any]:
        """Move the pending orders of a lost actor to other actors, and start a new one.

        A client that was running in several lost actors counts as lost itself, because it may be the cause.
        """
        pending = [order for other, order in self.pending.values() if other is member]
        pending += self._queues.pop(member.number, ())
        self.pending = {ref: entry for ref, entry in self.pending.items() if entry[0] is not member}
        self._crew.lose(member)
        first, lost = pending[0].id, dict[int, Any]()
        self._failures[first] += 1
        if self._failures[first] >= TRIES:
            lost[first] = Lost(first, f"{TRIES} actors ended while it was at work, the last on node {member}: {cause}")
        for order in pending[len(lost) :]:
            self.give(call, order)
        return lost

    def _give_up(self, reason: str) -> dict[int, Any]:
        """Mark the clients of all open orders as lost."""
        late = [order for _, order in self.pending.values()]
        late += [order for queue in self._queues.values() for order in queue] + self._unassigned
        self.drop()
        return {order.id: Lost(order.id, reason) for order in late}
