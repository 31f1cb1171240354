"""Requests to clients and answers from them over Flower: who is away, or has lost a request, is asked again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.proto.node_pb2 import NodeInfo

from protonorm.deployment.flower.carriers import Carrier, Delivered
from protonorm.deployment.flower.fleet_api import key_bytes
from protonorm.deployment.remote import Arrived

GRACE = 30.0  # seconds that a client which went away has for coming back before it is told that it is lost
LOOK = 0.25  # seconds between two looks at who is there
MOST_FORMER = 10_000  # requests whose late answers are still looked for

Known = Callable[[Iterable[NodeInfo]], Mapping[int, int]]  # nodes that are there -> node by client


@dataclass
class Asked:
    """A client that has a request."""

    content: bytes
    node: int = 0
    id: str = ""  # Flower's, of the message; none while the client is away
    away: float = 0.0  # since when it is away


class FlowerTransport:
    """Carry requests to those clients that are known, however often they come and go."""

    def __init__(
        self, carrier: Carrier, known: Known, *, grace: float = GRACE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._carrier, self._known, self._grace, self._clock = carrier, known, grace, clock
        self._asked: dict[int, Asked] = {}
        self._former: dict[str, int] = {}  # of requests that were let go; their answers are late
        self._looked = -LOOK

    def present(self) -> set[int]:
        """Tell which clients are connected."""
        return set(self._known(self._carrier.nodes()))

    def push(self, requests: Mapping[int, bytes]) -> Mapping[int, str]:
        """Send requests; give the reasons of those clients that cannot be reached."""
        here = self._known(self._carrier.nodes())
        self._withdraw(requests)
        self._asked |= {client: Asked(content) for client, content in requests.items() if client in here}
        self._send([client for client in requests if client in here], here)
        reasons = {client: "it is not connected" for client in requests if client not in here}
        for client in [client for client in requests if client in here and not self._asked[client].id]:
            del self._asked[client]
            reasons[client] = "Flower did not take the request"
        return reasons

    def pull(self, seconds: float) -> Sequence[Arrived]:
        """Give what has arrived; wait so many seconds at most if nothing has."""
        end = self._clock() + seconds
        while True:
            found = self._collect()
            left = end - self._clock()
            if found or left <= 0:
                return found
            self._carrier.wait(min(left, LOOK))

    def close(self) -> None:
        """Take back what nobody has fetched."""
        self._withdraw(list(self._asked))

    def _withdraw(self, clients: Iterable[int]) -> None:
        """Let requests go: what was not fetched is taken back; what was is remembered, for its answer may come."""
        asked = {client: self._asked.pop(client) for client in clients if client in self._asked}
        ids = {one.id: client for client, one in asked.items() if one.id}
        self._carrier.withdraw(ids)
        self._former = dict([*self._former.items(), *ids.items()][-MOST_FORMER:])

    def _send(self, clients: Sequence[int], here: Mapping[int, int]) -> None:
        """Send the requests of clients that are there."""
        for client in clients:
            one = self._asked[client]
            one.node, one.id = here[client], ""
        ids = self._carrier.push({self._asked[client].node: self._asked[client].content for client in clients})
        for client in clients:
            self._asked[client].id = ids.get(self._asked[client].node, "")

    def _collect(self) -> list[Arrived]:
        """Take what has come, and look after those who are away."""
        waiting = {one.id: client for client, one in self._asked.items() if one.id}
        found = []
        for id, what in self._carrier.pull([*waiting, *self._former]).items():
            if id in waiting:
                found += self._take(waiting[id], what)
            else:
                client = self._former.pop(id)
                found += [Arrived(client, what.content)] if what.content else []
        if self._clock() - self._looked >= LOOK:
            self._looked = self._clock()
            found += self._look_after()
        return found

    def _take(self, client: int, what: Delivered) -> list[Arrived]:
        one = self._asked[client]
        if what.away:
            one.id, one.away = "", self._clock()
            return []
        del self._asked[client]
        return [Arrived(client, what.content, what.failure)]

    def _look_after(self) -> list[Arrived]:
        """Ask those again who came back, or whose request got lost; give those up who stay away."""
        if not self._asked:
            return []
        here = self._known(self._carrier.nodes())
        again = []
        for client, one in self._asked.items():
            lost = one.id and self._carrier.lost(one.id)
            if client in here and (lost or not one.id or here[client] != one.node):
                again.append(client)
        self._carrier.withdraw([self._asked[client].id for client in again if self._asked[client].id])
        self._send(again, here)
        gone = [client for client, one in self._asked.items() if not one.id and client not in here]
        gone = [client for client in gone if self._clock() - self._asked[client].away > self._grace]
        for client in gone:
            del self._asked[client]
        return [Arrived(client, failure="it went away and did not come back") for client in gone]


def by_key(lines: Mapping[int, str]) -> Known:
    """Know clients by their public keys, which Flower has checked; a line of OpenSSH for each client's number."""
    numbers = {key_bytes(line): client for client, line in lines.items()}

    def known(nodes: Iterable[NodeInfo]) -> dict[int, int]:
        return {numbers[one.public_key]: one.node_id for one in nodes if one.public_key in numbers}

    return known
