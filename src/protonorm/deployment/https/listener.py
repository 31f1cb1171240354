"""Connections of the server: accepted within limits, over TLS, and cut when they are idle, expired or revoked."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
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
    pending: int = 512  # handshakes at a time
    per_address: int = 256  # connections of one address; behind a proxy all clients have the proxy's
    open: int = 2000


@dataclass
class Connection:
    """Open connection, and the client that its certificate belongs to."""

    address: str
    key: str = ""  # public key of the certificate, OpenSSH format
    certificate: str = ""  # SHA-256 of the certificate
    expires: float = 0.0  # time when the certificate expires, seconds since the epoch
    instance: str = ""  # the client's process
    deadline: float = 0.0  # of the next request, on the loop's clock


class Listener:
    """Listening socket whose connections are handed to a protocol after their TLS handshake."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext, limits: Limits, log: Callable[[str], None]) -> None:
        self._context, self._limits, self._log = tls, limits, log
        self._capacity = min(limits.open, max(SPARE, descriptors(limits.open + SPARE) - SPARE))
        self._socket = _listen(host, port)
        self._handshakes: set[asyncio.Task[None]] = set()
        self._by_address: Counter[str] = Counter()
        self.connections: dict[asyncio.Transport, Connection] = {}

    @property
    def port(self) -> int:
        """Port that the server listens at."""
        return int(self._socket.getsockname()[1])

    async def accept(self, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept connections until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
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
            task = loop.create_task(self._handshake(plain, address, protocol))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    def _full(self, address: str) -> str:
        if len(self._handshakes) >= self._limits.pending:
            return "too many handshakes are pending"
        if self._by_address[address] >= self._limits.per_address:
            return "too many connections come from this address"
        total = len(self.connections) + len(self._handshakes)
        return "too many connections are open" if total >= self._capacity else ""

    async def _handshake(
        self, plain: socket.socket, address: str, protocol: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        """Do the handshake; asyncio itself logs nothing about one that fails."""
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
            self.find(transport)
        except (OSError, ValueError) as error:
            plain.close()
            self._release(address)
            self._log(f"The handshake with {address} failed: {_reason(error)}.")

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
            deadline = asyncio.get_running_loop().time() + self._limits.header
            expires = certificate.not_valid_after_utc.timestamp()
            fingerprint = hashlib.sha256(encoded).hexdigest()
            connection = Connection(address, public_line(key), fingerprint, expires, deadline=deadline)
            self.connections[transport] = connection
        return self.connections[transport]

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
                elif not connection.instance:
                    self._log(f"A connection from {connection.address} was cut: it sent no request.")
            del self.connections[transport]
            self._release(connection.address)

    def _release(self, address: str) -> None:
        self._by_address -= Counter([address])  # which also drops addresses without connections

    async def close(self) -> None:
        """Close the socket, and end handshakes and connections."""
        self._socket.close()
        for task in self._handshakes:
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)
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


def _reason(error: Exception) -> str:
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
        raise Failed(f"The server cannot listen at {address_of(host, port)}: {error.strerror or error}.") from None
    listening.setblocking(False)
    return listening
