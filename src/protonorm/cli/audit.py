"""Commands `audit` and `deploy leakage`: what clients' messages reveal of their samples."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protonorm.cli.console import Column, make_table, print_json, reporting, say
from protonorm.cli.deploy_status import ClientPath
from protonorm.cli.options import Json, NoOwnCode, Out, path_option
from protonorm.core.text import visible

if TYPE_CHECKING:
    from protonorm.session.leakage import Audit

RUN = "A run's folder, its name, or the beginning of its name."
WORDS = (
    "protect=minimum_count protect.least=3: the policy to compare with; your own data and code, as dataset=folder:PATH."
)
PAGE = "leakage.html"
To = Annotated[
    Path | None, path_option(f"File of the page; {PAGE} in the folder of the run or client if not given.", "--to")
]
Clients = Annotated[int, typer.Option(min=1, help="Number of clients: those with the smallest classes.")]
Names = Annotated[
    list[str] | None, typer.Option("--client", metavar="NAME_OR_NUMBER", help="This client; repeated, these.")
]


def audit(
    run: Annotated[str, typer.Argument(metavar="RUN", help=RUN)],
    words: Annotated[list[str] | None, typer.Argument(metavar="[SETTING]", help=WORDS)] = None,
    out: Out = None,
    to: To = None,
    clients: Clients = 5,
    client: Names = None,
    as_json: Json = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Attack the messages of a run's clients, before and after a policy, and write a page with what they reveal.

    Without protect=… the policy is that of the run.
    """
    with reporting(quiet=as_json, no_own_code=no_own_code):
        from protonorm.config.parsing import read_settings
        from protonorm.core.training import make_outgoing
        from protonorm.runs.layout import find_run, runs_root
        from protonorm.runs.run import read_run
        from protonorm.session.leakage import audit_run
        from protonorm.session.result import experiment_of

        record = read_run(find_run(runs_root(out), run))
        given = read_settings(words or [])
        policy = given.pop("protect", None)
        if isinstance(policy, dict):  # perhaps settings without the name
            policy = {"name": "minimum_count"} | policy
        experiment = experiment_of(record, given)
        protect = experiment.protect if policy is None else make_outgoing(policy)
        audits = audit_run(record, experiment, protect, clients, client or [])
        _tell(audits, protect, record.info.key, to or record.folder / PAGE, as_json=as_json)


def leakage(folder: ClientPath = None, to: To = None, as_json: Json = False, no_own_code: NoOwnCode = False) -> None:
    """Attack this organisation's own next message, before and after the owner's policy; nothing is sent.

    The pictures that it is compared with are the client's own validation and test samples.
    """
    with reporting(quiet=as_json, no_own_code=no_own_code):
        from protonorm.cli.deploy_client import open_client

        own_folder, _ = open_client(None, folder)
        from protonorm.deployment.home import audit_own

        site = own_folder.site()
        audits = [audit_own(site, own_folder.store())]
        title = f"{own_folder.settings.name} in {own_folder.bundle.federation}"
        _tell(audits, site.training.protect, title, to or own_folder.path / PAGE, as_json=as_json)


def _tell(audits: "list[Audit]", protect: Any, title: str, path: Path, *, as_json: bool) -> None:
    """Write the page, and print the sentence and the table."""
    from protonorm.core.training import describe_outgoing
    from protonorm.session.leakage_page import HEADINGS, LEGEND, plain_audit, rows_for, verdict, write_page

    settings = describe_outgoing(protect)
    numbers = [f"{key}={value:g}" for key, value in settings.items() if isinstance(value, int | float)]
    policy = "" if settings["name"] == "none" else " ".join([settings["name"], *numbers])
    page, conclusion = write_page(audits, policy, title, path), verdict(audits, policy)
    if as_json:
        clients = list(map(plain_audit, audits))
        print_json({"verdict": conclusion, "policy": policy, "clients": clients, "page": str(page)})
        return
    columns = [Column(heading, "left" if heading in HEADINGS[:2] else "right") for heading in HEADINGS]
    say(make_table(title, columns, rows_for(audits, policy), LEGEND))
    say(visible(conclusion))
    say(visible(f"Page: {page}"))
