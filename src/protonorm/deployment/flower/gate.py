"""Gate in front of Flower's Fleet API: checks key, signature, path and size of a request before it is read.

It passes the calls of Flower's node protocol and nothing else. A request for work is held until there is some.
"""

from __future__ import annotations

import asyncio
import binascii
import datetime as dt
import json
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PushMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.error import http_error_translator
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.superlink.dependencies.linkstate import get_linkstate
from flwr.superlink.routers.fleet.router import router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint

from protonorm.deployment.flower.transport import MOST_OBJECTS

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
PREFIX = "/v1/fleet/"
SMALL = 4096  # maximal bytes of a request without a message
BEGIN, ASK, BRING = "activate-node", "pull-messages", "push-object"
TAKEN = 412  # Flower's HTTP status if a client with this key is already connected
CALLS = {BEGIN, "deactivate-node", "send-node-heartbeat", "push-messages", "pull-object", ASK, BRING}
KEY = "protonorm.key"  # scope entry with the verified key
APART = 300.0  # maximal difference of a client's clock in seconds
LONGEST_KEY = 1024  # maximal bytes of an encoded key or signature


class Denied(Exception):
    """Denied request, with its HTTP status and a message for the client."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


async def read(receive: Receive, limit: int) -> bytes | None:
    """Read a whole request body; None if the sender disconnects meanwhile."""
    found = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        found += message.get("body", b"")
        if len(found) > limit:
            raise Denied(413, f"A request is too large; {limit} bytes at most are taken.")
        if not message.get("more_body", False):
            return bytes(found)


async def is_gone(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


def again(body: bytes, receive: Receive) -> Receive:
    """Return a receive callable that replays a body that was already read."""
    first = True

    async def replay() -> MutableMapping[str, Any]:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


async def refuse(send: Send, why: Denied) -> None:
    """Send an error response and close the connection."""
    content = json.dumps({"detail": why.sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    headers.append((b"connection", b"close"))  # the rest of the request is not read
    await send({"type": "http.response.start", "status": why.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


CALLS |= {"confirm-message-received"}


class Gate:
    """ASGI application that authenticates requests before Flower's application handles them."""

    def __init__(
        self,
        app: App,
        largest: int,
        *,
        hold: float = 10.0,
        tell: Callable[[str], None] | None = None,
        arrived: Callable[[], None] | None = None,
        active: Callable[[bytes], bool] = lambda key: True,
    ) -> None:
        self._app, self._largest, self._hold = app, largest, hold
        self._tell, self._arrived = tell or (lambda said: None), arrived or (lambda: None)
        self._active = active  # whether a client is registered; others are not held, so that they get Flower's error
        self.keys: frozenset[bytes] = frozenset()  # keys of admitted clients, in Flower's encoding
        self.asked: dict[bytes, float] = {}  # time of the last request for work, by key
        self.denied: Counter[str] = Counter()
        self._waiting: dict[bytes, int] = {}  # number of undelivered messages, by key
        self._changed: asyncio.Event | None = None
        self._open = True

    def deliver(self, key: bytes) -> None:
        """Record a message for a client; call it in the serving thread."""
        self._waiting[key] = self._waiting.get(key, 0) + 1
        self._wake()

    def release(self) -> None:
        """Release all held requests; call it in the serving thread."""
        self._open = False
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to Flower, or deny it."""
        if scope["type"] != "http":
            return
        try:
            call, key = self._look(scope)
            body = await read(receive, self._limit(call))
        except Denied as why:
            self.denied[why.sentence.partition(";")[0]] += 1
            self._tell(why.sentence)
            await refuse(send, why)
            return
        if body is None:
            return  # the client has disconnected
        if call == ASK:
            self.asked[key] = time.time()
            if not await self._wait_for_work(key, receive):
                return
        scope[KEY] = key  # passed in the scope, because a header may occur twice
        status = await self._pass(scope, again(body, receive), send)
        if call == BRING:
            self._arrived()
        if (call, status) == (BEGIN, TAKEN):
            self._tell("A client came with a key that is in use; it may be one that was killed and started again.")

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Pass a request to Flower; return the HTTP status."""
        found = 0

        async def watch(message: MutableMapping[str, Any]) -> None:
            nonlocal found
            found = message.get("status", found)
            await send(message)

        await self._app(scope, receive, watch)
        return found

    def _look(self, scope: Scope) -> tuple[str, bytes]:
        """Return the call and the verified key of a request, or raise Denied."""
        path, headers = str(scope["path"]), dict(scope["headers"])
        call = path.removeprefix(PREFIX)
        if scope["method"] != "POST" or not path.startswith(PREFIX) or call not in CALLS:
            raise Denied(404, "There is nothing here but a federation's own messages.")
        key = self._authenticate(headers)
        told = headers.get(b"content-length", b"")
        if not told.isdigit() or len(told) > 12:
            raise Denied(411, "A request must say how long it is.")
        if int(told) > self._limit(call):
            raise Denied(413, f"A request of {int(told)} bytes is too large; {self._limit(call)} at most are taken.")
        return call, key

    def _limit(self, call: str) -> int:
        return self._largest if call == BRING else SMALL

    def _authenticate(self, headers: dict[bytes, bytes]) -> bytes:
        """Check that the key is on the roster and that the request is signed with it."""
        key = _decoded(headers, FLEET_HTTP_PUBLIC_KEY_HEADER)
        signature = _decoded(headers, FLEET_HTTP_SIGNATURE_HEADER)
        if key not in self.keys:
            raise Denied(401, "The server does not know this client's key; its owner must add it first.")
        signed = headers.get(TIMESTAMP_HEADER.encode(), b"")[:64]
        try:
            age = (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(signed.decode())).total_seconds()
        except (ValueError, TypeError):
            raise Denied(401, "The request does not say when it was signed.") from None
        if not abs(age) < APART:
            way = "behind" if age > 0 else "ahead of"
            raise Denied(401, f"The client's clock is {abs(age):.0f} seconds {way} the server's; set both right.")
        if not verify_signature(bytes_to_public_key(key), signed, signature):
            raise Denied(401, "The request is not signed with the client's key.")
        return key

    def _take(self, key: bytes) -> bool:
        """Consume one undelivered message of a client; return whether there was any."""
        left = self._waiting.get(key, 0)
        self._waiting[key] = max(0, left - 1)
        return left > 0

    async def _wait_for_work(self, key: bytes, receive: Receive) -> bool:
        """Hold a request until there is work for this client or the time is up; return whether it is connected."""
        end = asyncio.get_running_loop().time() + self._hold
        gone = asyncio.ensure_future(is_gone(receive))
        try:
            while self._open and self._active(key) and not self._take(key):
                left = end - asyncio.get_running_loop().time()
                if left <= 0:
                    break
                if self._changed is None:
                    self._changed = asyncio.Event()
                change = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait({change, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                if gone.done():
                    return False
            return True
        finally:
            gone.cancel()


def _decoded(headers: dict[bytes, bytes], name: str) -> bytes:
    try:
        return b64decode(headers.get(name.encode(), b"")[:LONGEST_KEY], validate=True)
    except binascii.Error:
        return b""


def application(factory: LinkStateFactory) -> FastAPI:
    """Create an application with Flower's node protocol only."""
    chain = [
        Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
        Middleware(ProtobufTranslationMiddleware),
        Middleware(BaseHTTPMiddleware, dispatch=_own_number_only),
        Middleware(BaseHTTPMiddleware, dispatch=_own_answers_only),
    ]
    made = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, middleware=chain)
    made.state.linkstate_factory = factory
    made.state.enable_supernode_auth = True
    made.include_router(router)
    return made


async def _own_number_only(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Deny a node id that does not belong to the request's key, which the gate has verified.

    Flower's own check compares the clock again after the whole request has arrived, which may be minutes later.
    """
    found: Any = getattr(request.state, "protobuf_request", None)
    key = request.scope[KEY]
    if isinstance(found, ActivateNodeRequest):
        fits = found.public_key == key
    else:
        numbered: Any = found if isinstance(found, DeactivateNodeRequest) else getattr(found, "node", Node())
        fits = get_linkstate(request).get_node_id_by_public_key(key) == numbered.node_id
    if not fits:
        raise HTTPException(401, "Invalid SuperNode authentication")
    return await call_next(request)


async def _own_answers_only(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Deny an answer in another client's name, which Flower would accept, and one with more parts than ours."""
    found = getattr(request.state, "protobuf_request", None)
    if isinstance(found, PushMessagesRequest):
        senders = {one.metadata.src_node_id for one in found.messages_list}
        parts = sum(1 for tree in found.message_object_trees for _ in iterate_object_tree(tree))
        if senders != {found.node.node_id} or len(found.messages_list) != 1 or parts > MOST_OBJECTS:
            raise HTTPException(401, "An answer comes from the client that was asked, and in one piece.")
    return await call_next(request)
