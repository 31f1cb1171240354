"""Loading of trained clients, from the folder of their run or from an exported folder."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from protonorm import tensors
from protonorm.algorithms import ALGORITHMS
from protonorm.config.components import build, make_own
from protonorm.core import Algorithm, Client, Samples, seeded
from protonorm.core.model import Trunk
from protonorm.core.node import OPTIMISER
from protonorm.core.own_code import fingerprint
from protonorm.core.training import Training
from protonorm.core.types import shown
from protonorm.files import checksum, damaged, format_of, unsealed
from protonorm.inference.info import FORMAT, INFO, WEIGHTS, ClientInfo, Facts, client_info, default_rule, recommend
from protonorm.inference.module import probe
from protonorm.inference.trained import STAMP, TrainedClient
from protonorm.models.choose import Network, Recipe
from protonorm.runs import layout
from protonorm.runs.run import Run, read_run
from protonorm.runs.schema import TrunkInfo, typed
from protonorm.runs.states import FolderStore, load_tensors, message_to, trained_rounds
from protonorm.tensors import Tensors, strip_prefix

UNKNOWN = "unknown"  # fingerprint of code without source

Method = Algorithm | type[Algorithm]


class OwnCode(NamedTuple):
    """Code of the user, of which files store only the name and a fingerprint."""

    network: Network | str | None = None  # a name: that of a frozen network, with the file of its weights
    algorithm: Method | None = None
    auxiliary: Network | str | None = None


def assemble(
    info: ClientInfo,
    origin: Run | Facts,
    source: Path,  # file that errors name
    state: Tensors,
    message: Tensors,
    own: OwnCode,
    test: Samples | None = None,
) -> TrainedClient:
    """Build a trained client from plain data and tensors."""
    method = _algorithm(info, source, own.algorithm)
    client, state = _client(info, source, own, test, method), tensors.without_prefix(state, OPTIMISER)
    try:
        client.load(state)
    except ValueError as error:
        if own.network is not None:
            raise ValueError(f"{error} The client was trained with {info.network_name}.") from error
        raise damaged(source, str(error).rstrip(".")) from error
    _warn_of_changed_code(info, own)
    first, second = (item if isinstance(item, str) else None for item in (own.network, own.auxiliary))
    return _with_available_rule(TrainedClient(info, method, client, state, message, origin, (first, second)))


def _algorithm(info: ClientInfo, source: Path, method: Method | None) -> Algorithm:
    name = info.algorithm.name
    settings: dict[str, Any] = {key: value for key, value in info.algorithm.settings.items() if key != "source"}
    if method is not None:
        algorithm = make_own(method, settings, "algorithm", name) if isinstance(method, type) else method
        if not isinstance(algorithm, Algorithm):
            raise ValueError(f"{shown(method)} is not an algorithm: expected a class of pn.Algorithm, or an object.")
        return algorithm
    if name not in ALGORITHMS:
        raise ValueError(
            f"The algorithm {name} is not one of the package: give it by --algorithm file.py:Class, "
            "or in Python as algorithm=Class."
        )
    try:
        return cast(Algorithm, build("algorithm", {"name": name, **settings}))
    except ValueError as error:
        raise damaged(source, str(error)) from error


def _warn_of_changed_code(info: ClientInfo, own: OwnCode) -> None:
    """Warn if the source of a user's network or method has changed since the client trained."""
    method = own.algorithm if own.algorithm is None or isinstance(own.algorithm, type) else type(own.algorithm)
    of_method = {"name": info.algorithm.name, "source": info.algorithm.settings.get("source")}
    pairs = {"network": (info.network, own.network), "second network": (info.auxiliary, own.auxiliary)}
    for kind, (recorded, code) in (pairs | {"algorithm": (of_method, method)}).items():
        original = recorded.get("source") if isinstance(recorded, dict) else None
        if code is None or isinstance(code, str) or original in (None, UNKNOWN):
            continue
        current = original
        with suppress(ValueError):  # its file was edited after the import: the executed source is unknown
            current = fingerprint(code)
        if current not in (original, UNKNOWN):
            warnings.warn(
                f"The {kind} {recorded['name']} has another text now than when client {info.name} was trained: "
                "its answers may be others.",
                stacklevel=4,
            )


def _with_available_rule(client: TrainedClient) -> TrainedClient:
    """Recommend a rule that the client has; without its second network it lacks some of the method's rules."""
    info = client.info
    if client.client.auxiliary is not None or not client.algorithm.auxiliary:
        return client
    try:
        rules = list(client.scores(probe(info, 1).numpy()))
    except ValueError:
        return client  # it cannot predict at all, and raises an error when asked to
    if info.recommended.rule in rules:
        return client
    run = client.source
    advice = recommend(run, info.round, rules) if isinstance(run, Run) else default_rule(info.headline, rules)
    return replace(client, info=info.model_copy(update={"recommended": advice}))


def _client(info: ClientInfo, source: Path, own: OwnCode, test: Samples | None, method: Algorithm) -> Client:
    """Build the client with its network, the second one if available, and no data but test samples."""
    network = own.network
    if network is None and info.trunk is None and not isinstance(info.network, str):
        name = info.network_name
        raise ValueError(
            f"The network {name} is not one of the package: give it by --network {name}, "
            "or in Python as network=FUNCTION."
        )
    recipe = _recipe(info, info.network if info.trunk else network or info.network, info.trunk)
    second = None  # builder of the second network: the given one, a built-in one, or the client's if both are equal
    if method.auxiliary:
        second = own.auxiliary or (info.auxiliary if isinstance(info.auxiliary, str) else None)
        second = own.network if second is None and info.auxiliary == info.network else second
    try:
        with seeded(0, 0, info.client, "template"):  # initial weights are replaced immediately
            model = recipe()
            width = method.auxiliary_dim(info.feature_dim)
            start = info.trunk.width if info.trunk and info.trunk != info.second_trunk else 0
            item = info.auxiliary if info.second_trunk else second
            further = None if item is None else _recipe(info, item, info.second_trunk, width, start)
            auxiliary = None if further is None else further()
    except (ValueError, TypeError, OverflowError) as error:
        if network is not None:
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
        training=Training(precision=info.precision),
    )


def _recipe(info: ClientInfo, item: Any, trunk: TrunkInfo | None, width: int = 0, start: int = 0) -> Recipe:
    """Return the recipe of a client's network, on the features of a trunk if it has one."""
    shape, classes = info.input.network_shape, len(info.classes)
    if trunk is None:
        return Recipe(item, shape, width or info.feature_dim, classes, info.lowered)
    name, recipe_trunk = str(item["name"] if isinstance(item, dict) else item), Trunk(*trunk.identity)
    return Recipe(name, shape, width or info.feature_dim, classes, trunk=recipe_trunk, start=start)


def load_client(
    path: str | Path,
    *,
    network: Network | str | None = None,
    algorithm: Method | None = None,
    auxiliary: Network | str | None = None,
) -> TrainedClient:
    """Load a client from a folder that `save` or `protonorm export` wrote.

    Nothing in the folder is executed.

    Args:
        path: Folder of the saved client.
        network: Function (shape, d, K) that builds the network, if it is not part of the package; for a frozen network
            of a file, frozen:NAME=FILE or frozen:file.py:function.
        algorithm: Class or object of the method, if it is not part of the package.
        auxiliary: Function that builds the second network of a method that has one, if it is not part of the package
            and differs from `network`.

    Raises:
        ValueError: If the folder is not a saved client, a file was changed, or a required argument is missing.
    """
    folder = Path(path)
    if not (folder / INFO).exists():
        raise ValueError(f"{folder} is not a saved client: it has no {INFO}.")
    content = (folder / INFO).read_bytes()
    if (version := format_of(content, folder / INFO)) != FORMAT:
        raise ValueError(f"{folder} is of format {version}; this version reads format {FORMAT}: export it again.")
    fields = unsealed(content, folder / INFO, pretty=True)
    weights, facts = fields.pop("weights", None), typed(Facts, fields.pop("facts", {}), folder / INFO)
    info = typed(ClientInfo, fields, folder / INFO)
    saved = tensors.load(folder / WEIGHTS, STAMP)
    if checksum((folder / WEIGHTS).read_bytes()) != weights:
        raise damaged(folder / WEIGHTS, f"it is not the file that {INFO} was written with")
    own = OwnCode(network, algorithm, auxiliary)
    return assemble(info, facts, folder / INFO, strip_prefix(saved, "state"), strip_prefix(saved, "message"), own)


def load_from_run(
    run: Run,
    id: int,
    *,
    network: Network | str | None = None,
    algorithm: Method | None = None,
    auxiliary: Network | str | None = None,
    test: Samples | None = None,
    checkpoint: Literal["chosen", "last"] = "chosen",
) -> TrainedClient:
    """Load a client from its run's folder, as of the chosen or the last round; its data are not needed."""
    if not 0 <= id < run.info.experiment.clients:
        raise ValueError(f"There is no client {id}; the run has clients 0 to {run.info.experiment.clients - 1}.")
    if run.of_owners:
        raise ValueError(run.of_owners)
    if not run.rounds:
        raise ValueError(f"No round of {run.folder} is done: its clients have not trained yet.")
    layout.refuse_without_networks(run.folder)
    saved, path, round = load_server(run, checkpoint)
    trained = trained_rounds(saved, run.info.experiment.clients, round, path)[id]
    if not trained:
        raise ValueError(f"Client {run.client_name(id)} has not trained yet: it was in no round's cohort.")
    state = FolderStore(run.folder / layout.CLIENTS, run.info.key, cache=0).load(id, trained)
    info = client_info(run, id, round, trained)
    own = OwnCode(network, algorithm, auxiliary)
    return assemble(info, run, run.folder / layout.INFO, state, message_to(saved, id), own, test)


def load_server(run: Run, checkpoint: str) -> tuple[Tensors, Path, int]:
    """Return the server's state after the chosen or the last round, its file, and the round."""
    done, last = layout.committed(run.folder), len(run.rounds)
    round = run.chosen.record.round if checkpoint == "chosen" and run.chosen and run.chosen.by == "validation" else last
    chosen = read_run(run.folder).chosen if done > last else run.chosen
    if round != done and not (chosen and chosen.by == "validation" and chosen.record.round == round):
        raise ValueError(f"{run.folder} has gone on to round {done}; its clients after round {round} are gone.")
    path = run.folder / (layout.SERVER if round == done else layout.CHOSEN)
    return load_tensors(path, layout.stamp(run.info.key, "server", round)), path, round
