"""Commands `deploy status`, `stop` and `doctor`, and the folders of `deploy` commands."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protonorm.cli.console import FAILED, Column, complain, make_table, print_json, reporting, say, say_findings
from protonorm.cli.options import Json, path_option, read_path
from protonorm.core.text import visible

if TYPE_CHECKING:
    from protonorm.deployment.client_folder import ClientFolder
    from protonorm.deployment.federation_folder import FederationFolder


NewFolder = Annotated[Path, typer.Argument(parser=read_path, metavar="FOLDER", help="A folder that is not there yet.")]
FEDERATION = "The federation's folder; PROTONORM_FEDERATION or the current folder if not given."
FederationPath = Annotated[Path | None, path_option(FEDERATION, "--folder")]
CLIENT = "The client's folder; PROTONORM_CLIENT or ./NAME if not given."
ClientPath = Annotated[Path | None, path_option(CLIENT, "--folder")]
EITHER = "Folder of a federation or client; PROTONORM_FEDERATION, PROTONORM_CLIENT or the current folder if not given."
EitherPath = Annotated[Path | None, path_option(EITHER, "--folder")]
Watch = Annotated[bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")]

PASSWORD = "File with the page's password in its first line; or PROTONORM_STATUS_PASSWORD. The name is protonorm."
HEAD = "A hash that was noted before and must occur: without it, lines missing at the end are not noticed."

LOOK = 0.25  # seconds between two reads of a log
ROUNDS = 10  # number of rounds whose accuracy is shown
WORDS = {"unknown": "-", "absent": "away"}  # displayed states of a client in a round
RIGHT = ("", "last answer", "answers", "late", "refused", "suspect", "accuracy")  # numeric columns
CLIENTS = ("", "client", "connected", "this round", "last answer", "answers", "late", "refused", "suspect")
ACCURACY = ("round", "mean of clients", "all samples", "validation")


def check_installed() -> None:
    """Raise a ValueError if a requirement of a federation is not installed."""
    from importlib.util import find_spec

    needed = {"aiohttp": "aiohttp", "cryptography": "cryptography", "prometheus_client": "prometheus-client"}
    if missing := [name for module, name in needed.items() if find_spec(module) is None]:
        lacking = f"{', '.join(missing)}, not installed here"
        raise ValueError(f"`protonorm deploy` needs {lacking}: pip install '.[deploy]' in a checkout.")


def open_federation(path: Path | None) -> "FederationFolder":
    """Open the federation's folder."""
    check_installed()
    from protonorm.deployment.federation_folder import FEDERATION_VARIABLE, FederationFolder

    return FederationFolder.open(path or Path(os.environ.get(FEDERATION_VARIABLE) or "."))


def open_either(path: Path | None) -> "FederationFolder | ClientFolder":
    """Open the folder of a federation or of a client."""
    check_installed()
    from protonorm.deployment.client_folder import CLIENT, CLIENT_VARIABLE, ClientFolder
    from protonorm.deployment.federation_folder import FEDERATION, FEDERATION_VARIABLE, FederationFolder

    folder = path or os.environ.get(FEDERATION_VARIABLE) or os.environ.get(CLIENT_VARIABLE) or "."
    if (Path(folder) / CLIENT).is_file():
        return ClientFolder.open(folder)
    if (Path(folder) / FEDERATION).is_file():
        return FederationFolder.open(folder)
    raise ValueError(
        f"{folder} is neither the folder of a federation (`protonorm deploy init`) nor of a client "
        "(`protonorm deploy join`); name one with --folder."
    )


def status(
    folder: EitherPath = None,
    as_json: Json = False,
    watch: Watch = False,
    web: Annotated[bool, typer.Option("--web", help="Serve it as a page that refreshes, until Ctrl-C.")] = False,
    host: Annotated[str, typer.Option(help="Where the page is served; others than this machine need a password.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port of the page.", min=0, max=65535)] = 9095,
    password: Annotated[Path | None, path_option(PASSWORD, "--password-file")] = None,
) -> None:
    """Show the status of a federation: rounds, connected and late clients, refused replies, accuracy so far."""
    with reporting(quiet=True):
        either = open_either(folder)
        if web:
            serve_web(either, host, port, password)
            return
        from protonorm.deployment.client_folder import ClientFolder
        from protonorm.deployment.status import view_client, view_federation

        while True:
            is_client = isinstance(either, ClientFolder)
            seen = view_client(either) if isinstance(either, ClientFolder) else view_federation(either)
            if as_json:
                print_json(seen)
            else:
                for part in client_tables(seen) if is_client else federation_tables(seen):
                    say(part)
            if not watch:
                return
            try:
                time.sleep(2.0)
            except KeyboardInterrupt:
                return
            if not as_json:
                typer.clear()


def serve_web(folder: "FederationFolder | ClientFolder", host: str, port: int, password: Path | None) -> None:
    """Serve a federation's status page until Ctrl-C or a signal to end."""
    from protonorm.deployment.client_folder import ClientFolder
    from protonorm.deployment.process_lock import ended_by_signal
    from protonorm.deployment.status import view_federation
    from protonorm.deployment.web import read_password, render, serve_page

    if isinstance(folder, ClientFolder):
        raise ValueError(
            f"--web is for a federation, and {folder.path} is a client's: --watch shows it again and again."
        )
    page = lambda: render(lambda: view_federation(folder), standing)  # noqa: E731
    with suppress(KeyboardInterrupt), ended_by_signal(), serve_page(page, host, port, read_password(password)) as where:
        say(f"The status is at {where}")
        while True:
            time.sleep(3600)


def stop(folder: EitherPath = None) -> None:
    """Stop the server or the client of a folder; finished rounds are kept, and the next start resumes."""
    with reporting():
        either = open_either(folder)
        from protonorm.deployment.client_folder import ClientFolder
        from protonorm.deployment.process_lock import end_owner

        role, lock = ("client", either.lock) if isinstance(either, ClientFolder) else ("server", either.server_lock)
        description = f"The {role} of {either.path}"
        say(f"{description} {'has ended' if end_owner(lock, description) else 'is not running'}.")


def doctor(folder: EitherPath = None, as_json: Json = False) -> None:
    """Diagnose a deployment: versions, disk, keys, certificate, name, port, clock, data."""
    with reporting(quiet=True):
        either = open_either(folder)
        from protonorm.deployment.client_folder import ClientFolder
        from protonorm.deployment.doctor import look_at_client, look_at_server

        findings = look_at_client(either) if isinstance(either, ClientFolder) else look_at_server(either)
        say_findings(findings, as_json=as_json, fine="Nothing is wrong.")


def audit(
    folder: EitherPath = None,
    last: Annotated[int, typer.Option(help="How many lines are shown.", min=0)] = 20,
    head: Annotated[str, typer.Option(help=HEAD)] = "",
    as_json: Json = False,
) -> None:
    """Show the audit trail of a federation or client, and verify it: who connected, what was sent, refused, confirmed.

    A line that was changed, removed or moved is named, and the status is then not 0.
    """
    with reporting(quiet=True):
        either = open_either(folder)
        from protonorm.deployment.audit import details, verify

        seen = verify(either.trail.path, head)
        shown = seen.lines[-last:] if last else []
        if as_json:
            problems = list(seen.problems)
            print_json({"lines": shown, "count": len(seen.lines), "hash": seen.head, "problems": problems})
        else:
            for line in shown:
                place = f"{line.get('number', '?'):>6} {line.get('time', '')}"
                say(visible(f"{place} {line.get('event', '')}: {details(line)}"))
            for problem in seen.problems:
                complain(problem)
            verdict = "the chain is whole" if not seen.problems else "the chain is broken"
            say(f"{len(seen.lines)} lines; {verdict}; hash of the last: {seen.head or 'none'}")
        if seen.problems:
            raise typer.Exit(FAILED)


def follow(folder: "FederationFolder", start: int) -> bool:
    """Print a server's log from an offset until its run ends (it may start later); return whether it succeeded."""
    from protonorm.deployment.process_lock import is_locked
    from protonorm.deployment.status import Status
    from protonorm.errors import Failed

    path, lived = folder.log_folder / "server.log", False
    while True:
        lives, requested = is_locked(folder.server_lock), folder.wanted.exists()  # first, so that no line is missed
        status = Status.read(folder.status_file)
        start = _show_log(path, start)
        if not requested and status is not None and status.state in ("done", "failed"):
            if status.state == "done":
                say(f"The record is in {folder.run_folder}; `protonorm report {folder.run_folder}` makes a page of it.")
            return status.state == "done"
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
    complete = lines[: lines.rfind(b"\n") + 1]
    for line in complete.decode(errors="replace").splitlines():
        say(line)
    return start + len(complete)


def standing(seen: dict[str, Any]) -> str:
    """Describe in a line whether the server runs, and where the federation is."""
    sentence = f"the server is {'' if seen['server']['running'] else 'not '}running; {seen['means']}"
    if seen["state"] in ("running", "waiting"):
        sentence += f": round {seen['round']} of {seen['rounds']}, {seen['needed']} of {seen['members']} must answer"
    elif seen["state"] == "failed":
        sentence += f": {seen['text']}"
    return sentence


def federation_tables(seen: dict[str, Any]) -> Iterator[Any]:
    """Yield the status of a federation: its clients, its rounds, and the last problems."""
    rows, told = [], any(client["accuracy"] is not None for client in seen["clients"])
    for client in seen["clients"]:
        counts = [f"round {client['answered']}" if client["answered"] else "-"]
        counts += [str(client[name]) for name in ("answers", "late", "refused", "suspect")]
        state = client["standing"] or WORDS.get(client["state"], client["state"])
        here = "yes" if client["here"] else "no"
        accuracy = [_per_cent(client["accuracy"])] if told else []
        rows.append([str(client["id"]), client["name"], here, state, *counts, *accuracy, client["said"]])
    names = (*CLIENTS, *(["accuracy"] if told else []), "problem")
    columns = [Column(name, "right" if name in RIGHT else "left", no_wrap=name == "client") for name in names]
    caption = "Accuracy: the last one that the client's owner told, in per cent." if told else ""
    yield f"Messages are combined by the rule {seen['combine']}."
    yield make_table(f"{seen['federation']}: {standing(seen)}", columns, rows, caption)
    speed = f"clients have {seen['deadline']:g} seconds in a round"
    if seen["done"] and seen["seconds"]:
        carried = (seen["bytes_up"] + seen["bytes_down"]) / 2**20
        speed = f"the last took {seen['last_seconds']:.1f} seconds; {carried:.1f} MiB went over the wire"
    lines = [f"Rounds: {seen['done']} of {seen['rounds']} are done; {speed}."]
    lines += [visible(terms["text"]) for terms in seen["terms"]]
    if refused := {why: times for why, times in seen["refused"].items() if times}:
        lines.append("Answers refused: " + ", ".join(f"{times} {why}" for why, times in refused.items()) + ".")
    if seen["denied"]:
        lines.append(f"Requests that were not let in: {seen['denied']}.")
    if history := seen["history"]:
        yield "\n".join(lines)
        lines = []
        caption = f"Rule {seen['rule']}, on what clients test and validate on, as far as their owners tell it."
        columns = [Column(name, "right") for name in ACCURACY]
        shares = [[record[name] for name in ("test", "pooled", "validation")] for record in history[-ROUNDS:]]
        cells = [list(map(_per_cent, values)) for values in shares]
        rows = [[str(record["round"]), *own] for record, own in zip(history[-ROUNDS:], cells, strict=True)]
        yield make_table("Accuracy so far, in per cent", columns, rows, caption)
    elif seen["done"]:
        lines.append("No accuracy yet: no client has been evaluated, or their owners do not tell it.")
    if "record" in seen:
        lines.append(visible(seen["record"]))
    lines += [visible(f"{event['time']} {event['text']}") for event in seen["problems"]]
    if lines:
        yield "\n".join(lines)


def _per_cent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def client_tables(seen: dict[str, Any]) -> Iterator[Any]:
    """Yield the status of a client on its own machine: its state, and its own accuracy in each round."""
    yield client_lines(seen)
    if history := seen["history"][-ROUNDS:]:
        rules = list(dict.fromkeys(rule for record in history for rule in record["accuracy"]))
        columns = [Column(name, "right") for name in ("round", "loss", *rules, "alone")]
        rows = []
        for record in history:
            loss = "-" if record["loss"] is None else f"{record['loss']:.4g}"
            accuracies = [_per_cent(value) for value in (*map(record["accuracy"].get, rules), record["alone"])]
            rows.append([str(record["round"]), loss, *accuracies])
        caption = "On this client's own test part; `alone` is the same network on its own data alone (deploy alone)."
        yield make_table("Own accuracy, in per cent", columns, rows, caption)
    if seen["offered"]:
        yield "The server proposes other terms: `protonorm deploy accept` shows them."


def client_lines(seen: dict[str, Any]) -> str:
    """Format the status of a client on its own machine."""
    state = f"running, as process {seen['process']}" if seen["running"] else "not running"
    joined = "its agreement is confirmed" if seen["joined"] else "no agreement is confirmed yet"
    joined += ", and the server proposes other terms, which are not" if seen["offered"] else ""
    joined = "it has left its federation" if seen["left"] else joined
    data = seen["data"] if isinstance(seen["data"], str) else seen["data"].get("path", "")
    lines = [
        f"Client {seen['name']}: {state}; {joined}.",
        f"data: {data or 'none yet'}; network: {seen['model'] or 'the usual one'}; evaluation: {seen['allowed']}",
        *([seen[name] for name in ("policy", "state_missing") if seen[name]]),
        *([_privacy_line(seen["privacy"])] if seen["privacy"] else []),
        *(f"{event['time']} {event['text']}" for event in seen["events"]),
    ]
    return "\n".join(map(visible, lines))


def _privacy_line(privacy: dict[str, Any]) -> str:
    """Format the privacy loss of a client, and what it does not cover."""
    from protonorm.deployment.ledger import not_covered

    line = f"privacy loss: ε = {privacy['epsilon']:.3g} of {privacy['ceiling']:g} is spent, δ = {privacy['delta']:g}."
    return f"{line} {not_covered(privacy['unprotected'])}" if privacy["unprotected"] else line
