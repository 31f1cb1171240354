"""What carries messages for the transport, and one of two that do: the grid that Flower gives an app."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from protonorm.core.types import shortened
from protonorm.deployment.flower.envelope import TYPE, unwrap, wrap

TTL = 30 * 86400.0  # seconds after which Flower forgets a message
INTERVAL = 0.1  # seconds between two looks through Flower's grid
GONE = {ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE}


class Delivered(NamedTuple):
    """What came back for a message."""

    content: bytes = b""
    failure: str = ""
    away: bool = False  # whether the node went away; then it has to be asked again


class Carrier(Protocol):
    """Carry bytes to nodes and back. What comes back for a message is from the node that it was sent to."""

    def nodes(self) -> Iterable[NodeInfo]:
        """List the nodes that are connected."""

    def push(self, contents: Mapping[int, bytes]) -> Mapping[int, str]:
        """Send bytes to nodes; give the messages' ids by node."""

    def withdraw(self, ids: Iterable[str]) -> None:
        """Take back messages that have not been fetched, or not all of them."""

    def pull(self, ids: Sequence[str]) -> Mapping[str, Delivered]:
        """Give what has come back for messages."""

    def lost(self, id: str) -> bool:
        """Tell whether a message was fetched and did not arrive: its node asks for work again, without answering."""

    def wait(self, seconds: float) -> None:
        """Wait until something may have come."""


class GridCarrier:
    """Carry messages by the grid that Flower gives a ServerApp."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Iterable[NodeInfo]:
        """List the nodes that are connected."""
        return self._grid.get_nodes()

    def push(self, contents: Mapping[int, bytes]) -> Mapping[int, str]:
        """Send bytes to nodes; give the messages' ids by node."""
        messages = [Message(wrap(content), node, TYPE, ttl=TTL) for node, content in contents.items()]
        ids = list(self._grid.push_messages(messages)) if messages else []
        return {node: id for node, id in zip(contents, ids, strict=False) if id}

    def withdraw(self, ids: Iterable[str]) -> None:
        """Leave them: Flower's grid takes nothing back."""

    def pull(self, ids: Sequence[str]) -> Mapping[str, Delivered]:
        """Give what has come back for messages, asked for one by one: an answer's own metadata are not trusted."""
        found = {}
        for id in ids:
            for message in self._grid.pull_messages([id]):
                failed = message.has_error()
                found[id] = failure(message, message.error.code in GONE) if failed else Delivered(unwrap(message))
        return found

    def lost(self, id: str) -> bool:
        """Know nothing of it."""
        return False

    def wait(self, seconds: float) -> None:
        """Wait a little."""
        time.sleep(min(seconds, INTERVAL))


def failure(message: Message, away: bool) -> Delivered:
    """Say what an error in the place of an answer means."""
    reason = shortened(str(message.error.reason), 300)
    return Delivered(away=True) if away else Delivered(failure=f"its app failed ({reason})")
