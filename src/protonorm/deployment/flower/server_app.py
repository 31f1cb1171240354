"""The server as a Flower ServerApp, for an exported app: Flower's own server runs it, and `flwr run` starts it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from logging import INFO, WARNING
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common import log
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.utils import get_flwr_home

from protonorm.deployment.agreement import Agreement
from protonorm.deployment.events import Event
from protonorm.deployment.flower.carriers import GridCarrier
from protonorm.deployment.flower.envelope import RECORD
from protonorm.deployment.flower.transport import FlowerTransport
from protonorm.deployment.loop import run_federation

PAUSE = 0.2  # seconds between two looks while nodes introduce themselves
QUIET = 10.0  # seconds without anybody new after which all are there, if nobody says how many there are
ASKED = "query"  # the type of the message by which a node is asked for its number


class Introductions:
    """Ask each node for its number, which its owner gave it; Flower knows nodes by keys that we do not have here."""

    def __init__(self, grid: Grid, digest: str) -> None:
        self._grid, self._digest = grid, digest
        self._numbers: dict[int, int | None] = {}  # of nodes; None if a node's answer is of no use
        self._waiting: dict[str, int] = {}  # node by message

    def __call__(self, nodes: Iterable[NodeInfo]) -> dict[int, int]:
        """Give the node of each client that is there and has said which one it is."""
        here = [one.node_id for one in nodes]
        self._numbers = {node: number for node, number in self._numbers.items() if node in here}
        new = [node for node in here if node not in self._numbers and node not in self._waiting.values()]
        messages = [Message(RecordDict(), node, ASKED) for node in new]
        ids = list(self._grid.push_messages(messages)) if messages else []
        self._waiting |= {id: node for id, node in zip(ids, new, strict=False) if id}
        for id in list(self._waiting):
            for message in self._grid.pull_messages([id]):
                self._take(self._waiting.pop(id), message)
        return {number: node for node, number in reversed(self._numbers.items()) if number is not None and node in here}

    def _take(self, node: int, message: Message) -> None:
        if message.has_error():
            log(WARNING, "A node does not say which client it is: %s", message.error.reason)
            return  # it is asked again
        record = message.content.get(RECORD)
        said = dict(record) if isinstance(record, ConfigRecord) else {}
        number = said.get("client")
        if said.get("agreement") != self._digest:
            log(WARNING, "A node has another agreement and cannot take part.")
            number = None
        elif number is not None and number in self._numbers.values():
            log(WARNING, "Two nodes say that they are client %s; the first one counts while it is there.", number)
        self._numbers[node] = number if isinstance(number, int) else None


def make_server_app(agreement: Path) -> ServerApp:
    """Make the app of a federation's server from the agreement that is exported with it."""
    app = ServerApp()
    terms = Agreement.read(agreement.read_bytes(), str(agreement))

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        given = context.run_config
        known = Introductions(grid, terms.digest)
        clients = int(given.get("clients", 0)) or _count(grid, known)
        place = str(given.get("folder", ""))
        folder = Path(place) if place else get_flwr_home() / "protonorm" / "runs" / str(context.run_id)
        folder.parent.mkdir(parents=True, exist_ok=True)
        run_federation(
            terms,
            FlowerTransport(GridCarrier(grid), known),
            folder,
            clients=[f"client-{number}" for number in range(clients)],
            quorum=float(given.get("quorum", 1.0)),
            deadline=float(given.get("deadline", 600.0)),
            tell=_tell,
        )
        log(INFO, "The record is in %s", folder)

    return app


def _count(grid: Grid, known: Introductions) -> int:
    """Wait until nobody new comes, and count the clients."""
    found: dict[int, int] = {}
    changed = time.monotonic()
    while not found or time.monotonic() - changed < QUIET:
        now = known(grid.get_nodes())
        if now.keys() != found.keys():
            found, changed = now, time.monotonic()
        if found and len(found) == len(list(grid.get_node_ids())) and time.monotonic() - changed > 1.0:
            break
        time.sleep(PAUSE)
    return max(found) + 1


def _tell(event: Event) -> None:
    if event.what not in ("asked", "answered"):
        log(INFO, "%s", event.sentence)
