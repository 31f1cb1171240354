"""Commands `deploy …` for the server: a real federation between organisations, over HTTPS."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from protonorm.cli import deploy_client, deploy_status
from protonorm.cli.audit import leakage
from protonorm.cli.console import FAILED, INTERRUPTED, Column, complain, make_table, print_json, reporting, say
from protonorm.cli.deploy_status import (
    EitherPath,
    FederationPath,
    NewFolder,
    check_installed,
    follow,
    open_either,
    open_federation,
)
from protonorm.cli.options import Json
from protonorm.core.text import visible

TERMS = (
    "What all agree on, as a YAML file and/or key=value: classes=cat,dog algorithm=protonorm algorithm.gamma=100 "
    "feature_dim=64 rounds=20 seed=0 evaluated=[test] …; `classes` must be given."
)
ClientName = Annotated[str, typer.Argument(metavar="NAME", help="What the client is called.")]
HOST = "Name or address of the server, as clients reach it; several times for several."
QUORUM = "Share of the clients that must answer for a round to count."
DEADLINE = "Seconds that clients have in a round; who is late is lost for it."
PUBLIC_KEY = "The line that `deploy join` printed, in quotes, or a file with it."
AMENDED = "New terms as key=value: rounds=8, algorithm.lam=2, evaluate_every=5; or the server's own, deadline=900."
GRACE = "Seconds that others have once the quorum has answered; if not given, as long again as it took, 30 at least."
RUN = "Begin with the rounds at once, or go on; end once they are done."
AGAIN = "Continue a method that is finished, such as choir: for clients that joined since, and added samples."
NOBODY = "The federation has no client yet: `protonorm deploy add-client NAME PUBLIC_KEY`."
USUAL = {"algorithm": "protonorm", "feature_dim": 64, "rounds": 20, "seed": 0}  # default terms


def init(
    folder: NewFolder,
    terms: Annotated[list[str] | None, typer.Argument(metavar="[TERMS]", help=TERMS)] = None,
    host: Annotated[list[str] | None, typer.Option("--host", help=HOST)] = None,
    name: Annotated[str | None, typer.Option(help="Name of the federation; the folder's if not given.")] = None,
    port: Annotated[int, typer.Option(help="Port for clients.")] = 9092,
    bind: Annotated[str | None, typer.Option(help="Address to listen at; all of the machine if not given.")] = None,
    quorum: Annotated[float, typer.Option(help=QUORUM)] = 0.5,
    deadline: Annotated[float, typer.Option(help=DEADLINE)] = 600.0,
    grace: Annotated[float | None, typer.Option(help=GRACE)] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port of figures for Prometheus, on this machine.")] = None,
    as_json: Json = False,
) -> None:
    """Create a federation: its agreement, a certificate authority, the server's certificate, and settings."""
    with reporting(quiet=as_json):
        check_installed()
        from protonorm.deployment.federation_folder import FederationFolder
        from protonorm.deployment.settings import FederationSettings, is_loopback

        hosts = host or ["localhost", "127.0.0.1"]
        alone = all(map(is_loopback, hosts))
        where = {"name": name or folder.resolve().name, "hosts": hosts, "port": port, "metrics_port": metrics_port}
        where |= {"bind": bind or ("127.0.0.1" if alone else "0.0.0.0")}
        settings = FederationSettings.of({**where, "quorum": quorum, "deadline": deadline, "grace": grace})
        federation = FederationFolder.create(folder, settings, read_terms(terms or []))
        if as_json:
            agreement = federation.agreement
            plain = {"folder": str(federation.path), "agreement": agreement.plain(), "digest": agreement.digest}
            print_json(plain)
            return
        columns = [Column("term", no_wrap=True), Column("what was agreed on")]
        say(make_table(f"The agreement of {settings.name}", columns, federation.agreement.lines()))
        near = "This federation can be reached from this machine alone; --host NAME opens it to others.\n"
        opening = f"{near if alone else ''}The federation is in {visible(str(federation.path))}"
        say(
            f"{opening}; it holds keys that must not leave it.\nNext: each client runs `protonorm deploy "
            "join NAME` and sends you the line that it prints; then\n"
            f"  protonorm deploy add-client NAME 'PUBLIC KEY' --folder {visible(str(folder))}"
        )


def read_terms(words: list[str]) -> Any:
    """Build an agreement from the words of a command line, with defaults for terms that are not given."""
    from protonorm.config.parsing import read_settings
    from protonorm.deployment.agreement import INPUT, Agreement

    if any(word.startswith("input.") for word in words):
        raise ValueError(f"input is given at once: {INPUT}.")
    values = USUAL | read_settings(words)
    if isinstance(values["algorithm"], dict):
        values["algorithm"] = {"name": USUAL["algorithm"]} | values["algorithm"]
    if "classes" not in values:
        raise ValueError("The agreement needs the names of the classes, in their order: classes=cat,dog,bird.")
    if isinstance(values["classes"], str):
        values["classes"] = [name.strip() for name in values["classes"].split(",")]
    if "members" in values:
        values["members"] = read_members(values["members"])
    return Agreement.of(values)


def read_members(given: Any) -> list[str]:
    """Return the fingerprints of members: given as such, as public keys, or as files of these."""
    from protonorm.deployment.keys import check_public_line, key_fingerprint

    names = given.split(",") if isinstance(given, str) else list(given)
    return [
        name if name.startswith("SHA256:") else key_fingerprint(check_public_line(read_line(name))) for name in names
    ]


def add_client(
    name: ClientName,
    public_key: Annotated[str, typer.Argument(metavar="PUBLIC_KEY", help=PUBLIC_KEY)],
    folder: FederationPath = None,
    as_json: Json = False,
) -> None:
    """Register a client's public key, and write the bundle for its organisation."""
    with reporting(quiet=as_json):
        federation = open_federation(folder)
        member = federation.add(name, read_line(public_key))
        path, bundle = federation.write_bundle(member), federation.bundle(member)
        if as_json:
            print_json({"client": member.id, "bundle": str(path), "checksum": bundle.fingerprint})
            return
        say(
            f"Client {member.id}, {visible(name)}, may take part. Send its owner {visible(str(path))}, which holds no "
            f"secret,\nand read this number to each other over the phone: {bundle.fingerprint}\n"
            f"There it is used by\n  protonorm deploy client {path.name} --data PATH --model NAME"
        )


def read_line(public_key: str) -> str:
    """Return a public key, given as a line or a file."""
    from protonorm.core.types import shown

    file = Path(public_key)
    if len(public_key) < 250 and file.is_file():
        return file.read_text()
    if len(public_key.split()) < 2:
        raise ValueError(
            f"{shown(public_key)} is no public key, and there is no such file; expected the line that `deploy join` "
            "printed, in quotes, or a file with it."
        )
    return public_key


def revoke(name: ClientName, folder: FederationPath = None) -> None:
    """Revoke a client's key, and cut its connections; `add-client` with a new key lets the client in again."""
    with reporting():
        member = open_federation(folder).revoke(name)
        say(visible(f"Client {member.id}, {member.name}, is no longer let in with the key that it had."))


def remove_client(name: ClientName, folder: FederationPath = None) -> None:
    """Remove a client from the members: it is cut off and no longer counts; `add-client` lets it in again."""
    with reporting():
        member = open_federation(folder).remove(name)
        say(visible(f"Client {member.id}, {member.name}, is no longer a member; what it has contributed stays."))


def rekey(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="On the server: the client.")] = None,
    public_key: Annotated[str | None, typer.Argument(metavar="[PUBLIC_KEY]", help=PUBLIC_KEY)] = None,
    folder: EitherPath = None,
) -> None:
    """Replace a client's key; its number and state stay: first at the client, then with NAME and key on the server.

    At the client the new key is used once the new bundle is confirmed.
    """
    with reporting():
        either = open_either(folder)
        from protonorm.deployment.client_folder import ClientFolder

        if isinstance(either, ClientFolder):
            if name is not None:
                raise ValueError("NAME and PUBLIC_KEY are for the server's machine; here the client's key is replaced.")
            line = either.rekey()
            say("The new key is used once its bundle is confirmed. Send this line to the owner of the server:")
            typer.echo(line)
            return
        if name is None or public_key is None:
            raise ValueError("Which client has which new key? Give NAME and PUBLIC_KEY.")
        member = either.rekey(name, read_line(public_key))
        path, bundle = either.write_bundle(member), either.bundle(member)
        say(visible(f"The old key of {member.name} is no longer accepted. Send its owner the new bundle {path};"))
        say(f"the number to read to each other is {bundle.fingerprint}. There it is confirmed by")
        say(f"  protonorm deploy client {path.name} --folder FOLDER --check")


def amend(
    settings: Annotated[list[str], typer.Argument(metavar="SETTINGS", help=AMENDED)],
    start: Annotated[int | None, typer.Option("--from", help="First round of the new terms.")] = None,
    folder: FederationPath = None,
) -> None:
    """Amend the terms from a round on; each owner sees the difference, and confirms it by `deploy accept`.

    Quorum, deadline, grace and patience are the server's own and need no confirmation.
    """
    with reporting():
        federation = open_federation(folder)
        from protonorm.config.parsing import read_settings
        from protonorm.deployment.settings import FederationSettings, differing

        changes = read_settings(settings)
        own = {name: changes.pop(name) for name in ("quorum", "deadline", "grace", "patience") if name in changes}
        if "members" in changes:
            changes["members"] = read_members(changes["members"])
        changed = FederationSettings.of(federation.settings.plain() | own)
        if changes:
            terms = federation.amend(changes, start)
            before = federation.terms[-2]
            new = ", ".join(differing(terms.plain(), before.plain() | {"amends": terms.plain()["amends"]}))
            assert terms.amends is not None
            say(visible(f"From round {terms.amends.round} on: {new}."))
            say(
                f"The new terms are {terms.fingerprint}, to be read to each owner. They are sent to clients when a "
                "round begins;\neach owner confirms them by `protonorm deploy accept`, and is not asked before. "
                "Clients that have ended must be started again."
            )
        if own:
            federation.change_settings(changed)
            say(f"From the next round on: {', '.join(f'{name}={value}' for name, value in own.items())}.")


def server(folder: FederationPath = None, begin: Annotated[bool, typer.Option("--run", help=RUN)] = False) -> None:
    """Run the server until it is stopped: accept clients, and run the rounds when `deploy run` requests them."""
    with reporting(quiet=True):
        federation = open_federation(folder)
        from protonorm.deployment.process_lock import Ended
        from protonorm.deployment.service import serve_folder

        if begin and not federation.roster:
            raise ValueError(NOBODY)
        try:
            serve_folder(federation, typer.echo, once=begin)
        except Ended:
            raise typer.Exit from None


def run(
    folder: FederationPath = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Ask for the rounds, and do not wait for them.")] = False,
    update: Annotated[bool, typer.Option("--update", help=AGAIN)] = False,
) -> None:
    """Start the rounds, or resume them, and follow their progress; Ctrl-C only ends the following."""
    with reporting(quiet=True):
        federation = open_federation(folder)
        from protonorm.deployment.process_lock import is_locked

        if not federation.roster:
            raise ValueError(NOBODY)
        log = federation.log_folder / "server.log"
        start = log.stat().st_size if log.exists() else 0
        federation.request_run(update=update)
        if not (runs := is_locked(federation.server_lock)):
            complain("The server is not running: the rounds begin once `protonorm deploy server` is started.")
        if no_wait:
            if runs:
                say("The server begins with the rounds; `protonorm deploy status` tells how they go.")
            return
        try:
            ended_well = follow(federation, start)
        except KeyboardInterrupt:
            complain("The rounds go on; `protonorm deploy status` tells how, and `protonorm deploy stop` stops them.")
            raise typer.Exit(INTERRUPTED) from None
        if not ended_well:
            raise typer.Exit(FAILED)


def renew(folder: FederationPath = None) -> None:
    """Renew the server's certificate with the same authority, and the bundles if its address has changed."""
    with reporting():
        federation = open_federation(folder)
        from protonorm.deployment.keys import hosts_of, read_certificate
        from protonorm.deployment.process_lock import is_locked

        federation.renew_certificates()
        certificate = read_certificate(federation.tls.certificate)
        until = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
        say(f"The server's certificate is for {', '.join(hosts_of(certificate))}, until {until}.")
        for member in federation.roster:
            path, bundle = federation.bundles / f"{member.name}.json", federation.bundle(member)
            if not path.is_file() or path.read_bytes() != bundle.write():
                federation.write_bundle(member)
                sentence = f"The bundle {path} is new: send it to {member.name}; its number is {bundle.fingerprint}"
                say(visible(sentence))
        if is_locked(federation.server_lock):
            complain("The server runs with the certificate from before; start it again to use the new one.")


def export_app(folder: NewFolder, of: FederationPath = None) -> None:
    """Export the federation as an app for Flower's own commands: `flwr run` in simulation and in deployment."""
    with reporting():
        federation = open_federation(of)
        from protonorm.deployment.flower.export import DEFAULT_NODES
        from protonorm.deployment.flower.export import export_app as write
        from protonorm.deployment.settings import differing
        from protonorm.runs import layout

        terms, current = federation.terms, federation.current
        clients = sum(member.active for member in federation.roster)
        path = write(current, folder, *([clients] if clients else []))
        say(visible(f"The app is in {path}. `pip install '.[flower,ray]'` in a checkout brings what it needs; then"))
        nodes = f"--federation-config 'num-supernodes={clients or DEFAULT_NODES}'"
        typer.echo(visible(f"  flwr run {shlex.quote(str(path))} --stream {nodes}"))
        say("runs a simulation: num-supernodes is the number of clients. Its README.md has data and a deployment.")
        if current.amends:
            now, first = (each.plain() | {"amends": None} for each in (current, terms[0]))
            new = ", ".join(differing(now, first))
            say(visible(f"The app has the terms in force, amended from round {current.amends.round} on: {new}."))
        for later in terms:
            if later.amends and later.amends.round > layout.committed(federation.run_folder) + 1:
                say(f"Terms amended from round {later.amends.round} on are not in force yet, and not in the app.")


GROUP = "Federate organisations whose data may not move: a server, clients, keys and an agreement."
deploy = typer.Typer(no_args_is_help=True, help=GROUP)

COMMANDS: tuple[Callable[..., None], ...] = (
    *(init, deploy_client.join, add_client, server, deploy_client.client, run, deploy_client.export),
    *(deploy_status.status, deploy_status.stop, deploy_status.doctor, deploy_status.audit, leakage),
    *(renew, revoke, rekey, remove_client),
    *(amend, deploy_client.accept, deploy_client.alone, deploy_client.leave, export_app),
)
for command in COMMANDS:
    deploy.command(command.__name__.replace("_", "-"))(command)
