"""Which folder a command of `deploy` is about: a federation's, or a client's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protonorm.cli.options import read_path

if TYPE_CHECKING:
    from protonorm.deployment.client_folder import ClientFolder
    from protonorm.deployment.folder import FederationFolder

NewFolder = Annotated[Path, typer.Argument(parser=read_path, metavar="FOLDER", help="A folder that is not there yet.")]
FederationPath = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        parser=read_path,
        metavar="PATH",
        help="The federation's folder; PROTONORM_FEDERATION or the current folder if not given.",
    ),
]
ClientPath = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        parser=read_path,
        metavar="PATH",
        help="The client's folder; PROTONORM_CLIENT or ./NAME if not given.",
    ),
]
EitherPath = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        parser=read_path,
        metavar="PATH",
        help="A federation's or a client's folder; PROTONORM_FEDERATION, PROTONORM_CLIENT or the current folder if not "
        "given.",
    ),
]


def check_installed() -> None:
    """Refuse to go on where Flower and what else a federation needs are not installed."""
    from importlib.util import find_spec

    needed = {"flwr": "flwr", "cryptography": "cryptography", "prometheus_client": "prometheus-client"}
    if missing := [name for module, name in needed.items() if find_spec(module) is None]:
        raise ValueError(
            f"`protonorm deploy` needs {', '.join(missing)}, not installed here: pip install 'protonorm[flower]'."
        )


def open_federation(path: Path | None) -> FederationFolder:
    """Open the federation's folder that is meant."""
    check_installed()
    from protonorm.deployment.folder import VARIABLE, FederationFolder

    return FederationFolder.open(path or Path(os.environ.get(VARIABLE) or "."))


def open_either(path: Path | None) -> FederationFolder | ClientFolder:
    """Open the federation's or the client's folder that is meant."""
    check_installed()
    from protonorm.deployment import client_folder, folder

    given = path or os.environ.get(folder.VARIABLE) or os.environ.get(client_folder.VARIABLE) or "."
    if (Path(given) / client_folder.SETTINGS).is_file():
        return client_folder.ClientFolder.open(given)
    if (Path(given) / folder.SETTINGS).is_file():
        return folder.FederationFolder.open(given)
    raise ValueError(
        f"{given} is neither the folder of a federation (`protonorm deploy init`) nor of a client "
        "(`protonorm deploy join`); name one with --folder."
    )
