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
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web

from protonorm import __version__
from protonorm.core.text import shortened
from protonorm.deployment.engine import Arrived
from protonorm.deployment.federation_folder import Member
from protonorm.deployment.https import protocol as wire
from protonorm.deployment.https.listener import Connection, Limits, Listener
from protonorm.deployment.settings import TlsFiles
from protonorm.errors import Failed

SWEEP = 0.25  # seconds between two looks at connections and at the roster
GRACE = 30.0  # seconds that a disconnected client has to come back before it is reported as lost
AGAIN = 1.0  # seconds before the same request is sent again to a client that asks without answering
REMEMBERED = 8  # requests of a client whose late answers are taken, to be reported
STARTING, DRAINING, CLOSING = 30.0, 10.0, 1.0  # seconds
FRAMES = 3  # innermost calls of an unexpected error that are logged
LINGER = 1.0  # seconds in which the rest of a refused request is discarded
OWN_HEADERS = {wire.FORMAT_HEADER: str(wire.WIRE), wire.VERSION_HEADER: __version__, "Server": "protonorm"}
UNKNOWN = "The server does not know this client's key: its owner must add it first, or has revoked or removed it."
EXPIRED = "The client's certificate has expired: `protonorm deploy renew` on the server makes a new bundle."
GONE = "it is no longer a member, or its key was revoked"
TAKEN = "A client with the same key is connected already; a key belongs to one client alone."
NOTHING = "There is nothing here but a federation's own calls."

T = TypeVar("T")
LogLine = Callable[[str], None]
OnConnect = Callable[[int, str, str, str], None]  # client, address, version, fingerprint of its certificate
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


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
    upload: asyncio.Transport | None = None  # connection of the answer that is arriving
    version: str = ""  # version that was warned about

    def wake(self) -> None:
        """End the wait of a held request for work."""
        if self.poll is not None and not self.poll.done():
            self.poll.set_result(None)


def ignoring_disk_errors(callback: Callable[..., None]) -> Callable[..., None]:
    """Return a function that reports, and does nothing if that cannot be written, as on a full disk."""

    def report(*words: Any) -> None:
        with suppress(OSError):
            callback(*words)

    return report


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
        log: LogLine = lambda sentence: None,
        on_connect: OnConnect = lambda client, address, version, certificate: None,
        limits: Limits = Limits(),  # noqa: B008
        hold: float = wire.HOLD,
        grace: float = GRACE,
        on_leave: Callable[[int], None] = lambda id: None,  # a client wants to leave the federation
    ) -> None:
        self._on_leave = on_leave
        try:
            context = wire.tls_context(ssl.PROTOCOL_TLS_SERVER, *files)
        except (ssl.SSLError, OSError) as error:
            raise Failed(f"The server's certificate and key cannot be used: {error.strerror or error}.") from None
        self._roster, self._largest, self._log, self._on_connect = (
            roster,
            largest,
            ignoring_disk_errors(log),
            ignoring_disk_errors(on_connect),
        )
        self._limits, self._hold, self._grace = limits, hold, grace
        self._keys: dict[str, int] = {}  # client id by public key
        self._clients: dict[int, Client] = {}
        self._arrived: queue.SimpleQueue[Arrived] = queue.SimpleQueue()
        self._busy = 0  # requests that are handled
        self._listener = Listener(host, port, context, limits, self._log)
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
            client, key = self._clients[id], wire.request_id(requests[id])
            client.request, client.away, client.sent = requests[id], 0.0, float("-inf")
            client.answered = dict([*client.answered.items(), (key, False)][-REMEMBERED:])
            client.wake()
        return {id: "it is not connected" for id in requests if id not in here}

    def _withdraw(self) -> None:
        for client in self._clients.values():
            client.request = b""

    def _present(self) -> set[int]:
        """Return the clients with an open connection by which they have asked for work."""
        connections = [
            connection for transport, connection in self._listener.connections.items() if not transport.is_closing()
        ]
        return {
            self._keys[connection.key]
            for connection in connections
            if connection.key in self._keys and connection.instance
        }

    # The server's thread

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        app = web.Application(middlewares=[self._guarded])
        app.router.add_get(wire.WORK, self._work)
        app.router.add_post(wire.ANSWER, self._answer, expect_handler=self._expect)
        logger = logging.Logger("protonorm.https")
        logger.addFilter(self._forward)
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
        self._withdraw()
        for client in self._clients.values():
            client.wake()
        end = time.monotonic() + DRAINING
        while self._busy and time.monotonic() < end:  # answers that are arriving, which aiohttp's cleanup would cut
            await asyncio.sleep(0.01)
        await runner.cleanup()
        await self._listener.close()

    def _forward(self, record: logging.LogRecord) -> bool:
        """Report what aiohttp logs, such as a request that is no HTTP, without its traceback."""
        error = record.exc_info[0] if record.exc_info else None
        self._log(f"{record.getMessage()} ({error.__name__ if error else 'no details'}).")
        return False

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
                    self._lose(client, "it went away and did not come back")

    def _lose(self, client: Client, reason: str) -> None:
        if client.request:
            client.request = b""
            self._arrived.put(Arrived(client.id, failure=reason))

    def _admit_roster(self) -> None:
        """Read the roster again; a damaged one changes nothing."""
        try:
            members = self._roster()
        except (ValueError, OSError) as error:
            self._log(str(error))
            return
        previous, self._keys = self._keys, {member.public_key: member.id for member in members if member.active}
        for key, id in previous.items():
            if key not in self._keys:
                self._clients[id].request = b""
                gone = id not in self._keys.values()
                self._arrived.put(Arrived(id, failure=GONE if gone else "it has a new key", gone=gone))
        for member in members:
            self._clients.setdefault(member.id, Client(member.id, member.name))

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handle a request; whatever goes wrong ends in a response with a sentence."""
        connection = self._listener.find(request.transport)
        connection.deadline = float("inf")
        self._busy += 1
        try:
            self._admit(request)
            return await handler(request)
        except web.HTTPException as error:
            return self._denial(connection, error)
        except (ConnectionError, asyncio.CancelledError):
            raise  # the client has disconnected
        except Exception as error:  # its traceback is for the server's log, and nothing of it for the client
            frames = "".join(traceback.format_exception(error, limit=-FRAMES)).strip()
            self._log(f"An unexpected error: {frames}")
            return self._denial(connection, web.HTTPInternalServerError(text="The server met an error of its own."))
        finally:
            self._busy -= 1
            works = connection.key in self._keys and self._clients[self._keys[connection.key]].request
            pause = self._limits.working if works else self._limits.idle
            connection.deadline = asyncio.get_running_loop().time() + pause

    def _denial(self, connection: Connection, error: web.HTTPException) -> web.Response:
        sentence = NOTHING if error.status in (404, 405) else error.text
        sender = self._clients[self._keys[connection.key]].name if connection.key in self._keys else connection.address
        self._log(f"{sender}: {sentence}")
        response = web.Response(status=error.status, text=sentence, headers=OWN_HEADERS)
        response.force_close()
        return response

    def _admit(self, request: web.Request) -> Client:
        """Return the client of a request's certificate, which is checked for every request."""
        connection = self._listener.find(request.transport)
        if connection.key not in self._keys:
            self._admit_roster()  # its owner may have added it a moment ago
        if connection.key not in self._keys or connection.expires < time.time():
            raise web.HTTPForbidden(text=EXPIRED if connection.key in self._keys else UNKNOWN)
        return self._clients[self._keys[connection.key]]

    async def _expect(self, request: web.Request) -> web.StreamResponse | None:
        """Refuse an answer before any byte of it is sent, if its sender waits for that."""
        try:
            self._admit_answer(request)
        except web.HTTPException as error:
            return self._denial(self._listener.find(request.transport), error)
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
        return None

    # The two calls

    async def _work(self, request: web.Request) -> web.StreamResponse:
        """Send a client its pending request, or hold its call until there is one."""
        client = self._admit(request)
        self._check_client(client, request)
        if request.headers.get(wire.LEAVE_HEADER):
            self._on_leave(client.id)
            return web.Response(status=204, headers=OWN_HEADERS)
        client.wake()  # a new call of the same process takes the place of an old one
        poll = client.poll = asyncio.get_running_loop().create_future()
        try:
            if client.request:
                await asyncio.sleep(max(0.0, client.sent + AGAIN - time.monotonic()))
            elif not self._ending.is_set():
                name, _, value = request.headers.get("Prefer", "").partition("=")  # wait=SECONDS
                valid = name.strip() == "wait" and value.strip().isdecimal() and len(value) < 6
                await asyncio.wait({poll}, timeout=min(self._hold, float(value) if valid else wire.HOLD))
            content = client.request if client.poll is poll else b""
        finally:
            if client.poll is poll:
                client.poll = None
        if not content:
            return web.Response(status=204, headers=OWN_HEADERS)
        client.sent = time.monotonic()
        response = web.StreamResponse(headers=OWN_HEADERS | {wire.REQUEST_HEADER: wire.request_id(content)})
        response.content_type, response.content_length = "application/octet-stream", len(content)
        try:
            async with asyncio.timeout(wire.transfer_seconds(len(content))):
                await response.prepare(request)
                for start in range(0, len(content), wire.CHUNK):
                    await response.write(memoryview(content)[start : start + wire.CHUNK])
                await response.write_eof()
        except TimeoutError:
            raise self._cut(client, request, "it does not read what it asked for") from None
        return response

    def _check_client(self, client: Client, request: web.Request) -> None:
        """Check a client's wire format, version and process."""
        if request.body_exists:
            raise web.HTTPBadRequest(text="A request for work has no content.")
        format, version = (request.headers.get(name, "") for name in (wire.FORMAT_HEADER, wire.VERSION_HEADER))
        if format != str(wire.WIRE):
            versions = f"The client speaks version {shortened(format, 20) or 'unknown'} of the wire, the server version"
            raise web.HTTPUpgradeRequired(text=f"{versions} {wire.WIRE}: install the same version of protonorm.")
        if version not in (__version__, client.version):
            client.version = version
            client_version = f"{client.name} has protonorm {shortened(version, 40) or 'of an unknown version'}"
            self._log(f"{client_version}, the server has {__version__}: all parties should have the same.")
        instance = request.headers.get(wire.INSTANCE_HEADER, "")[:64] or "unknown"
        connection = self._listener.find(request.transport)
        for transport, other in self._listener.connections.items():
            if other.key == connection.key and other.instance not in ("", instance) and not transport.is_closing():
                raise web.HTTPConflict(text=TAKEN)
        if not connection.instance:
            self._on_connect(client.id, connection.address, shortened(version, 40), connection.certificate)
        connection.instance = instance

    def _cut(self, client: Client, request: web.Request, reason: str) -> ConnectionError:
        assert request.transport is not None
        self._log(f"{client.name} was cut off: {reason}.")
        request.transport.abort()
        return ConnectionResetError(reason)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Take a client's answer; one that was taken already is confirmed again and ignored."""
        client, length = self._admit_answer(request)
        key, transport = request.headers.get(wire.REQUEST_HEADER, "")[:64], request.transport
        if key not in client.answered:
            raise web.HTTPConflict(text="The server does not wait for this answer.")
        if client.upload is not None and client.upload is not transport:
            client.upload.abort()  # an upload that broke off and was begun again
        client.upload, content = transport, bytearray()
        try:
            async with asyncio.timeout(wire.transfer_seconds(length)):
                async for chunk in request.content.iter_any():
                    content += chunk
        except TimeoutError:
            raise self._cut(client, request, "its answer arrives too slowly") from None
        finally:
            client.upload = None if client.upload is transport else client.upload
        if len(content) == length and not client.answered.get(key, True):
            client.answered[key] = True
            if current := key == wire.request_id(client.request):
                client.request = b""
            self._arrived.put(Arrived(client.id, bytes(content), current=current))
        return web.Response(status=204, headers=OWN_HEADERS)

    def _admit_answer(self, request: web.Request) -> tuple[Client, int]:
        """Check an answer's sender, encoding and size before it is read; one that cannot be taken is lost at once."""
        client, length = self._admit(request), request.content_length
        error: web.HTTPException
        if request.headers.get("Content-Encoding"):
            error = web.HTTPUnsupportedMediaType(text="An answer must not have a Content-Encoding.")
        elif length is None:
            error = web.HTTPLengthRequired(text="An answer must have a Content-Length.")
        elif length > self._largest:
            sentence = f"The answer has {length} bytes; an answer has {self._largest} at most by the agreement."
            error = web.HTTPRequestEntityTooLarge(self._largest, length, text=sentence)
        else:
            return client, length
        self._lose(client, str(error.text).rstrip("."))
        raise error
