"""Trained clients from files: from a folder of their own, or from the folder of their run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from protonorm.algorithms import ALGORITHMS
from protonorm.components import build
from protonorm.core import Algorithm, Client, seeded
from protonorm.data.dataset import Samples
from protonorm.files import read_json
from protonorm.history import Run, stamp
from protonorm.models import choose
from protonorm.models.choose import Network
from protonorm.models.lowering import laid_out
from protonorm.predictor import ABOUT, WEIGHTS, Predictor
from protonorm.record import States
from protonorm.tensors import Tensors, decode, load, under

FORMAT = 1
NEEDED = {"format", "client", "algorithm", "network", "feature_dim", "classes", "input", "sha256"}

Method = Algorithm | type[Algorithm]


def load_client(path: str | Path, *, network: Network | None = None, algorithm: Method | None = None) -> Predictor:
    """Read a client that `save` or `protonorm export` wrote.

    A network or an algorithm of one's own is given here: the function (shape, d, K) that makes the network, the class.
    """
    folder = Path(path)
    if not (folder / ABOUT).exists():
        raise ValueError(f"{folder} is not a saved client: it has no {ABOUT}.")
    about = read_json(folder / ABOUT)
    if missing := NEEDED - set(about):
        raise ValueError(f"{folder / ABOUT} is damaged: it lacks {', '.join(sorted(missing))}.")
    if about["format"] != FORMAT:
        raise ValueError(f"{folder} is of format {about['format']}; this version reads format {FORMAT}.")
    content = (folder / WEIGHTS).read_bytes() if (folder / WEIGHTS).exists() else b""
    if hashlib.sha256(content).hexdigest() != about["sha256"]:
        raise ValueError(f"{folder / WEIGHTS} is damaged: it is not the file that {ABOUT} was written with.")
    held = decode(content)
    return assemble(about, under(held, "state"), under(held, "message"), network, algorithm)


def client_of_run(run: Run, id: int, *, network: Network | None = None, algorithm: Method | None = None) -> Predictor:
    """Read a client from its run's folder, without the data it trained on."""
    about = run.about
    if not 0 <= id < len(about["networks"]):
        raise ValueError(f"There is no client {id}; the run has clients 0 to {len(about['networks']) - 1}.")
    if "input" not in about:
        raise ValueError(f"{run.folder} was recorded before clients could leave their run; run it again.")
    if not run.history:
        raise ValueError(f"No round of {run.folder} is done: its clients have not trained yet.")
    held = load(run.folder / "server.safetensors", stamp(about["key"], "server", len(run.history)))
    trained = int(held["trained"][id])
    if not trained:
        raise ValueError(f"Client {id} has not trained yet: it was in no round's cohort.")
    state = States(run.folder, about["key"]).load(id, trained)
    return assemble(portrait(about, id, trained), state, under(held, "message"), network, algorithm)


def portrait(about: Mapping[str, Any], id: int, trained: int) -> dict[str, Any]:
    """Say in plain data what a client of a run is."""
    return {
        "format": FORMAT,
        "client": id,
        "run": about["key"],
        "trained": trained,
        "algorithm": about["experiment"]["algorithm"],
        "rule": about["headline"],
        "network": about["networks"][id],
        "feature_dim": about["experiment"]["feature_dim"],
        "input": about["input"],
        "classes": about["classes"],
    }


def assemble(
    about: Mapping[str, Any],
    state: Tensors,
    message: Tensors,
    network: Network | None = None,
    algorithm: Method | None = None,
) -> Predictor:
    """Make a client of plain data and tensors."""
    method = _algorithm(about["algorithm"], algorithm)
    client = _client(about, network)
    try:
        client.load(state)
    except RuntimeError as error:
        raise ValueError(f"The weights of client {about['client']} do not fit the network: {error}") from error
    return Predictor(dict(about), method, client, state, message)


def _algorithm(told: Mapping[str, Any], given: Method | None) -> Algorithm:
    if isinstance(given, Algorithm):
        return given
    if given is None and told["name"] not in ALGORITHMS:
        raise ValueError(f"The algorithm {told['name']} is not one of the package; give its class as `algorithm`.")
    settings = {key: value for key, value in told.items() if key not in ("name", "source")}
    made = given(**settings) if given else build(ALGORITHMS, "algorithm", dict(told), "protonorm")
    assert isinstance(made, Algorithm)
    return made


def _client(about: Mapping[str, Any], given: Network | None) -> Client:
    """Give the client its network and no data."""
    shape = tuple(about["input"]["shape"])
    named = about["network"]
    if given is None and not isinstance(named, str):
        raise ValueError(
            f"The network {named['name']} is not one of the package; give the function that makes it as `network`."
        )
    size = (shape[2], shape[0], shape[1]) if len(shape) == 3 else shape
    with seeded(0, 0, about["client"]):  # weights that are replaced at once: not from the caller's randomness
        model = choose.network(given or named, size, about["feature_dim"], len(about["classes"]))
    none = Samples(torch.zeros(0, *shape), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    return Client(
        id=about["client"],
        round=about.get("trained", 0),
        rounds=about.get("trained", 0),
        model=laid_out(model, lowered=True),
        auxiliary=None,
        train=none,
        test=none,
        num_classes=len(about["classes"]),
        feature_dim=about["feature_dim"],
        lr=0.0,
        momentum=0.0,
        weight_decay=0.0,
        epochs=1,
        batch_size=1,
        shuffle=False,
        device="cpu",
    )
