"""Gains client by client: pairing of runs, gains and losses against a reference, and verdicts.

A gain is a client's test accuracy in the reported round minus that of the same client in the reference, as a fraction.
A case is a client in a run; clients without test samples do not count. Does not import torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np

from protonorm.analysis.settings import DATA, run_settings
from protonorm.analysis.statistics import (
    Interval,
    Numbers,
    Verdict,
    bootstrap_interval,
    holm,
    mean_interval,
    share_a_seed,
    sign_flip,
    verdict,
)
from protonorm.runs.run import Run

UNLIKE = ("control", "retries")  # settings in which a method and its solo control may differ
EXACT = 12  # decimals of a gain; further digits are rounding errors
TAIL = 10  # `tail` is the mean gain of the worst 1/TAIL of the cases

Groups = Mapping[str, Sequence[Run]]  # runs of each method


class Pair(NamedTuple):
    """Two runs with the same clients."""

    run: Run
    reference: Run


class Pairs(NamedTuple):
    """Runs of a method paired with those of a reference by seed; or the mismatch between them."""

    pairs: list[Pair]
    mismatch: str = ""


def is_local(run: Run) -> bool:
    """Return whether the clients trained alone, by the method Local."""
    return run.info.experiment.algorithm.name == "local" and not is_solo(run)


def is_solo(run: Run) -> bool:
    """Return whether each client federated only with itself."""
    return getattr(run.info.experiment, "control", "none") == "solo"


def same_clients(run: Run, other: Run) -> str:
    """Return how the clients of two runs differ (data, names, networks, samples); empty if they are the same."""
    if told := _difference(run_settings(run.info, DATA), run_settings(other.info, DATA)):
        return told
    if run.info.client_names != other.info.client_names:
        return "who the clients are"
    if _networks(run) != _networks(other):
        return "the clients' networks"
    if any(not np.array_equal(one, two) for one, two in zip(run.population, other.population, strict=True)):
        return "who holds which samples"
    if not run.knows_samples and run.chosen and other.chosen:  # only the numbers of test samples are known
        ours, theirs = (one.support(one.chosen.record) for one in (run, other) if one.chosen)
        tested = (ours > 0) & (theirs > 0)
        return "how many samples clients test on" if (ours[tested] != theirs[tested]).any() else ""
    return ""


def same_but_control(run: Run, other: Run) -> str:
    """Return how a run and a solo control differ besides the control; empty if they do not."""
    first, second = (run_settings(one.info, without=UNLIKE) for one in (run, other))
    return _difference(first, second) or same_clients(run, other)


def pair_runs(
    runs: Sequence[Run], references: Sequence[Run], differ: Callable[[Run, Run], str] = same_clients
) -> Pairs:
    """Pair each run with the reference of the same seed and data, if all runs have one."""
    ours, theirs = sorted(runs, key=_place), sorted(references, key=_place)
    seeds, others = ([run.info.experiment.seed for run in some] for some in (ours, theirs))
    if seeds != others:
        told = "; ".join(", ".join(map(str, some)) or "none" for some in (seeds, others))
        return Pairs([], f"seeds ({told})")
    pairs = list(map(Pair, ours, theirs))
    told = next(filter(None, starmap(differ, pairs)), "")
    return Pairs([] if told else pairs, told)


def _place(run: Run) -> tuple[int, str]:
    return run.info.experiment.seed, json.dumps(run_settings(run.info, DATA), sort_keys=True)


def _networks(run: Run) -> list[Any]:
    """Return the feature width and the network of each client."""
    experiment = run.info.experiment
    return [experiment.feature_dim, *(run.info.network(id) for id in range(experiment.clients))]


def _difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Return the first setting that differs, with both values."""
    names = [name for name in dict.fromkeys([*first, *second]) if first.get(name) != second.get(name)]
    return f"{names[0]} ({first.get(names[0])}; {second.get(names[0])})" if names else ""


class Gains(NamedTuple):
    """Gains of all cases, one row per run."""

    seeds: list[int]
    gains: list[Numbers]  # (M,) each
    samples: list[Numbers]  # (M,) each: test samples, the weights of a pooled difference
    missing: str = ""  # why there are no gains


@dataclass(frozen=True)
class Transfer:
    """Effect of a method on its clients, over all cases; losses are positive numbers."""

    seeds: int
    cases: int
    gaining: int  # cases that gain more than the margin
    losing: int  # cases that lose more than the margin
    mean: float  # mean of the runs' mean gains
    median: float  # median of the runs' mean gains
    interval: Interval | None  # of the mean, by the bootstrap over runs and clients
    t_interval: Interval | None  # of the mean, by Student's t over runs alone: wider with few runs
    benefit: float  # share of the cases that gain
    negative: float  # share of the cases that lose: negative-transfer rate, NTR
    loss: float | None  # mean loss of the cases that lose, NTM; None without losses
    burden: float  # sum of losses over the number of cases, NTB
    tail: float  # mean gain of the worst tenth
    worst: float  # the lowest gain
    p: float | None  # of the sign-flip test over runs; None below six
    p_holm: float | None  # the same, corrected for the other methods of a table
    verdict: Verdict | None  # None without an interval
    no_interval: str  # why there is no interval


def gains_of(pairs: Sequence[Pair], rule: str, reference_rule: str) -> Gains:
    """Compute gains client by client in the reported rounds; `missing` gives the reason if they are not comparable."""
    found = Gains([], [], [])
    for run, reference in pairs:
        seed, chosen, other = run.info.experiment.seed, run.chosen, reference.chosen
        ours = run.by_client(chosen.record, rule) if chosen else np.zeros(0)
        theirs = reference.by_client(other.record, reference_rule) if other else np.zeros(0)
        known = ~np.isnan(ours)
        if chosen is None or other is None or not known.any() or np.isnan(theirs).all():
            return Gains([], [], [], f"a round to report, which seed {seed} does not have on both sides")
        if chosen.by != other.by:
            return Gains([], [], [], f"how their rounds were chosen (by {chosen.by}; by {other.by})")
        if not np.array_equal(known, ~np.isnan(theirs)):
            return Gains([], [], [], f"the clients that were evaluated with seed {seed}")
        found.seeds.append(seed)
        found.gains.append(np.round(ours[known] - theirs[known], EXACT))
        found.samples.append(
            run.support(chosen.record)[known].astype(float)
        )  # population counts may be missing from the record
    return found


def measure(gains: Sequence[Numbers], margin: float = 0.0, *, repeated: bool = False) -> Transfer:
    """Summarise the gains of runs, each (M,); `repeated` runs share a seed and are not independent."""
    cases = np.sort(np.concatenate(gains))  # (n,)
    harmed = -cases[cases < -margin]
    means = [float(one.mean()) for one in gains]
    interval = None if repeated else bootstrap_interval(gains)
    few = "one seed" if len(gains) < 2 else "fewer than two clients"
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
        no_interval="" if interval else "runs share a seed" if repeated else few,
    )


def corrected(found: Sequence[Transfer | None]) -> list[Transfer | None]:
    """Correct the p-values of a table's methods for multiple testing (Holm)."""
    steps = iter(holm([one.p for one in found if one and one.p is not None]))
    return [one if one is None or one.p is None else replace(one, p_holm=next(steps)) for one in found]


def who_gains(found: Transfer) -> str:
    """Describe how many clients gain and lose, and the largest loss."""
    equal = found.cases - found.gaining - found.losing
    if found.seeds == 1:
        gain = "gains" if found.gaining == 1 else "gain"
        parts = [f"{found.gaining} of {found.cases} clients {gain}", _verb(found.losing, "lose")]
        parts += [f"{_verb(equal, 'stay')} equal"] if equal else []
    else:
        parts = [f"over {found.seeds} seeds clients gain in {found.gaining} of {found.cases} cases"]
        parts += [f"lose in {found.losing}"] + ([f"stay equal in {equal}"] if equal else [])
    end = f"; the worst loses {-100 * found.worst:.1f} points" if found.losing else ""
    return f"{', '.join(parts)}{end}."


def points(gain: float) -> str:
    """Format a gain in percentage points, with its sign."""
    return f"{100 * gain:+.2f}".replace("-", "−")


def _verb(count: int, verb: str) -> str:
    return f"{count} {verb}s" if count == 1 else f"{count} {verb}"


@dataclass(frozen=True)
class Contrast:
    """Method against a reference: its gains, or the mismatch between them."""

    reference: str
    transfer: Transfer | None
    mismatch: str = ""


def against_local(groups: Groups, margin: float = 0.0) -> dict[str, Contrast]:
    """Compare each method with clients that train alone, where runs of Local are given."""
    local = {name: runs for name, runs in groups.items() if is_local(runs[0])}
    found = {name: _nearest(runs, local, same_clients, margin) for name, runs in groups.items() if name not in local}
    controls = {
        name: one for name, one in found.items() if is_solo(groups[name][0])
    }  # corrected separately: they answer another question
    return _corrected({name: one for name, one in found.items() if name not in controls}) | _corrected(controls)


def against_solo(groups: Groups, margin: float = 0.0) -> dict[str, Contrast]:
    """Compare each method with its solo control, in which each client federates only with itself, where it is given."""
    controls = {name: runs for name, runs in groups.items() if is_solo(runs[0])}
    found = {}
    for name, runs in groups.items():
        if name not in controls:
            method = runs[0].info.experiment.algorithm
            own = {other: some for other, some in controls.items() if some[0].info.experiment.algorithm == method}
            found[name] = _nearest(runs, own, same_but_control, margin)
    return _corrected(found)


def not_distinguishable(name: str, groups: Groups, margin: float = 0.0) -> dict[str, str]:
    """List the methods whose pooled accuracy is not distinguishable from that of method `name`, with reasons."""
    runs = groups[name]
    others = {other: theirs for other, theirs in groups.items() if other != name}
    found = {other: _alike(_gains(pair_runs(runs, theirs)), margin) for other, theirs in others.items()}
    return {other: why for other, why in found.items() if why}


def _alike(gains: Gains, margin: float) -> str:
    """Return why a pooled difference is not significantly positive; empty if it is."""
    if gains.missing:
        return f"they differ in {gains.missing}"
    if len(set(gains.seeds)) < 2:
        return "one seed has no interval"
    if share_a_seed(gains.seeds):
        return "runs share a seed"
    interval = bootstrap_interval(gains.gains, gains.samples)
    if interval is None:
        return "fewer than two clients have no interval"
    found = verdict(interval, margin)
    return "" if found == "better" else f"difference {points(interval.low)} to {points(interval.high)} points"


def _nearest(
    runs: Sequence[Run], references: Groups, differ: Callable[[Run, Run], str], margin: float
) -> Contrast | None:
    """Compare runs with the first matching reference; without a match, return the mismatch with the first reference."""
    found = None
    for name, others in references.items():
        gains = _gains(pair_runs(runs, others, differ))
        if not gains.missing:
            return Contrast(name, measure(gains.gains, margin, repeated=share_a_seed(gains.seeds)))
        found = found or Contrast(name, None, gains.missing)
    return found


def _gains(found: Pairs) -> Gains:
    if not found.pairs:
        return Gains([], [], [], found.mismatch)
    rules = (found.pairs[0].run.info.headline, found.pairs[0].reference.info.headline)
    return gains_of(found.pairs, *rules)


def _corrected(found: Mapping[str, Contrast | None]) -> dict[str, Contrast]:
    known = {name: one for name, one in found.items() if one}
    steps = corrected([one.transfer for one in known.values()])
    return {name: replace(one, transfer=step) for (name, one), step in zip(known.items(), steps, strict=True)}
