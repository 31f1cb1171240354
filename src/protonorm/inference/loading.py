"""Load trained clients: from the folder of their run, or from a folder of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from protonorm import tensors
from protonorm.core.samples import Samples
from protonorm.federation.experts import JOINT
from protonorm.files import checksum, damaged, format_of, unsealed
from protonorm.inference.assembling import Method, OwnCode, assemble
from protonorm.inference.facts import recommend, sharpness_of
from protonorm.inference.info import FORMAT, INFO, WEIGHTS, ClientInfo, Facts, preprocessing
from protonorm.inference.trained import STAMP, TrainedClient
from protonorm.models.choose import Network
from protonorm.runs import layout
from protonorm.runs.checkpoint import message_to, trained_rounds
from protonorm.runs.info import typed
from protonorm.runs.reader import read_run
from protonorm.runs.run import Run
from protonorm.runs.states import FolderStore
from protonorm.tensors import Tensors, under


def load_client(
    path: str | Path,
    *,
    network: Network | None = None,
    algorithm: Method | None = None,
    auxiliary: Network | None = None,
) -> TrainedClient:
    """Read a client that `save` or `protonorm export` wrote.

    A network or an algorithm of one's own is given here: the function (shape, d, K) that makes the network, the class;
    `auxiliary` makes the second network of a method that has one, if that is another one of one's own.
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
    own = OwnCode(network, algorithm, auxiliary)
    return assemble(info, facts, folder / INFO, under(held, "state"), under(held, "message"), own)


def load_from_run(
    run: Run,
    id: int,
    *,
    network: Network | None = None,
    algorithm: Method | None = None,
    auxiliary: Network | None = None,
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
    own = OwnCode(network, algorithm, auxiliary)
    return assemble(info, run, run.folder / layout.INFO, state, message_to(held, id), own, test)


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
        "recommended": recommend(run, round, [rule for rule in info.rules if rule != JOINT or sharpness is not None]),
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
