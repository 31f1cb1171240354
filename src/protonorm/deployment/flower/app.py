"""Server and clients as Flower apps, for an exported app that Flower's own server and nodes run.

A node's settings identify it. `partition-id` and `num-partitions` mean a simulation: the client's data are a part of
the run's `dataset`, or synthetic if none is given. `data-path` means a real node, which also has a `client-id` and may
have its owner's settings: model, all of training (lr, batch-size, optimiser, device and so on), evaluation (off,
accuracy or classes), name, and state-path, the folder of its states.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from protonorm.core.training import Training
from protonorm.core.types import shown
from protonorm.data.dataset import Dataset
from protonorm.data.partitions import ClientIndex
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.events import Event
from protonorm.deployment.federation import run_federation
from protonorm.deployment.flower.transport import RECORD, GridTransport, unwrap, wrap
from protonorm.deployment.node import Node
from protonorm.deployment.settings import ClientSettings
from protonorm.deployment.site import OwnSite, make_site, open_store, own_secret, own_site
from protonorm.models.choose import networks

LOG = getLogger("flwr")
NUMBER, DATA = "client-id", "data-path"
RENAMED = {DATA: "data", "evaluation": "allowed"}
MADE_UP = 40  # samples per client of synthetic data
WIDTH = 16  # features of a synthetic sample
MOST_NODES = 16  # maximal number of nodes cached in a process

Settings = Mapping[str, Any]
_MADE: dict[tuple[Any, ...], Node] = {}
PAUSE = 0.2  # seconds between two polls while nodes identify themselves
QUIET = 10.0  # seconds without a new node after which all count as connected, if their number is not set
ASKED = "query"  # type of the message that asks a node for its client id


def make_client_app(agreement: Path) -> ClientApp:
    """Create the ClientApp of a federation from the exported agreement."""
    app = ClientApp()
    terms = Agreement.read(agreement.read_bytes(), str(agreement))

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        return Message(wrap(_node(terms, context).answer(unwrap(message))), reply_to=message)

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        said = ConfigRecord({"client": number_of(context.node_config), "agreement": terms.digest})
        return Message(RecordDict({RECORD: said}), reply_to=message)

    return app


def _home() -> Path:
    """Return Flower's folder of this user."""
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")


def number_of(own: Settings) -> int:
    """Return the client id in a node's settings."""
    name = "partition-id" if "partition-id" in own else NUMBER
    found = own.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise ValueError(f"The node has {name}={shown(found)}; expected its number, 0, 1, 2 and so on.")
    return found


def _node(terms: Agreement, context: Context) -> Node:
    """Return the node that the settings describe, cached per process."""
    own, run = dict(context.node_config), dict(context.run_config)
    key = terms.digest, context.run_id, *(tuple(sorted(one.items())) for one in (own, run))
    if key not in _MADE:
        while len(_MADE) >= MOST_NODES:
            del _MADE[next(iter(_MADE))]
        _MADE[key] = _simulated(terms, own, run, context.run_id) if "partition-id" in own else _real(terms, own)
    return _MADE[key]


def _real(terms: Agreement, given: dict[str, Any]) -> Node:
    """Create a client with its owner's data and network."""
    if DATA not in given:
        raise ValueError("The node has neither data-path, as a real one has, nor partition-id, as a simulated one.")
    number, place = number_of(given), given.pop("state-path", "")
    del given[NUMBER]
    plain = {RENAMED.get(name, name.replace("-", "_")): value for name, value in given.items()}
    own = ClientSettings.of({"name": f"client-{number}"} | plain, "The node")
    states = Path(place) if place else _home() / "protonorm" / "states" / str(number)
    return Node(terms, own_site(terms, number, own, own_secret(states)), open_store(states, terms), own.allowed)


def _simulated(terms: Agreement, own: Settings, given: Settings, run: int) -> Node:
    """Create a client of a simulation; its states are kept per run."""
    number, clients = number_of(own), int(own.get("num-partitions", 0))
    site = _part(terms, number, clients, given) if given.get("dataset") else _made_up(terms, number, given)
    states = _home() / "protonorm" / "simulations" / str(run) / str(number)
    return Node(terms, site, open_store(states, terms), "classes")


def _part(terms: Agreement, number: int, clients: int, given: Settings) -> OwnSite:
    """Create a site with a client's part of a data set, as in a protonorm simulation."""
    from protonorm.config.experiment import Experiment
    from protonorm.session.build import build

    names = ("dataset", "partition", "models", "lr", "batch_size", "epochs")
    chosen = {name: given[key] for name in names if given.get(key := name.replace("_", "-")) not in (None, "")}
    same = {"algorithm": terms.algorithm, "feature_dim": terms.feature_dim, "rounds": terms.rounds, "seed": terms.seed}
    experiment = Experiment.of(chosen | same | {"clients": clients})
    _, population = build(experiment)
    part, data = population.parts[number], population.dataset
    rows, cut = np.concatenate(part), len(part.train)
    labels = terms.class_numbers(data.classes, f"The data {data.name}")[data.labels[rows]]
    taken = Dataset(data.name, data.inputs[rows], labels, tuple(terms.classes), vocabulary=data.vocabulary)
    index = ClientIndex(np.arange(cut), np.arange(cut, len(rows)))
    items = networks(experiment.models)  # a recipe does not say where weights are
    recipe = replace(population.recipe(number), network=items[number % len(items)])
    return OwnSite(terms.task, number, taken, index, recipe, population.training)


def _made_up(terms: Agreement, number: int, given: Settings) -> OwnSite:
    """Create a site with synthetic data, so that the app runs without any: one Gaussian cluster per class."""
    rng, classes = np.random.default_rng([terms.seed, number]), len(terms.classes)
    centres = np.random.default_rng(terms.seed).normal(size=(classes, *_shape(terms)))
    labels = np.concatenate([np.arange(min(classes, MADE_UP // 2)), rng.integers(0, classes, MADE_UP // 2)])
    inputs = centres[labels] + 0.5 * rng.normal(size=(len(labels), *_shape(terms)))
    kind = terms.input.type if terms.input else "float32"
    if kind == "uint8":
        inputs = np.clip(128 + 40 * inputs, 0, 255)
    if kind == "int64":
        assert terms.input is not None
        inputs = np.abs(inputs * 1000) % (terms.input.vocabulary or 2)
    vocabulary = terms.input.vocabulary if terms.input else None
    data = Dataset("made up", inputs.astype(kind), labels, tuple(terms.classes), vocabulary=vocabulary)
    training = Training(lr=float(given.get("lr", 0.01)), batch_size=int(given.get("batch-size", 8)))
    return make_site(terms, number, data, training=training)


def _shape(terms: Agreement) -> tuple[int, ...]:
    return tuple(terms.input.shape) if terms.input else (WIDTH,)


class Introductions:
    """Client ids of nodes, as the nodes report them; Flower identifies nodes by keys that are not available here."""

    def __init__(self, grid: Grid, digest: str) -> None:
        self._grid, self._digest = grid, digest
        self._numbers: dict[int, int | None] = {}  # client id by node; None if its answer is invalid
        self._waiting: dict[str, int] = {}  # node by message id

    def __call__(self, nodes: Iterable[int]) -> dict[int, int]:
        """Return the node of each connected client that has reported its id."""
        here = list(nodes)
        self._numbers = {node: number for node, number in self._numbers.items() if node in here}
        new = [node for node in here if node not in self._numbers and node not in self._waiting.values()]
        messages = [Message(RecordDict(), node, ASKED) for node in new]
        ids = list(self._grid.push_messages(messages)) if messages else []
        self._waiting |= {id: node for id, node in zip(ids, new, strict=False) if id}
        for id in list(self._waiting):
            for message in self._grid.pull_messages([id]):
                self._take(self._waiting.pop(id), message)
        return {number: node for node, number in reversed(self._numbers.items()) if number is not None and node in here}

    def _take(self, node: int, message: Message) -> None:
        if message.has_error():
            LOG.warning("A node does not say which client it is: %s", message.error.reason)
            return  # the node is asked again
        record = message.content.get(RECORD)
        said = dict(record) if isinstance(record, ConfigRecord) else {}
        number = said.get("client")
        if said.get("agreement") != self._digest:
            LOG.warning("A node has another agreement and cannot take part.")
            number = None
        elif number is not None and number in self._numbers.values():
            LOG.warning("Two nodes say that they are client %s; the first one counts while it is there.", number)
        self._numbers[node] = number if isinstance(number, int) else None


def make_server_app(agreement: Path) -> ServerApp:
    """Create the ServerApp of a federation from the exported agreement."""
    app = ServerApp()
    terms = Agreement.read(agreement.read_bytes(), str(agreement))

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        given = context.run_config
        known = Introductions(grid, terms.digest)
        clients = int(given.get("clients", 0)) or _count(grid, known)
        place = str(given.get("folder", ""))
        folder = Path(place) if place else _home() / "protonorm" / "runs" / str(context.run_id)
        folder.parent.mkdir(parents=True, exist_ok=True)
        run_federation(
            terms,
            GridTransport(grid, known),
            folder,
            clients=[f"client-{number}" for number in range(clients)],
            quorum=float(given.get("quorum", 1.0)),
            deadline=float(given.get("deadline", 600.0)),
            tell=_tell,
        )
        LOG.info("The record is in %s", folder)

    return app


def _count(grid: Grid, known: Introductions) -> int:
    """Wait until no new node connects, and count the clients."""
    found: dict[int, int] = {}
    changed = time.monotonic()
    while not found or time.monotonic() - changed < QUIET:
        now = known(grid.get_node_ids())
        if now.keys() != found.keys():
            found, changed = now, time.monotonic()
        if found and len(found) == len(list(grid.get_node_ids())) and time.monotonic() - changed > 1.0:
            break
        time.sleep(PAUSE)
    return max(found) + 1


def _tell(event: Event) -> None:
    if event.what not in ("asked", "answered", "delivered", "acknowledged"):
        LOG.info("%s", event.sentence)
