"""Each method of a table against Local, against its own solo control, and against the others. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from protonorm.analysis.pairing import Pairs, is_local, is_solo, pair_runs, same_but_control, same_clients
from protonorm.analysis.statistics import bootstrap_interval, share_a_seed, verdict
from protonorm.analysis.transfer import Gains, Transfer, corrected, gains_of, measure, points
from protonorm.runs.run import Run

Groups = Mapping[str, Sequence[Run]]  # the runs of each method


@dataclass(frozen=True)
class Contrast:
    """A method against a reference: its gains, or in what the two do not match."""

    reference: str
    transfer: Transfer | None
    mismatch: str = ""


def against_local(groups: Groups, margin: float = 0.0) -> dict[str, Contrast]:
    """Compare each method with clients that train alone; a method has none where no run of Local is given."""
    local = {name: runs for name, runs in groups.items() if is_local(runs[0])}
    found = {name: _nearest(runs, local, same_clients, margin) for name, runs in groups.items() if name not in local}
    controls = {name: one for name, one in found.items() if is_solo(groups[name][0])}  # they answer another question
    return _corrected({name: one for name, one in found.items() if name not in controls}) | _corrected(controls)


def against_solo(groups: Groups, margin: float = 0.0) -> dict[str, Contrast]:
    """Compare each method with its own control, in which clients federate with themselves alone, where it is given."""
    methods = {name: runs for name, runs in groups.items() if not is_solo(runs[0])}
    found = {
        name: _nearest(runs, _solo_of(runs[0], groups), same_but_control, margin) for name, runs in methods.items()
    }
    return _corrected(found)


def not_distinguishable(name: str, groups: Groups, margin: float = 0.0) -> dict[str, str]:
    """List the methods from which one cannot be told apart by its pooled accuracy in the reported round, and why."""
    runs = groups[name]
    others = {other: theirs for other, theirs in groups.items() if other != name}
    found = {other: _alike(_gains(pair_runs(runs, theirs)), margin) for other, theirs in others.items()}
    return {other: why for other, why in found.items() if why}


def _alike(gains: Gains, margin: float) -> str:
    """Say why a pooled difference is no better one; nothing if it is."""
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
    """Compare runs with the first reference that they match; if there is none, say why not with the first of all."""
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


def _solo_of(run: Run, groups: Groups) -> dict[str, Sequence[Run]]:
    """Find the controls of a run's method."""
    method = run.info.experiment.algorithm
    return {
        name: runs for name, runs in groups.items() if is_solo(runs[0]) and runs[0].info.experiment.algorithm == method
    }


def _corrected(found: Mapping[str, Contrast | None]) -> dict[str, Contrast]:
    known = {name: one for name, one in found.items() if one}
    steps = corrected([one.transfer for one in known.values()])
    return {name: replace(one, transfer=step) for (name, one), step in zip(known.items(), steps, strict=True)}
