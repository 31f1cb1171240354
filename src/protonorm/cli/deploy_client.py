"""Commands `deploy join` and `deploy client`, for the machine of a participating organisation."""

import os
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protonorm.cli.console import Column, make_table, reporting, say
from protonorm.cli.deploy_status import ClientPath, check_installed
from protonorm.cli.options import NoOwnCode, read_path
from protonorm.core.text import visible

if TYPE_CHECKING:
    from protonorm.deployment.agreement import Bundle
    from protonorm.deployment.client_folder import ClientFolder


Told = StrEnum("Told", ["off", "accuracy", "classes"])  # evaluation results that a client reports to the server
TOLD = {
    "off": "nothing",
    "accuracy": "how many of its samples are right, in all",
    "classes": "how many of its samples are right, of each class",
}

Channels = StrEnum("Channels", {"grey": "1", "colour": "3"})

EVALUATION = "What the server may know of the client's evaluation: nothing (off) unless you say otherwise."
BUNDLE = "The file that the server's owner sent; not needed once it is confirmed, with --folder."
DATA = "The client's data: a folder of pictures, an npz file, a table; or folder:PATH, array:PATH, …."
MODEL = "The client's network: a name of `protonorm list models`, or file.py:function of this machine."
OTHER = "Any other setting of training, such as optimiser=adam."
SKIP_BAD = "Go on without pictures that cannot be read."
WINDOW = "Of DICOM and 16-bit pictures: CENTRE/WIDTH of the values that are told apart, such as 40/400."
SIZE = "Of pictures: side length in pixels to which all are resized."
CHANNELS = "Of pictures: 1 makes all grey, 3 all coloured."
CHECKSUM = "The bundle's number as the server's owner read it to you; confirms without asking."
BEGIN_ANEW = "Where the client's state is lost, go on with a new network."
CHECK = "Confirm and check data and network, and do not take part yet."


def join(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the client is to be called.")],
    folder: ClientPath = None,
) -> None:
    """Create a key on this machine and print its public half, which the server's owner needs to register the client."""
    with reporting():
        check_installed()
        from protonorm.deployment.client_folder import CLIENT_VARIABLE, ClientFolder
        from protonorm.deployment.keys import key_fingerprint

        created = ClientFolder.create(folder or Path(os.environ.get(CLIENT_VARIABLE) or name), name)
        say(
            f"The key of {visible(name)} is in {visible(str(created.path))}, and must not leave this machine.\n"
            f"Its fingerprint is {key_fingerprint(created.public_key)}.\n"
            "Send this line to the owner of the server; it is no secret:"
        )
        typer.echo(created.public_key_file.read_text().strip())


def client(
    bundle: Annotated[Path | None, typer.Argument(parser=read_path, metavar="[BUNDLE]", help=BUNDLE)] = None,
    data: Annotated[str | None, typer.Option(help=DATA)] = None,
    model: Annotated[str | None, typer.Option(help=MODEL)] = None,
    lr: Annotated[float | None, typer.Option("--lr", "--learning-rate", help="Learning rate.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples of a batch.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Local epochs a round.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of SGD.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of SGD.")] = None,
    validation: Annotated[float | None, typer.Option(help="Share of the training part that is held out.")] = None,
    device: Annotated[str | None, typer.Option(help="Where to compute: cpu, cuda, cuda:1.")] = None,
    other: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=OTHER)] = None,
    evaluation: Annotated[Told | None, typer.Option(help=EVALUATION)] = None,
    label: Annotated[str | None, typer.Option(help="Of a table: the column of classes.")] = None,
    text: Annotated[str | None, typer.Option(help="Of a table: a column of texts to learn from.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help=SKIP_BAD)] = False,
    window: Annotated[str | None, typer.Option(help=WINDOW)] = None,
    size: Annotated[int | None, typer.Option(help=SIZE, min=1)] = None,
    channels: Annotated[Channels | None, typer.Option(help=CHANNELS)] = None,
    folder: ClientPath = None,
    checksum: Annotated[str | None, typer.Option(help=CHECKSUM)] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm the agreement without being asked.")] = False,
    check: Annotated[bool, typer.Option("--check", help=CHECK)] = False,
    begin_anew: Annotated[bool, typer.Option("--begin-anew", help=BEGIN_ANEW)] = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Participate with this organisation's own data and network, until the rounds are finished or it is stopped.

    The agreement is shown first and must be confirmed. Options are saved in the client's folder.
    """
    with reporting(quiet=True, no_own_code=no_own_code):
        check_installed()
        from protonorm.config.experiment import check_device
        from protonorm.config.parsing import read_settings
        from protonorm.deployment.keys import check_private
        from protonorm.deployment.process_lock import Ended, is_locked, process_lock
        from protonorm.deployment.service import serve_client
        from protonorm.models.choose import chosen

        own_folder, invitation = open_client(bundle, folder)
        check_private(own_folder.tls.key)
        if device is not None:
            check_device(device)
        if model is not None:
            chosen(model, "model")
        options: dict[str, Any] = {"lr": lr, "batch_size": batch_size, "epochs": epochs, "momentum": momentum}
        options |= {"weight_decay": weight_decay, "validation": validation, "device": device, "model": model}
        options |= {"data": data, "allowed": str(evaluation) if evaluation else None}
        if columns := {name: value for name, value in (("label", label), ("text", text)) if value is not None}:
            if data is None:
                raise ValueError("--label and --text say more about --data, which is not given.")
            options["data"] = {"name": "table", "path": data.removeprefix("table:"), **columns}
        own_folder.begin_anew = begin_anew
        if check and is_locked(own_folder.lock):
            place = visible(str(own_folder.path))
            raise ValueError(
                f"The client in {place} is running, and --check is for one that does not: `protonorm deploy doctor "
                f"--folder {place}` looks at its data and network meanwhile."
            )
        with process_lock(own_folder.lock, f"The client in {own_folder.path}"):
            pictures: dict[str, Any] = {"skip_bad": True} if skip_bad else {}
            sizes = {"size": size, "channels": int(channels) if channels else None}
            pictures |= {name: value for name, value in {"window": window, **sizes}.items() if value is not None}
            if pictures:
                options["data"] = _pictures(options["data"] or own_folder.settings.data, pictures)
            given = {name: value for name, value in options.items() if value is not None}
            with own_folder.trying(**read_settings(other or []) | given):
                if invitation is not None:
                    _confirm(own_folder, invitation, bundle, checksum, yes=yes)
                if own_folder.left.exists():
                    raise ValueError(
                        f"{own_folder.settings.name} has left its federation: it takes part again once the server's "
                        "owner has added it, and you have confirmed the new bundle by `protonorm deploy client BUNDLE`."
                    )
                for part in checked_data(own_folder) if check else ():
                    say(part)
            if check:
                return
            try:
                serve_client(own_folder, typer.echo)
            except Ended:
                raise typer.Exit from None


def accept(
    folder: ClientPath = None,
    checksum: Annotated[str | None, typer.Option(help=CHECKSUM)] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm without being asked.")] = False,
) -> None:
    """Show the terms that the server proposes, and confirm them; a running client goes on by them."""
    with reporting():
        own_folder, _ = open_client(None, folder)
        from protonorm.deployment.process_lock import is_locked
        from protonorm.deployment.settings import differing

        terms = own_folder.offered
        if terms is None or terms.amends is None:
            runs = is_locked(own_folder.lock)
            start = "" if runs else f", and this one does not run: `protonorm deploy client --folder {own_folder.path}`"
            say(
                visible(
                    f"There are no other terms to confirm; a running client receives them when a round begins{start}."
                )
            )
            return
        before = own_folder.previous(terms)
        terms.refuse_unless_it_follows(before)
        rows = [("from round", str(terms.amends.round)), *terms.lines()]
        say(make_table("Amended terms that the server proposes", [Column("term", no_wrap=True), "what"], rows))
        other = differing(terms.plain(), before.plain() | {"amends": terms.plain()["amends"]})
        say(f"Against what you confirmed before: {visible(', '.join(other))}.")
        say(f"The number to read aloud:\n  {terms.fingerprint}")
        _agree(terms.fingerprint, checksum, "Do you agree to these terms?", yes=yes)
        own_folder.accept()
        say("The terms are confirmed. What the client has learned is kept.")


def alone(folder: ClientPath = None, no_own_code: NoOwnCode = False) -> None:
    """Train on this organisation's own data alone, for as many rounds as agreed on, to see whether taking part pays.

    `deploy status` shows it beside the federation's rounds. Nothing of it is sent.
    """
    with reporting(no_own_code=no_own_code):
        own_folder, _ = open_client(None, folder)
        from protonorm.deployment.home import train_alone
        from protonorm.deployment.process_lock import process_lock

        with process_lock(own_folder.path / "alone.lock", f"Training alone in {own_folder.path}"):
            parts = own_folder.terms.evaluated or ["validation", "test"]
            train_alone(own_folder.site(), own_folder.store("alone"), parts, say)


def checked_data(folder: "ClientFolder") -> Iterator[Any]:
    """Yield what a client has of each class, and what is not sent; raise ValueError for data that do not fit."""
    from protonorm.core.training import MinimumCount
    from protonorm.deployment.client_folder import POLICY
    from protonorm.deployment.ledger import LEDGER, Ledger
    from protonorm.deployment.owner import preview

    if policy := folder.policy:
        yield make_table(f"The owner's policy ({POLICY})", [Column("term", no_wrap=True), "what"], list(policy.lines()))
    site = folder.site()
    spent, unprotected = Ledger.read(folder.states / LEDGER).spent, folder.count_unprotected(site.training.protect)
    facts, (sent, lines) = site.facts(), preview(site, spent, unprotected)
    parts = facts.train[0], facts.validation[0], facts.test[0]  # (K,) each
    rows = [[name, *(str(part[k]) for part in parts), sent[k][2]] for k, name in enumerate(site.task.classes)]
    counts = [Column(name, "right") for name in ("train", "validation", "test")]
    yield make_table("Samples by class, and what would be sent", [Column("class", no_wrap=True), *counts, "sent"], rows)
    if used := _use_of_validation(site.task.algorithm.rules, folder.terms.evaluated, int(parts[1].sum())):
        yield used
    yield " ".join(lines)
    protect, train = site.training.protect, parts[0]
    least = protect.least if isinstance(protect, MinimumCount) else MinimumCount().least
    if small := [f"{name} ({train[k]})" for k, name in enumerate(site.task.classes) if 0 < train[k] < least]:
        sentence = f"Fewer than {least} training samples: {visible(', '.join(small))}."
        if isinstance(protect, MinimumCount):
            yield f"{sentence} These classes are not sent, by protect=minimum_count."
        elif not protect.private:
            advice = "--set protect=minimum_count holds it back."
            yield f"{sentence} What is sent of them tells much of each sample; {advice}"
    if missing := folder.missing_state():
        yield missing
    yield "The data and the network fit the agreement."


def _use_of_validation(rules: Sequence[str], evaluated: Sequence[str], samples: int) -> str:
    """Return a sentence about what the validation part is for; empty if a client has none."""
    from protonorm.federation.experts import JOINT

    if not samples:
        return ""
    if evaluated and "validation" not in evaluated:
        return (
            f"The {samples} validation samples are held out from training and are not used, because by the terms only "
            f"{' and '.join(evaluated)} is evaluated: with --validation 0 they train."
        )
    joint = f" and fit the rule {JOINT}" if JOINT in rules else ""
    return f"The {samples} validation samples do not train: they choose among rounds and rules{joint}."


def leave(
    folder: ClientPath = None,
    yes: Annotated[bool, typer.Option("--yes", help="Leave without being asked.")] = False,
) -> None:
    """Leave the federation: the server no longer asks this client nor waits for it; its folder stays as it is."""
    with reporting():
        own_folder, _ = open_client(None, folder)
        from protonorm.deployment.https.client import Connection
        from protonorm.deployment.process_lock import end_owner

        bundle = own_folder.bundle
        if not yes and not (sys.stdin.isatty() and typer.confirm(f"Leave {bundle.federation} for good?")):
            raise ValueError("Nothing was done: --yes leaves without being asked.")
        end_owner(own_folder.lock, f"The client of {own_folder.path}")
        connection = Connection(bundle.host, bundle.port, *own_folder.tls, 4096, 4096)
        connection.leave()
        connection.close()
        own_folder.left.touch(mode=0o600)
        own_folder.trail.write("left", federation=bundle.federation)
        say(visible(f"{bundle.name} has left {bundle.federation}; the server's owner can let it in again."))


def export(
    path: Annotated[Path, typer.Argument(parser=read_path, metavar="PATH", help="Folder to write the network into.")],
    folder: ClientPath = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write model.onnx, which runs without protonorm.")] = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Export this organisation's trained network, with the last prototypes of the server, its measures and a card."""
    with reporting(no_own_code=no_own_code):
        own_folder, _ = open_client(None, folder)
        from protonorm.cli.predict import title
        from protonorm.deployment.home import load_trained

        trained = load_trained(own_folder)
        say(visible(f"{title(trained)}: {trained.save(path, onnx=onnx)}"))


def open_client(bundle: Path | None, folder: Path | None) -> "tuple[ClientFolder, Bundle | None]":
    """Open the client's folder, named after the bundle if none is given, and read the bundle."""
    check_installed()
    from protonorm.deployment.agreement import LARGEST_BUNDLE, Bundle
    from protonorm.deployment.client_folder import CLIENT_VARIABLE, ClientFolder

    if folder is None and os.environ.get(CLIENT_VARIABLE):
        folder = Path(os.environ[CLIENT_VARIABLE])
    if bundle is None:
        if folder is None:
            raise ValueError("Which client is meant? Give its bundle, or its folder with --folder.")
        return ClientFolder.open(folder), None
    if not bundle.is_file():
        raise ValueError(f"There is no file {bundle}.")
    with bundle.open("rb") as file:
        got = Bundle.read(file.read(LARGEST_BUNDLE + 1), str(bundle))
    return ClientFolder.open(folder or Path(got.name)), got


def _pictures(data: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the setting of a folder of pictures with other settings of how they are read."""
    kind, _, path = data.rpartition(":") if isinstance(data, str) else ("", "", "")
    if isinstance(data, dict):
        kind, path = data.get("name", ""), data.get("path", "")
    kinds = ("", "folder") if {"skip_bad", "window"} & settings.keys() else ("", "folder", "hf")
    if kind not in kinds or not Path(path).expanduser().is_dir():
        given = ", ".join(f"--{name.replace('_', '-')}" for name in settings)
        raise ValueError(f"{given} must be given for a folder of pictures, got {data or 'no data'}.")
    own = data if isinstance(data, dict) else {}
    return {**own, "name": kind or "folder", "path": str(Path(path).expanduser().resolve()), **settings}


def _confirm(folder: "ClientFolder", bundle: "Bundle", path: Path | None, checksum: str | None, *, yes: bool) -> None:
    """Show the agreement and ask for confirmation, unless it was confirmed before."""
    from protonorm.deployment.settings import address_of, differing

    folder.refuse_other_key(bundle)
    _check_sum(bundle.fingerprint, checksum)
    if folder.joined and folder.bundle.write() == bundle.write():
        return
    allowed, secure = folder.settings.allowed, bundle.terms.task.secure
    messages = "the sum of all members' messages" if secure else "the algorithm's messages"
    rows = [
        ("server", address_of(bundle.host, bundle.port)),
        ("this client", f"number {bundle.client}, {bundle.name}"),
        *bundle.terms.lines(),
        ("the server learns", f"{messages}; of evaluations {TOLD[allowed]} (--evaluation {allowed})"),
    ]
    title = f"What {visible(bundle.federation)} asks you to agree on"
    say(make_table(title, [Column("term", no_wrap=True), "what"], rows))
    say(f"The number to read aloud, of all that is in the bundle {path}:\n  {bundle.fingerprint}")
    if folder.joined:
        plain, before = bundle.model_dump(mode="json"), folder.bundle.model_dump(mode="json")
        confirmed = {terms.digest: terms for terms in folder.confirmed_terms()}  # also amended ones
        terms = confirmed.get(bundle.terms.digest, folder.terms)
        before["agreement"] = terms.plain() | {"amends": plain["agreement"]["amends"]}
        other = visible(", ".join(differing(plain, before)))
        say(f"It is not what you confirmed before: {other}." if other else "You have confirmed all of it before.")
    _agree(bundle.fingerprint, checksum, "Do you agree, and is the number the one that was read to you?", yes=yes)
    folder.confirm(bundle, "by checksum" if checksum is not None else "by --yes" if yes else "at the terminal")


def _check_sum(fingerprint: str, checksum: str | None) -> None:
    """Raise ValueError for another checksum than the one that was read to the owner."""
    if checksum is not None and "".join(checksum.split()).lower() != fingerprint.replace(" ", ""):
        raise ValueError(f"The bundle has the number {fingerprint}, not the one given: it is not what was sent.")


def _agree(fingerprint: str, checksum: str | None, question: str, *, yes: bool) -> None:
    """Ask for confirmation, unless it was given with the command."""
    _check_sum(fingerprint, checksum)
    if not (yes or checksum is not None):
        if not sys.stdin.isatty():
            raise ValueError("The agreement is not confirmed: give --checksum as it was read to you, or --yes.")
        if not typer.confirm(question):
            raise ValueError("The agreement was not confirmed; nothing was sent.")
