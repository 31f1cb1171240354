"""The server's gate: who knocks, with which key, for what, and how much it brings, before anything is read or parsed.

It lets pass what Flower's node protocol needs, and nothing else. A question for work is held until there is some.
"""

from __future__ import annotations

import asyncio
import binascii
import datetime as dt
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, MutableMapping
from typing import Any

from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

from protonorm.deployment.flower.requests import App, Denied, Receive, Scope, Send, again, is_gone, read, refuse

PREFIX = "/v1/fleet/"
SMALL = 4096  # bytes of a request that carries no message
BEGIN, ASK, BRING = "activate-node", "pull-messages", "push-object"
TAKEN = 412  # what Flower answers if a client with this key is there already
CALLS = {BEGIN, "deactivate-node", "send-node-heartbeat", "push-messages", "pull-object", ASK, BRING}
CALLS |= {"confirm-message-received"}
KEY = "protonorm.key"  # under which the application finds the key that was checked
APART = 300.0  # seconds that a client's clock may differ
LONGEST_KEY = 1024  # bytes of a key or signature as it is sent


class Gate:
    """Stand before Flower's application."""

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
        self._active = active  # whether Flower knows that a client is there; one that it does not know is told so
        self.keys: frozenset[bytes] = frozenset()  # of those who may come in, as Flower writes them
        self.asked: dict[bytes, float] = {}  # when each has asked for work last
        self.denied: Counter[str] = Counter()
        self._waiting: dict[bytes, int] = {}  # messages that lie here for a client
        self._changed: asyncio.Event | None = None
        self._open = True

    def deliver(self, key: bytes) -> None:
        """Take note that there is work for a client; call it in the thread that serves."""
        self._waiting[key] = self._waiting.get(key, 0) + 1
        self._wake()

    def release(self) -> None:
        """Hold nobody any more; call it in the thread that serves."""
        self._open = False
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or refuse it in a sentence."""
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
            return  # it is gone
        if call == ASK:
            self.asked[key] = time.time()
            if not await self._wait_for_work(key, receive):
                return
        scope[KEY] = key  # a header may occur twice
        status = await self._pass(scope, again(body, receive), send)
        if call == BRING:
            self._arrived()
        if (call, status) == (BEGIN, TAKEN):
            self._tell("A client came with a key that is in use; it may be one that was killed and started again.")

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Let Flower answer a request; give the HTTP status."""
        found = 0

        async def watch(message: MutableMapping[str, Any]) -> None:
            nonlocal found
            found = message.get("status", found)
            await send(message)

        await self._app(scope, receive, watch)
        return found

    def _look(self, scope: Scope) -> tuple[str, bytes]:
        """Find out what is asked for and by whom."""
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
        """Check the key by the roster, and that who uses it has its private half."""
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
        """Take one of the messages that lie here for a client, if there is any."""
        left = self._waiting.get(key, 0)
        self._waiting[key] = max(0, left - 1)
        return left > 0

    async def _wait_for_work(self, key: bytes, receive: Receive) -> bool:
        """Hold a question until there is work for this client, or for a while; tell whether it is still there."""
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
