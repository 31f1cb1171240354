"""A client's connection to the server: two calls over HTTPS, with the client's own certificate.

It needs the standard library alone. Errors of HTTP and TLS are converted to the exceptions below.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import secrets
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from protonorm import __version__
from protonorm.core.text import shortened
from protonorm.deployment.https import protocol as wire
from protonorm.deployment.keys import problems_of_client
from protonorm.deployment.settings import address_of
from protonorm.errors import Failed

OTHER_NAME = "The certificate of the server is not for {host}."
PROBLEMS = {  # of the server's certificate, by OpenSSL's X509_V_ERR codes
    10: "The certificate of the server at {address} has expired, or this machine's clock is wrong.",
    9: "The certificate of the server at {address} is not valid yet, or this machine's clock is wrong.",
    62: OTHER_NAME,
    64: OTHER_NAME,
}
NOT_ISSUED = "The certificate of the server at {address} is not from the federation's authority."
NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "UNSUPPORTED_PROTOCOL"}
CONNECTING = 10.0  # seconds
SILENCE = wire.HOLD + 15.0  # seconds without a byte after which the server counts as unreachable
SENTENCE = 4096  # bytes of an error response that are read


class Refused(Failed):
    """Permanent error: retrying does not help."""


class Taken(Refused):
    """A client with the same key is connected, or was until a moment ago."""


class Withdrawn(Failed):
    """The server no longer waits for this answer."""


class Unreachable(Failed):
    """Temporary error: the server cannot be reached."""


class Connection:
    """Connection to the server; errors are Refused, Withdrawn or Unreachable.

    The client's own certificate is checked first, because a server that refuses one just closes the connection.
    """

    def __init__(
        self, host: str, port: int, authority: Path, certificate: Path, key: Path, largest: int, largest_answer: int
    ) -> None:
        problems = problems_of_client(authority, certificate, key)
        if problems:
            raise Refused(" ".join(problems))
        self._host, self._port, self.address = host, port, address_of(host, port)
        self._largest, self._largest_answer = largest, largest_answer
        self._context = wire.tls_context(ssl.PROTOCOL_TLS_CLIENT, authority, certificate, key)
        self._http: http.client.HTTPSConnection | None = None
        self._own = {
            wire.FORMAT_HEADER: str(wire.WIRE),
            wire.VERSION_HEADER: __version__,
            wire.INSTANCE_HEADER: secrets.token_hex(16),
        }
        self.server_version = self.server_certificate = ""  # version, and SHA-256 of the certificate

    def ask(self, wait: float = wire.HOLD) -> bytes | None:
        """Request work; return None if there is none after the server has held the call for a while."""
        with self._converting_errors():
            status, headers, content = self._call("GET", wire.WORK, {"Prefer": f"wait={wait:.0f}"})
            if status == 204:
                return None
            if headers.get(wire.REQUEST_HEADER) != wire.request_id(content):
                raise Unreachable(f"What the server at {self.address} sent arrived damaged.")
            return content

    def answer(self, request: bytes, content: bytes) -> None:
        """Send the answer to a request; may be repeated."""
        if len(content) > self._largest_answer:
            raise Refused(f"The answer has {len(content)} bytes; {self._largest_answer} at most are agreed on.")
        with self._converting_errors():
            self._call("POST", wire.ANSWER, {wire.REQUEST_HEADER: wire.request_id(request)}, content)

    def leave(self) -> None:
        """Leave the federation."""
        with self._converting_errors():
            self._call("GET", wire.WORK, {"Prefer": "wait=0", wire.LEAVE_HEADER: "1"})

    def close(self) -> None:
        """Close the connection, by which the server knows that the client has left."""
        if self._http is not None:
            self._http.close()
        self._http = None

    def _call(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Make a call; return status, headers and content, or raise an exception of this module for an error status."""
        if self._http is None:
            self._http = https_connection(self._host, self._port, self._context, CONNECTING)
            self._http.connect()
            wire.set_keepalive(self._http.sock)
            self.server_certificate = hashlib.sha256(self._http.sock.getpeercert(True) or b"").hexdigest()
            self._http.sock.settimeout(SILENCE)
        with suppress(BrokenPipeError, ConnectionResetError):  # the server may refuse an answer before it is sent
            self._http.request(method, path, body, {**self._own, **headers})
        with self._http.getresponse() as response:
            format = response.headers.get(wire.FORMAT_HEADER)
            if format is None:
                raise Refused(f"What answers at {self.address} is no server of a federation.")
            if response.headers.get("Content-Encoding"):  # 5 kB could become gigabytes
                raise Refused("The server must send its requests without a Content-Encoding.")
            ok = response.status in (200, 204)
            content = self._read(response, self._largest if ok else SENTENCE)
        if format != str(wire.WIRE):
            raise Refused(f"The server speaks version {shortened(format)} of the wire, this client {wire.WIRE}.")
        self.server_version = response.headers.get(wire.VERSION_HEADER, "")
        if response.will_close:
            self.close()
        if not ok:
            raise _of_status(response.status, method, shortened(content.decode(errors="replace"), 300))
        return response.status, response.headers, content

    def _read(self, response: http.client.HTTPResponse, largest: int) -> bytes:
        """Read a response of bounded size within the time that its size allows."""
        size = response.length
        if size is None or size > largest:
            raise Refused(f"The server must send at most {largest} bytes, got {size or 'an unknown number'}.")
        content, end = bytearray(), time.monotonic() + wire.transfer_seconds(size)
        while len(content) < size:
            chunk = response.read1(wire.CHUNK)
            if not chunk or time.monotonic() > end:
                raise TimeoutError if chunk else ConnectionResetError("it ended in the middle")
            content += chunk
        response.read()  # lets the connection be used again
        return bytes(content)

    @contextmanager
    def _converting_errors(self) -> Iterator[None]:
        """Convert errors of HTTP and TLS to the exceptions of this module; the connection is closed after any error."""
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | http.client.HTTPException):
                raise of_transport(error, self.address, proxy_address(self._host)) from None
            raise


def proxy_for(host: str) -> urllib.parse.SplitResult | None:
    """Return the proxy that HTTPS_PROXY names for a host; None if there is none, or NO_PROXY excludes the host."""
    proxy = urllib.request.getproxies().get("https")
    if not proxy or urllib.request.proxy_bypass(host):
        return None
    address = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if address.hostname is None:
        raise Refused("HTTPS_PROXY names no host.")
    return address


def proxy_address(host: str) -> str:
    """Return the address of the proxy for a host, without a password; empty if there is none."""
    proxy = proxy_for(host)
    return address_of(proxy.hostname or "", proxy.port or 80) if proxy else ""


def https_connection(host: str, port: int, context: ssl.SSLContext, timeout: float) -> http.client.HTTPSConnection:
    """Create a connection, through the proxy that HTTPS_PROXY names unless NO_PROXY excludes the host."""
    if not (address := proxy_for(host)):
        return http.client.HTTPSConnection(host, port, context=context, timeout=timeout)
    proxy = address.hostname or ""
    connection = http.client.HTTPSConnection(proxy, address.port or 80, context=context, timeout=timeout)
    headers = {}
    if address.username is not None:
        credentials = f"{urllib.parse.unquote(address.username)}:{urllib.parse.unquote(address.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"
    connection.set_tunnel(host, port, headers)
    return connection


def _of_status(status: int, method: str, sentence: str) -> Failed:
    """Convert an HTTP error status to an exception."""
    if status == 409:
        return Taken(sentence) if method == "GET" else Withdrawn("The server no longer waits for this answer.")
    if 400 <= status < 500:
        return Refused(sentence or "The server refuses this client.")
    return Unreachable(f"The server has trouble of its own: HTTP status {status}.")


def of_transport(error: Exception, address: str, proxy: str = "") -> Failed:
    """Convert an error of a connection to an exception."""
    if isinstance(error, ssl.SSLCertVerificationError):
        problem = PROBLEMS.get(error.verify_code, NOT_ISSUED)
        return Refused(problem.format(address=address, host=address.rpartition(":")[0]))
    if isinstance(error, ssl.SSLError) and error.reason in NO_TLS:
        return Refused(f"What answers at {address} does not speak TLS, and this client speaks nothing else.")
    if isinstance(error, http.client.RemoteDisconnected | ssl.SSLEOFError):
        reason = "it closed the connection; its log says why if it does not take this client's certificate"
    elif isinstance(error, http.client.HTTPException) and not isinstance(error, http.client.IncompleteRead):
        return Refused(f"What answers at {address} is no server of a federation ({type(error).__name__}).")
    elif isinstance(error, TimeoutError):
        reason = "it takes too long"
    else:
        reason = shortened(str(getattr(error, "strerror", None) or error or "no answer")).rstrip(".")
    way = f" through the proxy {proxy}" if proxy else ""
    return Unreachable(f"The server at {address} cannot be reached{way}: {reason}.")
