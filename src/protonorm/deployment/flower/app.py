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
from protonorm.deployment.federation import policy_of, run_federation
from protonorm.deployment.flower.transport import RECORD, GridTransport, unwrap, unwrap_unable, wrap, wrap_unable
from protonorm.deployment.node import Node
from protonorm.deployment.settings import ClientSettings
from protonorm.deployment.site import OwnSite, make_site, open_store, own_secret, own_site
from protonorm.errors import Failed
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
UNTOLD = "it cannot work with its data and settings; its own log says why"  # causes stay with a real client's owner
ASKED = "query"  # type of the message that asks a node for its client id


def make_client_app(agreement: Path) -> ClientApp:
    """Create the ClientApp of a federation from the exported agreement."""
    app = ClientApp()
    terms = Agreement.read(agreement.read_bytes(), str(agreement))

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        try:
            node = _node(terms, context)
        except (ValueError, OSError, ImportError) as error:
            simulated = "partition-id" in context.node_config
            if not simulated:
                LOG.error("This client cannot work: %s", error)
            return Message(wrap_unable(str(error) if simulated else UNTOLD, simulated=simulated), reply_to=message)
        return Message(wrap(node.answer(unwrap(message))), reply_to=message)

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        try:
            number = number_of(context.node_config)
        except ValueError as error:
            LOG.error("This client cannot work: %s", error)
            return Message(wrap_unable(str(error), simulated=False), reply_to=message)
        record = ConfigRecord({"client": number, "agreement": terms.digest})
        return Message(RecordDict({RECORD: record}), reply_to=message)

    return app


def _home() -> Path:
    """Return Flower's folder of this user."""
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")


def number_of(own: Settings) -> int:
    """Return the client id in a node's settings."""
    name = "partition-id" if "partition-id" in own else NUMBER
    number = own.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"The node has {name}={shown(number)}; expected its number, 0, 1, 2 and so on.")
    return number


def _node(terms: Agreement, context: Context) -> Node:
    """Return the node that the settings describe, cached per process."""
    own, run = dict(context.node_config), dict(context.run_config)
    key = terms.digest, context.run_id, *(tuple(sorted(settings.items())) for settings in (own, run))
    if key not in _MADE:
        while len(_MADE) >= MOST_NODES:
            del _MADE[next(iter(_MADE))]
        _MADE[key] = _simulated(terms, own, run, context.run_id) if "partition-id" in own else _real(terms, own)
    return _MADE[key]


def _real(terms: Agreement, settings: dict[str, Any]) -> Node:
    """Create a client with its owner's data and network."""
    if DATA not in settings:
        raise ValueError("The node has neither data-path, as a real one has, nor partition-id, as a simulated one.")
    number, state_path = number_of(settings), settings.pop("state-path", "")
    del settings[NUMBER]
    plain = {RENAMED.get(name, name.replace("-", "_")): value for name, value in settings.items()}
    own = ClientSettings.of({"name": f"client-{number}"} | plain, "The node")
    states = Path(state_path) if state_path else _home() / "protonorm" / "states" / str(number)
    return Node(terms, own_site(terms, number, own, own_secret(states)), open_store(states, terms), own.allowed)


def _simulated(terms: Agreement, own: Settings, config: Settings, run: int) -> Node:
    """Create a client of a simulation; its states are kept per run."""
    number, clients = number_of(own), int(own.get("num-partitions", 0))
    site = _part(terms, number, clients, config) if config.get("dataset") else _synthetic(terms, number, config)
    states = _home() / "protonorm" / "simulations" / str(run) / str(number)
    return Node(terms, site, open_store(states, terms), "classes")


def _part(terms: Agreement, number: int, clients: int, config: Settings) -> OwnSite:
    """Create a site with a client's part of a data set, as in a protonorm simulation."""
    from protonorm.config.experiment import Experiment
    from protonorm.session.build import build

    names = ("dataset", "partition", "models", "lr", "batch_size", "epochs")
    chosen = {name: config[key] for name in names if config.get(key := name.replace("_", "-")) not in (None, "")}
    fixed = {"algorithm": terms.algorithm, "feature_dim": terms.feature_dim, "rounds": terms.rounds, "seed": terms.seed}
    count = getattr(Experiment.of(chosen | fixed).dataset, "clients", clients)  # if the data have clients of their own
    if isinstance(count, int) and count != clients:
        raise ValueError(
            f"num-supernodes must be {count}, the number of clients in {shown(chosen['dataset'])}, got {clients}; "
            f"flwr run takes --federation-config 'num-supernodes={count}'."
        )
    experiment = Experiment.of(chosen | fixed | {"clients": clients})
    _, population = build(experiment)
    part, data = population.parts[number], population.dataset
    rows, cut = np.concatenate(part), len(part.train)
    labels = terms.class_numbers(data.classes, f"The data {data.name}")[data.labels[rows]]
    own = Dataset(data.name, data.inputs[rows], labels, tuple(terms.classes), vocabulary=data.vocabulary)
    index = ClientIndex(np.arange(cut), np.arange(cut, len(rows)))
    items = networks(experiment.models)  # a recipe does not say where weights are
    recipe = replace(population.recipe(number), network=items[number % len(items)])
    return OwnSite(terms.task, number, own, index, recipe, population.training)


def _synthetic(terms: Agreement, number: int, config: Settings) -> OwnSite:
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
    training = Training(lr=float(config.get("lr", 0.01)), batch_size=int(config.get("batch-size", 8)))
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
        connected = list(nodes)
        self._numbers = {node: number for node, number in self._numbers.items() if node in connected}
        unknown = [node for node in connected if node not in self._numbers and node not in self._waiting.values()]
        messages = [Message(RecordDict(), node, ASKED) for node in unknown]
        ids = list(self._grid.push_messages(messages)) if messages else []
        self._waiting |= {id: node for id, node in zip(ids, unknown, strict=False) if id}
        for id in list(self._waiting):
            for message in self._grid.pull_messages([id]):
                self._take(self._waiting.pop(id), message)
        there = ((node, number) for node, number in reversed(self._numbers.items()) if node in connected)
        return {number: node for node, number in there if number is not None}

    def _take(self, node: int, message: Message) -> None:
        if message.has_error():
            LOG.warning("A node does not say which client it is: %s", message.error.reason)
            return  # the node is asked again
        record = message.content.get(RECORD)
        fields = dict(record) if isinstance(record, ConfigRecord) else {}
        number, (reason, _) = fields.get("client"), unwrap_unable(message)
        if reason:
            LOG.warning("A node cannot take part: %s", reason)
        elif fields.get("agreement") != self._digest:
            LOG.warning("A node has another agreement and cannot take part.")
            number = None
        elif number is not None and number in self._numbers.values():
            LOG.warning("Two nodes say that they are client %s; the first one counts while it is there.", number)
        self._numbers[node] = number if isinstance(number, int) else None


class Workforce:
    """Simulated clients that can work; nobody mends them during a run."""

    def __init__(self, clients: int, needed: int) -> None:
        self._clients, self._needed = clients, needed
        self._unable: set[int] = set()

    def lose(self, client: int, reason: str) -> None:
        """Raise Failed if too few clients are left without this one."""
        self._unable.add(client)
        left = self._clients - len(self._unable)
        if left < self._needed:
            raise Failed(f"The run ends, because client-{client} cannot work: {reason}")


def make_server_app(agreement: Path) -> ServerApp:
    """Create the ServerApp of a federation from the exported agreement."""
    app = ServerApp()
    terms = Agreement.read(agreement.read_bytes(), str(agreement))

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        introductions = Introductions(grid, terms.digest)
        clients = int(config.get("clients", 0)) or _count(grid, introductions)
        folder_name = str(config.get("folder", ""))
        folder = Path(folder_name) if folder_name else _home() / "protonorm" / "runs" / str(context.run_id)
        folder.parent.mkdir(parents=True, exist_ok=True)
        names, quorum = [f"client-{number}" for number in range(clients)], float(config.get("quorum", 1.0))
        deadline = float(config.get("deadline", 600.0))
        needed = max(terms.least_answers, policy_of(terms, names, quorum, deadline).needed(clients))
        transport = GridTransport(grid, introductions, on_unable=Workforce(clients, needed).lose)
        try:
            run_federation(terms, transport, folder, clients=names, quorum=quorum, deadline=deadline, notify=_log)
        except Failed as error:
            raise error.with_traceback(None) from None
        LOG.info("The record is in %s", folder)

    return app


def _count(grid: Grid, introductions: Introductions) -> int:
    """Wait until no new node connects, and count the clients."""
    nodes: dict[int, int] = {}
    changed = time.monotonic()
    while not nodes or time.monotonic() - changed < QUIET:
        connected = introductions(grid.get_node_ids())
        if connected.keys() != nodes.keys():
            nodes, changed = connected, time.monotonic()
        if nodes and len(nodes) == len(list(grid.get_node_ids())) and time.monotonic() - changed > 1.0:
            break
        time.sleep(PAUSE)
    return max(nodes) + 1


def _log(event: Event) -> None:
    if event.what not in ("asked", "answered", "delivered", "acknowledged"):
        LOG.info("%s", event.sentence)
