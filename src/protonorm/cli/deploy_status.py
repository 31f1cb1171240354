"""Commands `deploy status`, `stop` and `doctor`, and the folders of `deploy` commands."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protonorm.cli.console import Column, make_table, print_json, reporting, say, say_findings
from protonorm.cli.options import Json, path_option, read_path
from protonorm.core.text import visible

if TYPE_CHECKING:
    from protonorm.deployment.folders import ClientFolder, FederationFolder


NewFolder = Annotated[Path, typer.Argument(parser=read_path, metavar="FOLDER", help="A folder that is not there yet.")]
FEDERATION = "The federation's folder; PROTONORM_FEDERATION or the current folder if not given."
FederationPath = Annotated[Path | None, path_option(FEDERATION, "--folder")]
CLIENT = "The client's folder; PROTONORM_CLIENT or ./NAME if not given."
ClientPath = Annotated[Path | None, path_option(CLIENT, "--folder")]
EITHER = "Folder of a federation or client; PROTONORM_FEDERATION, PROTONORM_CLIENT or the current folder if not given."
EitherPath = Annotated[Path | None, path_option(EITHER, "--folder")]
Watch = Annotated[bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")]

LOOK = 0.25  # seconds between two reads of a log
ROUNDS = 10  # number of rounds whose accuracy is shown
WORDS = {"unknown": "-", "absent": "away"}  # displayed states of a client in a round
RIGHT = ("", "last answer", "answers", "late", "refused", "suspect")  # numeric columns
CLIENTS = ("", "client", "connected", "this round", "last answer", "answers", "late", "refused", "suspect", "problem")
ACCURACY = ("round", "mean of clients", "all samples", "validation")


def check_installed() -> None:
    """Raise a ValueError if a requirement of a federation is not installed."""
    from importlib.util import find_spec

    needed = {"aiohttp": "aiohttp", "cryptography": "cryptography", "prometheus_client": "prometheus-client"}
    if missing := [name for module, name in needed.items() if find_spec(module) is None]:
        names = ", ".join(missing)
        raise ValueError(f"`protonorm deploy` needs {names}, not installed here: pip install 'protonorm[deploy]'.")


def open_federation(path: Path | None) -> "FederationFolder":
    """Open the federation's folder."""
    check_installed()
    from protonorm.deployment.folders import FEDERATION_VARIABLE, FederationFolder

    return FederationFolder.open(path or Path(os.environ.get(FEDERATION_VARIABLE) or "."))


def open_either(path: Path | None) -> "FederationFolder | ClientFolder":
    """Open the folder of a federation or of a client."""
    check_installed()
    from protonorm.deployment import folders

    given = path or os.environ.get(folders.FEDERATION_VARIABLE) or os.environ.get(folders.CLIENT_VARIABLE) or "."
    if (Path(given) / folders.CLIENT).is_file():
        return folders.ClientFolder.open(given)
    if (Path(given) / folders.FEDERATION).is_file():
        return folders.FederationFolder.open(given)
    raise ValueError(
        f"{given} is neither the folder of a federation (`protonorm deploy init`) nor of a client "
        "(`protonorm deploy join`); name one with --folder."
    )


def status(folder: EitherPath = None, as_json: Json = False, watch: Watch = False) -> None:
    """Show the status of a federation: rounds, connected and late clients, refused replies, accuracy so far."""
    with reporting(quiet=True):
        found = open_either(folder)
        from protonorm.deployment.folders import ClientFolder
        from protonorm.deployment.status import view_client, view_federation

        while True:
            is_client = isinstance(found, ClientFolder)
            seen = view_client(found) if isinstance(found, ClientFolder) else view_federation(found)
            if as_json:
                print_json(seen)
            else:
                for part in [client_lines(seen)] if is_client else federation_tables(seen):
                    say(part)
            if not watch:
                return
            try:
                time.sleep(2.0)
            except KeyboardInterrupt:
                return
            if not as_json:
                typer.clear()


def stop(folder: EitherPath = None) -> None:
    """Stop the server or the client of a folder; finished rounds are kept, and the next start resumes."""
    with reporting():
        found = open_either(folder)
        from protonorm.deployment.folders import ClientFolder
        from protonorm.deployment.process_lock import end_owner

        role, lock = ("client", found.lock) if isinstance(found, ClientFolder) else ("server", found.server_lock)
        what = f"The {role} of {found.path}"
        say(f"{what} {'has ended' if end_owner(lock, what) else 'is not running'}.")


def doctor(folder: EitherPath = None, as_json: Json = False) -> None:
    """Diagnose a deployment: versions, disk, keys, certificate, name, port, clock, data."""
    with reporting(quiet=True):
        found = open_either(folder)
        from protonorm.deployment.doctor import look_at_client, look_at_server
        from protonorm.deployment.folders import ClientFolder

        findings = look_at_client(found) if isinstance(found, ClientFolder) else look_at_server(found)
        say_findings(findings, as_json=as_json, fine="Nothing is wrong.")


def follow(folder: "FederationFolder", start: int) -> bool:
    """Print a server's log from an offset until its run ends (it may start later); return whether it succeeded."""
    from protonorm.deployment.process_lock import is_locked
    from protonorm.deployment.status import Status
    from protonorm.errors import Failed

    path, lived = folder.log_folder / "server.log", False
    while True:
        lives, wanted = is_locked(folder.server_lock), folder.wanted.exists()  # first, so that no line is missed
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


def _show_log(path: Path, start: int) -> int:
    """Print the complete lines of a log after an offset; return the new offset."""
    if not path.exists() or path.stat().st_size < start:
        return 0  # the log was rotated
    with path.open("rb") as file:
        file.seek(start)
        lines = file.read()
    whole = lines[: lines.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        say(line)
    return start + len(whole)


def federation_tables(seen: dict[str, Any]) -> Iterator[Any]:
    """Yield the status of a federation: its clients, its rounds, and the last problems."""
    rows = []
    for one in seen["clients"]:
        counts = [f"round {one['answered']}" if one["answered"] else "-"]
        counts += [str(one[name]) for name in ("answers", "late", "refused", "suspect")]
        here, state = "yes" if one["here"] else "no", WORDS.get(one["state"], one["state"])
        rows.append([str(one["id"]), one["name"], here, state, *counts, one["said"]])
    columns = [Column(name, "right" if name in RIGHT else "left", no_wrap=name == "client") for name in CLIENTS]
    said = f"the server is {'' if seen['server']['running'] else 'not '}running; {seen['means']}"
    if seen["state"] in ("running", "waiting"):
        said += f": round {seen['round']} of {seen['rounds']}, {seen['needed']} of {len(seen['clients'])} must answer"
    elif seen["state"] == "failed":
        said += f": {seen['text']}"
    yield make_table(f"{seen['federation']}: {said}", columns, rows)
    speed = f"clients have {seen['deadline']:g} seconds in a round"
    if seen["done"] and seen["seconds"]:
        carried = (seen["bytes_up"] + seen["bytes_down"]) / 2**20
        speed = f"the last took {seen['last_seconds']:.1f} seconds; {carried:.1f} MiB went over the wire"
    lines = [f"Rounds: {seen['done']} of {seen['rounds']} are done; {speed}."]
    if refused := {why: times for why, times in seen["refused"].items() if times}:
        lines.append("Answers refused: " + ", ".join(f"{times} {why}" for why, times in refused.items()) + ".")
    if seen["denied"]:
        lines.append(f"Requests that were not let in: {seen['denied']}.")
    if history := seen["history"]:
        yield "\n".join(lines)
        lines = []
        caption = f"Rule {seen['rule']}, on what clients test and validate on, as far as their owners tell it."
        columns = [Column(name, "right") for name in ACCURACY]
        shares = [[one[name] for name in ("test", "pooled", "validation")] for one in history[-ROUNDS:]]
        cells = [["-" if value is None else f"{100 * value:.2f}" for value in values] for values in shares]
        rows = [[str(one["round"]), *own] for one, own in zip(history[-ROUNDS:], cells, strict=True)]
        yield make_table("Accuracy so far, in per cent", columns, rows, caption)
    elif seen["done"]:
        lines.append("No accuracy yet: no client has been evaluated, or their owners do not tell it.")
    if "record" in seen:
        lines.append(visible(seen["record"]))
    lines += [visible(f"{one['time']} {one['text']}") for one in seen["problems"]]
    if lines:
        yield "\n".join(lines)


def client_lines(seen: dict[str, Any]) -> str:
    """Format the status of a client on its own machine."""
    state = f"running, as process {seen['process']}" if seen["running"] else "not running"
    joined = "its agreement is confirmed" if seen["joined"] else "no agreement is confirmed yet"
    data = seen["data"] if isinstance(seen["data"], str) else seen["data"].get("path", "")
    lines = [
        f"Client {seen['name']}: {state}; {joined}.",
        f"data: {data or 'none yet'}; network: {seen['model'] or 'as agreed on'}; evaluation: {seen['allowed']}",
        *(f"{one['time']} {one['text']}" for one in seen["events"]),
    ]
    return "\n".join(map(visible, lines))
