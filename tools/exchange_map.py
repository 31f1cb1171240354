"""Measure where exchange pays: the runs of docs/exchange.md, and its tables from what has been run.

    python tools/exchange_map.py tune            learning rate, γ and rule of each method, on a seed that no table has
    python tools/exchange_map.py table           the methods of one cell, three seeds, with what `tune` chose
    python tools/exchange_map.py ablation        Duet without each of its parts, in the same cell
    python tools/exchange_map.py map             clients × samples × α, one seed
    python tools/exchange_map.py tables          nothing is run: the tables of all that is there, in Markdown

Runs are ordinary ones in --runs; what is done is not run again, so that a stage that was stopped goes on. Methods with
two networks train both; those with one get more rounds instead, by the operations of forward and backward passes. All
pictures are of those that took no part while Duet was made: the first ones of each class are left out. They are written
to --data once.
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

import numpy as np

from protonorm import Experiment, run
from protonorm.analysis.statistics import mean_interval
from protonorm.data.prepared import Arrays, data_root, read_prepared, write_prepared
from protonorm.models.choose import networks
from protonorm.models.facts import examine
from protonorm.runs.choice import choose_round
from protonorm.runs.reader import Run, read_run

SETTINGS: dict[str, Any] = {"models": "light", "feature_dim": 128, "epochs": 1, "batch_size": 16, "evaluate_every": 5}
SECOND, ROUNDS = "plain@0.5", 40  # the second network, and the rounds of Duet
JUDGED = 1 + 0.1 / 0.9 / 3  # what Duet computes beside training: a forward pass of the validation samples
RATES, TUNING, SEEDS = (0.03, 0.1), 20, (0, 1, 2)  # a seed is also that of the partition
SEEN = 1000  # pictures of each class that are left out; to make Duet, the first 500 were looked at
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
TUNED: dict[str, list[dict[str, Any]]] = {  # settings that are tried beside learning rates; none for the others
    name: [{}, {"gamma": "auto"}] for name in ("ProtoNorm", "ProtoNorm, solo")
}
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
WHOLE = [Place(m, n, a) for m, n, a in itertools.product((20, 100), (50, 100), (0.1, 0.5, 1.0))]  # the quickest first


class Pick(NamedTuple):
    """What was chosen for a method."""

    lr: float
    fields: Mapping[str, Any]
    rule: str


class Job(NamedTuple):
    """A run, and what it is for."""

    method: str
    place: Place
    seed: int
    lr: float
    fields: Mapping[str, Any] = {}  # never changed; further settings of the method

    def experiment(self, data: Path) -> Experiment:
        """Write its settings."""
        own, place = dict(METHODS[self.method]), self.place
        name = own["algorithm"] if isinstance(own["algorithm"], dict) else {"name": own["algorithm"]}
        partition = {"name": "dirichlet", "alpha": place.alpha, "seed": self.seed}
        partition |= {"least": 8 if place.samples > 50 else 4} if place.alpha < 0.5 else {}
        two = name["name"] not in ("local", "protonorm")
        settings = SETTINGS | own | {"algorithm": {**name, **self.fields}, "lr": self.lr, "seed": self.seed}
        settings |= {"auxiliary": SECOND} if two else {}
        settings["rounds"] = ROUNDS if name["name"] == "duet" else rounds_of(two)
        pictures = {"name": place.dataset, "root": str(data), "samples": place.clients * place.samples}
        return Experiment.of(settings | {"dataset": pictures, "partition": partition, "clients": place.clients})


@cache
def rounds_of(two: bool) -> int:
    """Give the rounds in which a method with one or two networks costs what Duet does in ROUNDS, rounded up."""
    own = mean(examine(name, (3, 32, 32), 128, 10).macs for name in networks("light"))
    second = examine(SECOND, (3, 32, 32), 128, 10).macs
    return ceil(ROUNDS * JUDGED * (1.0 if two else (own + second) / own))


def write_fresh_pictures(folder: Path, name: str) -> None:
    """Write the prepared pictures of a data set without the first SEEN of each class, unless that is done."""
    path = folder / f"{name}.npz"
    if path.exists():
        return
    whole = read_prepared(data_root() / f"{name}.npz")
    order = np.argsort(whole.labels, kind="stable")
    firsts = np.searchsorted(whole.labels[order], np.arange(len(whole.classes)))  # (K,) where each class begins
    ranks = np.empty(len(order), np.int64)  # (N,) how many of its class stand before a picture
    ranks[order] = np.arange(len(order)) - firsts[whole.labels[order]]
    kept = ranks >= SEEN
    write_prepared(path, Arrays(whole.images[kept], whole.labels[kept], whole.split[kept], whole.classes))


class Work:
    """The runs of a folder: what is done, what is chosen by it, and what is to be done."""

    def __init__(self, runs: Path, data: Path, workers: int) -> None:
        self.runs, self.data, self.workers = runs, data, workers

    def done(self, job: Job) -> Run | None:
        """Read a job's run, if it is finished."""
        experiment = job.experiment(self.data)
        folder = self.runs / experiment.key
        if not folder.exists():
            return None
        found = read_run(folder)
        return found if len(found.rounds) >= experiment.rounds else None

    def chosen(self, method: str) -> Pick | None:
        """Choose learning rate, settings and rule by validation accuracy; None while runs are missing."""
        found: list[tuple[float, Pick]] = []
        for job in tuning(method):
            one = self.done(job)
            if one is None:
                return None
            found += [(accuracy(one, rule)[0], Pick(job.lr, job.fields, rule)) for rule in one.info.rules]
        return max(found, key=lambda pair: pair[0])[1]

    def pick(self, method: str) -> Pick:
        """Give what was chosen for a method, or say that it is too early."""
        if pick := self.chosen(method):
            return pick
        raise SystemExit(f"Settings of {method} are not chosen yet: expected `tune` to be done first.")

    def jobs(self, stage: str) -> Iterator[Job]:
        """List the jobs of a stage, the most telling first."""
        if stage == "tune":
            for method in dict.fromkeys((*TABLE, *MAP)):
                yield from tuning(method)
        if stage == "table":
            for seed, method in itertools.product(SEEDS, TABLE):
                yield self.job(method, CENTRE, seed)
        if stage == "ablation":
            for seed, fields in itertools.product(SEEDS, ABLATION.values()):
                yield Job("Duet", CENTRE, seed, self.pick("Duet").lr, fields)
        if stage == "map":
            for place, method in itertools.product(WHOLE, MAP):
                yield self.job(method, place, SEEDS[0])

    def job(self, method: str, place: Place, seed: int) -> Job:
        """Make a job with what was chosen for its method."""
        pick = self.pick(method)
        return Job(method, place, seed, pick.lr, pick.fields)

    def run(self, stage: str) -> None:
        """Run what is missing of a stage."""
        for job in self.jobs(stage):
            if self.done(job) is not None:
                continue
            start, experiment = time.monotonic(), job.experiment(self.data)
            found = run(experiment, out=self.runs, engine="processes", workers=self.workers, progress=False).run
            told = ", ".join(f"{rule} {accuracy(found, rule)[1]:.1f}" for rule in found.info.rules)
            more = " ".join(f"{name}={value}" for name, value in job.fields.items())
            print(f"{job.method} {more}, {job.place}, seed {job.seed}, lr {job.lr:g}: {told}"
                  f" ({time.monotonic() - start:.0f} s)")  # fmt: skip


def accuracy(found: Run, rule: str) -> tuple[float, float]:
    """Give validation and test accuracy, in per cent, in the round with the best validation accuracy under a rule."""
    choice = choose_round(found.rounds, rule)
    tested = choice.record.rules[rule] if choice else None
    if choice is None or tested is None:
        raise ValueError(f"{found.folder} has no accuracy under {rule}.")
    return 100 * choice.record.validation[rule].mean, 100 * tested.pooled  # type: ignore[union-attr]


def tuning(method: str) -> list[Job]:
    """List the runs that choose a method's settings."""
    tried = itertools.product(RATES, TUNED.get(method, [{}]))
    return [Job(method, CENTRE, TUNING, lr, fields) for lr, fields in tried]


def print_tables(work: Work) -> None:
    """Print all tables of what has been run, in Markdown."""
    picks = {method: work.chosen(method) for method in dict.fromkeys((*TABLE, *MAP))}
    print("\n| method | learning rate | settings | rule |\n|---|---|---|---|")
    for method, pick in picks.items():
        fields = ", ".join(f"{name}={value}" for name, value in pick.fields.items()) if pick else ""
        print(
            f"| {method} | {pick.lr:g} | {fields} | `{pick.rule}` |" if pick else f"| {method} | not chosen yet | | |"
        )

    def entry(jobs: Sequence[Job], rule: str) -> str:
        numbers = [accuracy(one, rule)[1] for job in jobs if (one := work.done(job))]
        interval = mean_interval(numbers) if len(numbers) > 1 else None
        missing = "" if len(numbers) == len(jobs) else f" ({len(numbers)} of {len(jobs)} seeds)"
        return f"{mean(numbers):.2f}{f' ± {interval.half:.2f}' if interval else ''}{missing}" if numbers else "–"

    rules = ("received", "logits", "shared", "joint")
    if all(picks[method] for method in TABLE):
        print(f"\n| {CENTRE} | under the chosen rule | {' | '.join(rules)} |\n|---|---|{'---|' * len(rules)}")
        for method in TABLE:
            jobs, known = [work.job(method, CENTRE, seed) for seed in SEEDS], work.done(tuning(method)[0])
            held = known.info.rules if known else []
            cells = [entry(jobs, rule) if rule in held else "" for rule in rules]
            print(f"| {method} | {entry(jobs, work.pick(method).rule)} | {' | '.join(cells)} |")
    if pick := picks["Duet"]:
        print(f"\n| {CENTRE} | {' | '.join(rules)} |\n|---|{'---|' * len(rules)}")
        for name, changed in ABLATION.items():
            jobs = [Job("Duet", CENTRE, seed, pick.lr, changed) for seed in SEEDS]
            print(f"| {name} | {' | '.join(entry(jobs, rule) for rule in rules)} |")
    if all(picks[method] for method in MAP):
        print(f"\n| clients × samples, α | {' | '.join(MAP)} |\n|---|{'---|' * len(MAP)}")
        for place in WHOLE:
            cells = [entry([work.job(method, place, SEEDS[0])], work.pick(method).rule) for method in MAP]
            print(f"| {place.clients} × {place.samples}, {place.alpha:g} | {' | '.join(cells)} |")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="+", choices=["tune", "table", "ablation", "map", "tables"])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument(
        "--data", type=Path, default=Path("fresh-pictures"), help="folder for the pictures that are used"
    )
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    write_fresh_pictures(given.data, CENTRE.dataset)
    work = Work(given.runs, given.data, given.workers)
    for stage in given.stages:
        print_tables(work) if stage == "tables" else work.run(stage)


if __name__ == "__main__":
    main()
