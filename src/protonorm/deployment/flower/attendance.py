"""Who is connected, also while no round is on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from flwr.supercore.constant import NodeStatus

from protonorm.deployment.flower.fleet_api import key_bytes
from protonorm.deployment.flower.superlink import SuperLink
from protonorm.deployment.folder import FederationFolder

LOOK = 2.0  # seconds between two looks


def present(folder: FederationFolder, link: SuperLink) -> set[int]:
    """Give the numbers of the clients that are connected; Flower takes a while to notice that one was killed."""
    numbers = {key_bytes(one.public_key): one.id for one in folder.roster}
    found = link.state.get_node_info(statuses=[NodeStatus.ONLINE])
    return {numbers[one.public_key] for one in found if one.public_key in numbers}


@contextmanager
def attending(
    folder: FederationFolder, link: SuperLink, tell: Callable[[Collection[int]], None], every: float = LOOK
) -> Iterator[None]:
    """Tell again and again who is connected, in a thread of its own."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(every):
            with suppress(OSError, ValueError):  # it is told again soon
                tell(present(folder, link))

    thread = threading.Thread(target=look, name="attendance", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
