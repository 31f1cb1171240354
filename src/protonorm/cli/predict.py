"""The commands `export` and `predict`: trained clients, out of their run and at work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protonorm.cli.console import print_json, reporting, say
from protonorm.cli.options import Checkpoint, CheckpointOf, Json, NoOwnCode, Out
from protonorm.cli.tables import make_table
from protonorm.core.text import visible

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from protonorm.inference.trained import TrainedClient
    from protonorm.runs.schema import InputInfo

    Confidence = dict[str, NDArray[np.float64]]  # (n, K) by rule

Own = Annotated[str | None, typer.Option(help="file.py:function, if the client's network is your own.")]
Method = Annotated[str | None, typer.Option(help="file.py:Class, if the method is your own.")]


def export(
    run: Annotated[str, typer.Argument(help="A run's folder or name.")],
    path: Annotated[Path, typer.Argument(help="Folder to write the client into.")],
    client: Annotated[int, typer.Option(min=0, help="The client's number.")],
    checkpoint: CheckpointOf = Checkpoint.chosen,
    out: Out = None,
    network: Own = None,
    algorithm: Method = None,
    no_own_code: NoOwnCode = False,
) -> None:
    """Write a trained client into a folder of its own: weights, prototypes, classes."""
    with reporting(no_own_code=no_own_code):
        found = find_client(run, client, checkpoint, out, network, algorithm)
        say(visible(f"Client {client} of {found.info.run}, after round {found.info.round}: {found.save(path)}"))


def predict(
    source: Annotated[
        str, typer.Argument(metavar="RUN_OR_EXPORT", help="A run's folder or name, or an exported client.")
    ],
    images: Annotated[list[Path], typer.Argument(help="Picture files.")],
    client: Annotated[
        int | None, typer.Option(min=0, help="The client's number; not needed for an exported one.")
    ] = None,
    checkpoint: CheckpointOf = Checkpoint.chosen,
    out: Out = None,
    network: Own = None,
    algorithm: Method = None,
    as_json: Json = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Say of pictures which class a trained client takes them for, and how sure each rule is."""
    with reporting(quiet=as_json, no_own_code=no_own_code):
        found = find_client(source, client, checkpoint, out, network, algorithm)
        confidence = found.confidence(read_pictures(images, found.info.input))
        if as_json:
            print_json(plain(found, images, confidence))
        else:
            say(prediction_table(found, images, confidence))


def find_client(
    source: str, id: int | None, checkpoint: Checkpoint, out: Path | None, network: str | None, algorithm: str | None
) -> TrainedClient:
    """Load an exported client, or one of a run's."""
    from protonorm.core.own_code import load_own
    from protonorm.inference.loading import load_client, load_from_run
    from protonorm.inference.trained import INFO
    from protonorm.runs.layout import find_run, runs_root
    from protonorm.runs.reader import read_run

    own_network = load_own(network, "network") if network else None
    own_method = load_own(algorithm, "algorithm") if algorithm else None
    if (Path(source) / INFO).exists():
        found = load_client(source, network=own_network, algorithm=own_method)
        if id is not None and id != found.id:
            raise ValueError(f"{source} holds client {found.id}, not client {id}.")
        if checkpoint is Checkpoint.last:
            raise ValueError(f"--checkpoint last is for runs; {source} holds a client as of round {found.info.round}.")
        return found
    run = read_run(find_run(runs_root(out), source))
    if id is None:
        raise ValueError(f"Which client? --client takes a number from 0 to {run.info.experiment.clients - 1}.")
    return load_from_run(run, id, network=own_network, algorithm=own_method, checkpoint=checkpoint.value)


def read_pictures(paths: list[Path], wanted: InputInfo) -> NDArray[np.uint8]:
    """Read pictures (n, H, W, C) in the size and channels of the training data."""
    from protonorm.data import pictures

    if wanted.type != "uint8":
        kind = "vectors" if wanted.vocabulary is None else "tokens"
        raise ValueError(f"This client was trained on {kind}, not on pictures; use its predict method in Python.")
    height, width, channels = wanted.shape
    return pictures.read_pictures(paths, (height, width), channels)


def plain(found: TrainedClient, images: list[Path], confidence: Confidence) -> dict[str, Any]:
    """Give predictions as plain data."""
    return {
        "run": found.info.run,
        "client": found.id,
        "round": found.info.round,
        "rule": found.rule,
        "confidence": "softmax of the rule's scores",
        "pictures": [
            {
                "picture": str(path),
                "class": _answer(found, _leading(confidence, found.rule)[row])["class"],
                "rules": {rule: _answer(found, value[row]) for rule, value in confidence.items()},
            }
            for row, path in enumerate(images)
        ],
    }


def prediction_table(found: TrainedClient, images: list[Path], confidence: Confidence) -> Any:
    """Show predictions, a line for each picture."""
    first = [found.rule] if found.rule in confidence else []
    order = [*first, *(rule for rule in confidence if rule not in first)]
    rows = []
    for row, path in enumerate(images):
        answers = [_answer(found, confidence[rule][row]) for rule in order]
        rows.append([str(path), *(f"{one['class']} {100 * one['confidence']:.0f} %" for one in answers)])
    caption = (
        "Under each rule the class, and how sure the rule is: the softmax of its scores, which are logits or minus "
        "squared distances to the prototypes. It tells close calls from clear ones, not the chance of being right."
    )
    return make_table(
        f"Client {found.id} of {found.info.run}, after round {found.info.round}", ["picture", *order], rows, caption
    )


def _answer(found: TrainedClient, shares: NDArray[np.float64]) -> dict[str, Any]:
    best = int(shares.argmax())
    return {"class": found.classes[best], "confidence": float(f"{shares[best]:.6g}")}


def _leading(confidence: Confidence, rule: str) -> NDArray[np.float64]:
    return confidence.get(rule, next(iter(confidence.values())))
