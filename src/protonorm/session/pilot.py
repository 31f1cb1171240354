"""Pilot of a federation: short runs on data that clients own, and three sentences on whether exchange is worth it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protonorm.algorithms import display_name
from protonorm.analysis.comparison import Row
from protonorm.analysis.contrasts import Transfer, gains_of, is_local, pair_runs, points, who_gains
from protonorm.analysis.statistics import Interval, mean_interval
from protonorm.session.comparing import Plan
from protonorm.session.comparison import Comparison

if TYPE_CHECKING:
    from protonorm.runs.run import Run

REVEALS = {  # what the messages of the methods of a pilot say of the samples
    "choir": "sums and second moments of its samples' features, and their number in each class",
    "protonorm": "which classes it has, and the mean features of each",
    "duet": "a small network that was trained on its samples, and their number",
}
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Pilot:
    """Outcome of a pilot."""

    comparison: Comparison

    @property
    def best(self) -> Row:
        """Row of the method whose clients gain most on training alone."""
        candidates = [row for row in self.comparison.rows if row.headline and row.solo and row.solo.transfer]
        if not candidates:
            raise ValueError("No method of the pilot came to its end: there is nothing to compare.")
        return max(candidates, key=lambda row: _transfer(row, "local").mean)

    @property
    def sentences(self) -> list[str]:
        """Return whether federating pays, what is sent, and what it costs."""
        return [self._pays(), self._sends(), self._costs()]

    def _pays(self) -> str:
        name, solo, local = display_name(self.best.method), _transfer(self.best, "solo"), _transfer(self.best, "local")
        if solo.verdict == local.verdict == "better":
            verdict = f"Federating pays, by {name}"
        elif solo.mean <= 0 or solo.verdict in ("worse", "practically equal") or local.verdict == "worse":
            verdict = f"Federating does not pay by {name}, the best of the methods tried"
        else:
            verdict = f"Whether federating pays by {name}, the best of the methods tried, is open"
        clients = ", ".join(f"{client} {_span(*gain)}" for client, gain in self.clients().items())
        return (
            f"{verdict}: against training alone clients gain {_span(local.mean, local.interval)} points, of which "
            f"the exchange brings {_span(solo.mean, solo.interval)}; {who_gains(local)} By client: {clients}."
        )

    def clients(self) -> dict[str, tuple[float, Interval | None]]:
        """Return each client's mean gain of the best method on training alone, and its interval over seeds."""
        runs = self.comparison.runs
        local = next(group for group in runs.values() if is_local(group[0]))
        paired = gains_of(pair_runs(runs[self.best.method], local))
        gains = np.stack(paired.gains)  # (S, M)
        ids = [id for id, samples in enumerate(local[0].support(local[0].rounds[-1])) if samples]
        names = [local[0].client_name(id) for id in ids]
        return {
            name: (float(values.mean()), mean_interval(values.tolist()))
            for name, values in zip(names, gains.T, strict=True)
        }

    def _sends(self) -> str:
        run = self._run(self.best.method)
        clients = run.info.experiment.clients
        up, down = (
            sum(getattr(record.bytes, direction) for record in run.rounds) / clients / 1e6
            for direction in ("up", "down")
        )
        reveals = REVEALS.get(run.info.experiment.algorithm.name, "what its page says")
        sent = f"A client sends {up:.2f} MB and is sent {down:.2f} MB in {len(run.rounds)} rounds"
        return f"{sent}; its messages hold {reveals}."

    def _costs(self) -> str:
        local = next(name for name, group in self.comparison.runs.items() if is_local(group[0]))
        federated, alone = (sum(self._run(name).seconds.values()) for name in (self.best.method, local))
        return f"All clients together take {federated:.1f} s on this machine, and {alone:.1f} s when they train alone."

    def _run(self, method: str) -> Run:
        return self.comparison.runs[method][0]


def pilot(
    data: str | Path,
    settings: Sequence[str] = (),
    *,
    methods: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
    out: str | Path | None = None,
    **options: Any,
) -> Pilot:
    """Run methods with their solo controls, and Local, on data that clients own.

    Args:
        data: Folder with a folder of class folders, or an .npz file, for each client.
        settings: Further settings of the experiments, such as `models=frozen:efficientnet_lite0`.
        methods: Methods to try. By default Duet, and Choir for frozen networks or else ProtoNorm.
        seeds: Seeds of the runs, which also draw the test parts.
        out: Folder of all runs.
        **options: Further arguments of `Plan.run`.
    """
    from protonorm.config.experiment import Experiment
    from protonorm.config.methods import read_experiment
    from protonorm.data.partitions import Given
    from protonorm.models import is_frozen
    from protonorm.models.choose import networks

    words = ["rounds=10", *settings, f"dataset=clients:{data}"]
    chosen = networks(Experiment.of(read_experiment([*words, "algorithm=local"])).models)
    tried = tuple(methods) or ("choir" if all(map(is_frozen, chosen)) else "protonorm", "duet")
    parts = [
        Plan.of((*tried, *words), {"partition": Given(seed), "seed": seed}, solo=True, out=out).run(**options)
        for seed in seeds
    ]
    outcomes = {method: [run for part in parts for run in part.found[method]] for method in parts[0].found}
    return Pilot(Comparison(parts[0].plan, outcomes))


def _transfer(row: Row, kind: str) -> Transfer:
    contrast = row.contrast(kind)
    if contrast is None or contrast.transfer is None:
        raise ValueError(f"{row.method} cannot be compared with its clients alone: {contrast and contrast.mismatch}.")
    return contrast.transfer


def _span(mean: float, interval: Interval | None) -> str:
    """Format a gain in points with its 95 % interval."""
    ends = f" [{points(interval.low, 1)}, {points(interval.high, 1)}]" if interval else ""
    return f"{points(mean, 1)}{ends}"
