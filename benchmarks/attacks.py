"""Lying clients against each rule of combination: the accuracy of the honest ones, and who was noticed.

A liar trains as the others do and sends something else. The server checks messages as in a real federation: a number
that training cannot produce is refused. Every liar knows the messages of the honest clients of its round. There may be
other shares of liars, seeds and numbers of clients: `measure(clients=10, shares=(0.1, 0.2, 0.3), seeds=(0, 1, 2))`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

import protonorm as pn
from protonorm.core import Order, Reply, one_thread
from protonorm.core.robust import Standing
from protonorm.core.task import Lost, Messages
from protonorm.deployment.guard import check_scale
from protonorm.engines.serial import Serial
from protonorm.errors import Diverged
from protonorm.federation.rounds import begin, run_rounds
from protonorm.runs.run import Population, read_run
from protonorm.runs.writer import RunWriter
from protonorm.session.build import build, policy_of
from protonorm.session.running import info_of
from protonorm.tensors import Tensors, floats, root_mean_square

from .results import silent

METHODS = ("protonorm", "fedproto", "fedavg")
RULES = ("mean", "median", "trimmed:0.2", "geometric_median", "bounded", "cosine")
SEEDS, CLIENTS, ROUNDS, SHARES = (0,), 4, 25, (0.25,)
LARGE, INVENTED, DEVIATIONS = 5e5, 1e3, 1.5
EVERY, LAST = 8, 3  # rounds between evaluations, and the evaluations that are averaged

Attack = Callable[[Tensors, Sequence[Tensors]], Tensors | None]  # own message, those of the honest -> what is sent


def _sized(size: float | None, change: Callable[[Tensor], Tensor]) -> Attack:
    """Change each floating tensor, and scale it to a root mean square."""

    def attack(own: Tensors, others: Sequence[Tensors]) -> Tensors:
        message = dict(own)
        for name, value in floats(own).items():
            message[name] = changed = change(value)
            if size is not None and (now := root_mean_square(changed)):
                message[name] = changed * (size / now)
        return message

    return attack


def _rolled(value: Tensor) -> Tensor:
    return value.roll(1, 0) if value.ndim else value


def _collapsed(value: Tensor) -> Tensor:
    return value.mean(0, keepdim=True).expand_as(value).clone() if value.ndim > 1 else value


def _invented(own: Tensors, others: Sequence[Tensors]) -> Tensors:
    """Send large vectors for the classes that the client lacks; without classes, one large row of each tensor."""
    if "classes" not in own:
        return own | {name: torch.cat([INVENTED * value[:1], value[1:]]) for name, value in floats(own).items()}
    classes = torch.cat([message["classes"] for message in others]).unique()
    lacked = classes[~torch.isin(classes, own["classes"])]
    name = next(iter(floats(own)))
    shape = (len(lacked), *own[name].shape[1:])
    prototypes = INVENTED * own[name].abs().mean() * torch.ones(shape)
    return {"classes": torch.cat([own["classes"], lacked]), name: torch.cat([own[name], prototypes])}


def _deviating(own: Tensors, others: Sequence[Tensors]) -> Tensors:
    """Send the honest clients' mean less 1.5 standard deviations, which no rule can tell from an honest client."""
    message = dict(own)
    for name, value in floats(own).items():
        if "classes" in own:
            for row, label in enumerate(own["classes"].tolist()):
                vectors = [other[name][other["classes"] == label] for other in others]
                message[name] = message[name].clone()
                message[name][row] = _little(
                    torch.cat([vector for vector in vectors if len(vector)] or [value[row : row + 1]])
                )
        else:
            message[name] = _little(torch.stack([other[name] for other in others]))
    return message


def _little(values: Tensor) -> Tensor:
    """Return mean − 1.5 standard deviations over the first axis."""
    return values.mean(0) - DEVIATIONS * values.std(0, correction=0)


ATTACKS: dict[str, Attack] = {
    "honest": lambda own, others: own,
    "absent": lambda own, others: None,
    "negated, large": _sized(LARGE, torch.neg),
    "another class, large": _sized(LARGE, _rolled),
    "all classes alike, large": _sized(LARGE, _collapsed),
    "a million times": _sized(None, lambda value: 1e6 * value),
    "a class of its own": _invented,
    "negated": _sized(None, torch.neg),
    "another class": _sized(None, _rolled),
    "all classes alike": _sized(None, _collapsed),
    "zeros": _sized(None, torch.zeros_like),
    "half as much again": _sized(None, lambda value: 1.5 * value),
    "knows the defence": _deviating,
}


class Lying(Serial):
    """Serial engine some of whose clients lie."""

    liars: tuple[int, ...]
    attack: Attack

    def train(self, orders: Sequence[Order], messages: Messages, deadline: float | None = None) -> Iterator[Any]:
        """Train all clients; exchange the messages of the liars."""
        replies = list(super().train(orders, messages, deadline))
        others = [answer.message for answer in replies if isinstance(answer, Reply) and answer.id not in self.liars]
        for reply in replies:
            if not isinstance(reply, Reply) or reply.id not in self.liars:
                yield reply
                continue
            sent = self.attack(reply.message, others)
            yield Lost(reply.id, "it did not take part") if sent is None else reply._replace(message=sent)


def play(settings: Mapping[str, Any], attack: str, liars: Sequence[int]) -> dict[str, Any]:
    """Run an experiment with liars; return the honest clients' mean accuracy, and the alarms of each client.

    The accuracy is 0 if an honest client's training diverged.
    """
    experiment = pn.Experiment.of({"quorum": 0.5, **settings})
    task, population = build(experiment)
    alarms = np.zeros(experiment.clients, np.int64)

    def watch(round: int, standings: Mapping[int, Standing]) -> None:
        for id, standing in standings.items():
            alarms[id] += bool(standing.alarm)

    facts = population.facts()
    policy = replace(policy_of(experiment), checks=(check_scale,), watch=watch)
    with one_thread(), tempfile.TemporaryDirectory() as folder, RunWriter(Path(folder), experiment.key) as writer:
        writer.describe(info_of(experiment, task), Population(facts.train, facts.validation, facts.test))
        with closing(Lying(task, population, writer.store)) as engine:
            engine.liars, engine.attack = tuple(liars), ATTACKS[attack]
            try:
                for _ in run_rounds(task, engine, policy, begin(task, policy), writer):
                    pass
            except Diverged:  # nobody has a network that predicts anything
                return {"accuracy": 0.0, "lost": 0, "alarms": alarms.tolist()}
        run = read_run(Path(folder))
        lost = sum(str(id) in record.lost for record in run.rounds for id in liars)
        last = [record for record in run.rounds if record.evaluated != "nobody"][
            -LAST:
        ]  # some methods swing from round to round
        right = np.mean([run.by_client(record, task.algorithm.headline) for record in last], axis=0)  # (M,)
    honest = [id for id in range(experiment.clients) if id not in liars]
    return {"accuracy": float(right[honest].mean()), "lost": lost, "alarms": alarms.tolist()}


def measure(
    notify: Callable[[str], None] = silent,
    methods: Sequence[str] = METHODS,
    rules: Sequence[str] = RULES,
    attacks: Sequence[str] = tuple(ATTACKS),
    shares: Sequence[float] = SHARES,
    seeds: Sequence[int] = SEEDS,
    clients: int = CLIENTS,
    rounds: int = ROUNDS,
    dataset: Any = "fashion",
    partition: Mapping[str, Any] = MappingProxyType({}),
    **further: Any,
) -> dict[str, Any]:
    """Play every attack against every rule."""
    cases: list[dict[str, Any]] = []
    splits = [{"seed": seed, "partition": {"name": "dirichlet", **partition, "seed": seed}} for seed in seeds]
    for method in methods:
        settings = {"algorithm": method, "dataset": dataset, "clients": clients, "rounds": rounds, "train": 0.4}
        settings |= {"evaluate_every": EVERY} | further
        settings |= {"models": "plain"} if method == "fedavg" else {}
        for share in shares:
            liars = range(max(1, round(share * clients)))
            for attack in attacks:
                for rule in rules:
                    results = [play(settings | {"combine": rule, **split}, attack, liars) for split in splits]
                    case: dict[str, Any] = {"method": method, "liars": len(liars), "attack": attack, "combine": rule}
                    case |= {name: [result[name] for result in results] for name in results[0]}
                    notify(f"{method}, {len(liars)} of {clients}, {attack}, {rule}: {np.mean(case['accuracy']):.1%}")
                    cases.append(case)
    return {"clients": clients, "rounds": rounds, "seeds": list(seeds), "cases": cases}


def table(result: dict[str, Any]) -> list[list[str]]:
    """Show a line for each attack and a column for each rule, headings first; * where every liar was named."""
    rules = list(dict.fromkeys(case["combine"] for case in result["cases"]))
    rows = [["method", "liars", "attack", *rules]]
    keys = dict.fromkeys((case["method"], case["liars"], case["attack"]) for case in result["cases"])
    for key in keys:
        cells = {
            case["combine"]: f"{100 * np.mean(case['accuracy']):.1f}" + "*" * _named(case)
            for case in result["cases"]
            if (case["method"], case["liars"], case["attack"]) == key
        }
        rows.append([key[0], f"{key[1]} of {result['clients']}", key[2], *(cells.get(rule, "–") for rule in rules)])
    return rows


def _named(case: Mapping[str, Any]) -> bool:
    """Return whether every liar was refused or named at least once in every run."""
    if case["attack"] in ("honest", "absent"):
        return False
    several = zip(case["lost"], case["alarms"], strict=True)
    return all(lost or all(alarms[id] for id in range(case["liars"])) for lost, alarms in several)
