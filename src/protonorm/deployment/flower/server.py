"""Server process of a federation: admits clients, reports connected clients, and runs the rounds on request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from flwr.supercore.constant import NodeStatus

from protonorm.deployment.agreement import Agreement
from protonorm.deployment.events import Observer, ignore
from protonorm.deployment.federation import run_federation
from protonorm.deployment.flower.superlink import Certificate, LinkCarrier, SuperLink
from protonorm.deployment.flower.transport import FlowerTransport, by_key, key_bytes
from protonorm.deployment.folders import FederationFolder
from protonorm.deployment.guard import Guard
from protonorm.files import replace
from protonorm.runs.run import Run

PRESENCE_EVERY = 2.0  # seconds between two reports of connected clients
LOOK = 0.25  # seconds between two checks for a requested run


def present(folder: FederationFolder, link: SuperLink) -> set[int]:
    """Return the ids of the connected clients; Flower detects a killed client only after a while."""
    numbers = {key_bytes(one.public_key): one.id for one in folder.roster}
    found = link.state.get_node_info(statuses=[NodeStatus.ONLINE])
    return {numbers[one.public_key] for one in found if one.public_key in numbers}


@contextmanager
def report_presence(
    folder: FederationFolder, link: SuperLink, tell: Callable[[Collection[int]], None], every: float = PRESENCE_EVERY
) -> Iterator[None]:
    """Report the connected clients periodically, in a background thread."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(every):
            with suppress(OSError, ValueError):  # the next report follows soon
                tell(present(folder, link))

    thread = threading.Thread(target=look, name="presence", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def ask_for_run(folder: FederationFolder) -> None:
    """Request that the server run or resume the rounds, at once or when it is started."""
    replace(folder.wanted, b"")


def serve(
    folder: FederationFolder,
    tell: Observer = ignore,
    *,
    denied: Callable[[str], None] | None = None,
    ready: Callable[[SuperLink], None] | None = None,
    once: bool = False,
) -> None:
    """Serve until a signal arrives; with `once` until the rounds are done.

    `denied` is called with the reason of each denied request, `ready` with the server once it listens.
    """
    with open_link(folder, denied) as link:
        if ready is not None:
            ready(link)
        while True:
            link.admit(one.public_key for one in folder.roster)
            if folder.wanted.exists():
                run(folder, link, tell)
                folder.wanted.unlink(missing_ok=True)
                if once:
                    return
            time.sleep(LOOK)


def open_link(folder: FederationFolder, denied: Callable[[str], None] | None = None) -> SuperLink:
    """Create the server of a federation's folder; it listens once its context is entered."""
    settings, paths = folder.settings, folder.superlink
    certificate = None if settings.plaintext else Certificate(paths.certificate, paths.key)
    link = SuperLink(settings.bind, settings.port, certificate, largest_answer(folder.agreement), tell=denied)
    link.admit(one.public_key for one in folder.roster)
    return link


def run(folder: FederationFolder, link: SuperLink, tell: Observer = ignore) -> Run:
    """Run the rounds, from the first or from the last checkpoint."""
    members, settings = folder.roster, folder.settings
    transport = FlowerTransport(LinkCarrier(link), by_key({one.id: one.public_key for one in members}))
    try:
        return run_federation(
            folder.agreement,
            transport,
            folder.run_folder,
            clients=[one.name for one in members],
            quorum=settings.quorum,
            deadline=settings.deadline,
            tell=tell,
        )
    finally:
        transport.close()


def largest_answer(agreement: Agreement) -> int:
    """Return the maximal size of a client's answer in bytes."""
    return Guard(agreement).largest + 2**16
