"""Messages by Flower's server in this process: what it was given to carry, and what came back whole."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from flwr.app import Message
from flwr.app.message import make_message, remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from protonorm.deployment.flower.carriers import TTL, Delivered, failure
from protonorm.deployment.flower.envelope import MOST_OBJECTS, TYPE, unwrap, wrap
from protonorm.deployment.flower.superlink import SuperLink


class Coming(NamedTuple):
    """An answer of which parts are still to come."""

    id: str
    node: int
    since: float  # when its beginning was seen


class LinkCarrier:
    """Carry messages by Flower's server in this process."""

    def __init__(self, link: SuperLink) -> None:
        self._link, self._state = link, link.state
        self._keys: dict[int, bytes] = {}
        self._coming: dict[str, Coming] = {}  # answers of which parts are still to come, by the message they are for

    def nodes(self) -> Iterable[NodeInfo]:
        """List the nodes that are connected."""
        found = list(self._state.get_node_info(node_ids=list(self._state.get_nodes(self._link.run))))
        self._keys |= {one.node_id: one.public_key for one in found}
        return found

    def push(self, contents: Mapping[int, bytes]) -> Mapping[int, str]:
        """Send bytes to nodes; give the messages' ids by node."""
        run = self._link.run
        sent = {node: id for node, content in contents.items() if (id := self._store(_message(run, node, content)))}
        self._link.notify([self._keys[node] for node in sent if node in self._keys])
        return sent

    def _store(self, message: Message) -> str:
        """Give Flower a message and the parts that it takes it apart into."""
        run, id = message.metadata.run_id, message.metadata.message_id
        session = self._state.start_session(run)
        bare = remove_content_from_message(message)
        stored, missing = self._state.store_message_and_object_tree(bare, get_object_tree(message), session)
        parts = get_all_nested_objects(message)
        done = stored and all(self._state.store_object(run, session, one, parts[one].deflate()) for one in missing)
        return id if done else ""

    def withdraw(self, ids: Iterable[str]) -> None:
        """Take back messages that have not been fetched, or not all of them."""
        for id in ids:
            if id in self._state.object_store:  # its parts are dropped once its node has them all
                self._forget(id)

    def pull(self, ids: Sequence[str]) -> Mapping[str, Delivered]:
        """Give what has come back for messages."""
        found: dict[str, Delivered] = {}
        for message in self._state.get_message_res({id for id in ids if id not in self._coming}, self._link.run):
            about = message.metadata  # as Flower's server has checked it, not as the answer's content says
            if message.has_error():
                found[about.reply_to_message_id] = failure(message, about.src_node_id == SUPERLINK_NODE_ID)
                self._forget(about.reply_to_message_id, about.message_id)
            else:
                self._coming[about.reply_to_message_id] = Coming(about.message_id, about.src_node_id, time.time())
        for asked in [id for id in ids if id in self._coming]:
            whole = self._whole(self._coming[asked].id)
            if whole is not None:
                found[asked] = whole
                self._forget(asked, self._coming.pop(asked).id)
        return found

    def _forget(self, asked: str, answer: str = "") -> None:
        """Drop a message and its answer; not before all of it is there, so that it can be sent again from the start."""
        self._state.delete_messages({asked})
        for id in (asked, answer):
            self._state.object_store.delete(id)

    def _whole(self, id: str) -> Delivered | None:
        """Put an answer together; None if parts of it are still on their way."""
        try:
            names = [one.object_id for one in iterate_object_tree(self._state.object_store.get_object_tree(id))]
        except Exception:  # Flower has dropped it: not all of it came in time
            return Delivered(away=True)
        if len(names) > MOST_OBJECTS:
            return Delivered()
        found = {name: self._state.get_object(self._link.run, name) for name in names}
        parts = {name: part for name, part in found.items() if part is not None}
        if len(parts) < len(found):
            return Delivered(away=True)  # it was dropped just now
        if not all(parts.values()):
            return None
        try:
            message = inflate_object_from_contents(id, parts)
            return Delivered(unwrap(message) if isinstance(message, Message) else b"")
        except Exception:  # whatever a client may send; the guard says that it is no message
            return Delivered()

    def lost(self, id: str) -> bool:
        """Tell whether a message was fetched and did not arrive: its node asks for work again, without answering.

        One that is lost is dropped.
        """
        if id in self._coming:
            return self._broken_off(id)
        with self._state.lock:
            message = self._state.message_ins_store.get(id)
            if message is None or not message.metadata.delivered_at:
                return False
            if id in self._state.message_ins_id_to_message_res_id:
                return False
            fetched = dt.datetime.fromisoformat(message.metadata.delivered_at).timestamp()
            if self._asked(message.metadata.dst_node_id) <= fetched:
                return False
            self._forget(id)
            return True

    def _broken_off(self, id: str) -> bool:
        """Tell whether the rest of an answer will never come, for its node asks for work again; drop what has come."""
        coming = self._coming[id]
        if self._asked(coming.node) <= coming.since or self._whole(coming.id) is not None:
            return False
        del self._coming[id]
        self._forget(id, coming.id)
        return True

    def _asked(self, node: int) -> float:
        """Say when a node has asked for work last."""
        return self._link.gate.asked.get(self._keys.get(node, b""), 0.0)

    def wait(self, seconds: float) -> None:
        """Wait until something may have come."""
        self._link.arrived.wait(seconds)
        self._link.arrived.clear()


def _message(run: int, node: int, content: bytes) -> Message:
    """Make a message of Flower's that comes from the server."""
    about = Metadata(run, "", SUPERLINK_NODE_ID, node, "", "", time.time(), TTL, TYPE)
    made = make_message(content=wrap(content), metadata=about)
    about.__dict__["_message_id"] = made.object_id
    return made
