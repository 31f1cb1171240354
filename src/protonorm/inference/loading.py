"""Load trained clients: from the folder of their run, or from a folder of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from protonorm import tensors
from protonorm.algorithms import ALGORITHMS
from protonorm.config.components import build
from protonorm.core.algorithm import Algorithm
from protonorm.core.node import Client
from protonorm.core.randomness import seeded
from protonorm.core.samples import Samples
from protonorm.files import checksum, damaged, format_of, unsealed
from protonorm.inference.facts import recommend, sharpness_of
from protonorm.inference.info import FORMAT, INFO, WEIGHTS, ClientInfo, Facts, preprocessing
from protonorm.inference.trained import STAMP, TrainedClient
from protonorm.models.choose import Network, Recipe
from protonorm.runs import layout
from protonorm.runs.checkpoint import message_to, trained_rounds
from protonorm.runs.info import typed
from protonorm.runs.reader import read_run
from protonorm.runs.run import Run
from protonorm.runs.states import FolderStore
from protonorm.tensors import Tensors, under

Method = Algorithm | type[Algorithm]


def load_client(path: str | Path, *, network: Network | None = None, algorithm: Method | None = None) -> TrainedClient:
    """Read a client that `save` or `protonorm export` wrote.

    A network or an algorithm of one's own is given here: the function (shape, d, K) that makes the network, the class.
    Nothing in the folder is executed, and a file that was changed raises a ValueError.
    """
    folder = Path(path)
    if not (folder / INFO).exists():
        raise ValueError(f"{folder} is not a saved client: it has no {INFO}.")
    content = (folder / INFO).read_bytes()
    if (version := format_of(content, folder / INFO)) != FORMAT:
        raise ValueError(f"{folder} is of format {version}; this version reads format {FORMAT}: export it again.")
    plain = unsealed(content, folder / INFO, pretty=True)
    weights, facts = plain.pop("weights", None), typed(Facts, plain.pop("facts", {}), folder / INFO)
    info = typed(ClientInfo, plain, folder / INFO)
    held = tensors.load(folder / WEIGHTS, STAMP)
    if checksum((folder / WEIGHTS).read_bytes()) != weights:
        raise damaged(folder / WEIGHTS, f"it is not the file that {INFO} was written with")
    return _assemble(info, facts, folder / INFO, under(held, "state"), under(held, "message"), network, algorithm)


def load_from_run(
    run: Run,
    id: int,
    *,
    network: Network | None = None,
    algorithm: Method | None = None,
    test: Samples | None = None,
    checkpoint: Literal["chosen", "last"] = "chosen",
) -> TrainedClient:
    """Read a client from its run's folder, as of the chosen or the last round; its data are not needed."""
    if not 0 <= id < run.info.experiment.clients:
        raise ValueError(f"There is no client {id}; the run has clients 0 to {run.info.experiment.clients - 1}.")
    if not run.rounds:
        raise ValueError(f"No round of {run.folder} is done: its clients have not trained yet.")
    layout.refuse_without_networks(run.folder)
    held, path, round = _load_server(run, checkpoint)
    trained = trained_rounds(held, run.info.experiment.clients, round, path)[id]
    if not trained:
        raise ValueError(f"Client {run.client_name(id)} has not trained yet: it was in no round's cohort.")
    state = FolderStore(run.folder / layout.CLIENTS, run.info.key, cache=0).load(id, trained)
    info = client_info(run, id, round, trained)
    return _assemble(info, run, run.folder / layout.INFO, state, message_to(held, id), network, algorithm, test)


def _load_server(run: Run, checkpoint: str) -> tuple[Tensors, Path, int]:
    """Read what the server had after the chosen or the last round; the file, and which round that is."""
    done, last = layout.committed(run.folder), len(run.rounds)
    round = run.chosen.record.round if checkpoint == "chosen" and run.chosen and run.chosen.by == "validation" else last
    kept = read_run(run.folder).chosen if done > last else run.chosen
    if round != done and not (kept and kept.by == "validation" and kept.record.round == round):
        raise ValueError(
            f"{run.folder} has gone on to round {done}; what its clients were after round {round} is gone."
        )
    path = run.folder / (layout.SERVER if round == done else layout.CHOSEN)
    return tensors.load(path, layout.stamp(run.info.key, "server", round)), path, round


def client_info(run: Run, id: int, round: int, trained: int) -> ClientInfo:
    """Say in plain data what a client of a run is."""
    info = run.info
    settings = info.experiment.plain()
    precision = settings.get("precision", "float32")
    sharpness = sharpness_of(run, id, round)
    plain = {
        "format": FORMAT,
        "client": id,
        "name": info.client_name(id),
        "run": info.key,
        "round": round,
        "trained": trained,
        "algorithm": info.experiment.algorithm,
        "headline": info.headline,
        "recommended": recommend(run, round, fitted=sharpness is not None),
        "network": info.network(id),
        "auxiliary": settings.get("auxiliary"),
        "feature_dim": info.experiment.feature_dim,
        "input": info.input,
        "preprocessing": preprocessing(info.input),
        "classes": info.classes,
        "lowered": bool(settings.get("lowering", True)) and settings.get("device") == "cpu" and precision == "float32",
        "precision": precision,
        "sharpness": sharpness,
    }
    return typed(ClientInfo, plain, run.folder / layout.INFO)


def _assemble(
    info: ClientInfo,
    origin: Run | Facts,
    source: Path,  # the file that says so
    state: Tensors,
    message: Tensors,
    network: Network | None,
    algorithm: Method | None,
    test: Samples | None = None,
) -> TrainedClient:
    """Make a trained client of plain data and tensors."""
    method = _algorithm(info, source, algorithm)
    client = _client(info, source, network, test, method)
    try:
        client.load(state)
    except ValueError as error:
        if network is not None:
            raise ValueError(f"{error} The client was trained with {_name(info)}.") from error
        raise damaged(source, str(error).rstrip(".")) from error
    return TrainedClient(info, method, client, state, message, origin)


def _algorithm(info: ClientInfo, source: Path, given: Method | None) -> Algorithm:
    if isinstance(given, Algorithm):
        return given
    name = info.algorithm.name
    if given is None and name not in ALGORITHMS:
        raise ValueError(
            f"The algorithm {name} is not one of the package: give it by --algorithm file.py:Class, "
            "or in Python as algorithm=Class."
        )
    settings: dict[str, Any] = {key: value for key, value in info.algorithm.settings.items() if key != "source"}
    if given:
        return given(**settings)
    try:
        made = build("algorithm", {"name": name, **settings})
    except ValueError as error:
        raise damaged(source, str(error)) from error
    assert isinstance(made, Algorithm)
    return made


def _name(info: ClientInfo) -> str:
    """Name a client's network."""
    return info.network if isinstance(info.network, str) else str(info.network["name"])


def _client(info: ClientInfo, source: Path, given: Network | None, test: Samples | None, method: Algorithm) -> Client:
    """Give the client its network, a second one if it has it and it is ours, and no data but those to test with."""
    if given is None and not isinstance(info.network, str):
        name = _name(info)
        raise ValueError(
            f"The network {name} is not one of the package: give it by --network {name}, "
            "or in Python as network=FUNCTION."
        )
    shape, classes = info.input.network_shape, len(info.classes)
    recipe = Recipe(given or info.network, shape, info.feature_dim, classes, info.lowered)
    second = info.auxiliary if method.auxiliary and isinstance(info.auxiliary, str) else None
    try:
        with seeded(0, 0, info.client, "template"):  # weights that are replaced at once
            model = recipe()
            width = method.auxiliary_dim(info.feature_dim)
            auxiliary = None if second is None else Recipe(second, shape, width, classes, info.lowered)()
    except (ValueError, TypeError, OverflowError) as error:
        if given is not None:
            raise
        raise damaged(source, str(error)) from error
    none = Samples.none(tuple(info.input.shape))
    return Client(
        id=info.client,
        round=info.trained,
        rounds=info.trained,
        model=model,
        auxiliary=auxiliary,
        train=none,
        validation=none,
        test=none if test is None else test,
        num_classes=len(info.classes),
        feature_dim=info.feature_dim,
        precision=info.precision,
    )
