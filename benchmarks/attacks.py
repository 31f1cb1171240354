"""Lying clients against each rule of combination: the accuracy of the honest ones, and who was noticed.

The server checks messages as in a real federation: a number that training cannot produce is refused. Clients train on
small pictures, or on features of a frozen network, as vectors, so that a run takes a second. With `networks` they
train networks on pictures, as in the study of one liar in four.

The result is written after every run. Runs that it has of the same commit are not made again; cases of other commits
stay until theirs are made.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import protonorm as pn
from protonorm.analysis.statistics import mean_interval
from protonorm.config.components import build as component
from protonorm.core import Order, Reply, one_thread
from protonorm.core.robust import Standing
from protonorm.core.task import Counts, Lost, Messages
from protonorm.data.dataset import Dataset
from protonorm.data.features import open_features
from protonorm.deployment.guard import check_scale
from protonorm.engines.serial import Host, Serial
from protonorm.errors import Diverged
from protonorm.federation.client import evaluate_step
from protonorm.federation.population import SimulatedPopulation
from protonorm.federation.rounds import begin, run_rounds
from protonorm.models.frozen import FrozenNetwork
from protonorm.runs.provenance import provenance
from protonorm.runs.run import Population
from protonorm.runs.writer import RunWriter
from protonorm.session.build import build, policy_of
from protonorm.session.running import info_of

from .liars import LIES, TARGET, Lie, poisoned, stamped, worst
from .results import silent

METHODS: dict[str, dict[str, Any]] = {
    "protonorm": {},
    "fedproto": {},
    "choir": {"rounds": 2, "algorithm": {"name": "choir", "public": False}},
    "fedavg": {},
}
RULES = ("mean", "median", "trimmed:0.2", "geometric_median", "bounded", "cosine", "trust")
BENCH = tuple(LIES)[:9]  # of the study of 10, 20 and 30 % liars; the others are of the table of one liar in four
SEEDS, CLIENTS, ROUNDS, SHARES = (0, 1, 2), 10, 8, (0.1, 0.2, 0.3)
TRAINING: dict[str, Any] = {"train": 0.4, "lr": 0.05, "feature_dim": 64, "models": "frozen:identity"}
PARTITION: dict[str, Any] = {"name": "dirichlet", "alpha": 0.5}
LAST = 3  # evaluations that are averaged: some methods swing from round to round
STUDIES: dict[str, dict[str, Any]] = {
    "fashion": {},
    "cifar10": {
        "shares": (0.3,),
        "seeds": (0,),
        "dataset": {"name": "cifar10", "samples": 3000},
        "trunk": "frozen:efficientnet_lite0@96",
    },
    "one of four": {
        "methods": ("protonorm",),
        "rules": ("trust",),
        "lies": tuple(LIES),
        "shares": (0.25,),
        "clients": 4,
        "rounds": 25,
        "networks": {"train": 0.4},
        "partition": {"name": "dirichlet"},
    },
}
WHAT = ("dataset", "clients", "method", "combine", "attack", "liars")  # names a case


class Lying(Serial):
    """Serial engine some of whose clients lie; it keeps the counts of the last evaluations."""

    def __init__(
        self, task: Any, population: SimulatedPopulation, store: Any, lie: Lie, liars: Sequence[int], patched: Dataset
    ) -> None:
        super().__init__(task, population, store)
        self._task, self._lie, self._liars = task, lie, liars
        if lie.data:
            bad, good = Host(task, poisoned(population, patched, lie.data, liars), store), self._host
            self._host = Mixed(good, bad, liars)  # type: ignore[assignment]
            self.commit = self._host.commit
        self.shares: list[NDArray[np.float64]] = []  # (M,) of each evaluation: right answers on the test part
        self.fooled = np.zeros(0)  # (M,) after the last round: pictures with the pattern that are taken for its class
        self._patched = poisoned(population, patched, "", liars)
        self._store = store

    def train(self, orders: Sequence[Order], messages: Messages, deadline: float | None = None) -> Iterator[Any]:
        """Train all clients; exchange the messages of the liars."""
        replies = list(super().train(orders, messages, deadline))
        others = [answer.message for answer in replies if isinstance(answer, Reply) and answer.id not in self._liars]
        for reply in replies:
            if not isinstance(reply, Reply) or reply.id not in self._liars or not reply.message:
                yield reply
                continue
            if self._lie.change == "adaptive":
                sent = worst(self._task, orders[0].round, reply.message, others, len(self._liars))
            else:
                sent = self._lie.change(reply.message, others)
            yield Lost(reply.id, "it did not take part") if sent is None else reply._replace(message=sent)

    def evaluate(self, orders: Sequence[Order], messages: Messages, parts: Sequence[str]) -> Iterator[Counts | Lost]:
        """Evaluate clients, and keep what the bench tells."""
        rule, shares, fooled = self._task.algorithm.headline, [], []
        for order, answer in zip(orders, super().evaluate(orders, messages, parts), strict=True):
            assert isinstance(answer, Counts)
            yield answer
            shares.append(_share(answer.counts, f"test.correct.{rule}"))
            if order.round == self._task.rounds:
                state = self._store.load(order.id, order.trained)
                site = self._patched.site(order.id)
                counts = evaluate_step(self._task, site, order, state, messages, ["test"]).counts  # type: ignore[arg-type]
                wrong = counts[f"test.predicted.{rule}"] - counts[f"test.correct.{rule}"]
                others = int(counts["test.support"].sum() - counts["test.support"][TARGET])
                fooled.append(float(wrong[TARGET]) / max(others, 1))
        self.shares.append(np.array(shares))
        self.fooled = np.array(fooled)


class Mixed:
    """Host of honest clients, and another of the liars, which have other samples."""

    def __init__(self, good: Host, bad: Host, liars: Sequence[int]) -> None:
        self._good, self._bad, self._liars = good, bad, liars

    def _of(self, order: Order) -> Host:
        return self._bad if order.id in self._liars else self._good

    def train(self, order: Order, message: Any) -> Reply:
        """Train a client."""
        return self._of(order).train(order, message)

    def evaluate(self, order: Order, message: Any, parts: Sequence[str]) -> Counts:
        """Evaluate a client."""
        return self._of(order).evaluate(order, message, parts)

    def commit(self, *arguments: Any) -> None:
        """Remove old states."""
        self._good.commit(*arguments)
        self._bad.commit(*arguments)


def _share(counts: Mapping[str, torch.Tensor], name: str) -> float:
    return float(counts[name].sum()) / max(1, int(counts["test.support"].sum()))


def play(settings: Mapping[str, Any], lie: str, liars: Sequence[int], patched: Dataset) -> dict[str, Any]:
    """Run an experiment with liars; return accuracy, fooled pictures, refusals and alarms of each client.

    The accuracy is 0 if an honest client's training diverged.
    """
    experiment = pn.Experiment.of({"quorum": 0.5, **settings})
    task, population = build(experiment)
    size = experiment.clients
    alarms, lost = np.zeros(size, np.int64), np.zeros(size, np.int64)
    liars = [] if lie == "honest" else list(liars)

    def watch(round: int, standings: Mapping[int, Standing]) -> None:
        for id, standing in standings.items():
            alarms[id] += bool(standing.alarm)

    facts = population.facts()
    policy = replace(policy_of(experiment), checks=(check_scale,), watch=watch)
    with one_thread(), tempfile.TemporaryDirectory() as folder, RunWriter(Path(folder), experiment.key) as writer:
        writer.describe(info_of(experiment, task), Population(facts.train, facts.validation, facts.test))
        with closing(Lying(task, population, writer.store, LIES[lie], liars, patched)) as engine:
            try:
                for round in run_rounds(task, engine, policy, begin(task, policy), writer):
                    for id in map(int, round.record.lost):
                        lost[id] += 1
            except Diverged:  # nobody has a network that predicts anything
                return {"accuracy": [0.0] * size, "fooled": [1.0] * size, "lost": [0] * size, "alarms": alarms.tolist()}
    accuracy = np.mean(engine.shares[-LAST:], axis=0)
    rounded = {"accuracy": accuracy.round(4).tolist(), "fooled": engine.fooled.round(4).tolist()}
    return rounded | {"lost": lost.tolist(), "alarms": alarms.tolist()}


def vectors(dataset: Any, trunk: str | None) -> tuple[Dataset, Dataset]:
    """Return a data set as vectors, and the same with the pattern of the backdoor on each picture."""
    data = component("dataset", dataset).load()
    both = [data.inputs, stamped(data.inputs)]
    if trunk is None:
        both = [_pooled(pictures) for pictures in both]
    elif frozen := FrozenNetwork.of(trunk):
        both = [np.array(open_features(frozen, pictures)) for pictures in both]
    return tuple(replace(data, inputs=inputs) for inputs in both)  # type: ignore[return-value]


def _pooled(pictures: NDArray[Any]) -> NDArray[np.float32]:
    """Halve the sides of grey pictures (N, H, W, 1), and lay them out as vectors from −1 to 1."""
    count, height, width, _ = pictures.shape
    blocks = pictures.reshape(count, height // 2, 2, width // 2, 2)
    return (blocks.mean((2, 4)) / 127.5 - 1).reshape(count, -1).astype(np.float32)


def measure(
    notify: Callable[[str], None] = silent,
    before: Mapping[str, Any] | None = None,
    save: Callable[[dict[str, Any]], None] = lambda result: None,
    studies: Mapping[str, Mapping[str, Any]] = STUDIES,
) -> dict[str, Any]:
    """Make the studies one after the other.

    Args:
        notify: Receives a line for each case.
        before: What was found before.
        save: Receives what was found so far, after every run.
        studies: Arguments of `play_all` by name.
    """
    result = {"cases": list(before["cases"]) if before else []}
    for study in studies.values():
        play_all(result["cases"], notify, lambda: save(result), **study)
    return result


def play_all(
    cases: list[dict[str, Any]],
    notify: Callable[[str], None] = silent,
    save: Callable[[], None] = lambda: None,
    methods: Sequence[str] = tuple(METHODS),
    rules: Sequence[str] = RULES,
    lies: Sequence[str] = BENCH,
    shares: Sequence[float] = SHARES,
    seeds: Sequence[int] = SEEDS,
    clients: int = CLIENTS,
    rounds: int = ROUNDS,
    dataset: Any = "fashion",
    trunk: str | None = None,
    networks: Mapping[str, Any] | None = None,
    partition: Mapping[str, Any] = PARTITION,
    **further: Any,
) -> None:
    """Play every lie against every rule, as far as `cases` lack it; the honest run is the same whoever would lie.

    Args:
        cases: Cases that were played, to which others are added.
        notify: Receives a line for each case.
        save: Called after each run.
        methods: Names of methods.
        rules: Rules of combination.
        lies: Names of lies.
        shares: Shares of the clients that lie.
        seeds: Seeds of the runs and of their partitions.
        clients: Number of clients.
        rounds: Number of rounds, where the method does not need fewer.
        dataset: Pictures.
        trunk: Frozen network whose features are the vectors; None for the pictures themselves, at half the side.
        networks: Settings of training on pictures, in place of vectors.
        partition: Partition, drawn anew for each seed.
        further: Other settings of the runs.
    """
    name = dataset if isinstance(dataset, str) else dataset["name"]
    commit = provenance(0, engine="serial", device="cpu", threads=1).commit
    found = {identity(case): case for case in cases}
    base: dict[str, Any] = {}
    for share, method, rule, lie in product(shares, methods, rules, lies):
        count = 0 if lie == "honest" else max(1, round(share * clients))
        what = dict(zip(WHAT, (name, clients, method, rule, lie, count), strict=True))
        case, new = found.get(tuple(what.values())), what | {"commit": commit, "seeds": []}
        case = case if case and commit and case.get("commit") == commit else new
        for seed in [seed for seed in seeds if seed not in case["seeds"]]:
            if not base:
                base, patched = _prepared(dataset, trunk, networks)
                base |= {"clients": clients, "rounds": rounds, "evaluate_every": max(1, rounds // 4), **further}
            own = {"algorithm": method, "combine": rule} | (METHODS[method] if networks is None else {})
            split = {"seed": seed, "partition": {**partition, "seed": seed}}
            for key, value in play(base | own | split, lie, range(count), patched).items():
                case.setdefault(key, []).append(value)
            case["seeds"].append(seed)
            if found.get(identity(case)) is not case:
                cases[:] = [each for each in cases if identity(each) != identity(case)] + [case]
                found[identity(case)] = case
            save()
        mean = np.mean([np.mean(accuracy[count:]) for accuracy in case["accuracy"]])
        notify(f"{name}, {method}, {rule}, {lie}, {count} of {clients}: {mean:.1%}")


def identity(case: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what names a case."""
    return tuple(case[key] for key in WHAT)


def _prepared(dataset: Any, trunk: str | None, networks: Mapping[str, Any] | None) -> tuple[dict[str, Any], Dataset]:
    """Return data and training of the runs, and the data with the pattern of the backdoor on each picture."""
    if networks is None:
        data, patched = vectors(dataset, trunk)
        return {"dataset": data, **TRAINING}, patched
    data = component("dataset", dataset).load()
    return {"dataset": data, **networks}, replace(data, inputs=stamped(data.inputs))


def table(result: dict[str, Any]) -> list[list[str]]:
    """Show a line for each lie and a column for each rule, headings first.

    A cell has the honest clients' accuracy, in brackets what the lie costs them in points, paired by seed, with half of
    the 95 % interval; of a backdoor the share of pictures with the pattern that are taken for its class. * where every
    liar was refused or named in every run.
    """
    found = {identity(case): case for case in result["cases"]}
    rules = list(dict.fromkeys(case["combine"] for case in result["cases"]))
    rows = [["pictures", "method", "lie", "liars", *rules]]
    lines = dict.fromkeys((name, clients, method, lie, liars) for name, clients, method, _, lie, liars in found)
    for name, clients, method, lie, liars in sorted(lines, key=_order):
        cells = []
        for rule in rules:
            case = found.get((name, clients, method, rule, lie, liars))
            honest = found.get((name, clients, method, rule, "honest", 0))
            paired = honest if case and honest and case.get("commit") == honest.get("commit") else None
            cells.append(_cell(case, paired) if case else "–")
        rows.append([name, method, lie, f"{liars} of {clients}", *cells])
    return rows


def summary(result: dict[str, Any]) -> list[list[str]]:
    """Show for each share of liars what the lie that does most harm costs under each rule, headings first.

    A cell has the points that the honest clients lose, the lie, and the success of the backdoor; without liars it has
    their accuracy.
    """
    rules = list(dict.fromkeys(case["combine"] for case in result["cases"]))
    found = {identity(case): case for case in result["cases"]}
    lines = dict.fromkeys((name, clients, method, "honest", liars) for name, clients, method, _, _, liars in found)
    rows = [["pictures", "method", "liars", *rules]]
    for name, clients, method, _, liars in sorted(lines, key=_order):
        cells = []
        for rule in rules:
            honest = found.get((name, clients, method, rule, "honest", 0))
            cases = [found.get((name, clients, method, rule, lie, liars)) for lie in LIES]
            played = [case for case in cases if case and honest and case.get("commit") == honest.get("commit")]
            cells.append(_worst(played, honest) if honest and played else "–")
        rows.append([name, method, f"{liars} of {clients}", *cells])
    return rows


def _worst(cases: Sequence[Mapping[str, Any]], honest: Mapping[str, Any]) -> str:
    if not cases[0]["liars"]:
        return _cell(cases[0], None)
    cost, lie = max((float(np.mean(costs(case, honest))), case["attack"]) for case in cases)
    taken = [f"; {_fooled(case)}" for case in cases if case["attack"] == "backdoor"]
    return f"{0 - cost:+.1f} {lie}{''.join(taken)}"


def _fooled(case: Mapping[str, Any]) -> str:
    return f"{100 * np.mean([np.mean(one[case['liars'] :]) for one in case['fooled']]):.0f} %"


def _order(line: tuple[str, int, str, str, int]) -> tuple[Any, ...]:
    name, clients, method, lie, liars = line
    return name != "fashion", -clients, list(METHODS).index(method), list(LIES).index(lie), liars


def costs(case: Mapping[str, Any], honest: Mapping[str, Any]) -> list[float]:
    """Return what a lie costs the honest clients in points, by seed."""
    count, usual = case["liars"], dict(zip(honest["seeds"], honest["accuracy"], strict=True))
    pairs = [(one, usual[seed]) for seed, one in zip(case["seeds"], case["accuracy"], strict=True) if seed in usual]
    return [100 * (float(np.mean(two[count:])) - float(np.mean(one[count:]))) for one, two in pairs]


def _cell(case: Mapping[str, Any], honest: Mapping[str, Any] | None) -> str:
    count = case["liars"]
    text = f"{100 * np.mean([np.mean(one[count:]) for one in case['accuracy']]):.1f}"
    if count and honest:
        lost = costs(case, honest)
        interval = mean_interval(lost)
        text += f" ({0 - np.mean(lost):+.1f}{f' ± {interval.high - np.mean(lost):.1f}' if interval else ''})"
    if case["attack"] == "backdoor":
        text += f", {_fooled(case)}"
    return text + "*" * _named(case)


def _named(case: Mapping[str, Any]) -> bool:
    """Return whether every liar was refused or named at least once in every run."""
    several = list(zip(case["lost"], case["alarms"], strict=True))
    return bool(case["liars"]) and all(
        lost[id] or alarms[id] for lost, alarms in several for id in range(case["liars"])
    )
