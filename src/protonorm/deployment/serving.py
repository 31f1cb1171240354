"""A server from its start to its end: one for each folder, with its logs, its status and its figures."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from protonorm.deployment.events import Event, tell_all
from protonorm.deployment.folder import FederationFolder
from protonorm.deployment.holding import ended_by_signal, held
from protonorm.deployment.log import Log
from protonorm.deployment.terms import address_of
from protonorm.errors import Failed
from protonorm.files import make_folder

if TYPE_CHECKING:
    from protonorm.deployment.flower.superlink import SuperLink

PAGE = "report.html"  # in the run's folder


def serve_folder(folder: FederationFolder, show: Callable[[str], None] | None = None, *, once: bool = False) -> None:
    """Serve a federation until a signal comes; with `once` begin with its rounds, and end when they are done."""
    with ExitStack() as stack:
        stack.enter_context(held(folder.server_lock, f"The server of {folder.path}"))
        if once:
            folder.wanted.touch(mode=0o600)
        from protonorm import __version__  # all this takes seconds, in which the server counts as running already
        from protonorm.deployment.board import Board
        from protonorm.deployment.flower import server
        from protonorm.deployment.flower.attendance import attending

        make_folder(folder.run_folder)
        log = Log(folder.log_folder, "server", show)
        board = Board(folder, log)
        if folder.settings.metrics_port is not None:
            from protonorm.deployment.metrics import serving

            stack.enter_context(serving(folder.status_file, folder.settings.metrics_port, __version__))
        board.open()
        stack.callback(board.close)

        def ready(link: SuperLink) -> None:
            log.write("ready", f"The server listens at {address_of(folder.settings.bind, link.port)}.")
            stack.enter_context(attending(folder, link, board.attend))

        try:
            tell = tell_all(board, _page_at_the_end(folder, log))
            with ended_by_signal():
                server.serve(folder, tell, denied=board.deny, ready=ready, once=once)
        except KeyboardInterrupt:
            log.write("ended", "The server was asked to end.")
            raise
        except (Failed, ValueError, OSError) as error:
            if board.status.state == "failed":
                folder.wanted.unlink(missing_ok=True)  # the same would fail again
            with suppress(OSError):  # the disk may be full
                log.write("ended", str(error), "error")
            raise


def _page_at_the_end(folder: FederationFolder, log: Log) -> Callable[[Event], None]:
    """Write the page that tells of the record, once all rounds are done."""

    def tell(event: Event) -> None:
        if event.what != "finished":
            return
        from protonorm.analysis.reading import read_whole
        from protonorm.report.page import write_page

        try:
            place = write_page([read_whole(folder.run_folder)], folder.run_folder / PAGE)
        except (ValueError, OSError) as error:  # the record is there; a page can be made later
            log.write("report", f"The report could not be written: {error}", "warning")
        else:
            log.write("report", f"Report: {place}")

    return tell
