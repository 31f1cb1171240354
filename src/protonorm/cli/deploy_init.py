"""The command `deploy init`: make a federation, and what all its parties agree on."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from protonorm.cli.console import print_json, reporting, say
from protonorm.cli.deploy_folders import NewFolder, check_installed
from protonorm.cli.options import Json
from protonorm.core.text import visible

Terms = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TERMS]",
        help="What all agree on, as a YAML file and/or key=value: classes=cat,dog algorithm=protonorm "
        "algorithm.gamma=100 feature_dim=64 rounds=20 seed=0 evaluated=[test] …; `classes` must be given.",
    ),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", help="Name or address of the server, as clients reach it; several times for several."),
]
Name = Annotated[str | None, typer.Option(help="Name of the federation; the folder's if not given.")]
Port = Annotated[int, typer.Option(help="Port for clients.")]
Bind = Annotated[str | None, typer.Option(help="Address to listen at; all that the machine has if not given.")]
Quorum = Annotated[float, typer.Option(help="Share of the clients that must answer for a round to count.")]
Deadline = Annotated[float, typer.Option(help="Seconds that clients have in a round; who is late is lost for it.")]
MetricsPort = Annotated[int | None, typer.Option(help="Port of figures for Prometheus, on this machine alone.")]
Plaintext = Annotated[bool, typer.Option("--plaintext", help="No TLS; refused but on loopback, for tests.")]
USUAL = {"algorithm": "protonorm", "feature_dim": 64, "rounds": 20, "seed": 0}  # terms that need not be given


def init(
    folder: NewFolder,
    terms: Terms = None,
    host: Hosts = None,
    name: Name = None,
    port: Port = 9092,
    bind: Bind = None,
    quorum: Quorum = 0.5,
    deadline: Deadline = 600.0,
    metrics_port: MetricsPort = None,
    plaintext: Plaintext = False,
    as_json: Json = False,
) -> None:
    """Make a federation: its agreement, a certificate authority, the server's certificate, and settings."""
    with reporting(quiet=as_json):
        check_installed()
        from protonorm.deployment.folder import FederationFolder, FederationSettings
        from protonorm.deployment.terms import is_loopback

        hosts = host or ["localhost", "127.0.0.1"]
        alone = all(map(is_loopback, hosts))
        usual_bind = "127.0.0.1" if alone else "0.0.0.0"
        settings = FederationSettings.of(
            {
                "name": name or folder.resolve().name,
                "hosts": hosts,
                "bind": bind or usual_bind,
                "port": port,
                "quorum": quorum,
                "deadline": deadline,
                "metrics_port": metrics_port,
                "plaintext": plaintext,
            }
        )
        made = FederationFolder.create(folder, settings, read_terms(terms or []))
        if as_json:
            print_json({"folder": str(made.path), "agreement": made.agreement.plain(), "digest": made.agreement.digest})
            return
        say(_terms_table(made.agreement, f"The agreement of {settings.name}"))
        where = (
            "This federation can be reached from this machine alone; --host NAME opens it to others.\n" if alone else ""
        )
        say(
            f"{where}The federation is in {visible(str(made.path))}; it holds keys that must not leave it.\n"
            "Next: each client runs `protonorm deploy join NAME` and sends you the line that it prints; then\n"
            f"  protonorm deploy add-client NAME 'PUBLIC KEY' --folder {visible(str(folder))}"
        )


def read_terms(words: list[str]) -> Any:
    """Make an agreement of the words of a command line; what is not said takes its usual value."""
    from protonorm.config.parsing import read_settings
    from protonorm.deployment.agreement import Agreement

    given = USUAL | read_settings(words)
    if isinstance(given["algorithm"], dict):
        given["algorithm"] = {"name": USUAL["algorithm"]} | given["algorithm"]
    if "classes" not in given:
        raise ValueError("The agreement needs the names of the classes, in their order: classes=cat,dog,bird.")
    if isinstance(given["classes"], str):
        given["classes"] = [one.strip() for one in given["classes"].split(",")]
    return Agreement.of(given)


def _terms_table(agreement: Any, title: str) -> Any:
    from protonorm.cli.tables import Column, make_table

    return make_table(title, [Column("term", no_wrap=True), Column("what was agreed on")], agreement.lines())
