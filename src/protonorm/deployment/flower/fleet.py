"""A client's connection to the server by the protocol of Flower's nodes; every request is signed with its key.

It never requests the app that a Flower server may send, so no foreign code is run. Errors of Flower, HTTP and TLS are
converted to the exceptions below.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
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
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError, inflate_object_from_contents
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from protonorm.core.types import shortened
from protonorm.deployment.flower.gate import TAKEN
from protonorm.deployment.flower.transport import MOST_OBJECTS, SPARE, reply, unwrap
from protonorm.errors import Failed

EXPIRED, NOT_YET, OTHER_NAME, OTHER_ADDRESS = 10, 9, 62, 64  # OpenSSL's X509_V_ERR codes
NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "UNSUPPORTED_PROTOCOL"}
INTERVAL = 10.0  # seconds between heartbeats; without two of them Flower considers a client disconnected
TIMEOUT = 20.0  # seconds to wait for the server, which holds a request for ten


class Refused(Failed):
    """Permanent error: retrying does not help."""


class Taken(Refused):
    """A client with the same key is connected, or was until a moment ago."""


class Restarted(Failed):
    """The server has restarted: the client must register again."""


class Withdrawn(Failed):
    """The server no longer has this request, or no longer waits for this answer."""


class Unreachable(Failed):
    """Temporary error: the server cannot be reached."""


class TooLarge(Exception):
    """A response exceeds the size that the agreement allows."""


@contextmanager
def explain(address: str, plaintext: bool) -> Iterator[None]:
    """Convert errors of Flower, HTTP and TLS to the exceptions of this module."""
    try:
        yield
    except TooLarge as error:
        raise Refused(str(error)) from None
    except httpx.HTTPStatusError as error:
        raise of_status(error.response) from None
    except (httpx.TransportError, ssl.SSLError) as error:
        raise of_transport(error, address, plaintext) from None
    except (ObjectPullError, ObjectPushError):
        raise Withdrawn("The server no longer has this request.") from None
    except (ValueError, httpx.HTTPError) as error:
        raise Refused(f"What answers at {address} is no server of a federation ({shortened(str(error))}).") from None


def of_status(response: httpx.Response) -> Failed:
    """Convert an HTTP error status to an exception."""
    said = _detail(response)
    if response.status_code == TAKEN:
        return Taken("A client with the same key is connected already; a key belongs to one client alone.")
    if response.status_code == 401 and "Invalid SuperNode authentication" in said:
        return Restarted("The server was started again and does not know that this client is there.")
    if response.status_code in (401, 411, 413):
        return Refused(said or "The server refuses this client.")
    if response.status_code == 403:
        return Withdrawn("The server no longer waits for this answer.")
    if response.status_code == 404:
        return Refused("What answers at this address is no server of a federation.")
    return Unreachable(f"The server has trouble of its own: HTTP status {response.status_code}.")


def of_transport(error: Exception, address: str, plaintext: bool) -> Failed:
    """Convert a connection error to an exception."""
    for one in _causes(error):
        if isinstance(one, ssl.SSLCertVerificationError):
            return Refused(_certificate(one, address))
        if isinstance(one, ssl.SSLError) and one.reason in NO_TLS:
            return Refused(f"What answers at {address} does not speak TLS, and this client speaks nothing else.")
    if plaintext and isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return Refused(f"The server at {address} does not answer in plaintext; it expects TLS.")
    reason = "it takes too long" if isinstance(error, httpx.TimeoutException) else shortened(str(error) or "no answer")
    return Unreachable(f"The server at {address} cannot be reached: {reason.rstrip('.')}.")


def _certificate(error: ssl.SSLCertVerificationError, address: str) -> str:
    if error.verify_code == EXPIRED:
        return f"The certificate of the server at {address} has expired, or this machine's clock is wrong."
    if error.verify_code == NOT_YET:
        return f"The certificate of the server at {address} is not valid yet, or this machine's clock is wrong."
    if error.verify_code in (OTHER_NAME, OTHER_ADDRESS):
        return f"The certificate of the server is not for {address.rpartition(':')[0]}."
    return f"The certificate of the server at {address} is not from the federation's authority."


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _detail(response: httpx.Response) -> str:
    try:
        found = json.loads(response.text[:4096])
    except ValueError:
        return ""
    detail = found.get("detail") if isinstance(found, dict) else None
    return shortened(detail, 300) if isinstance(detail, str) else ""


class Letter(NamedTuple):
    """Request received through Flower."""

    message: Message
    content: bytes


class Fleet:
    """Connection to the server; errors are Refused, Restarted, Withdrawn or Unreachable."""

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
        self._sent: tuple[Letter, bytes, Message] | None = None  # the last request, answer and message
        self.activated = 0  # number of registrations
        self._lock = threading.Lock()

    def activate(self, after: int | None = None) -> None:
        """Register with the server; raise Refused if the key is unknown, Taken if it is in use.

        `after` is the number of registrations when the caller saw the need: another thread may have registered since.
        """
        with self._lock, self._explained():
            if after is not None and after != self.activated:
                return
            request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=INTERVAL)
            self._node = Node(node_id=self._client.ActivateNode(request).node_id)
            self.activated += 1

    def beat(self) -> None:
        """Send a heartbeat."""
        with self._explained():
            request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=INTERVAL)
            if not self._client.SendNodeHeartbeat(request).success:
                raise Restarted("The server does not know that this client is there.")

    def ask(self) -> Letter | None:
        """Request work; return None if there is none after the server has held the request for a while."""
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
        """Return the context that converts errors; a server that has already accepted plaintext does not expect TLS."""
        return explain(self._address, self._plaintext and not self.activated)

    def _part(self, node: Node, run: int, name: str) -> bytes:
        found = self._client.PullObject(PullObjectRequest(node=node, run_id=run, object_id=name))
        if not found.object_found or not found.object_available:
            raise Withdrawn("The server took its request back.")
        content: bytes = found.object_content
        return content

    def answer(self, letter: Letter, content: bytes, seconds: float) -> None:
        """Send the answer to a request; may be repeated."""
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
        """Create the answer's message; a repeated answer is the same message, so that Flower can resume the upload."""
        if self._sent is None or self._sent[0] is not letter or self._sent[1] is not content:
            message = reply(content, letter.message)
            message.metadata.__dict__["_message_id"] = message.object_id
            self._sent = letter, content, message
        return self._sent[2]

    def close(self, *, leave: bool = True) -> None:
        """Deregister if the server can be reached, and close the connection."""
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
        """Check a response's length before it is read."""
        told = response.headers.get("content-length", "")
        if not told.isdigit() or int(told) > self._largest:
            raise TooLarge(f"The server sends {told or 'unknown'} bytes; {self._largest} at most are expected.")
