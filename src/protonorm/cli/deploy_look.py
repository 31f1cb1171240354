"""The commands `deploy status`, `stop` and `doctor`, for a federation's folder or a client's, and following a run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protonorm.cli.console import FAILED, complain, print_json, reporting, say
from protonorm.cli.deploy_folders import EitherPath, open_either
from protonorm.cli.options import Json

if TYPE_CHECKING:
    from protonorm.deployment.folder import FederationFolder

LOOK = 0.25  # seconds between two looks at a log

Watch = Annotated[bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")]


def status(folder: EitherPath = None, as_json: Json = False, watch: Watch = False) -> None:
    """Say how a federation stands: rounds, who is there, who was late, what was refused, accuracy so far."""
    with reporting(quiet=True):
        found = open_either(folder)
        while True:
            _show_status(found, as_json=as_json)
            if not watch:
                return
            try:
                time.sleep(2.0)
            except KeyboardInterrupt:
                return
            if not as_json:
                typer.clear()


def _show_status(found: Any, *, as_json: bool) -> None:
    from protonorm.cli.deploy_tables import client_lines, federation_tables
    from protonorm.deployment.client_folder import ClientFolder
    from protonorm.deployment.view import view_client, view_federation

    if isinstance(found, ClientFolder):
        seen = view_client(found)
        print_json(seen) if as_json else say(client_lines(seen))
        return
    seen = view_federation(found)
    if as_json:
        print_json(seen)
    else:
        for part in federation_tables(seen):
            say(part)


def stop(folder: EitherPath = None) -> None:
    """Stop the server or the client of a folder; what is done is kept, and goes on when it is started again."""
    with reporting():
        found = open_either(folder)
        from protonorm.deployment.client_folder import ClientFolder
        from protonorm.deployment.holding import end_holder

        is_client = isinstance(found, ClientFolder)
        what = f"The {'client' if is_client else 'server'} of {found.path}"
        ended = end_holder(found.lock if isinstance(found, ClientFolder) else found.server_lock, what)
        say(f"{what} {'has ended' if ended else 'is not running'}.")


def doctor(folder: EitherPath = None, as_json: Json = False) -> None:
    """Say in sentences what is wrong: versions, disk, keys, certificate, name, port, clock, data."""
    with reporting(quiet=True):
        found = open_either(folder)
        from protonorm.deployment.client_folder import ClientFolder
        from protonorm.deployment.doctor import look_at_client, look_at_server

        seen = []
        for finding in look_at_client(found) if isinstance(found, ClientFolder) else look_at_server(found):
            seen.append(finding)
            if not as_json:
                (say if finding.ok else complain)(f"{finding.what}: {finding.text}")
        wrong = sum(not one.ok for one in seen)
        if as_json:
            print_json({"ok": not wrong, "findings": [one._asdict() for one in seen]})
        elif not wrong:
            say("Nothing is wrong.")
        if wrong:
            raise typer.Exit(FAILED)


def follow(folder: FederationFolder, start: int) -> bool:
    """Show a server's log from a place on until its run ends; tell whether it ended well. A server may come later."""
    from protonorm.deployment.holding import is_held
    from protonorm.deployment.status import Status
    from protonorm.errors import Failed

    path, lived = folder.log_folder / "server.log", False
    while True:
        lives, wanted = is_held(folder.server_lock), folder.wanted.exists()  # before the log: nothing is missed
        found = Status.read(folder.status_file)
        start = _show_log(path, start)
        if not wanted and found is not None and found.state in ("done", "failed"):
            if found.state == "done":
                say(f"The record is in {folder.run_folder}; `protonorm report {folder.run_folder}` makes a page of it.")
            return found.state == "done"
        if lived and not lives:
            raise Failed("The server has ended; the rounds that are done are kept. `protonorm deploy server` goes on.")
        lived = lives
        time.sleep(LOOK)


def _show_log(path: Any, start: int) -> int:
    """Print the whole lines of a log after a place; give the place after them."""
    if not path.exists() or path.stat().st_size < start:
        return 0  # it was moved aside
    with path.open("rb") as file:
        file.seek(start)
        lines = file.read()
    whole = lines[: lines.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        say(line)
    return int(start + len(whole))
