"""Gains client by client: pairing of runs, gains and losses against a reference, and verdicts.

A gain is a client's test accuracy in the reported round minus that of the same client in the reference, as a fraction.
A case is a client in a run; clients without test samples do not count. Does not import torch.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np

from protonorm.analysis import statistics
from protonorm.analysis.settings import DATA, run_settings
from protonorm.analysis.statistics import Interval, Numbers, Verdict, bootstrap_interval, share_a_seed, verdict
from protonorm.runs.run import Run

UNLIKE = ("control", "retries", "state_memory")  # settings in which a method and its solo control may differ
EXACT = 12  # decimals of a gain; further digits are rounding errors
TAIL = 10  # `tail` is the mean gain of the worst 1/TAIL of the cases

Groups = Mapping[str, Sequence[Run]]  # runs of each method
Differ = Callable[[Run, Run], str]  # describes how two runs differ; empty if they can be paired


class Pairs(NamedTuple):
    """Runs of a method paired with those of a reference by seed; or the mismatch between them."""

    pairs: list[tuple[Run, Run]]  # a run and its reference, with the same clients
    mismatch: str = ""


def is_local(run: Run) -> bool:
    """Return whether the clients trained alone, by the method Local."""
    return run.info.experiment.algorithm.name == "local" and not is_solo(run)


def is_solo(run: Run) -> bool:
    """Return whether each client federated only with itself."""
    return getattr(run.info.experiment, "control", "none") == "solo"


def reported_accuracies(run: Run, rule: str | None = None, unit: str = "client") -> Numbers:
    """Return the accuracy of each client (M,) or class (K,) in the reported round, NaN if there is none.

    The rule is the headline rule unless given.
    """
    if not run.chosen:
        return np.full(run.info.experiment.clients if unit == "client" else len(run.info.classes), np.nan)
    return (run.by_client if unit == "client" else run.by_class)(run.chosen.record, rule or run.info.headline)


def same_clients(run: Run, other: Run) -> str:
    """Return how the clients of two runs differ (data, names, networks, samples); empty if they are the same."""
    if difference := _difference(run_settings(run.info, DATA), run_settings(other.info, DATA)):
        return difference
    if run.info.client_names != other.info.client_names:
        return "who the clients are"
    if _networks(run) != _networks(other):
        return "the clients' networks"
    if any(not np.array_equal(first, second) for first, second in zip(run.population, other.population, strict=True)):
        return "who holds which samples"
    if not run.knows_samples and run.chosen and other.chosen:  # only the numbers of test samples are known
        support, reference_support = run.support(run.chosen.record), other.support(other.chosen.record)
        tested = (support > 0) & (reference_support > 0)
        return "how many samples clients test on" if (support[tested] != reference_support[tested]).any() else ""
    return ""


def same_but_control(run: Run, other: Run) -> str:
    """Return how a run and a solo control differ besides the control; empty if they do not."""
    first, second = (run_settings(item.info, without=UNLIKE) for item in (run, other))
    return _difference(first, second) or same_clients(run, other)


def pair_runs(runs: Sequence[Run], references: Sequence[Run], differ: Differ = same_clients) -> Pairs:
    """Pair each run with the reference of the same seed and data, if all runs have one."""

    def order(run: Run) -> tuple[int, str]:
        return run.info.experiment.seed, json.dumps(run_settings(run.info, DATA), sort_keys=True)

    seeds = [sorted(run.info.experiment.seed for run in group) for group in (runs, references)]
    if seeds[0] != seeds[1]:
        return Pairs([], f"seeds ({'; '.join(', '.join(map(str, values)) or 'none' for values in seeds)})")
    pairs = list(zip(sorted(runs, key=order), sorted(references, key=order), strict=True))
    mismatch = next(filter(None, starmap(differ, pairs)), "")
    return Pairs([] if mismatch else pairs, mismatch)


def _networks(run: Run) -> list[Any]:
    """Return the feature width and the network of each client."""
    experiment = run.info.experiment
    return [experiment.feature_dim, *(run.info.network(id) for id in range(experiment.clients))]


def _difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Return the first setting that differs, with both values."""
    names = (name for name in {**first, **second} if first.get(name) != second.get(name))
    return next((f"{name} ({first.get(name)}; {second.get(name)})" for name in names), "")


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


def gains_of(paired: Pairs) -> Gains:
    """Compute gains client by client, in the reported rounds under headline rules; or why there are none."""
    computed = Gains([], [], [], paired.mismatch)
    for run, reference in paired.pairs:
        seed, chosen, other = run.info.experiment.seed, run.chosen, reference.chosen
        accuracies, baseline = reported_accuracies(run), reported_accuracies(reference)
        evaluated = ~np.isnan(accuracies)
        if chosen is None or other is None or not evaluated.any() or np.isnan(baseline).all():
            return Gains([], [], [], f"a round to report, which seed {seed} does not have on both sides")
        if chosen.by != other.by:
            return Gains([], [], [], f"how their rounds were chosen (by {chosen.by}; by {other.by})")
        if not np.array_equal(evaluated, ~np.isnan(baseline)):
            return Gains([], [], [], f"the clients that were evaluated with seed {seed}")
        computed.seeds.append(seed)
        computed.gains.append(np.round(accuracies[evaluated] - baseline[evaluated], EXACT))
        # population counts may be missing from the record
        computed.samples.append(run.support(chosen.record)[evaluated].astype(float))
    return computed


def measure(gains: Sequence[Numbers], margin: float = 0.0, *, repeated: bool = False) -> Transfer:
    """Summarise the gains of runs, each (M,); `repeated` runs share a seed and are not independent."""
    cases = np.sort(np.concatenate(gains))  # (n,)
    harmed = -cases[cases < -margin]
    means = [float(seed_gains.mean()) for seed_gains in gains]
    interval = None if repeated else bootstrap_interval(gains)
    reason = "one seed" if len(gains) < 2 else "fewer than two clients"
    gaining = int(np.count_nonzero(cases > margin))
    return Transfer(
        seeds=len(gains),
        cases=len(cases),
        gaining=gaining,
        losing=len(harmed),
        mean=float(np.mean(means)),
        median=float(np.median(means)),
        interval=interval,
        t_interval=None if repeated else statistics.mean_interval(means),
        benefit=gaining / len(cases),
        negative=len(harmed) / len(cases),
        loss=float(harmed.mean()) if len(harmed) else None,
        burden=float(harmed.sum()) / len(cases),
        tail=float(cases[: -(-len(cases) // TAIL)].mean()),  # at least one case
        worst=float(cases[0]),
        p=None if repeated else statistics.sign_flip(means),
        p_holm=None,
        verdict=verdict(interval, margin) if interval else None,
        no_interval="" if interval else "runs share a seed" if repeated else reason,
    )


def who_gains(transfer: Transfer) -> str:
    """Describe how many clients gain and lose, and the largest loss."""
    gaining, losing = transfer.gaining, transfer.losing
    equal = transfer.cases - gaining - losing
    parts = [f"over {transfer.seeds} seeds clients gain in {gaining} of {transfer.cases} cases", f"lose in {losing}"]
    same = f"stay equal in {equal}"
    if transfer.seeds == 1:
        gain, lose, stay = ("s" * (count == 1) for count in (gaining, losing, equal))
        parts = [f"{gaining} of {transfer.cases} clients gain{gain}", f"{losing} lose{lose}"]
        same = f"{equal} stay{stay} equal"
    end = f"; the worst loses {-100 * transfer.worst:.1f} points" if losing else ""
    return f"{', '.join([*parts, *([same] if equal else [])])}{end}."


def points(gain: float, digits: int = 2) -> str:
    """Format a gain in percentage points, with its sign."""
    return f"{100 * gain:+.{digits}f}".replace("-", "−")


@dataclass(frozen=True)
class Contrast:
    """Method against a reference: its gains, or the mismatch between them."""

    reference: str
    transfer: Transfer | None
    mismatch: str = ""


def against_local(groups: Groups, margin: float = 0.0) -> dict[str, Contrast]:
    """Compare each method with clients that train alone, where given; p-values of solo controls are corrected apart."""
    local = {name: runs for name, runs in groups.items() if is_local(runs[0])}
    methods = {name: runs for name, runs in groups.items() if name not in local}
    contrasts = {name: _nearest(runs, local, same_clients, margin) for name, runs in methods.items()}
    families = [[name for name in methods if is_solo(methods[name][0]) == solo] for solo in (False, True)]
    return {
        name: contrast
        for family in families
        for name, contrast in corrected({key: contrasts[key] for key in family}).items()
    }


def against_solo(groups: Groups, margin: float = 0.0) -> dict[str, Contrast]:
    """Compare each method with its solo control, in which each client federates only with itself, where it is given."""
    controls = {name: runs for name, runs in groups.items() if is_solo(runs[0])}
    contrasts = {}
    for name, runs in groups.items():
        if name not in controls:
            method = runs[0].info.experiment.algorithm
            others = controls.items()
            own = {other: members for other, members in others if members[0].info.experiment.algorithm == method}
            contrasts[name] = _nearest(runs, own, same_but_control, margin)
    return corrected(contrasts)


def corrected(contrasts: Mapping[str, Contrast | None]) -> dict[str, Contrast]:
    """Correct the p-values of contrasts for multiple testing (Holm), without methods that have no contrast."""
    comparable = {name: contrast for name, contrast in contrasts.items() if contrast}
    tested = {
        name: contrast.transfer
        for name, contrast in comparable.items()
        if contrast.transfer and contrast.transfer.p is not None
    }
    steps = statistics.holm([transfer.p for transfer in tested.values() if transfer.p is not None])
    return comparable | {
        name: replace(comparable[name], transfer=replace(transfer, p_holm=step))
        for (name, transfer), step in zip(tested.items(), steps, strict=True)
    }


def not_distinguishable(name: str, groups: Groups, margin: float = 0.0) -> dict[str, str]:
    """List the methods whose pooled accuracy is not distinguishable from that of method `name`, with reasons."""
    rivals = {other: runs for other, runs in groups.items() if other != name}
    reasons = {other: _alike(gains_of(pair_runs(groups[name], runs)), margin) for other, runs in rivals.items()}
    return {other: reason for other, reason in reasons.items() if reason}


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
    better = verdict(interval, margin) == "better"
    return "" if better else f"difference {points(interval.low)} to {points(interval.high)} points"


def _nearest(runs: Sequence[Run], references: Groups, differ: Differ, margin: float) -> Contrast | None:
    """Compare runs with the first matching reference; without a match, return the mismatch with the first reference."""
    mismatch = None
    for name, candidates in references.items():
        gains = gains_of(pair_runs(runs, candidates, differ))
        if not gains.missing:
            return Contrast(name, measure(gains.gains, margin, repeated=share_a_seed(gains.seeds)))
        mismatch = mismatch or Contrast(name, None, gains.missing)
    return mismatch
