"""The commands `export` and `predict`: trained clients, out of their run and at work."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protonorm.cli.console import print_json, reporting, say
from protonorm.cli.options import Checkpoint, CheckpointOf, Json, NoOwnCode, Out, read_path
from protonorm.cli.predictions import answers_csv, answers_table, plain_answers, require_csv_place, write_csv
from protonorm.core.text import visible

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from protonorm.inference.trained import TrainedClient
    from protonorm.runs.schema import InputInfo


def read_client(text: str) -> str:
    """Take a client's name or number."""
    if not text or visible(text) != text:
        raise typer.BadParameter("expected a client's name or number.")
    return text


Own = Annotated[str | None, typer.Option(help="file.py:function, if the client's network is your own.")]
Method = Annotated[str | None, typer.Option(help="file.py:Class, if the method is your own.")]
NAME = "NAME_OR_NUMBER"


def export(
    run: Annotated[str, typer.Argument(help="A run's folder or name.")],
    path: Annotated[Path, typer.Argument(parser=read_path, metavar="PATH", help="Folder to write the client into.")],
    client: Annotated[str, typer.Option(parser=read_client, metavar=NAME, help="The client's name or number.")],
    checkpoint: CheckpointOf = Checkpoint.chosen,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also write model.onnx, which runs without protonorm; needs the extra onnx.")
    ] = False,
    out: Out = None,
    network: Own = None,
    algorithm: Method = None,
    no_own_code: NoOwnCode = False,
) -> None:
    """Write a trained client into a folder of its own: weights, prototypes, preprocessing, measures, a model card."""
    with reporting(no_own_code=no_own_code):
        found = find_client(run, client, checkpoint, out, network, algorithm)
        if lost := getattr(found.source, "lost_provenance", ""):
            warnings.warn(lost, stacklevel=1)
        place = found.save(path, onnx=onnx)
        say(visible(f"Client {found.name} of {found.info.run}, after round {found.info.round}: {place}"))


def predict(
    source: Annotated[
        str, typer.Argument(metavar="RUN_OR_EXPORT", help="A run's folder or name, or an exported client.")
    ],
    images: Annotated[
        list[Path], typer.Argument(parser=read_path, metavar="IMAGES...", help="Picture files, or folders of them.")
    ],
    client: Annotated[
        str | None,
        typer.Option(
            parser=read_client, metavar=NAME, help="The client's name or number; not needed for an exported one."
        ),
    ] = None,
    checkpoint: CheckpointOf = Checkpoint.chosen,
    out: Out = None,
    network: Own = None,
    algorithm: Method = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Go on without pictures that cannot be read.")] = False,
    csv: Annotated[
        Path | None, typer.Option("--csv", parser=read_path, metavar="FILE", help="Write the answers as CSV.")
    ] = None,
    as_json: Json = False,
    no_own_code: NoOwnCode = False,
) -> None:
    """Say of pictures which class a trained client takes them for, how sure that is, and what each rule says."""
    with reporting(quiet=as_json, no_own_code=no_own_code):
        if csv:
            require_csv_place(csv)
        found = find_client(source, client, checkpoint, out, network, algorithm)
        paths = find_pictures(images)
        x, bad = read_pictures(paths, found.info.input, skip_bad=skip_bad)
        read = [path for path in paths if path not in bad]
        answers = found.answers(x)
        if csv:
            write_csv(csv, answers_csv(found, read, answers))
        if as_json:
            print_json(plain_answers(found, read, answers, bad))
        elif csv:
            say(visible(f"Answers to {len(read)} pictures: {csv}"))
        else:
            say(answers_table(found, read, answers))


def find_client(
    source: str,
    client: str | None,
    checkpoint: Checkpoint,
    out: Path | None,
    network: str | None,
    algorithm: str | None,
) -> TrainedClient:
    """Load an exported client, or one of a run's."""
    from protonorm.core.own_code import load_own
    from protonorm.inference.info import INFO
    from protonorm.inference.loading import load_client, load_from_run
    from protonorm.runs.layout import find_run, runs_root
    from protonorm.runs.reader import read_run

    own_network = load_own(network, "network") if network else None
    own_method = load_own(algorithm, "algorithm") if algorithm else None
    if (Path(source) / INFO).exists():
        found = load_client(source, network=own_network, algorithm=own_method)
        if client is not None and client not in (found.name, str(found.id)):
            raise ValueError(f"{source} holds client {found.name}, not client {client}.")
        if checkpoint is Checkpoint.last:
            raise ValueError(f"--checkpoint last is for runs; {source} holds a client as of round {found.info.round}.")
        return found
    run = read_run(find_run(runs_root(out), source))
    if client is None:
        last = run.info.experiment.clients - 1
        names = [run.client_name(id) for id in range(min(last + 1, 20))]
        named = f"a number from 0 to {last}" if names[0] == "0" else f"one of {', '.join(names)}, or its number"
        raise ValueError(f"Which client? --client takes {named}.")
    id = run.find_client(client)
    return load_from_run(run, id, network=own_network, algorithm=own_method, checkpoint=checkpoint.value)


def find_pictures(paths: list[Path]) -> list[Path]:
    """List picture files, and those in folders; what else is in the folders is counted and said."""
    from protonorm.data.own.folders import pictures_in
    from protonorm.data.own.reading import tell_left_out
    from protonorm.data.pictures import SUFFIXES

    found: list[Path] = []
    for path in paths:
        inside = pictures_in(path) if path.is_dir() else [path]
        if not inside:
            raise ValueError(f"{path} has no pictures in it; expected files that end in {', '.join(SUFFIXES)}.")
        if path.is_dir():
            tell_left_out(path, set(inside))
        found += inside
    return list(dict.fromkeys(found))


def read_pictures(
    paths: list[Path], wanted: InputInfo, *, skip_bad: bool = False
) -> tuple[NDArray[np.uint8], dict[Path, str]]:
    """Read pictures (n, H, W, C) in the size and channels of the training data; say which cannot be read, and why."""
    from protonorm.data import pictures

    if wanted.type != "uint8":
        kind = "vectors" if wanted.vocabulary is None else "tokens"
        raise ValueError(f"This client was trained on {kind}, not on pictures; use its predict method in Python.")
    height, width, channels = wanted.shape
    if channels not in pictures.MODE:
        raise ValueError(f"This client was trained on pictures of {channels} channels; files have 1 or 3.")
    found, bad = pictures.read_usable(paths, (height, width), channels)
    if bad:
        told = pictures.describe_bad(bad, len(paths))
        if not skip_bad or not len(found):
            raise ValueError(told + ("\nNo picture is left." if skip_bad else "\n--skip-bad goes on without them."))
        warnings.warn(told, stacklevel=1)
    return found, {paths[position]: why for position, why in bad.items()}
