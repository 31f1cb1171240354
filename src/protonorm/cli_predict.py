"""The commands `export` and `predict`: trained clients outside their run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protonorm.console import print_json, reporting, say

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from protonorm.predictor import Predictor

Own = Annotated[str | None, typer.Option(help="file.py:function, if the client's network is your own.")]
Method = Annotated[str | None, typer.Option(help="file.py:Class, if the method is your own.")]
Out = Annotated[Path | None, typer.Option(help="Folder of all runs; PROTONORM_RUNS or ./runs if not given.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def export(
    run: Annotated[str, typer.Argument(help="A run's folder or name.")],
    path: Annotated[Path, typer.Argument(help="Folder to write the client into.")],
    client: Annotated[int, typer.Option(min=0, help="The client's number.")],
    out: Out = None,
    network: Own = None,
    algorithm: Method = None,
) -> None:
    """Write a trained client into a folder of its own: weights, prototypes, classes."""
    with reporting():
        found = find_client(run, client, out, network, algorithm)
        say(f"Client {client} of {found.about['run']}: {found.save(path)}")


def predict(
    source: Annotated[
        str, typer.Argument(metavar="RUN_OR_EXPORT", help="A run's folder or name, or an exported client.")
    ],
    images: Annotated[list[Path], typer.Argument(help="Picture files.")],
    client: Annotated[
        int | None, typer.Option(min=0, help="The client's number; not needed for an exported one.")
    ] = None,
    out: Out = None,
    network: Own = None,
    algorithm: Method = None,
    as_json: Json = False,
) -> None:
    """Say of pictures which class a trained client takes them for, and how sure each rule is."""
    with reporting(quiet=as_json):
        found = find_client(source, client, out, network, algorithm)
        sure = found.sureness(read_pictures(images, found.about["input"]))  # {rule: (n, K)}
        if as_json:
            print_json(plain(found, images, sure))
        else:
            say(prediction_table(found, images, sure))


def find_client(source: str, id: int | None, out: Path | None, network: str | None, algorithm: str | None) -> Predictor:
    """Load an exported client, or one of a run's."""
    from protonorm.components import load_own
    from protonorm.history import find_run, read_run, runs_root
    from protonorm.predictor import ABOUT
    from protonorm.saved import client_of_run, load_client

    own = {
        "network": load_own(network, "network") if network else None,
        "algorithm": load_own(algorithm, "algorithm") if algorithm else None,
    }
    if (Path(source) / ABOUT).exists():
        found = load_client(source, **own)
        if id is not None and id != found.about["client"]:
            raise ValueError(f"{source} holds client {found.about['client']}, not client {id}.")
        return found
    run = read_run(find_run(runs_root(out), source))
    if id is None:
        raise ValueError(f"Which client? --client takes a number from 0 to {len(run.about['networks']) - 1}.")
    return client_of_run(run, id, **own)


def read_pictures(paths: list[Path], wanted: dict[str, Any]) -> NDArray[np.uint8]:
    """Read pictures (n, H, W, C) in the size and channels of the training data."""
    from protonorm.data.pictures import stack

    if wanted["type"] != "uint8":
        raise ValueError("This client was trained on vectors, not on pictures; use its predict method in Python.")
    height, width, channels = wanted["shape"]
    return stack(paths, (height, width), channels)


def plain(found: Predictor, images: list[Path], sure: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
    """Give predictions to machines."""
    return {
        "run": found.about["run"],
        "client": found.about["client"],
        "rule": found.rule,
        "sureness": "softmax of the rule's scores",
        "pictures": [
            {
                "picture": str(path),
                "class": found.classes[_best(sure, found.rule, row)],
                "rules": {rule: _answer(found, value[row]) for rule, value in sure.items()},
            }
            for row, path in enumerate(images)
        ],
    }


def prediction_table(found: Predictor, images: list[Path], sure: dict[str, NDArray[np.float64]]) -> Any:
    """Show predictions, a line for each picture."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = f"Client {found.about['client']} of {found.about['run']}"
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", caption_justify="left")
    order = [found.rule, *(rule for rule in sure if rule != found.rule)] if found.rule in sure else list(sure)
    for heading in ("picture", *order):
        table.add_column(heading, overflow="fold")
    for row, path in enumerate(images):
        answers = [_answer(found, sure[rule][row]) for rule in order]
        table.add_row(str(path), *(f"{one['class']} {100 * one['sureness']:.0f} %" for one in answers))
    table.caption = (
        "Under each rule the class, and how sure the rule is: the softmax of its scores, which are logits or minus "
        "squared distances to the prototypes. It tells close calls from clear ones, not the chance of being right."
    )
    return table


def _answer(found: Predictor, sure: NDArray[np.float64]) -> dict[str, Any]:
    best = int(sure.argmax())
    return {"class": found.classes[best], "sureness": float(f"{sure[best]:.6g}")}


def _best(sure: dict[str, NDArray[np.float64]], rule: str, row: int) -> int:
    return int(sure.get(rule, next(iter(sure.values())))[row].argmax())
