"""Rounds of a federation's folder: serves clients, reports who is connected, and runs the rounds on request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from protonorm.deployment.events import Observer, ignore
from protonorm.deployment.federation import run_federation
from protonorm.deployment.federation_folder import FederationFolder
from protonorm.deployment.guard import largest_answer
from protonorm.deployment.https.calls import OnConnect
from protonorm.deployment.https.listener import Limits
from protonorm.deployment.https.server import Server
from protonorm.runs.run import Run

PRESENCE_EVERY = 2.0  # seconds between two reports of connected clients
LOOK = 0.25  # seconds between two checks for a requested run


@contextmanager
def report_presence(
    server: Server, notify: Callable[[Collection[int]], None], every: float = PRESENCE_EVERY
) -> Iterator[None]:
    """Report the connected clients periodically, in a background thread."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(every):
            with suppress(OSError, ValueError, RuntimeError):  # the next report follows soon
                notify(server.present())

    thread = threading.Thread(target=look, name="presence", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def serve(
    folder: FederationFolder,
    notify: Observer = ignore,
    *,
    on_denied: Callable[[str], None] = lambda sentence: None,
    on_connect: OnConnect = lambda client, address, version, certificate: None,
    on_ready: Callable[[Server], None] = lambda server: None,
    once: bool = False,
) -> None:
    """Serve until a signal arrives; with `once` until the rounds are done.

    `denied` is called with the reason of each denied request, `meet` with each connection of a client, `ready` with the
    server once it listens.
    """
    with open_server(folder, on_denied, on_connect) as server:
        on_ready(server)
        while True:
            if folder.wanted.exists():
                run(folder, server, notify)
                folder.wanted.unlink(missing_ok=True)
                if once:
                    return
            time.sleep(LOOK)


def open_server(
    folder: FederationFolder,
    on_denied: Callable[[str], None] = lambda sentence: None,
    on_connect: OnConnect = lambda client, address, version, certificate: None,
) -> Server:
    """Create the server of a federation's folder; it listens once its context is entered."""
    folder.check_keys()
    settings, largest = folder.settings, largest_answer(folder.agreement)
    roster = lambda: folder.roster  # noqa: E731
    on_leave = lambda id: folder.change(id, gone="it left") and None  # noqa: E731
    limits = Limits(per_address=settings.per_address)
    where = settings.bind, settings.port, folder.tls
    return Server(*where, roster, largest, log=on_denied, on_connect=on_connect, on_leave=on_leave, limits=limits)


def run(folder: FederationFolder, server: Server, notify: Observer = ignore) -> Run:
    """Run the rounds, from the first or from the last checkpoint."""
    try:
        return run_federation(
            folder.agreement,
            server,
            folder.run_folder,
            clients=folder,
            notify=notify,
            update=folder.wants_update,
        )
    finally:
        server.close()
