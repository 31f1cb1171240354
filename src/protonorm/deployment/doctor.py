"""What is wrong with a federation's or a client's folder and its surroundings, each in a sentence."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.folder import FederationFolder
from protonorm.deployment.holding import holder, is_held
from protonorm.deployment.keys import problems_of, read_certificate, same_key
from protonorm.deployment.probes import Finding, find_free_port, find_name, find_server
from protonorm.deployment.terms import is_loopback

ROOM = 2**30  # bytes that should be free
SOON = dt.timedelta(days=30)  # before a certificate ends


def look_at_server(folder: FederationFolder) -> Iterator[Finding]:
    """Look at a federation on the server's machine."""
    settings, ways = folder.settings, folder.superlink
    yield from find_versions()
    yield find_room(folder.path)
    yield from _find_private([folder.authority_key, ways.key])
    yield from _find_agreement(folder)
    yield from _find_certificate(folder)
    for host in settings.hosts:
        yield find_name(host)
    if (process := holder(folder.server_lock)) is not None or is_held(folder.server_lock):
        yield Finding("server", True, f"The server is running{f', as process {process}' if process else ''}.")
        authority = None if settings.plaintext else ways.authority
        yield from find_server(_own_address(settings.bind), settings.port, authority, settings.host)
    else:
        yield Finding("server", True, "The server is not running; `protonorm deploy server` starts it.")
        yield find_free_port(settings.bind, settings.port)
        if settings.metrics_port is not None:
            yield find_free_port("127.0.0.1", settings.metrics_port, "figures")


def look_at_client(folder: ClientFolder) -> Iterator[Finding]:
    """Look at a client on its owner's machine; nothing is sent to the server but a greeting."""
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
    """Tell whether data and network can be read and fit the agreement."""
    if not folder.settings.data:
        return Finding("data", False, "The client has no data yet: `protonorm deploy client BUNDLE --data PATH`.")
    try:
        folder.node()
    except (ValueError, OSError, ImportError) as error:
        return Finding("data", False, str(error))
    own = folder.settings
    return Finding("data", True, f"The data and the network {own.model or 'of the agreement'} fit the agreement.")


def find_versions() -> Iterator[Finding]:
    """Tell whether all that a federation needs is installed, and in which versions."""
    found = {"python": platform.python_version()}
    for name in ("protonorm", "torch", "flwr", "cryptography", "prometheus-client"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding("version", False, f"{name} is not installed: pip install 'protonorm[flower]'.")
    said = ", ".join(f"{name} {version}" for name, version in found.items())
    yield Finding("version", True, f"{said}. All parties should have the same version of protonorm.")


def find_room(path: Path) -> Finding:
    """Tell whether there is room on the disk, and whether this user may write there."""
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
    """Look at the server's certificate as clients will see it, and at how long it still holds."""
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
    """Give an address of this machine at which a server that listens there can be reached."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind) if not is_loopback(bind) else bind
