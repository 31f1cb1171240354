"""Make a trained client of plain data, tensors, and code of the user's own."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from protonorm.algorithms import ALGORITHMS
from protonorm.config.components import build
from protonorm.config.own_classes import make_own
from protonorm.core.algorithm import Algorithm
from protonorm.core.node import Client
from protonorm.core.own_text import fingerprint
from protonorm.core.randomness import seeded
from protonorm.core.samples import Samples
from protonorm.core.types import shown
from protonorm.files import damaged
from protonorm.inference.facts import recommend, usual_rule
from protonorm.inference.info import ClientInfo, Facts
from protonorm.inference.module import probe
from protonorm.inference.trained import TrainedClient
from protonorm.models.choose import Network, Recipe
from protonorm.runs.run import Run
from protonorm.tensors import Tensors

UNKNOWN = "unknown"  # the fingerprint of code without a text

Method = Algorithm | type[Algorithm]


class OwnCode(NamedTuple):
    """Code of the user's own, of which files hold no more than the name and a fingerprint."""

    network: Network | None = None
    algorithm: Method | None = None
    auxiliary: Network | None = None


def assemble(
    info: ClientInfo,
    origin: Run | Facts,
    source: Path,  # the file that says so
    state: Tensors,
    message: Tensors,
    own: OwnCode,
    test: Samples | None = None,
) -> TrainedClient:
    """Make a trained client of plain data and tensors."""
    method = _algorithm(info, source, own.algorithm)
    client = _client(info, source, own, test, method)
    try:
        client.load(state)
    except ValueError as error:
        if own.network is not None:
            raise ValueError(f"{error} The client was trained with {info.network_name}.") from error
        raise damaged(source, str(error).rstrip(".")) from error
    _tell_of_other_code(info, own)
    return _with_its_rules(TrainedClient(info, method, client, state, message, origin))


def _algorithm(info: ClientInfo, source: Path, given: Method | None) -> Algorithm:
    name = info.algorithm.name
    if given is None and name not in ALGORITHMS:
        raise ValueError(
            f"The algorithm {name} is not one of the package: give it by --algorithm file.py:Class, "
            "or in Python as algorithm=Class."
        )
    settings: dict[str, Any] = {key: value for key, value in info.algorithm.settings.items() if key != "source"}
    if given is not None:
        made = make_own(given, settings, "algorithm", name) if isinstance(given, type) else given
        if not isinstance(made, Algorithm):
            raise ValueError(f"{shown(given)} is not an algorithm: expected a class of pn.Algorithm, or an object.")
        return made
    try:
        made = build("algorithm", {"name": name, **settings})
    except ValueError as error:
        raise damaged(source, str(error)) from error
    assert isinstance(made, Algorithm)
    return made


def _tell_of_other_code(info: ClientInfo, own: OwnCode) -> None:
    """Say that a network or method of the user's own has another text than the one that the client trained with."""
    method = own.algorithm if own.algorithm is None or isinstance(own.algorithm, type) else type(own.algorithm)
    of_method = {"name": info.algorithm.name, "source": info.algorithm.settings.get("source")}
    pairs = {"network": (info.network, own.network), "second network": (info.auxiliary, own.auxiliary)}
    for kind, (recorded, given) in (pairs | {"algorithm": (of_method, method)}).items():
        before = recorded.get("source") if isinstance(recorded, dict) else None
        if given is None or before in (None, UNKNOWN):
            continue
        now = before
        with suppress(
            ValueError
        ):  # its file was edited since it was imported: nobody knows the text of what is executed
            now = fingerprint(given)
        if now not in (before, UNKNOWN):
            warnings.warn(
                f"The {kind} {recorded['name']} has another text now than when client {info.name} was trained: "
                "its answers may be others.",
                stacklevel=4,
            )


def _with_its_rules(found: TrainedClient) -> TrainedClient:
    """Recommend a rule that the client has; without its second network it lacks some of the method's."""
    info = found.info
    if found.client.auxiliary is not None or not found.algorithm.auxiliary:
        return found
    try:
        rules = list(found.scores(probe(info, 1).numpy()))
    except ValueError:
        return found  # it cannot predict at all, and says so when it is asked to
    if info.recommended.rule in rules:
        return found
    run = found.source
    advice = recommend(run, info.round, rules) if isinstance(run, Run) else usual_rule(info.headline, rules)
    return replace(found, info=info.model_copy(update={"recommended": advice}))


def _client(info: ClientInfo, source: Path, own: OwnCode, test: Samples | None, method: Algorithm) -> Client:
    """Give the client its network, a second one if it has it and it is at hand, and no data but those to test with."""
    given = own.network
    if given is None and not isinstance(info.network, str):
        name = info.network_name
        raise ValueError(
            f"The network {name} is not one of the package: give it by --network {name}, "
            "or in Python as network=FUNCTION."
        )
    shape, classes = info.input.network_shape, len(info.classes)
    recipe = Recipe(given or info.network, shape, info.feature_dim, classes, info.lowered)
    second = _second(info, own) if method.auxiliary else None
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


def _second(info: ClientInfo, own: OwnCode) -> str | Network | None:
    """Find what makes the second network: the one given, one of ours, or the client's own if they are the same."""
    if own.auxiliary is not None or isinstance(info.auxiliary, str):
        return own.auxiliary or info.auxiliary
    return own.network if info.auxiliary == info.network else None
