"""The two calls of the server, and what it knows of its clients: a call ends in a response with a sentence."""

from __future__ import annotations

import asyncio
import queue
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from protonorm import __version__
from protonorm.core.text import shortened
from protonorm.deployment.engine import Arrived
from protonorm.deployment.federation_folder import Member
from protonorm.deployment.https import protocol as wire
from protonorm.deployment.https.listener import Connection, Listener

AGAIN = 1.0  # seconds before the same request is sent again to a client that asks without answering
REMEMBERED = 8  # requests of a client whose late answers are taken, to be reported
FRAMES = 3  # innermost calls of an unexpected error that are logged
OWN_HEADERS = {wire.FORMAT_HEADER: str(wire.WIRE), wire.VERSION_HEADER: __version__, "Server": "protonorm"}
UNKNOWN = "The server does not know this client's key: its owner must add it first, or has revoked or removed it."
EXPIRED = "The client's certificate has expired: `protonorm deploy renew` on the server makes a new bundle."
GONE = "it is no longer a member, or its key was revoked"
TAKEN = "A client with the same key is connected already; a key belongs to one client alone."
NOTHING = "There is nothing here but a federation's own calls."

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

    def push(self, request: bytes) -> None:
        """Set the pending request."""
        self.request, self.away, self.sent = request, 0.0, float("-inf")
        self.answered = dict([*self.answered.items(), (wire.request_id(request), False)][-REMEMBERED:])
        self.wake()


class Clients:
    """Clients on the roster by id, and what has arrived from them."""

    def __init__(self, roster: Callable[[], Sequence[Member]], log: LogLine) -> None:
        self._roster, self._log = roster, log
        self._by_id: dict[int, Client] = {}
        self.ids: dict[str, int] = {}  # by public key
        self.arrived: queue.SimpleQueue[Arrived] = queue.SimpleQueue()
        self.refresh()

    def __getitem__(self, id: int) -> Client:
        return self._by_id[id]

    def __iter__(self) -> Iterator[Client]:
        return iter(self._by_id.values())

    def of(self, connection: Connection) -> Client | None:
        """Return the client of a connection; None if its key is not accepted."""
        id = self.ids.get(connection.key)
        return None if id is None else self._by_id[id]

    def refresh(self) -> None:
        """Read the roster again; a damaged one changes nothing."""
        try:
            members = self._roster()
        except (ValueError, OSError) as error:
            self._log(str(error))
            return
        previous, self.ids = self.ids, {member.public_key: member.id for member in members if member.active}
        for key, id in previous.items():
            if key not in self.ids:
                self._by_id[id].request = b""
                gone = id not in self.ids.values()
                self.arrived.put(Arrived(id, failure=GONE if gone else "it has a new key", gone=gone))
        for member in members:
            self._by_id.setdefault(member.id, Client(member.id, member.name))

    def lose(self, client: Client, reason: str) -> None:
        """Report that a client's pending request will not be answered."""
        if client.request:
            client.request = b""
            self.arrived.put(Arrived(client.id, failure=reason))

    def withdraw(self) -> None:
        """Withdraw all pending requests."""
        for client in self:
            client.request = b""


class Calls:
    """Handlers of the two calls."""

    def __init__(
        self,
        clients: Clients,
        listener: Listener,
        largest: int,  # bytes of an answer
        hold: float,
        log: LogLine,
        on_connect: OnConnect,
        on_leave: Callable[[int], None],
    ) -> None:
        self._clients, self._listener, self._largest, self._hold = clients, listener, largest, hold
        self._log, self._on_connect, self._on_leave = log, on_connect, on_leave
        self.busy = 0  # requests that are handled
        self.ending = False  # whether requests for work are no longer held

    def application(self) -> web.Application:
        """Return the calls as an application of aiohttp."""
        app = web.Application(middlewares=[self._guarded])
        app.router.add_get(wire.WORK, self._work)
        app.router.add_post(wire.ANSWER, self._answer, expect_handler=self._expect)
        return app

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handle a request; whatever goes wrong ends in a response with a sentence."""
        connection = self._listener.find(request.transport)
        connection.deadline = float("inf")
        connection.settled.set()
        self.busy += 1
        try:
            self._admit(request)
            return await handler(request)
        except web.HTTPException as error:
            return self._denial(connection, error, counts=not (error.status == 404 and request.path == wire.LOOK))
        except (ConnectionError, asyncio.CancelledError):
            raise  # the client has disconnected
        except Exception as error:  # its traceback is for the server's log, and nothing of it for the client
            frames = "".join(traceback.format_exception(error, limit=-FRAMES)).strip()
            self._log(f"An unexpected error: {frames}")
            return self._denial(connection, web.HTTPInternalServerError(text="The server met an error of its own."))
        finally:
            self.busy -= 1
            client = self._clients.of(connection)
            self._listener.await_request(connection, works=client is not None and bool(client.request))

    def _denial(self, connection: Connection, error: web.HTTPException, *, counts: bool = True) -> web.Response:
        sentence = NOTHING if error.status in (404, 405) else error.text
        client = self._clients.of(connection)
        if counts:
            self._log(f"{client.name if client else connection.address}: {sentence}")
        response = web.Response(status=error.status, text=sentence, headers=OWN_HEADERS)
        response.force_close()
        return response

    def _admit(self, request: web.Request) -> Client:
        """Return the client of a request's certificate, which is checked for every request."""
        connection = self._listener.find(request.transport)
        if self._clients.of(connection) is None:
            self._clients.refresh()  # its owner may have added it a moment ago
        client = self._clients.of(connection)
        if client is None or connection.expires < time.time():
            raise web.HTTPForbidden(text=EXPIRED if client else UNKNOWN)
        return client

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
            elif not self.ending:
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
        if any(other.instance not in ("", instance) for other in self._listener.open_with(connection.key)):
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
            self._clients.arrived.put(Arrived(client.id, bytes(content), current=current))
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
        self._clients.lose(client, str(error.text).rstrip("."))
        raise error
