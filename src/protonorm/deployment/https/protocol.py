"""What both sides of the transport have in common: paths, headers, limits of time, and TLS settings."""

from __future__ import annotations

import hashlib
import socket
import ssl
from pathlib import Path
from typing import Final

from protonorm.deployment.keys import check_private

WIRE: Final = 1  # version of the two calls; others are refused
WORK, ANSWER = "/v1/work", "/v1/answer"
LOOK = "/v1/doctor"  # not found, which is not counted as a denied request if a member asks, as its `deploy doctor` does
FORMAT_HEADER, VERSION_HEADER = "Protonorm-Format", "Protonorm-Version"  # in every request and response
INSTANCE_HEADER = "Protonorm-Instance"  # random text of a client's process, in requests for work
LEAVE_HEADER = "Protonorm-Leave"  # in a request for work: the client leaves the federation
REQUEST_HEADER = "Protonorm-Request"  # SHA-256 of a request, with the request and with its answer
HOLD = 20.0  # seconds that a request for work is held: below the idle limit of usual proxies
PER_MEGABYTE = 1.2  # seconds to send or receive a megabyte: 60 for 50 MB
CHUNK = 2**18  # bytes that are written or read at a time
PROBES = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # a dead peer is noticed after half a minute


def request_id(content: bytes) -> str:
    """Return the id of a request; a repeated request has the same id."""
    return hashlib.sha256(content).hexdigest()


def transfer_seconds(size: int) -> float:
    """Return the seconds that a transfer of so many bytes may take."""
    return 60.0 + PER_MEGABYTE * size / 1e6


def tls_context(side: int, authority: Path, certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS settings of a side: TLS 1.3, and the peer's certificate is required from the authority.

    Without tickets, because a resumed session would skip the check of an expired certificate.
    """
    check_private(key)
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(authority)
    context.load_cert_chain(certificate, key)
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    return context


def set_keepalive(plain: socket.socket) -> None:
    """Turn on TCP probes: they notice a dead peer, and keep a connection that is idle during training."""
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in PROBES.items():
        if hasattr(socket, name):
            plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
