"""The commands `deploy …` on the server's side: a real federation between organisations, carried by Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from protonorm.cli import deploy_client, deploy_init, deploy_look
from protonorm.cli.commands import Command, Commands
from protonorm.cli.console import FAILED, INTERRUPTED, complain, print_json, reporting, say
from protonorm.cli.deploy_folders import FederationPath, NewFolder, open_federation
from protonorm.cli.options import Json
from protonorm.core.text import visible

deploy = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Federate organisations whose data may not move: a server, clients, keys and an agreement.",
)

ClientName = Annotated[str, typer.Argument(metavar="NAME", help="What the client is called.")]
PublicKey = Annotated[
    str,
    typer.Argument(metavar="PUBLIC_KEY", help="The line that `deploy join` printed, in quotes, or a file with it."),
]
Begin = Annotated[bool, typer.Option("--run", help="Begin with the rounds at once, or go on; end once they are done.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Ask for the rounds, and do not wait for them.")]


@deploy.callback()
def _group() -> None:
    """Federate organisations whose data may not move: a server, clients, keys and an agreement."""


def add_client(name: ClientName, public_key: PublicKey, folder: FederationPath = None, as_json: Json = False) -> None:
    """Let a client take part: register its public key, and write the bundle that its organisation gets."""
    with reporting(quiet=as_json):
        found = open_federation(folder)
        file = Path(public_key)
        line = file.read_text() if len(public_key) < 250 and file.is_file() else public_key
        member = found.add(name, line)
        place, bundle = found.write_bundle(member), found.bundle(member)
        if as_json:
            print_json({"client": member.id, "bundle": str(place), "checksum": bundle.checksum})
            return
        say(
            f"Client {member.id}, {visible(name)}, may take part. Send its owner {visible(str(place))}, which holds no "
            f"secret,\nand read the checksum to each other over the phone: {bundle.checksum}\n"
            f"There it is used by\n  protonorm deploy client {place.name} --data PATH --model NAME"
        )


def server(folder: FederationPath = None, run: Begin = False) -> None:
    """Serve the federation until it is stopped: let clients in, and run the rounds when `deploy run` asks for them."""
    with reporting(quiet=True):
        found = open_federation(folder)
        from protonorm.deployment.holding import Ended
        from protonorm.deployment.serving import serve_folder

        if run:
            _refuse_without_clients(found)
        try:
            serve_folder(found, typer.echo, once=run)
        except Ended:
            raise typer.Exit from None


def run_(folder: FederationPath = None, no_wait: NoWait = False) -> None:
    """Begin with the rounds, or go on where they stopped, and follow them; Ctrl-C stops the following alone."""
    with reporting(quiet=True):
        found = open_federation(folder)
        from protonorm.cli.deploy_look import follow
        from protonorm.deployment.holding import is_held

        _refuse_without_clients(found)
        log = found.log_folder / "server.log"
        start = log.stat().st_size if log.exists() else 0
        found.wanted.touch(mode=0o600)
        if not (runs := is_held(found.server_lock)):
            complain("The server is not running: the rounds begin once `protonorm deploy server` is started.")
        if no_wait:
            if runs:
                say("The server begins with the rounds; `protonorm deploy status` tells how they go.")
            return
        try:
            ended_well = follow(found, start)
        except KeyboardInterrupt:
            complain("The rounds go on; `protonorm deploy status` tells how, and `protonorm deploy stop` stops them.")
            raise typer.Exit(INTERRUPTED) from None
        if not ended_well:
            raise typer.Exit(FAILED)


def renew(folder: FederationPath = None) -> None:
    """Make a new certificate for the server, by the same authority, and new bundles if its address has changed."""
    with reporting():
        found = open_federation(folder)
        from protonorm.deployment.holding import is_held
        from protonorm.deployment.keys import hosts_of, read_certificate

        found.renew_certificate()
        made = read_certificate(found.superlink.certificate)
        say(f"The server's certificate is for {', '.join(hosts_of(made))}, until {made.not_valid_after_utc:%Y-%m-%d}.")
        for member in found.roster:
            place, bundle = found.bundles / f"{member.name}.json", found.bundle(member)
            if not place.is_file() or place.read_bytes() != bundle.write():
                found.write_bundle(member)
                say(visible(f"The bundle {place} is new: send it to {member.name}; its checksum is {bundle.checksum}"))
        if is_held(found.server_lock):
            complain("The server runs with the certificate from before; start it again to use the new one.")


def export_app(folder: NewFolder, of: FederationPath = None) -> None:
    """Write the federation as an app for Flower's own commands: `flwr run` in simulation and in deployment."""
    with reporting():
        found = open_federation(of)
        from protonorm.deployment.flower.export import export_app as write

        place = write(found.agreement, folder)
        say(visible(f"The app is in {place}; `flwr run {place}` runs it."))


def _refuse_without_clients(found: Any) -> None:
    if not found.roster:
        raise ValueError("The federation has no client yet: `protonorm deploy add-client NAME PUBLIC_KEY`.")


deploy.command(cls=Command)(deploy_init.init)
deploy.command(cls=Command)(deploy_client.join)
deploy.command("add-client", cls=Command)(add_client)
deploy.command(cls=Command)(server)
deploy.command(cls=Command)(deploy_client.client)
deploy.command("run", cls=Command)(run_)
deploy.command(cls=Command)(deploy_look.status)
deploy.command(cls=Command)(deploy_look.stop)
deploy.command(cls=Command)(deploy_look.doctor)
deploy.command(cls=Command)(renew)
deploy.command("export-app", cls=Command)(export_app)
