"""Connections of the server: accepted within limits, over TLS, and cut when they are idle, expired or revoked.

Members share one event loop with strangers, who must not slow it: handshakes begin at a bounded pace, in turns over the
addresses that they come from, and few connections at a time are read that have not made a request yet.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cryptography import x509

from protonorm.core.text import shortened
from protonorm.deployment.https.protocol import set_keepalive
from protonorm.deployment.keys import public_line
from protonorm.deployment.settings import address_of
from protonorm.errors import Failed

PAUSE = 1.0  # seconds before connections are accepted again after an error such as too many open files
SPARE = 128  # file descriptors that are left for the rest of the process
BACKLOG = 128


class Limits(NamedTuple):
    """Limits on connections: seconds, and numbers of connections."""

    handshake: float = 5.0
    header: float = 5.0  # from the handshake to the end of the first request's headers
    idle: float = 60.0  # between two requests
    working: float = 86400.0  # between two requests, if the client works on one
    pending: int = 512  # connections whose handshake has not begun
    pace: float = 20.0  # handshakes begun in a second; after a quiet second as many at once
    new: int = 64  # connections at a time that have made no request; the oldest makes room for the next
    per_address: int = 256  # connections of one address; behind a proxy all clients have the proxy's
    per_client: int = 4  # connections with one key
    open: int = 2000


@dataclass
class Connection:
    """Open connection, and the client that its certificate belongs to."""

    address: str
    key: str = ""  # public key of the certificate, OpenSSH format
    certificate: str = ""  # SHA-256 of the certificate
    expires: float = 0.0  # time when the certificate expires, seconds since the epoch
    instance: str = ""  # the client's process
    deadline: float = float("inf")  # of the next request, on the loop's clock
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # it has made a request, or is closed


class Queue:
    """Sockets whose handshake has not begun, taken in turns over their addresses."""

    def __init__(self) -> None:
        self._sockets: dict[str, deque[socket.socket]] = {}  # by address
        self.filled = asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, self._sockets.values()))

    def add(self, address: str, plain: socket.socket) -> None:
        """Append a socket."""
        self._sockets.setdefault(address, deque()).append(plain)
        self.filled.set()

    def take(self) -> tuple[str, socket.socket]:
        """Remove the oldest socket of the address whose turn it is."""
        address = next(iter(self._sockets))
        sockets = self._sockets.pop(address)
        plain = sockets.popleft()
        if sockets:
            self._sockets[address] = sockets  # behind the other addresses
        elif not self._sockets:
            self.filled.clear()
        return address, plain

    def drop(self) -> str:
        """Close the latest socket of the address that has most, of several; return the address."""
        address = max(self._sockets, key=lambda address: len(self._sockets[address]))
        self._sockets[address].pop().close()
        if not self._sockets[address]:
            del self._sockets[address]
        return address


class Listener:
    """Listening socket whose connections are handed to a protocol after their TLS handshake."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext, limits: Limits, log: Callable[[str], None]) -> None:
        self._context, self._limits, self._log = tls, limits, log
        self._capacity = min(limits.open, max(SPARE, descriptors(limits.open + SPARE) - SPARE))
        self._socket = _listen(host, port)
        self._queue = Queue()
        self._new: dict[asyncio.Task[None], None] = {}  # connections that have made no request, oldest first
        self._by_address: Counter[str] = Counter()
        self.connections: dict[asyncio.Transport, Connection] = {}
        self._by_key: dict[str, list[asyncio.Transport]] = {}  # the same connections

    @property
    def port(self) -> int:
        """Port that the server listens at."""
        return int(self._socket.getsockname()[1])

    async def accept(self) -> None:
        """Accept connections until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0)  # others take turns with a long backlog
            try:
                plain, peer = await loop.sock_accept(self._socket)
            except ConnectionAbortedError:
                continue  # its peer went away before it was accepted
            except OSError as error:
                self._log(f"Connections cannot be accepted at the moment: {error.strerror or error}.")
                await asyncio.sleep(PAUSE)
                continue
            address = str(peer[0])
            if reason := self._full(address):
                plain.close()
                self._log(f"A connection from {address} was closed: {reason}.")
                continue
            self._by_address[address] += 1
            self._queue.add(address, plain)
            if len(self._queue) > self._limits.pending:
                self._release(address := self._queue.drop())
                self._log(f"A connection from {address} was closed: too many handshakes are pending.")

    def _full(self, address: str) -> str:
        if self._by_address[address] >= self._limits.per_address:
            return "too many connections come from this address"
        return "too many connections are open" if self._by_address.total() >= self._capacity else ""

    async def begin(self, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Begin the handshakes of accepted connections until it is cancelled."""
        loop, due = asyncio.get_running_loop(), 0.0
        while True:
            await self._queue.filled.wait()
            due = max(due + 1 / self._limits.pace, loop.time() - 1)
            if (pause := due - loop.time()) > 0:
                await asyncio.sleep(pause)
            if len(self._new) >= self._limits.new:
                oldest = next(iter(self._new))
                del self._new[oldest]
                oldest.cancel()
            address, plain = self._queue.take()
            task = loop.create_task(self._welcome(plain, address, protocol))
            self._new[task] = None
            task.add_done_callback(lambda done: self._new.pop(done, None))

    async def _welcome(self, plain: socket.socket, address: str, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Do the handshake, which asyncio does not log if it fails, and wait for the first request."""
        try:
            plain.setblocking(False)
            set_keepalive(plain)
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                protocol,
                plain,
                ssl=self._context,
                ssl_handshake_timeout=self._limits.handshake,
                ssl_shutdown_timeout=self._limits.handshake / 2,
            )
            connection = self.find(transport)
        except (OSError, ValueError, asyncio.CancelledError) as error:
            plain.close()
            self._release(address)
            cancelled = isinstance(error, asyncio.CancelledError)
            reason = "it took long, and others wait" if cancelled else _reason(error)
            self._log(f"The handshake with {address} failed: {reason}.")
            return
        try:
            if len(list(self.open_with(connection.key))) <= self._limits.per_client:
                await asyncio.wait_for(connection.settled.wait(), self._limits.header)
                return
            reason = "its client has too many"
        except TimeoutError:
            reason = "it sent no request"
        except asyncio.CancelledError:
            if connection.settled.is_set():
                return
            reason = "it sent no request, and others wait"
        transport.abort()
        self._log(f"A connection from {address} was cut: {reason}.")

    def find(self, transport: asyncio.Transport | None) -> Connection:
        """Return the connection of a transport; its first request may come before the handshake is noticed here."""
        if transport is None:
            raise ConnectionResetError("it was closed")
        if transport not in self.connections:
            channel: Any = transport.get_extra_info("ssl_object")
            encoded = channel.getpeercert(binary_form=True) if channel is not None else None
            if encoded is None:
                raise ConnectionResetError("it was closed")
            certificate = x509.load_der_x509_certificate(encoded)
            key: Any = certificate.public_key()
            address = str((transport.get_extra_info("peername") or ("unknown",))[0])
            expires = certificate.not_valid_after_utc.timestamp()
            fingerprint = hashlib.sha256(encoded).hexdigest()
            connection = Connection(address, public_line(key), fingerprint, expires)
            self.connections[transport] = connection
            self._by_key.setdefault(connection.key, []).append(transport)
        return self.connections[transport]

    def open_with(self, key: str) -> Iterator[Connection]:
        """Iterate over the open connections with a public key."""
        return (self.connections[transport] for transport in self._by_key.get(key, ()) if not transport.is_closing())

    def await_request(self, connection: Connection, *, works: bool) -> None:
        """Set the deadline of a connection's next request, which is far away while its client works."""
        pause = self._limits.working if works else self._limits.idle
        connection.deadline = asyncio.get_running_loop().time() + pause

    def sweep(self, keys: dict[str, int]) -> None:
        """Forget closed connections; cut those that are idle for too long or whose certificate no longer counts."""
        now = asyncio.get_running_loop().time()
        for transport, connection in list(self.connections.items()):
            if not transport.is_closing():
                if connection.key in keys and connection.expires >= time.time() and connection.deadline > now:
                    continue
                transport.abort()
                if connection.key not in keys or connection.expires < time.time():
                    self._log(f"A connection from {connection.address} was cut: its certificate no longer counts.")
            connection.settled.set()
            del self.connections[transport]
            self._by_key[connection.key].remove(transport)
            if not self._by_key[connection.key]:
                del self._by_key[connection.key]
            self._release(connection.address)

    def _release(self, address: str) -> None:
        self._by_address -= Counter([address])  # which also drops addresses without connections

    async def close(self) -> None:
        """Close the socket, and end handshakes and connections."""
        self._socket.close()
        while self._queue:
            self._queue.drop()
        for task in list(self._new):
            task.cancel()
        await asyncio.gather(*self._new, return_exceptions=True)
        for transport in self.connections:
            transport.abort()


def descriptors(wanted: int) -> int:
    """Return how many files the process may have open, after raising that to `wanted` as far as it is allowed."""
    try:
        import resource
    except ImportError:
        return 512  # of Windows
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [number for number in (wanted, hard) if number != resource.RLIM_INFINITY]
    if soft != resource.RLIM_INFINITY and min(limits) > soft:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits), hard))
            return min(limits)
    return wanted if soft == resource.RLIM_INFINITY else soft


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return shortened(str(error) or type(error).__name__)


def _listen(host: str, port: int) -> socket.socket:
    """Bind the port before anything else, so that a port in use is reported at once."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        reason = error.strerror or error
        raise Failed(
            f"The server cannot listen at {address_of(host, port)}: {reason}. End what listens there, or give another "
            "port in federation.json and send the bundles of `protonorm deploy renew`."
        ) from None
    listening.setblocking(False)
    return listening
