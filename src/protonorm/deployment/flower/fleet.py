"""A client's connection to the server, by the protocol of Flower's nodes: every request is signed with its key.

It never asks for the app that a server of Flower's may send: no code of anybody else is run here.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from protonorm.deployment.flower.envelope import MOST_OBJECTS, SPARE, reply, unwrap
from protonorm.deployment.flower.explain import Refused, Restarted, TooLarge, Unreachable, Withdrawn, explain

INTERVAL = 10.0  # seconds between signs of life that are promised to Flower; without two of them a client is away

TIMEOUT = 20.0  # seconds without a sign from the server, which holds a question for ten


class Letter(NamedTuple):
    """A request as Flower brought it."""

    message: Message
    content: bytes


class Fleet:
    """Speak with the server. Errors are Refused, Restarted, Withdrawn or Unreachable, each with a sentence."""

    def __init__(self, address: str, authority: Path | None, key: Path, largest: int) -> None:
        self._address, self._plaintext, self._largest = address, authority is None, largest + SPARE
        private = load_ssh_private_key(key.read_bytes(), None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key} holds no key of a client.")
        self._public = public_key_to_bytes(private.public_key())
        signing = NodeAuthHttpInterceptor(private, private.public_key())
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        root = None if authority is None else authority.read_bytes()
        self._client = FleetHttpClient.from_server_address(address, self._plaintext, root, [version, signing])
        self._client._client.event_hooks = {"response": [self._refuse_large]}
        self._client._client.follow_redirects = False
        self._client._client.timeout = httpx.Timeout(TIMEOUT)
        self._node = Node()
        self._sent: tuple[Letter, bytes, Message] | None = None  # the last answer
        self.activated = 0  # how often the server was told that this client is there
        self._lock = threading.Lock()

    def activate(self, after: int | None = None) -> None:
        """Say that the client is there; refused if its key is unknown, or one with the same key is there already.

        `after` is how often that was done when the need was seen: another thread may have done it since.
        """
        with self._lock, self._explained():
            if after is not None and after != self.activated:
                return
            request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=INTERVAL)
            self._node = Node(node_id=self._client.ActivateNode(request).node_id)
            self.activated += 1

    def beat(self) -> None:
        """Give a sign of life."""
        with self._explained():
            request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=INTERVAL)
            if not self._client.SendNodeHeartbeat(request).success:
                raise Restarted("The server does not know that this client is there.")

    def ask(self) -> Letter | None:
        """Ask for work; the server may take a while to say that there is none."""
        with self._explained():
            node = self._node
            found = self._client.PullMessages(PullMessagesRequest(node=node))
            if not found.messages_list:
                return None
            about, tree = found.messages_list[0].metadata, found.message_object_trees[0]
            names = [one.object_id for one in iterate_object_tree(tree)]
            if len(names) > MOST_OBJECTS:
                raise Refused(f"The server sends a message of {len(names)} parts; {MOST_OBJECTS} at most are taken.")
            parts = {name: self._part(node, about.run_id, name) for name in names}
            done = ConfirmMessageReceivedRequest(node=node, run_id=about.run_id, message_object_id=tree.object_id)
            self._client.ConfirmMessageReceived(done)
        message = inflate_object_from_contents(tree.object_id, parts)
        if not isinstance(message, Message):
            raise Refused("The server sends something that is no message.")
        message.metadata.__dict__["_message_id"] = tree.object_id
        return Letter(message, unwrap(message))

    def _explained(self) -> AbstractContextManager[None]:
        """Say what goes wrong in a sentence; who has spoken in plaintext before is not refused for that."""
        return explain(self._address, self._plaintext and not self.activated)

    def _part(self, node: Node, run: int, name: str) -> bytes:
        found = self._client.PullObject(PullObjectRequest(node=node, run_id=run, object_id=name))
        if not found.object_found or not found.object_available:
            raise Withdrawn("The server took its request back.")
        content: bytes = found.object_content
        return content

    def answer(self, letter: Letter, content: bytes, seconds: float) -> None:
        """Answer a request; it may be tried again as often as one likes."""
        with self._explained():
            message, node = self._sealed(letter, content), self._node
            if message.metadata.src_node_id != node.node_id:
                raise Withdrawn("The server was started again since it asked.")
            sent = self._client.PushMessages(
                PushMessagesRequest(
                    node=node,
                    messages_list=[message_to_proto(remove_content_from_message(message))],
                    message_object_trees=[get_object_tree(message)],
                    clientapp_runtime_list=[seconds],
                )
            )
            parts = get_all_nested_objects(message)
            for name in sent.objects_to_push:
                part = PushObjectRequest(
                    node=node,
                    run_id=message.metadata.run_id,
                    object_id=name,
                    object_content=parts[name].deflate(),
                    session_id=sent.session_id,
                )
                if not self._client.PushObject(part).stored:
                    raise Withdrawn("The server no longer waits for this answer.")

    def _sealed(self, letter: Letter, content: bytes) -> Message:
        """Make the answer to a request; sent again it is the same message, so that Flower can go on with it."""
        if self._sent is None or self._sent[0] is not letter or self._sent[1] is not content:
            message = reply(content, letter.message)
            message.metadata.__dict__["_message_id"] = message.object_id
            self._sent = letter, content, message
        return self._sent[2]

    def close(self, *, leave: bool = True) -> None:
        """Say that the client leaves, if the server can be reached, and end the connection."""
        if leave and self._node.node_id:
            try:
                with self._explained():
                    self._client.DeactivateNode(
                        DeactivateNodeRequest(node_id=self._node.node_id),
                    )
            except (Refused, Restarted, Withdrawn, Unreachable):
                pass
        self._client.close()

    def _refuse_large(self, response: httpx.Response) -> None:
        """Look at an answer's length before it is read."""
        told = response.headers.get("content-length", "")
        if not told.isdigit() or int(told) > self._largest:
            raise TooLarge(f"The server sends {told or 'unknown'} bytes; {self._largest} at most are expected.")
