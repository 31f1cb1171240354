"""Looking at a server from outside, as a client does: its name, its port, its certificate and its clock."""

from __future__ import annotations

import datetime as dt
import email.utils
import socket
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from protonorm.deployment.keys import problems_of, read_certificate
from protonorm.deployment.terms import address_of

PATIENCE = 5.0  # seconds
SKEW = 60.0  # seconds that two clocks should differ at most; the server refuses five minutes
ANSWER = 4096  # bytes of an answer that are looked at


class Finding(NamedTuple):
    """What was looked at, and how it is."""

    what: str  # one word or two: port, certificate, clock
    ok: bool
    text: str


def find_name(host: str) -> Finding:
    """Tell whether a name is known here."""
    try:
        found = sorted({str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except OSError as error:
        reason = error.strerror or str(error)
        return Finding(
            "name", False, f"The name {host} is not known on this machine ({reason}): ask who runs your DNS."
        )
    return Finding("name", True, f"{host} is {', '.join(found)}.")


def find_free_port(host: str, port: int, what: str = "clients") -> Finding:
    """Tell whether a server could listen at a port of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            said = (
                f"Nobody can listen for {what} at {address_of(host, port)}: {reason}. Choose another port, or end it."
            )
            return Finding("port", False, said)
    return Finding("port", True, f"The port {port} is free for {what}.")


def find_server(host: str, port: int, authority: Path | None, name: str = "") -> list[Finding]:
    """Call a server as a client does, by TLS if an authority's certificate is given; say what is wrong with it.

    `name` is what its certificate should be for, if that is not where it is called.
    """
    where = address_of(host, port)
    try:
        with socket.create_connection((host, port), PATIENCE) as plain:
            if authority is None:
                return [Finding("port", True, f"Somebody answers at {where}."), *_clock(plain, host)]
            return [Finding("port", True, f"Somebody answers at {where}."), *_find_tls(plain, name or host, authority)]
    except ConnectionRefusedError:
        return [Finding("port", False, f"Nobody listens at {where}: the server is not running, or at another port.")]
    except TimeoutError:
        said = f"{where} did not answer within {PATIENCE:g} seconds: a firewall may be between, or the machine is off."
        return [Finding("port", False, said)]
    except OSError as error:
        return [Finding("port", False, f"{where} cannot be reached: {(error.strerror or str(error)).lower()}.")]


def _find_tls(plain: socket.socket, host: str, authority: Path) -> list[Finding]:
    """Speak TLS without belief first, so that a certificate that is wrong can be looked at."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with context.wrap_socket(plain, server_hostname=host) as channel:
            shown = channel.getpeercert(binary_form=True)
            assert shown is not None
            problems = problems_of(read_certificate(authority), x509.load_der_x509_certificate(shown), host)
            if problems:
                return [Finding("certificate", False, problem) for problem in problems]
            said = "The server's certificate is from the federation's authority, for this name, and valid."
            return [Finding("certificate", True, said), *_clock(channel, host)]
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            return [Finding("certificate", False, "The server speaks plaintext, and TLS was agreed on.")]
        return [Finding("certificate", False, f"No safe connection can be made: {error.reason or error}.")]
    except (TimeoutError, ConnectionError):
        return [Finding("certificate", False, "The server ended the connection instead of showing a certificate.")]


def _clock(channel: socket.socket, host: str) -> list[Finding]:
    """Compare this machine's clock with the server's, if the server says what time it is."""
    try:
        channel.settimeout(PATIENCE)
        channel.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = channel.recv(ANSWER).decode("latin-1")
        lines = [line.partition(":")[2] for line in answer.split("\r\n") if line.lower().startswith("date:")]
        told = email.utils.parsedate_to_datetime(lines[0].strip())
    except (OSError, ValueError, IndexError):
        return []
    return [compare_clocks(told)]


def compare_clocks(told: dt.datetime, now: dt.datetime | None = None) -> Finding:
    """Tell whether the server's clock and this one say about the same."""
    apart = ((now or dt.datetime.now(dt.UTC)) - told).total_seconds()
    if abs(apart) <= SKEW:
        return Finding("clock", True, "This machine's clock and the server's agree.")
    way = "ahead of" if apart > 0 else "behind"
    return Finding(
        "clock", False, f"This machine's clock is {abs(apart):.0f} seconds {way} the server's: set it by NTP."
    )
