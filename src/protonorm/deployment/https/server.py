"""Server of a federation in a background thread: holds requests for work, and takes answers.

All of its state belongs to one event loop, and is in memory: after a restart requests are repeated. Whatever a client
sends ends in a response or a cut connection of that client.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from aiohttp import web

from protonorm import __version__
from protonorm.core.types import shortened
from protonorm.deployment.engine import Arrived
from protonorm.deployment.folders import Member, TlsFiles
from protonorm.deployment.https.listener import Connection, Limits, Listener
from protonorm.deployment.https.protocol import (
    ANSWER,
    CHUNK,
    FORMAT_HEADER,
    HOLD,
    INSTANCE_HEADER,
    REQUEST_HEADER,
    VERSION_HEADER,
    WIRE,
    WORK,
    request_id,
    tls_context,
    transfer_seconds,
)
from protonorm.errors import Failed

SWEEP = 0.25  # seconds between two looks at connections and at the roster
GRACE = 30.0  # seconds that a disconnected client has to come back before it is reported as lost
AGAIN = 1.0  # seconds before the same request is sent again to a client that asks without answering
REMEMBERED = 8  # requests of a client whose late answers are taken, to be reported
STARTING, DRAINING, CLOSING = 30.0, 10.0, 1.0  # seconds
LINGER = 1.0  # seconds in which the rest of a refused request is discarded
OWN_HEADERS = {FORMAT_HEADER: str(WIRE), VERSION_HEADER: __version__, "Server": "protonorm"}
UNKNOWN = "The server does not know this client's key: its owner must add it first, or has revoked it."
EXPIRED = "The client's certificate has expired: `protonorm deploy renew` on the server makes a new bundle."
TAKEN = "A client with the same key is connected already; a key belongs to one client alone."

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Denied(Exception):
    """Denied request, with its HTTP status and a sentence for the client."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


@dataclass
class Client:
    """Client on the roster: its pending request, and whether it is there."""

    id: int
    name: str
    request: bytes = b""  # pending request
    sent: float = float("-inf")  # time when it was sent last
    away: float = 0.0  # time since when the client is disconnected; 0 if it is connected
    answered: dict[str, bool] = field(default_factory=dict)  # by request id: whether its answer was taken
    poll: asyncio.Future[None] | None = None  # held request for work
    upload: asyncio.BaseTransport | None = None  # connection of the answer that is arriving
    version: str = ""  # version that was warned about


class Server:
    """HTTPS server and transport of the round loop, used as a context manager."""

    def __init__(
        self,
        host: str,
        port: int,
        files: TlsFiles,
        roster: Callable[[], Sequence[Member]],
        largest: int,
        *,
        tell: Callable[[str], None] = lambda sentence: None,
        limits: Limits = Limits(),  # noqa: B008
        hold: float = HOLD,
        grace: float = GRACE,
    ) -> None:
        try:
            context = tls_context(ssl.PROTOCOL_TLS_SERVER, *files)
        except (ssl.SSLError, OSError) as error:
            raise Failed(f"The server's certificate and key cannot be used: {error.strerror or error}.") from None
        self._roster, self._largest, self._tell = roster, largest, tell
        self._limits, self._hold, self._grace = limits, hold, grace
        self._keys: dict[str, int] = {}  # client id by public key
        self._clients: dict[int, Client] = {}
        self._arrived: queue.SimpleQueue[Arrived] = queue.SimpleQueue()
        self._busy = 0  # requests that are handled
        self._listener = Listener(host, port, context, limits, tell)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started, self._ending = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="https", daemon=True)
        self._admit_roster()

    @property
    def port(self) -> int:
        """Port that the server listens at."""
        return self._listener.port

    def __enter__(self) -> Server:
        self._thread.start()
        if not self._started.wait(STARTING):
            raise Failed("The server could not be started.")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(2 * DRAINING)

    # Transport of the round loop, called from its thread

    def push(self, requests: Mapping[int, bytes]) -> Mapping[int, str]:
        """Send requests; return the reasons for clients that cannot be reached."""
        return self._in_loop(lambda: self._push(requests))

    def pull(self, seconds: float) -> Sequence[Arrived]:
        """Return what has arrived, waiting at most so many seconds if nothing has."""
        arrived = []
        with suppress(queue.Empty):
            arrived.append(self._arrived.get(timeout=max(0.0, seconds)))
            while True:
                arrived.append(self._arrived.get_nowait())
        return arrived

    def close(self) -> None:
        """Withdraw all pending requests."""
        with suppress(Failed):  # the server has ended
            self._in_loop(self._withdraw)

    def present(self) -> set[int]:
        """Return the ids of the connected clients."""
        return self._in_loop(self._present)

    def _in_loop(self, act: Callable[[], T]) -> T:
        """Call a function in the server's thread, and return its result."""

        async def call() -> T:
            return act()

        if self._loop is None or not self._thread.is_alive():
            raise Failed("The server is not running.")
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(STARTING)

    def _push(self, requests: Mapping[int, bytes]) -> dict[int, str]:
        here = self._present()
        for id in requests.keys() & here:
            client, key = self._clients[id], request_id(requests[id])
            client.request, client.away, client.sent = requests[id], 0.0, float("-inf")
            client.answered = dict([*client.answered.items(), (key, False)][-REMEMBERED:])
            _wake(client)
        return {id: "it is not connected" for id in requests if id not in here}

    def _withdraw(self) -> None:
        for client in self._clients.values():
            client.request = b""

    def _present(self) -> set[int]:
        """Return the clients with an open connection by which they have asked for work."""
        found = [one for transport, one in self._listener.connections.items() if not transport.is_closing()]
        return {self._keys[one.key] for one in found if one.key in self._keys and one.instance}

    # The server's thread

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        app = web.Application(middlewares=[self._guarded])
        app.router.add_get(WORK, self._work)
        app.router.add_post(ANSWER, self._answer, expect_handler=self._expect)
        logger = logging.Logger("protonorm.https")
        logger.addHandler(_Forward(self._tell))
        runner = web.AppRunner(
            app,
            handler_cancellation=True,  # a poll ends with its connection
            auto_decompress=False,  # a small body could become a large one
            lingering_time=LINGER,
            keepalive_timeout=self._limits.working,
            tcp_keepalive=False,  # the listener sets it
            access_log=None,
            logger=logger,
            shutdown_timeout=CLOSING,
        )
        await runner.setup()
        assert runner.server is not None
        tasks = [asyncio.create_task(self._listener.accept(runner.server)), asyncio.create_task(self._watch())]
        self._started.set()
        await self._ending.wait()
        for task in tasks:
            task.cancel()
        await self._listener.close()
        await self._drain()
        await runner.cleanup()
        for transport in self._listener.connections:
            assert isinstance(transport, asyncio.Transport)
            transport.abort()

    async def _drain(self) -> None:
        """Wake all polls, and wait for answers that are arriving: aiohttp's cleanup would cut them."""
        for client in self._clients.values():
            client.request = b""
            _wake(client)
        end = time.monotonic() + DRAINING
        while self._busy and time.monotonic() < end:
            await asyncio.sleep(0.01)

    async def _watch(self) -> None:
        """Look after the roster, connections and disconnected clients again and again."""
        while True:
            await asyncio.sleep(SWEEP)
            self._admit_roster()
            self._listener.sweep(self._keys)
            here, now = self._present(), time.monotonic()
            for client in self._clients.values():
                if not client.request or client.id in here:
                    client.away = 0.0
                    continue
                client.away = client.away or now
                if now - client.away > self._grace:
                    client.request = b""
                    self._arrived.put(Arrived(client.id, failure="it went away and did not come back"))

    def _admit_roster(self) -> None:
        """Read the roster again; a damaged one changes nothing."""
        try:
            members = self._roster()
        except (ValueError, OSError) as error:
            self._tell(str(error))
            return
        self._keys = {one.public_key: one.id for one in members if not one.revoked}
        for one in members:
            self._clients.setdefault(one.id, Client(one.id, one.name))

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handle a request; whatever goes wrong ends in a response with a sentence."""
        connection = self._listener.find(request.transport)
        connection.deadline = float("inf")
        self._busy += 1
        try:
            self._admit(request)
            response = await handler(request)
        except Denied as denied:
            response = self._denial(denied, connection)
        except web.HTTPException as error:
            response = self._denial(
                Denied(error.status, "There is nothing here but a federation's own calls."), connection
            )
        except (ConnectionError, asyncio.CancelledError):
            raise  # the client has disconnected
        except Exception as error:
            response = self._denial(
                Denied(500, f"The server met an error of its own ({type(error).__name__})."), connection
            )
        finally:
            self._busy -= 1
            working = self._clients[self._keys[connection.key]].request if connection.key in self._keys else b""
            pause = self._limits.working if working else self._limits.idle
            connection.deadline = asyncio.get_running_loop().time() + pause
        return response

    def _denial(self, denied: Denied, connection: Connection) -> web.Response:
        who = self._clients[self._keys[connection.key]].name if connection.key in self._keys else connection.address
        self._tell(f"{who}: {denied.sentence}")
        response = web.Response(status=denied.status, text=denied.sentence, headers=OWN_HEADERS)
        response.force_close()
        return response

    def _admit(self, request: web.Request) -> Client:
        """Return the client of a request's certificate, which is checked for every request, or raise Denied."""
        connection = self._listener.find(request.transport)
        if connection.key not in self._keys:
            raise Denied(403, UNKNOWN)
        if connection.expires < time.time():
            raise Denied(403, EXPIRED)
        return self._clients[self._keys[connection.key]]

    async def _expect(self, request: web.Request) -> web.StreamResponse | None:
        """Refuse an answer before any byte of it is sent, if its sender waits for that."""
        try:
            self._admit_answer(request)
        except Denied as denied:
            return self._denial(denied, self._listener.find(request.transport))
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
        return None

    # The two calls

    async def _work(self, request: web.Request) -> web.StreamResponse:
        """Send a client its pending request, or hold its call until there is one."""
        client = self._admit(request)
        if request.content_length or request.headers.get("Transfer-Encoding"):
            raise Denied(413, "A request for work has no content.")
        self._meet(client, request)
        _wake(client)  # a new call of the same process takes the place of an old one
        mine = client.poll = asyncio.get_running_loop().create_future()
        try:
            if client.request:
                await asyncio.sleep(max(0.0, client.sent + AGAIN - time.monotonic()))
            elif not self._ending.is_set():
                await asyncio.wait({mine}, timeout=min(self._hold, _wanted_wait(request)))
            content = client.request if client.poll is mine else b""
        finally:
            if client.poll is mine:
                client.poll = None
        if not content:
            return web.Response(status=204, headers=OWN_HEADERS)
        client.sent = time.monotonic()
        return await self._send(client, request, content)

    def _meet(self, client: Client, request: web.Request) -> None:
        """Check a client's wire format, version and process."""
        wire, version = (request.headers.get(name, "") for name in (FORMAT_HEADER, VERSION_HEADER))
        if wire != str(WIRE):
            said = (
                f"The client speaks version {shortened(wire, 20) or 'unknown'} of the wire, the server version {WIRE}"
            )
            raise Denied(426, f"{said}: install the same version of protonorm.")
        if version != __version__ and version != client.version:
            client.version = version
            has = f"{client.name} has protonorm {shortened(version, 40) or 'of an unknown version'}"
            self._tell(f"{has}, the server has {__version__}: all parties should have the same.")
        instance = request.headers.get(INSTANCE_HEADER, "")[:64] or "unknown"
        own = self._listener.find(request.transport)
        for transport, one in self._listener.connections.items():
            other = one.key == own.key and one.instance not in ("", instance)
            if other and not transport.is_closing():
                raise Denied(409, TAKEN)
        own.instance = instance

    async def _send(self, client: Client, request: web.Request, content: bytes) -> web.StreamResponse:
        """Send a request to its client within the time that its size allows."""
        response = web.StreamResponse(headers=OWN_HEADERS | {REQUEST_HEADER: request_id(content)})
        response.content_type, response.content_length = "application/octet-stream", len(content)
        view = memoryview(content)
        try:
            async with asyncio.timeout(transfer_seconds(len(content))):
                await response.prepare(request)
                for start in range(0, len(view), CHUNK):
                    await response.write(view[start : start + CHUNK])
                await response.write_eof()
        except TimeoutError:
            raise self._cut(client, request, "it does not read what it asked for") from None
        return response

    def _cut(self, client: Client, request: web.Request, reason: str) -> ConnectionError:
        assert request.transport is not None
        self._tell(f"{client.name} was cut off: {reason}.")
        request.transport.abort()
        return ConnectionResetError(reason)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Take a client's answer; one that was taken already is confirmed again and ignored."""
        client, length = self._admit_answer(request)
        key, own = request.headers.get(REQUEST_HEADER, "")[:64], request.transport
        if key not in client.answered:
            raise Denied(409, "The server does not wait for this answer.")
        if isinstance(client.upload, asyncio.Transport) and client.upload is not own:
            client.upload.abort()  # an upload that broke off and was begun again
        client.upload = own
        try:
            content = await self._read(client, request, length)
        finally:
            client.upload = None if client.upload is own else client.upload
        if not client.answered.get(key, True):
            client.answered[key] = True
            if client.request and key == request_id(client.request):
                client.request = b""
            self._arrived.put(Arrived(client.id, content))
        return web.Response(status=204, headers=OWN_HEADERS)

    def _admit_answer(self, request: web.Request) -> tuple[Client, int]:
        """Check an answer's sender, encoding and size before it is read; one that cannot be taken is lost at once."""
        client = self._admit(request)
        try:
            if request.headers.get("Content-Encoding"):
                raise Denied(415, "An answer must not have a Content-Encoding.")
            if request.content_length is None:
                raise Denied(411, "An answer must have a Content-Length.")
            if request.content_length > self._largest:
                limit = f"an answer has {self._largest} at most"
                raise Denied(413, f"The answer has {request.content_length} bytes; {limit} by the agreement.")
        except Denied as denied:
            if client.request:
                client.request = b""
                self._arrived.put(Arrived(client.id, failure=denied.sentence.rstrip(".")))
            raise
        return client, request.content_length

    async def _read(self, client: Client, request: web.Request, length: int) -> bytes:
        content = bytearray()
        try:
            async with asyncio.timeout(transfer_seconds(length)):
                async for chunk in request.content.iter_any():
                    content += chunk
        except TimeoutError:
            raise self._cut(client, request, "its answer arrives too slowly") from None
        if len(content) != length:
            raise ConnectionResetError("the answer is incomplete")
        return bytes(content)


class _Forward(logging.Handler):
    """Forwards what aiohttp logs, such as a request that is no HTTP, without its traceback."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """Forward a message."""
        error = record.exc_info[0] if record.exc_info else None
        self._tell(f"{record.getMessage()} ({error.__name__ if error else 'no details'}).")


def _wake(client: Client) -> None:
    if client.poll is not None and not client.poll.done():
        client.poll.set_result(None)


def _wanted_wait(request: web.Request) -> float:
    """Return the seconds that a client wants its request for work to be held, by `Prefer: wait=SECONDS`."""
    name, _, value = request.headers.get("Prefer", "").partition("=")
    return float(value) if name.strip() == "wait" and value.strip().isdecimal() and len(value) < 6 else HOLD
