"""Commands `deploy join` and `deploy client`, for the machine of a participating organisation."""

import os
import sys
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
    from protonorm.deployment.folders import ClientFolder
    from protonorm.deployment.node import Node


Told = StrEnum("Told", ["off", "accuracy", "classes"])  # evaluation results that a client reports to the server
TOLD = {
    "off": "nothing",
    "accuracy": "how many of its samples are right, in all",
    "classes": "how many of its samples are right, of each class",
}

EVALUATION = "What the server may know of the client's evaluation: nothing (off) unless you say otherwise."
BUNDLE = "The file that the server's owner sent; not needed once it is confirmed, with --folder."
DATA = "The client's data: a folder of pictures, an npz file, a table; or folder:PATH, array:PATH, …."
MODEL = "The client's network: a name of `protonorm list models`, or file.py:function of this machine."
OTHER = "Any other setting of training, such as optimiser=adam."
CHECKSUM = "The bundle's checksum as the server's owner read it to you; confirms without asking."
BEGIN_ANEW = "Where the client's state is lost, go on with a new network."
CHECK = "Confirm and check data and network, and do not take part yet."


def join(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the client is to be called.")],
    folder: ClientPath = None,
) -> None:
    """Create a key on this machine and print its public half, which the server's owner needs to register the client."""
    with reporting():
        check_installed()
        from protonorm.deployment.folders import CLIENT_VARIABLE, ClientFolder
        from protonorm.deployment.keys import key_fingerprint

        made = ClientFolder.create(folder or Path(os.environ.get(CLIENT_VARIABLE) or name), name)
        say(
            f"The key of {visible(name)} is in {visible(str(made.path))}, and must not leave this machine.\n"
            f"Its fingerprint is {key_fingerprint(made.public_key)}.\n"
            "Send this line to the owner of the server; it is no secret:"
        )
        typer.echo(made.public_key_file.read_text().strip())


def client(
    bundle: Annotated[Path | None, typer.Argument(parser=read_path, metavar="[BUNDLE]", help=BUNDLE)] = None,
    data: Annotated[str | None, typer.Option(help=DATA)] = None,
    model: Annotated[str | None, typer.Option(help=MODEL)] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
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
        from protonorm.deployment.process_lock import Ended, process_lock
        from protonorm.deployment.service import serve_client
        from protonorm.models.choose import chosen

        found, got = _open(bundle, folder)
        if device is not None:
            check_device(device)
        if model is not None:
            chosen(model, "model")
        given: dict[str, Any] = {"lr": lr, "batch_size": batch_size, "epochs": epochs, "momentum": momentum}
        given |= {"weight_decay": weight_decay, "validation": validation, "device": device, "model": model}
        given |= {"data": data, "allowed": str(evaluation) if evaluation else None}
        if columns := {name: value for name, value in (("label", label), ("text", text)) if value is not None}:
            if data is None:
                raise ValueError("--label and --text say more about --data, which is not given.")
            given["data"] = {"name": "table", "path": data.removeprefix("table:"), **columns}
        found.begin_anew = begin_anew
        with process_lock(found.lock, f"The client in {found.path}"):
            found.change(**read_settings(other or []) | {name: one for name, one in given.items() if one is not None})
            if got is not None:
                _confirm(found, got, bundle, checksum, yes=yes)
            if check:
                _show_policy(found, found.node())
                say("The data and the network fit the agreement.")
                return
            try:
                serve_client(found, typer.echo)
            except Ended:
                raise typer.Exit from None


def _show_policy(found: "ClientFolder", node: "Node") -> None:
    """Show the owner's policy, the samples of each class, and what would be sent."""
    from protonorm.deployment.owner import POLICY, preview

    if policy := found.policy:
        say(make_table(f"The owner's policy ({POLICY})", [Column("term", no_wrap=True), "what"], list(policy.lines())))
    rows, lines = preview(node.site)
    columns = [Column("class"), Column("training samples", "right"), Column("sent")]
    say(make_table("What would be sent", columns, [[visible(cell) for cell in row] for row in rows], " ".join(lines)))


def _open(bundle: Path | None, folder: Path | None) -> "tuple[ClientFolder, Bundle | None]":
    """Open the client's folder, named after the bundle if none is given, and read the bundle."""
    from protonorm.deployment.agreement import LARGEST_BUNDLE, Bundle
    from protonorm.deployment.folders import CLIENT_VARIABLE, ClientFolder

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


def _confirm(found: "ClientFolder", got: "Bundle", path: Path | None, checksum: str | None, *, yes: bool) -> None:
    """Show the agreement and ask for confirmation, unless it was confirmed before."""
    from protonorm.deployment.settings import address_of, differing

    got.refuse_other_key(found.public_key)
    if checksum is not None and "".join(checksum.split()).lower() != got.fingerprint.replace(" ", ""):
        raise ValueError(f"The bundle has the checksum {got.fingerprint}, not the one given: it is not what was sent.")
    if found.joined and found.bundle.write() == got.write():
        return
    told = found.settings.allowed
    rows = [
        ("server", address_of(got.host, got.port)),
        ("this client", f"number {got.client}, {got.name}"),
        *got.terms.lines(),
        ("in full", str(path)),
        ("checksum", f"{got.fingerprint} (all of the bundle)"),
        ("the server learns", f"the algorithm's messages; of evaluations {TOLD[told]} (--evaluation {told})"),
    ]
    title = f"What {visible(got.federation)} asks you to agree on"
    say(make_table(title, [Column("term", no_wrap=True), "what"], rows))
    if found.joined:
        before = found.bundle.model_dump(mode="json")
        say(f"It is not what you confirmed before: {', '.join(differing(got.model_dump(mode='json'), before))}.")
    if not (yes or checksum is not None):
        if not sys.stdin.isatty():
            raise ValueError("The agreement is not confirmed: give --checksum as it was read to you, or --yes.")
        if not typer.confirm("Do you agree, and is the checksum the one that was read to you?"):
            raise ValueError("The agreement was not confirmed; nothing was sent.")
    found.confirm(got)
