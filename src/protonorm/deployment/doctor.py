"""Diagnosis of a deployment: folders, keys, certificates, ports and clocks."""

from __future__ import annotations

import datetime as dt
import email.utils
import importlib.metadata
import os
import platform
import shutil
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from protonorm.deployment.folders import ClientFolder, FederationFolder
from protonorm.deployment.keys import problems_of, read_certificate, same_key
from protonorm.deployment.process_lock import is_locked, lock_owner
from protonorm.deployment.settings import address_of, is_loopback

PATIENCE = 5.0  # seconds
SKEW = 60.0  # seconds of acceptable clock difference; the server rejects five minutes
ANSWER = 4096  # bytes of an HTTP response that are read
ROOM = 2**30  # bytes of recommended free disk space
SOON = dt.timedelta(days=30)  # warning period before a certificate expires


class Finding(NamedTuple):
    """Result of one check."""

    what: str  # short label: port, certificate, clock
    ok: bool
    text: str


def find_name(host: str) -> Finding:
    """Check whether a host name can be resolved."""
    try:
        found = sorted({str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except OSError as error:
        reason = error.strerror or str(error)
        return Finding(
            "name", False, f"The name {host} is not known on this machine ({reason}): ask who runs your DNS."
        )
    return Finding("name", True, f"{host} is {', '.join(found)}.")


def find_free_port(host: str, port: int, what: str = "clients") -> Finding:
    """Check whether a server can listen on a port of this machine."""
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
    """Connect to a server as a client does, by TLS if an authority's certificate is given, and check it.

    `name` is the expected host name in the certificate, if it differs from `host`.
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
    """Check a server's certificate, connecting without verification so that an invalid certificate can be read."""
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
    """Compare this machine's clock with the server's, if its response has a date."""
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
    """Check the difference between the server's clock and this machine's."""
    apart = ((now or dt.datetime.now(dt.UTC)) - told).total_seconds()
    if abs(apart) <= SKEW:
        return Finding("clock", True, "This machine's clock and the server's agree.")
    way = "ahead of" if apart > 0 else "behind"
    return Finding(
        "clock", False, f"This machine's clock is {abs(apart):.0f} seconds {way} the server's: set it by NTP."
    )


def look_at_server(folder: FederationFolder) -> Iterator[Finding]:
    """Diagnose a federation on the server's machine."""
    settings, ways = folder.settings, folder.superlink
    yield from find_versions()
    yield find_room(folder.path)
    yield from _find_private([folder.authority_key, ways.key])
    yield from _find_agreement(folder)
    yield from _find_certificate(folder)
    for host in settings.hosts:
        yield find_name(host)
    if (process := lock_owner(folder.server_lock)) is not None or is_locked(folder.server_lock):
        yield Finding("server", True, f"The server is running{f', as process {process}' if process else ''}.")
        authority = None if settings.plaintext else ways.authority
        yield from find_server(_own_address(settings.bind), settings.port, authority, settings.host)
    else:
        yield Finding("server", True, "The server is not running; `protonorm deploy server` starts it.")
        yield find_free_port(settings.bind, settings.port)
        if settings.metrics_port is not None:
            yield find_free_port("127.0.0.1", settings.metrics_port, "figures")


def look_at_client(folder: ClientFolder) -> Iterator[Finding]:
    """Diagnose a client on its owner's machine; no data are sent to the server."""
    yield from find_versions()
    yield find_room(folder.path)
    yield from _find_private([folder.key])
    if not folder.joined:
        yield Finding(
            "bundle", False, "There is no bundle yet: `protonorm deploy client BUNDLE` takes the one you got."
        )
        return
    try:
        bundle = folder.bundle
        bundle.refuse_other_key(folder.public_key)
    except (ValueError, OSError) as error:
        yield Finding("bundle", False, str(error))
        return
    yield Finding("bundle", True, f"The bundle is for client {bundle.client}, {bundle.name}, and for the key here.")
    name = find_name(bundle.host)
    yield name
    if name.ok:
        yield from find_server(bundle.host, bundle.port, None if folder.settings.plaintext else folder.authority)
    yield find_data(folder)


def find_data(folder: ClientFolder) -> Finding:
    """Check whether data and network can be read and fit the agreement."""
    if not folder.settings.data:
        return Finding("data", False, "The client has no data yet: `protonorm deploy client BUNDLE --data PATH`.")
    try:
        folder.node()
    except (ValueError, OSError, ImportError) as error:
        return Finding("data", False, str(error))
    own = folder.settings
    return Finding("data", True, f"The data and the network {own.model or 'of the agreement'} fit the agreement.")


def find_versions() -> Iterator[Finding]:
    """Check whether all required packages are installed, and report their versions."""
    found = {"python": platform.python_version()}
    for name in ("protonorm", "torch", "flwr", "cryptography", "prometheus-client"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding("version", False, f"{name} is not installed: pip install 'protonorm[flower]'.")
    said = ", ".join(f"{name} {version}" for name, version in found.items())
    yield Finding("version", True, f"{said}. All parties should have the same version of protonorm.")


def find_room(path: Path) -> Finding:
    """Check free disk space and write permission."""
    if not os.access(path, os.W_OK | os.X_OK):
        return Finding("disk", False, f"{path} cannot be written by this user.")
    free = shutil.disk_usage(path).free
    said = f"{free / 2**30:.1f} GiB are free where {path} is"
    if free < ROOM:
        return Finding("disk", False, f"{said}; states and records need {ROOM / 2**30:g} GiB at least.")
    return Finding("disk", True, f"{said}.")


def _find_private(keys: list[Path]) -> Iterator[Finding]:
    for path in keys:
        if not path.is_file():
            yield Finding("key", False, f"There is no key {path}.")
        elif os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
            yield Finding(
                "key", False, f"{path} can be read by others than its owner: chmod 600 it, or make a new one."
            )
        else:
            yield Finding("key", True, f"{path.name} is there, for its owner alone.")


def _find_agreement(folder: FederationFolder) -> Iterator[Finding]:
    try:
        agreement, roster = folder.agreement, folder.roster
    except (ValueError, OSError) as error:
        yield Finding("agreement", False, str(error))
        return
    yield Finding("agreement", True, f"The agreement can be read; its fingerprint is {agreement.fingerprint}.")
    if not roster:
        yield Finding("clients", False, "There is no client yet: `protonorm deploy add-client NAME PUBLIC_KEY`.")
    else:
        yield Finding("clients", True, f"Clients that may take part: {', '.join(one.name for one in roster)}.")


def _find_certificate(folder: FederationFolder) -> Iterator[Finding]:
    """Check the server's certificate as clients do, and its remaining validity."""
    ways = folder.superlink
    try:
        authority, server = read_certificate(ways.authority), read_certificate(ways.certificate)
        fits = same_key(ways.key, server)
    except (ValueError, OSError) as error:
        yield Finding("certificate", False, str(error))
        return
    problems = problems_of(authority, server, folder.settings.host)
    if not fits:
        problems.append("The server's key does not belong to its certificate.")
    for problem in problems:
        yield Finding("certificate", False, problem)
    if not problems:
        last = min(authority.not_valid_after_utc, server.not_valid_after_utc)
        soon = last - dt.datetime.now(dt.UTC) < SOON
        how = " It ends soon: `protonorm deploy renew` makes a new one." if soon else ""
        yield Finding("certificate", not soon, f"The server's certificate is valid until {last:%Y-%m-%d}.{how}")


def _own_address(bind: str) -> str:
    """Return an address of this machine for a server with this bind address."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind) if not is_loopback(bind) else bind
