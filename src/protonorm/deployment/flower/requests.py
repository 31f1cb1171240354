"""Requests as a web server hands them over: read within bounds, given once more, watched, refused in a sentence."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Denied(Exception):
    """A request that does not pass: its HTTP status, and a sentence for the client."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


async def read(receive: Receive, limit: int) -> bytes | None:
    """Read a request whole; None if its sender goes away meanwhile."""
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
    """Wait until whoever asked is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def again(body: bytes, receive: Receive) -> Receive:
    """Give a body that was read once more, and then what comes after it."""
    first = True

    async def replay() -> MutableMapping[str, Any]:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


async def refuse(send: Send, why: Denied) -> None:
    """Answer with a sentence, and close the line."""
    content = json.dumps({"detail": why.sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    headers.append((b"connection", b"close"))  # what else was to be sent is not read
    await send({"type": "http.response.start", "status": why.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
