"""A federation's server at work: it lets clients in, and runs the rounds when its owner has asked for that."""

from __future__ import annotations

import time
from collections.abc import Callable

from protonorm.deployment.agreement import Agreement
from protonorm.deployment.events import Observer, ignore
from protonorm.deployment.flower.link_carrier import LinkCarrier
from protonorm.deployment.flower.superlink import Certificate, SuperLink
from protonorm.deployment.flower.transport import FlowerTransport, by_key
from protonorm.deployment.folder import FederationFolder
from protonorm.deployment.guard import Guard
from protonorm.deployment.loop import run_federation
from protonorm.files import replace
from protonorm.runs.run import Run

LOOK = 0.25  # seconds between two looks at what the owner wants


def ask_for_run(folder: FederationFolder) -> None:
    """Let the server begin with the rounds, or go on; it does so at once, or when it is started."""
    replace(folder.wanted, b"")


def serve(
    folder: FederationFolder,
    tell: Observer = ignore,
    *,
    denied: Callable[[str], None] | None = None,
    ready: Callable[[SuperLink], None] | None = None,
    once: bool = False,
) -> None:
    """Serve until a signal comes; with `once` until the rounds are done.

    `denied` hears of everybody who is not let in, `ready` of the server once it listens.
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
    """Make the server of a federation's folder; it listens once it is entered."""
    settings, paths = folder.settings, folder.superlink
    certificate = None if settings.plaintext else Certificate(paths.certificate, paths.key)
    link = SuperLink(settings.bind, settings.port, certificate, largest_answer(folder.agreement), tell=denied)
    link.admit(one.public_key for one in folder.roster)
    return link


def run(folder: FederationFolder, link: SuperLink, tell: Observer = ignore) -> Run:
    """Run the rounds, from the first or from where they stopped."""
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
    """Bound the bytes of a client's answer."""
    return Guard(agreement).largest + 2**16
