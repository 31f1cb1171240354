"""Measure where exchange pays: the runs of docs/exchange.md, and its tables from what has been run.

    python tools/exchange_map.py tune            learning rate and rule of each method, on seeds that no table has
    python tools/exchange_map.py table           the methods of one cell, three seeds, with what `tune` chose
    python tools/exchange_map.py ablation        Duet without each of its parts, in the same cell
    python tools/exchange_map.py map             clients × samples × α, one seed
    python tools/exchange_map.py tables          nothing is run: the tables of all that is there, in Markdown

Runs are ordinary ones in --runs; what is done is not run again, so that a stage that was stopped goes on. Methods with
two networks train both; those with one get more rounds instead, by the operations of forward and backward passes.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import ceil
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from protonorm import Experiment, run
from protonorm.analysis.statistics import mean_interval
from protonorm.models.choose import networks
from protonorm.models.facts import examine
from protonorm.runs.choice import choose_round
from protonorm.runs.reader import Run, read_run

SETTINGS: dict[str, Any] = {"models": "light", "feature_dim": 128, "epochs": 1, "batch_size": 16, "evaluate_every": 5}
SECOND, ROUNDS = "plain@0.5", 40  # the second network, and the rounds of Duet
JUDGED = 1 + 0.1 / 0.9 / 3  # what Duet computes beside training: a forward pass of the validation samples
RATES, TUNING, SEEDS = (0.03, 0.1), (10, 11), (0, 1, 2)
ALONE = {"control": "solo"}
TWO = {"name": "fml", "alpha": 1.0, "beta": 1.0}  # cross-entropies alone; alone as well, its meme is a second network
METHODS: dict[str, dict[str, Any]] = {
    "Local": {"algorithm": "local"},
    "Local, two networks": {"algorithm": TWO, **ALONE},
    "ProtoNorm": {"algorithm": "protonorm"},
    "FML": {"algorithm": "fml"},
    "FedKD": {"algorithm": "fedkd"},
    "FedMRL": {"algorithm": "fedmrl"},
    "Duet": {"algorithm": "duet"},
    "Duet, solo": {"algorithm": "duet", **ALONE},
    "ProtoNorm, solo": {"algorithm": "protonorm", **ALONE},
    "FML, solo": {"algorithm": "fml", **ALONE},
}
TABLE = tuple(METHODS)[:8]
MAP = ("Local", "ProtoNorm", "ProtoNorm, solo", "FML", "FML, solo", "Duet, solo", "Duet")
ABLATION: dict[str, dict[str, Any]] = {
    "Duet": {},
    "nothing learned from the shared network, λ = 0": {"lam": 0.0},
    "class shares in the scores": {"balanced": False},
    "both": {"lam": 0.0, "balanced": False},
}


class Place(NamedTuple):
    """A cell of the map."""

    clients: int
    samples: int  # of a client, on average, all parts together
    alpha: float
    dataset: str = "cifar10"

    def __str__(self) -> str:
        """Name it as a heading."""
        return f"{self.dataset}, {self.clients} clients × {self.samples}, α = {self.alpha:g}"


CENTRE = Place(100, 100, 0.5)
CELLS = (CENTRE, Place(100, 100, 1.0))
WHOLE = [Place(m, n, a) for a, n, m in itertools.product((0.1, 0.5, 1.0), (50, 200), (20, 100))]


class Job(NamedTuple):
    """A run, and what it is for."""

    method: str
    place: Place
    seed: int
    lr: float
    partition_seed: int = 1
    fields: Mapping[str, Any] = {}  # never changed; further settings of the method

    def experiment(self) -> Experiment:
        """Write its settings."""
        own, place = dict(METHODS[self.method]), self.place
        name = own["algorithm"] if isinstance(own["algorithm"], dict) else {"name": own["algorithm"]}
        partition = {"name": "dirichlet", "alpha": place.alpha, "seed": self.partition_seed}
        partition |= {"least": 8 if place.samples > 50 else 4} if place.alpha < 0.5 else {}
        two = name["name"] not in ("local", "protonorm")
        settings = SETTINGS | own | {"algorithm": {**name, **self.fields}, "lr": self.lr, "seed": self.seed}
        settings |= {"auxiliary": SECOND} if two else {}
        settings["rounds"] = ROUNDS if name["name"] == "duet" else rounds_of(two)
        data = {"name": place.dataset, "samples": place.clients * place.samples}
        return Experiment.of(settings | {"dataset": data, "partition": partition, "clients": place.clients})


@cache
def rounds_of(two: bool) -> int:
    """Give the rounds in which a method with one or two networks costs what Duet does in ROUNDS, rounded up."""
    own = mean(examine(name, (3, 32, 32), 128, 10).macs for name in networks("light"))
    second = examine(SECOND, (3, 32, 32), 128, 10).macs
    return ceil(ROUNDS * JUDGED * (1.0 if two else (own + second) / own))


def done(job: Job, runs: Path) -> Run | None:
    """Read a job's run, if it is finished."""
    experiment = job.experiment()
    folder = runs / experiment.key
    if not folder.exists():
        return None
    found = read_run(folder)
    return found if len(found.rounds) >= experiment.rounds else None


def accuracy(found: Run, rule: str) -> tuple[float, float]:
    """Give validation and test accuracy, in per cent, in the round with the best validation accuracy under a rule."""
    choice = choose_round(found.rounds, rule)
    tested = choice.record.rules[rule] if choice else None
    if choice is None or tested is None:
        raise ValueError(f"{found.folder} has no accuracy under {rule}.")
    return 100 * choice.record.validation[rule].mean, 100 * tested.pooled  # type: ignore[union-attr]


def tuning(method: str) -> dict[float, list[Job]]:
    """List the runs that choose a method's learning rate."""
    return {lr: [Job(method, CENTRE, seed, lr, seed) for seed in TUNING] for lr in RATES}


def chosen(method: str, runs: Path) -> tuple[float, str] | None:
    """Choose the learning rate and the rule with the best mean validation accuracy; None while runs are missing."""
    found: dict[tuple[float, str], float] = {}
    for lr, jobs in tuning(method).items():
        read = [done(job, runs) for job in jobs]
        whole = [one for one in read if one is not None]
        if len(whole) < len(jobs):
            return None
        for rule in whole[0].info.rules:
            found[lr, rule] = mean(accuracy(one, rule)[0] for one in whole)
    return max(found, key=lambda key: found[key])


def stage(name: str, runs: Path) -> Iterator[Job]:
    """List the jobs of a stage, the most telling first."""
    if name == "tune":
        for seed, method, rate in itertools.product(range(len(TUNING)), TABLE, RATES):
            yield tuning(method)[rate][seed]
        return
    for job in planned(name, lambda method: (chosen(like(method), runs) or (None, ""))[0]):
        if job.lr is None:
            raise SystemExit(f"The learning rate of {job.method} is not chosen yet: expected `tune` to be done first.")
        yield job


def like(method: str) -> str:
    """Name the method whose learning rate one takes: controls that are not tuned take their method's."""
    return method if method in TABLE else method.removesuffix(", solo")


def planned(name: str, rate: Any) -> Iterator[Job]:
    """List the jobs of a stage, given the learning rates of methods."""
    if name == "table":
        for seed, place, method in itertools.product(SEEDS, CELLS, TABLE):
            yield Job(method, place, seed, rate(method))
    if name == "ablation":
        for seed, fields in itertools.product(SEEDS, ABLATION.values()):
            yield Job("Duet", CENTRE, seed, rate("Duet"), fields=fields)
    if name == "map":
        for place, method in itertools.product(WHOLE, MAP):
            yield Job(method, place, 0, rate(method))


def work(name: str, runs: Path, workers: int) -> None:
    """Run a stage."""
    for job in stage(name, runs):
        if done(job, runs) is not None:
            continue
        start = time.monotonic()
        found = run(job.experiment(), out=runs, engine="processes", workers=workers, progress=False).run
        told = ", ".join(f"{rule} {accuracy(found, rule)[1]:.1f}" for rule in found.info.rules)
        print(f"{job.method}, {job.place}, seed {job.seed}, lr {job.lr:g}: {told} ({time.monotonic() - start:.0f} s)")


def tables(runs: Path) -> None:
    """Print all tables."""
    picks = {method: chosen(method, runs) for method in TABLE}
    print("\n| method | learning rate | rule |\n|---|---|---|")
    for method, pick in picks.items():
        print(f"| {method} | {pick[0]:g} | {pick[1]} |" if pick else f"| {method} | not chosen yet | |")

    def entry(jobs: Sequence[Job], rule: str) -> str:
        read = [done(job, runs) for job in jobs]
        numbers = [accuracy(one, rule)[1] for one in read if one is not None]
        interval = mean_interval(numbers) if len(numbers) > 1 else None
        missing = "" if len(numbers) == len(jobs) else f" ({len(numbers)} of {len(jobs)} seeds)"
        return f"{mean(numbers):.2f}{f' ± {interval.half:.2f}' if interval else ''}{missing}" if numbers else "–"

    def pick_of(method: str) -> tuple[float, str]:
        return picks[like(method)] or (0.05, "logits")

    print(f"\n| method | {' | '.join(map(str, CELLS))} |\n|---|{'---|' * len(CELLS)}")
    for method in TABLE:
        lr, rule = pick_of(method)
        cells = [entry([Job(method, place, seed, lr) for seed in SEEDS], rule) for place in CELLS]
        print(f"| {method} | {' | '.join(cells)} |")
    rules = ("received", "logits", "shared", "joint")
    print(f"\n| {CENTRE} | {' | '.join(rules)} |\n|---|{'---|' * len(rules)}")
    for name, fields in ABLATION.items():
        jobs = [Job("Duet", CENTRE, seed, pick_of("Duet")[0], fields=fields) for seed in SEEDS]
        print(f"| {name} | {' | '.join(entry(jobs, rule) for rule in rules)} |")
    print(f"\n| clients × samples, α | {' | '.join(MAP)} |\n|---|{'---|' * len(MAP)}")
    for place in WHOLE:
        cells = [entry([Job(method, place, 0, pick_of(method)[0])], pick_of(method)[1]) for method in MAP]
        print(f"| {place.clients} × {place.samples}, {place.alpha:g} | {' | '.join(cells)} |")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="+", choices=["tune", "table", "ablation", "map", "tables"])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for name in given.stages:
        tables(given.runs) if name == "tables" else work(name, given.runs, given.workers)


if __name__ == "__main__":
    main()
