"""Diagnosis of a deployment: folders, keys, certificates, ports and clocks."""

from __future__ import annotations

import datetime as dt
import email.utils
import http.client
import importlib.metadata
import os
import platform
import re
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from protonorm.deployment.client_folder import BUNDLE, ClientFolder
from protonorm.deployment.events import read_events
from protonorm.deployment.federation_folder import FederationFolder
from protonorm.deployment.https.client import https_connection, proxy_address
from protonorm.deployment.https.protocol import LOOK
from protonorm.deployment.keys import check_private, problems_of, problems_of_client, read_certificate, same_key
from protonorm.deployment.process_lock import is_locked, lock_owner
from protonorm.deployment.settings import TlsFiles, address_of

PATIENCE = 5.0  # seconds
SKEW = 60.0  # seconds of acceptable clock difference
ANSWER = 4096  # bytes of an HTTP response that are read
ROOM = 2**30  # bytes of recommended free disk space
SOON = dt.timedelta(days=30)  # warning period before a certificate expires
PACKAGES = ("protonorm", "torch", "aiohttp", "cryptography", "prometheus-client")


class Finding(NamedTuple):
    """Result of one check."""

    what: str  # short label: port, certificate, clock
    ok: bool
    text: str


Findings = Iterator[Finding]


def attempt(what: str, act: Callable[[], str]) -> Finding:
    """Run a check that returns a sentence, or raises an error with one."""
    try:
        return Finding(what, True, act())
    except (ValueError, OSError, ImportError) as error:
        return Finding(what, False, str(error))


def find_name(host: str) -> Finding:
    """Check whether a host name can be resolved."""
    try:
        addresses = sorted({str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except OSError as error:
        text = f"The name {host} is not known on this machine ({error.strerror or error}): ask who runs your DNS."
        return Finding("name", False, text)
    return Finding("name", True, f"{host} is {', '.join(addresses)}.")


def find_free_port(host: str, port: int, what: str = "clients") -> Finding:
    """Check whether a server can listen on a port of this machine."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = f"{(error.strerror or str(error)).lower()}. Choose another port, or end it."
            return Finding("port", False, f"No process can listen for {what} at {address_of(host, port)}: {reason}")
    return Finding("port", True, f"The port {port} is free for {what}.")


def find_listener(host: str, port: int) -> Finding:
    """Check whether a process of this machine listens at a port; without a connection, which the server would count."""
    where = address_of(host, port)
    if find_free_port(host, port).ok:
        return Finding("port", False, f"No server listens at {where}: the server is starting, or at another port.")
    return Finding("port", True, f"The server listens at {where}.")


def _find_certificate_in_use(folder: FederationFolder) -> Finding:
    """Check whether the server was started before its certificate was renewed."""
    note = folder.server_lock.with_suffix(".process")  # written at the start
    with suppress(FileNotFoundError):
        if folder.tls.certificate.stat().st_mtime_ns > note.stat().st_mtime_ns:
            text = "The server runs with the certificate from before it was renewed; start it again to use the new one."
            return Finding("certificate", False, text)
    return Finding("certificate", True, "The server runs with this certificate.")


def find_server(host: str, port: int, authority: Path, own: TlsFiles | None = None) -> Findings:
    """Connect to a server as a client does, also through a proxy, and check it; `own` are the client's TLS files."""
    where = address_of(host, port)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # so that an invalid certificate can be read
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    connection = https_connection(host, port, context, PATIENCE)
    try:
        http.client.HTTPConnection.connect(connection)  # without TLS, which is looked at separately
    except ConnectionRefusedError:
        text = f"No server listens at {where}: the server is not running, or at another port."
        if proxy := proxy_address(host):
            text = f"Nothing listens at {proxy}, which HTTPS_PROXY names: set the right proxy, or NO_PROXY={host}."
        yield Finding("port", False, text)
    except TimeoutError:
        text = f"{where} did not answer within {PATIENCE:g} seconds: a firewall may be between, or the machine is off."
        yield Finding("port", False, text)
    except OSError as error:
        proxy = proxy_address(host)
        way = f" through the proxy {proxy}, which HTTPS_PROXY names" if proxy else ""
        yield Finding("port", False, f"{where} cannot be reached{way}: {(error.strerror or str(error)).lower()}.")
    else:
        yield Finding("port", True, f"Somebody answers at {where}.")
        with connection.sock as plain:
            yield from _find_tls(plain, context, host, authority, is_client=own is not None)


def _find_tls(plain: socket.socket, tls: ssl.SSLContext, host: str, authority: Path, *, is_client: bool) -> Findings:
    """Check a server's certificate, and whether it knows the client."""
    try:
        with tls.wrap_socket(plain, server_hostname=host) as channel:
            encoded = channel.getpeercert(binary_form=True)
            assert encoded is not None
            problems = problems_of(read_certificate(authority), x509.load_der_x509_certificate(encoded), host)
            yield from (Finding("certificate", False, problem) for problem in problems)
            if not problems:
                text = "The server's certificate is from the federation's authority, for this name, and valid."
                yield Finding("certificate", True, text)
                yield from _find_answer(channel, host, is_client=is_client)
    except ssl.SSLError as error:
        plaintext = error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
        text = "The server speaks plaintext, and TLS was agreed on."
        yield Finding("certificate", False, text if plaintext else f"No safe connection: {error.reason or error}.")
    except (TimeoutError, ConnectionError):
        yield Finding("certificate", False, "The server ended the connection instead of showing a certificate.")


def _find_answer(channel: socket.socket, host: str, *, is_client: bool) -> Findings:
    """Check whether the server takes the client's certificate, and compare the clocks, if its response has a date."""
    answer = ""
    with suppress(OSError):
        channel.settimeout(PATIENCE)
        channel.sendall(f"GET {LOOK} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = channel.recv(ANSWER).decode("latin-1")
    head, _, body = answer.partition("\r\n\r\n")
    if is_client and (not head or " 403 " in head[:20]):
        text = "The server does not take this client's certificate; its log says why."
        yield Finding("identity", False, body.strip() or text)
    elif is_client:
        yield Finding("identity", True, "The server knows this client.")
    if date := re.search(r"^date:\s*(.*?)\s*$", head, re.IGNORECASE | re.MULTILINE):
        yield compare_clocks(email.utils.parsedate_to_datetime(date[1]))


def compare_clocks(server: dt.datetime, now: dt.datetime | None = None) -> Finding:
    """Check the difference between the server's clock and this machine's."""
    difference = ((now or dt.datetime.now(dt.UTC)) - server).total_seconds()
    if abs(difference) <= SKEW:
        return Finding("clock", True, "This machine's clock and the server's agree.")
    text = f"{abs(difference):.0f} seconds {'ahead of' if difference > 0 else 'behind'} the server's: set it by NTP."
    return Finding("clock", False, f"This machine's clock is {text}")


def look_at_server(folder: FederationFolder) -> Findings:
    """Diagnose a federation on the server's machine."""
    settings = folder.settings
    yield from find_versions()
    yield find_disk_space(folder.path)
    yield from map(_check_key_file, [folder.authority_key, folder.tls.key])
    yield (agreement := attempt("agreement", lambda: _read_agreement(folder)))
    if agreement.ok:
        names = ", ".join(member.name for member in folder.roster)
        nobody = "There is no client yet: `protonorm deploy add-client NAME PUBLIC_KEY`."
        yield Finding("clients", bool(names), f"Clients that may take part: {names}." if names else nobody)
    yield from _find_certificate(folder)
    yield from map(find_name, settings.hosts)
    if is_locked(folder.server_lock):
        process = lock_owner(folder.server_lock)
        yield Finding("server", True, f"The server is running{f', as process {process}' if process else ''}.")
        yield find_listener(settings.bind, settings.port)
        yield _find_certificate_in_use(folder)
    else:
        yield Finding("server", True, "The server is not running; `protonorm deploy server` starts it.")
        yield find_free_port(settings.bind, settings.port)
        if settings.metrics_port is not None:
            yield find_free_port("127.0.0.1", settings.metrics_port, "figures")


def look_at_client(folder: ClientFolder) -> Findings:
    """Diagnose a client on its owner's machine; no data are sent to the server."""
    yield from find_versions()
    yield find_disk_space(folder.path)
    yield (private := _check_key_file(folder.tls.key))
    yield (bundled := attempt("bundle", lambda: _read_bundle(folder)))
    if not bundled.ok:
        return
    bundle = folder.bundle
    if proxy := proxy_address(bundle.host):
        name = Finding("name", True, f"{bundle.host} is looked up by the proxy {proxy}, which HTTPS_PROXY names.")
    else:
        name = find_name(bundle.host)
    yield name
    if private.ok:
        problems = problems_of_client(*folder.tls)
        yield from (Finding("certificate", False, problem) for problem in problems)
        if name.ok and not problems:
            yield from find_server(bundle.host, bundle.port, folder.tls.authority, own=folder.tls)
    yield attempt("data", lambda: _read_data(folder))
    yield from _find_refusal(folder)


def _find_refusal(folder: ClientFolder) -> Findings:
    """Report that the server refused the client when it ran last, unless its owner has confirmed something since."""
    last = next(iter(read_events(folder.log_folder / "client.jsonl", 1)), {})
    if is_locked(folder.lock) or (last.get("event"), last.get("by")) != ("refused", "server"):
        return
    confirmed = [folder.path / BUNDLE, *folder.amendments.glob("*.json")]
    if max(file.stat().st_mtime for file in confirmed) < dt.datetime.fromisoformat(last["time"]).timestamp():
        again = f"If that is mended, start it again: `protonorm deploy client --folder {folder.path}`."
        yield Finding("last start", False, f"The client was refused at {last['time']}: {last['text']} {again}")


def _read_agreement(folder: FederationFolder) -> str:
    fingerprint = folder.agreement.fingerprint
    assert folder.roster is not None  # read here, so that a damaged one is reported
    return f"The agreement can be read; its fingerprint is {fingerprint}."


def _read_bundle(folder: ClientFolder) -> str:
    bundle = folder.bundle
    bundle.refuse_other_key(folder.public_key)
    return f"The bundle is for client {bundle.client}, {bundle.name}, and for the key here."


def _read_data(folder: ClientFolder) -> str:
    folder.node()
    return f"The data and the network {folder.settings.model or 'of the agreement'} fit the agreement."


def find_versions() -> Findings:
    """Check whether all required packages are installed, and report their versions."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding("version", False, f"{name} is not installed: pip install '.[deploy]' in a checkout.")
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield Finding("version", True, f"{text}. All parties should have the same version of protonorm.")


def find_disk_space(path: Path) -> Finding:
    """Check free disk space and write permission."""
    if not os.access(path, os.W_OK | os.X_OK):
        return Finding("disk", False, f"{path} cannot be written by this user.")
    free = shutil.disk_usage(path).free
    warning = f"; states and records need {ROOM / 2**30:g} GiB at least" if free < ROOM else ""
    return Finding("disk", not warning, f"{free / 2**30:.1f} GiB are free where {path} is{warning}.")


def _check_key_file(path: Path) -> Finding:
    try:
        check_private(path)
    except ValueError as error:
        return Finding("key", False, str(error))
    return Finding("key", True, f"{path.name} is there, for its owner alone.")


def _find_certificate(folder: FederationFolder) -> Findings:
    """Check the server's certificate as clients do, and its remaining validity."""
    try:
        authority, server = (read_certificate(path) for path in folder.tls[:2])
        fits = same_key(folder.tls.key, server)
    except (ValueError, OSError) as error:
        yield Finding("certificate", False, str(error))
        return
    problems = problems_of(authority, server, folder.settings.host)
    if not fits:
        problems.append("The server's key does not belong to its certificate.")
    yield from (Finding("certificate", False, problem) for problem in problems)
    if not problems:
        last = min(authority.not_valid_after_utc, server.not_valid_after_utc)
        soon = last - dt.datetime.now(dt.UTC) < SOON
        how = " It ends soon: `protonorm deploy renew` makes a new one." if soon else ""
        yield Finding("certificate", not soon, f"The server's certificate is valid until {last:%Y-%m-%d}.{how}")
