"""Who gains and who loses, client by client, against a reference such as Local. Nothing here needs torch.

A gain is a client's test accuracy in the reported round minus that of the same client in the reference's, as a fraction
of one. A case is a client in a run; a client without test samples is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from protonorm.analysis.pairing import Pair
from protonorm.analysis.statistics import (
    Interval,
    Numbers,
    Verdict,
    bootstrap_interval,
    holm,
    mean_interval,
    sign_flip,
    verdict,
)
from protonorm.runs.run import Run

EXACT = 12  # decimals of a gain; what lies beyond comes from rounding
TAIL = 10  # `tail` is the mean gain of a tenth of the cases


class Gains(NamedTuple):
    """Gains of all cases, a row for each run."""

    seeds: list[int]
    gains: list[Numbers]  # (M,) each
    samples: list[Numbers]  # (M,) each: test samples, the weights of a pooled difference
    missing: str = ""  # why there are none


@dataclass(frozen=True)
class Transfer:
    """What a method brought its clients, over all cases; losses are positive numbers."""

    seeds: int
    cases: int
    gaining: int  # cases that gain more than the margin
    losing: int  # cases that lose more than the margin
    mean: float  # of the runs' mean gains
    median: float  # likewise
    interval: Interval | None  # of the mean, by the bootstrap over runs and clients
    t_interval: Interval | None  # of the mean, by Student's t over runs alone: wider with few of them
    benefit: float  # share of the cases that gain
    negative: float  # share of the cases that lose: negative-transfer rate, NTR
    loss: float | None  # mean loss of those that lose, NTM; None if nobody does
    burden: float  # all losses, spread over all cases, NTB
    tail: float  # mean gain of the worst tenth
    worst: float  # the lowest gain
    p: float | None  # of the sign-flip test over runs; None below six
    p_holm: float | None  # the same, corrected for the other methods of a table
    verdict: Verdict | None  # None without an interval
    no_interval: str  # why there is none


def gains_of(pairs: Sequence[Pair], rule: str, reference_rule: str) -> Gains:
    """Subtract, client by client, in the reported rounds; say so if a round or a client is missing on one side."""
    found = Gains([], [], [])
    for pair in pairs:
        seed, ways = pair.run.info.experiment.seed, [run.chosen.by if run.chosen else "" for run in pair]
        ours, theirs = (
            run.by_client(run.chosen.record, name) if run.chosen else np.zeros(0)
            for run, name in ((pair.run, rule), (pair.reference, reference_rule))
        )
        if not len(ours) or not len(theirs) or np.isnan(ours).all() or np.isnan(theirs).all():
            return Gains([], [], [], f"a round to report, which seed {seed} does not have on both sides")
        if ways[0] != ways[1]:
            return Gains([], [], [], f"how their rounds were chosen (by {ways[0]}; by {ways[1]})")
        if not np.array_equal(np.isnan(ours), np.isnan(theirs)):
            return Gains([], [], [], f"the clients that were evaluated with seed {seed}")
        known = ~np.isnan(ours)
        found.seeds.append(seed)
        found.gains.append(np.round(ours[known] - theirs[known], EXACT))
        found.samples.append(_test_samples(pair.run)[known])
    return found


def measure(gains: Sequence[Numbers], margin: float = 0.0, *, repeated: bool = False) -> Transfer:
    """Condense the gains of runs, each (M,); `repeated` says that runs share a seed and are not independent."""
    cases = np.sort(np.concatenate(gains))  # (n,)
    harmed = -cases[cases < -margin]
    means = [float(one.mean()) for one in gains]
    interval = None if repeated else bootstrap_interval(gains)
    gaining = int(np.count_nonzero(cases > margin))
    return Transfer(
        seeds=len(gains),
        cases=len(cases),
        gaining=gaining,
        losing=len(harmed),
        mean=float(np.mean(means)),
        median=float(np.median(means)),
        interval=interval,
        t_interval=None if repeated else mean_interval(means),
        benefit=gaining / len(cases),
        negative=len(harmed) / len(cases),
        loss=float(harmed.mean()) if len(harmed) else None,
        burden=float(harmed.sum()) / len(cases),
        tail=float(cases[: -(-len(cases) // TAIL)].mean()),  # at least one case
        worst=float(cases[0]),
        p=None if repeated else sign_flip(means),
        p_holm=None,
        verdict=verdict(interval, margin) if interval else None,
        no_interval="" if interval else _no_interval(gains, repeated=repeated),
    )


def corrected(found: Sequence[Transfer | None]) -> list[Transfer | None]:
    """Correct the p-values of a table's methods for being several."""
    steps = iter(holm([one.p for one in found if one and one.p is not None]))
    return [one if one is None or one.p is None else replace(one, p_holm=next(steps)) for one in found]


def who_gains(found: Transfer) -> str:
    """Say in a sentence how many gain and lose, and how much the worst loses."""
    equal = found.cases - found.gaining - found.losing
    if found.seeds == 1:
        parts = [f"{found.gaining} of {found.cases} clients {_verb(found.gaining, 'gain')}"]
        parts += [f"{found.losing} {_verb(found.losing, 'lose')}"]
        parts += [f"{equal} {_verb(equal, 'stay')} equal"] if equal else []
    else:
        parts = [f"over {found.seeds} seeds clients gain in {found.gaining} of {found.cases} cases"]
        parts += [f"lose in {found.losing}"] + ([f"stay equal in {equal}"] if equal else [])
    end = f"; the worst loses {-100 * found.worst:.1f} points" if found.losing else ""
    return f"{', '.join(parts)}{end}."


def points(gain: float) -> str:
    """Write a gain in points, with its sign."""
    return f"{100 * gain:+.2f}".replace("-", "−")


def _test_samples(run: Run) -> Numbers:
    """Count what each client was tested on in the reported round; the record may not say it otherwise."""
    return run.support(run.chosen.record).astype(float) if run.chosen else np.zeros(0)


def _verb(count: int, verb: str) -> str:
    return f"{verb}s" if count == 1 else verb


def _no_interval(gains: Sequence[Numbers], *, repeated: bool) -> str:
    if repeated:
        return "runs share a seed"
    return "one seed" if len(gains) < 2 else "fewer than two clients"
