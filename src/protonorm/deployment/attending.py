"""A client from its start to its end, with its logs."""

from __future__ import annotations

from collections.abc import Callable

from protonorm.deployment.client_folder import ClientFolder
from protonorm.deployment.log import Level, Log
from protonorm.errors import Failed

LEVELS: dict[str, Level] = {"waiting": "warning", "unreachable": "warning", "declined": "warning", "dropped": "warning"}


def attend(folder: ClientFolder, show: Callable[[str], None] | None = None) -> None:
    """Take part until the rounds are done, or a signal comes; what happens is logged."""
    from protonorm.deployment.flower.client import run_client

    log = Log(folder.log_folder, "client", show)

    def tell(event: str, sentence: str) -> None:
        log.write(event, sentence, LEVELS.get(event, "info"))

    try:
        run_client(folder, tell)
    except KeyboardInterrupt:
        log.write("ended", "The client was asked to end.")
        raise
    except (Failed, ValueError, OSError) as error:
        quiet = Log(folder.log_folder, "client")  # the command itself says it
        quiet.write("refused", str(error), "error")
        raise
