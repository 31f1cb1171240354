"""A client as a Flower ClientApp, for an exported app: Flower's own nodes run it, a process for each message.

A node's settings say who it is. `partition-id` and `num-partitions` mean a simulation: the client's data are a part of
the run's `dataset`, or made up if none is given. `data-path` means a real node, which also has a `client-id`, its
number, and may have settings of its owner's: model, lr, batch-size, epochs, momentum, weight-decay, device, train,
validation, evaluation (off, accuracy or classes), name, and state-path, where it keeps what it remembers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.utils import get_flwr_home

from protonorm.core.types import shown
from protonorm.data.dataset import Dataset
from protonorm.data.partitions.base import ClientIndex
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.flower.envelope import RECORD, reply, unwrap
from protonorm.deployment.node import Node
from protonorm.deployment.settings import ClientSettings
from protonorm.deployment.site import OwnSamples, OwnSite, make_site, open_store
from protonorm.federation.population import Training

NUMBER, DATA = "client-id", "data-path"
RENAMED = {DATA: "data", "evaluation": "allowed"}
TRAINING = ("validation", "lr", "momentum", "weight_decay", "epochs", "batch_size", "device")
MADE_UP = 40  # samples a client has of data that are made up
WIDTH = 16  # numbers that a made-up sample has

MOST_NODES = 16  # that a process remembers

Settings = Mapping[str, Any]
_MADE: dict[tuple[Any, ...], Node] = {}


def make_client_app(agreement: Path) -> ClientApp:
    """Make the app of a federation's clients from the agreement that is exported with it."""
    app = ClientApp()
    terms = Agreement.read(agreement.read_bytes(), str(agreement))

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        return reply(_node(terms, context).answer(unwrap(message)), message)

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        said = ConfigRecord({"client": number_of(context.node_config), "agreement": terms.digest})
        return Message(RecordDict({RECORD: said}), reply_to=message)

    return app


def number_of(own: Settings) -> int:
    """Find a node's number in its settings."""
    name = "partition-id" if "partition-id" in own else NUMBER
    found = own.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise ValueError(f"The node has {name}={shown(found)}; expected its number, 0, 1, 2 and so on.")
    return found


def _node(terms: Agreement, context: Context) -> Node:
    """Give the node that the settings describe; one that was made in this process already is used again."""
    own, run = dict(context.node_config), dict(context.run_config)
    key = terms.digest, context.run_id, *(tuple(sorted(one.items())) for one in (own, run))
    if key not in _MADE:
        while len(_MADE) >= MOST_NODES:
            del _MADE[next(iter(_MADE))]
        _MADE[key] = _simulated(terms, own, run, context.run_id) if "partition-id" in own else _real(terms, own)
    return _MADE[key]


def _real(terms: Agreement, given: dict[str, Any]) -> Node:
    """Make a client of its owner's data and network."""
    if DATA not in given:
        raise ValueError("The node has neither data-path, as a real one has, nor partition-id, as a simulated one.")
    number, place = number_of(given), given.pop("state-path", "")
    del given[NUMBER]
    plain = {RENAMED.get(name, name.replace("-", "_")): value for name, value in given.items()}
    own = ClientSettings.of({"name": f"client-{number}"} | plain, "The node")
    training = Training(**{name: getattr(own, name) for name in TRAINING})
    site = make_site(
        terms, number, own.data, own.model, training, lowering=own.lowering, train=own.train, name=own.name
    )
    states = Path(place) if place else get_flwr_home() / "protonorm" / "states" / str(number)
    return Node(terms, site, open_store(states, terms), own.allowed)


def _simulated(terms: Agreement, own: Settings, given: Settings, run: int) -> Node:
    """Make a client of a simulation; what it remembers is the run's."""
    number, clients = number_of(own), int(own.get("num-partitions", 0))
    site = _part(terms, number, clients, given) if given.get("dataset") else _made_up(terms, number, given)
    states = get_flwr_home() / "protonorm" / "simulations" / str(run) / str(number)
    return Node(terms, site, open_store(states, terms), "classes")


def _part(terms: Agreement, number: int, clients: int, given: Settings) -> OwnSite:
    """Give a client its part of a data set, as a simulation of ours does."""
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
    return OwnSite(terms.task, number, OwnSamples(taken, index), population.recipe(number), population.training)


def _made_up(terms: Agreement, number: int, given: Settings) -> OwnSite:
    """Make data up, so that the app runs before anybody has data: a cloud of points, or of pictures, for each class."""
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
    training = Training(lr=float(given.get("lr", 0.01)), batch_size=int(given.get("batch-size", 8)), validation=0.1)
    return make_site(terms, number, data, training=training)


def _shape(terms: Agreement) -> tuple[int, ...]:
    return tuple(terms.input.shape) if terms.input else (WIDTH,)
