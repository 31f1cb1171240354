"""Requests and answers over Flower's grid: their envelope, and repetition of requests after reconnections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from protonorm.core.text import shortened
from protonorm.deployment.engine import Arrived

TYPE = "train"  # Flower's type of all messages; the actual kind is in the content
RECORD, VALUE = "protonorm", "frame"
UNABLE, SIMULATED = "unable", "simulated"  # fields of an answer: why a client cannot work, and if it is a simulated one
TTL = 30 * 86400.0  # seconds after which Flower deletes a message
INTERVAL = 0.1  # seconds between two polls of Flower's grid
GONE = {3, 4, 5}  # Flower's error codes: message, reply or node unavailable
GRACE = 30.0  # seconds that a disconnected client has to come back before it is reported as lost
LOOK = 0.25  # seconds between two checks of the connected nodes
MOST_ABANDONED = 10_000  # maximal number of past requests whose late answers are collected
Identify = Callable[[Iterable[int]], Mapping[int, int]]  # connected nodes -> node by client


def wrap(content: bytes) -> RecordDict:
    """Wrap bytes in a Flower record."""
    return RecordDict({RECORD: ConfigRecord({VALUE: content})})


def unwrap(message: Message) -> bytes:
    """Return the bytes in a message; b"" if it contains anything else."""
    record = message.content.get(RECORD) if message.has_content() else None
    content = record.get(VALUE) if isinstance(record, ConfigRecord) else None
    return content if isinstance(content, bytes) else b""


def wrap_unable(reason: str, *, simulated: bool) -> RecordDict:
    """Wrap the reason for which a client cannot work."""
    return RecordDict({RECORD: ConfigRecord({UNABLE: reason, SIMULATED: simulated})})


def unwrap_unable(message: Message) -> tuple[str, bool]:
    """Return why a client cannot work, empty if it can, and whether it is a simulated one."""
    record = message.content.get(RECORD) if message.has_content() else None
    fields = dict(record) if isinstance(record, ConfigRecord) else {}
    reason = fields.get(UNABLE)
    return (shortened(reason, 300) if isinstance(reason, str) else ""), fields.get(SIMULATED) is True


@dataclass
class Pending:
    """Pending request of a client."""

    content: bytes
    node: int = 0
    id: str = ""  # Flower's message id; empty while the client is disconnected
    away: float = 0.0  # time of the disconnection


class GridTransport:
    """Transport over the grid that Flower passes to a ServerApp; requests are repeated after reconnections."""

    def __init__(
        self,
        grid: Grid,
        identify: Identify,
        *,
        grace: float = GRACE,
        clock: Callable[[], float] = time.monotonic,
        on_unable: Callable[[int, str], None] = lambda client, reason: None,  # called if a simulated client cannot work
    ) -> None:
        self._grid, self._identify, self._grace, self._clock = grid, identify, grace, clock
        self._on_unable = on_unable
        self._pending: dict[int, Pending] = {}
        self._abandoned: dict[str, int] = {}  # client by message id of abandoned requests, whose answers are late
        self._checked = -LOOK

    def push(self, requests: Mapping[int, bytes]) -> Mapping[int, str]:
        """Send requests; return the reasons for clients that cannot be reached."""
        here = self._identify(self._grid.get_node_ids())
        self._abandon(requests)
        self._pending |= {client: Pending(content) for client, content in requests.items() if client in here}
        self._send([client for client in requests if client in here], here)
        reasons = {client: "it is not connected" for client in requests if client not in here}
        for client in [client for client in requests if client in here and not self._pending[client].id]:
            del self._pending[client]
            reasons[client] = "Flower did not take the request"
        return reasons

    def pull(self, seconds: float) -> Sequence[Arrived]:
        """Return what has arrived, waiting at most so many seconds if nothing has."""
        end = self._clock() + seconds
        while True:
            arrived = self._collect()
            left = end - self._clock()
            if arrived or left <= 0:
                return arrived
            time.sleep(min(left, INTERVAL))

    def close(self) -> None:
        """Abandon all requests; Flower's grid cannot delete messages."""
        self._abandon(list(self._pending))

    def _abandon(self, clients: Iterable[int]) -> None:
        requests = {client: self._pending.pop(client) for client in clients if client in self._pending}
        ids = {request.id: client for client, request in requests.items() if request.id}
        self._abandoned = dict([*self._abandoned.items(), *ids.items()][-MOST_ABANDONED:])

    def _send(self, clients: Sequence[int], here: Mapping[int, int]) -> None:
        messages = [Message(wrap(self._pending[client].content), here[client], TYPE, ttl=TTL) for client in clients]
        ids = list(self._grid.push_messages(messages)) if messages else []
        for client, id in zip(clients, [*ids, *[""] * len(clients)], strict=False):
            self._pending[client].node, self._pending[client].id = here[client], id or ""

    def _collect(self) -> list[Arrived]:
        """Collect answers, pulled one by one because their metadata are not trusted; check on disconnected clients."""
        waiting = {request.id: client for client, request in self._pending.items() if request.id}
        arrived = []
        for id in [*waiting, *self._abandoned]:
            for message in self._grid.pull_messages([id]):
                if id in waiting:
                    arrived += self._take(waiting[id], message)
                elif (client := self._abandoned.pop(id, None)) is not None and unwrap(message):
                    arrived.append(Arrived(client, unwrap(message)))
        if self._clock() - self._checked >= LOOK:
            self._checked = self._clock()
            arrived += self._repeat()
        return arrived

    def _take(self, client: int, message: Message) -> list[Arrived]:
        request = self._pending[client]
        if message.has_error() and message.error.code in GONE:
            request.id, request.away = "", self._clock()
            return []
        del self._pending[client]
        if message.has_error():
            reason = shortened(str(message.error.reason), 300)
            return [Arrived(client, failure=f"its app failed ({reason})")]
        reason, simulated = unwrap_unable(message)
        if reason and simulated:
            self._on_unable(client, reason)
        return [Arrived(client, failure=reason) if reason else Arrived(client, unwrap(message))]

    def _repeat(self) -> list[Arrived]:
        """Repeat requests of clients that reconnected; give up on clients that stay disconnected."""
        if not self._pending:
            return []
        here, now = self._identify(self._grid.get_node_ids()), self._clock()
        pending = self._pending.items()
        returned = [id for id, request in pending if id in here and not (request.id and here[id] == request.node)]
        self._send(returned, here)
        absent = {id: request for id, request in self._pending.items() if not request.id and id not in here}
        gone = [client for client, request in absent.items() if now - request.away > self._grace]
        for client in gone:
            del self._pending[client]
        return [Arrived(client, failure="it went away and did not come back") for client in gone]
