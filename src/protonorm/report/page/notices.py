"""How far the runs are, and what a reader of the page must know of them."""

from __future__ import annotations

from typing import Any

from protonorm.analysis.labels import client_label
from protonorm.analysis.summaries import standing
from protonorm.report.page.groups import Groups, differences
from protonorm.report.page.text import counted, listed, per_cent
from protonorm.runs.run import Run

ROUNDS = 4  # named in a notice; of more, the first ones
WAYS = {"validation": "validation", "test": "test*", "last": "last"}  # how a reported round was chosen


def standings(groups: Groups) -> list[dict[str, Any]]:
    """Say of each run how far it is, and which round of it is reported."""
    return [
        {
            "method": name,
            "seed": run.info.experiment.seed,
            "key": run.info.key,
            "state": _state(run),
            "standing": standing(run),
            "accuracy": per_cent(found.pooled if found else None),
            "round": chosen.record.round if chosen else "–",
            "by": WAYS[chosen.by] if chosen else "–",
            "best": per_cent(beside.best.pooled if beside else None),
            "best_round": beside.best.round if beside else "–",
        }
        for name, runs in groups.items()
        for run in runs
        for chosen, beside in [(run.chosen, run.summary())]
        for found in [chosen.record.rules.get(run.info.headline) if chosen else None]
    ]


def notices(groups: Groups) -> list[str]:
    """Warn of what a reader could overlook: rounds chosen by test, runs that are not whole, unlike comparisons."""
    named = [(f"{name}, seed {run.info.experiment.seed}", run) for name, runs in groups.items() for run in runs]
    told = [one for one in [not_validated(groups)] if one]
    told += [f"{name}: {standing(run)}" for name, run in named if not run.finished or run.failure]
    told += [f"{name}: {lost}" for name, run in named if (lost := lost_clients(run))]
    told += [f"{name}: {partial}" for name, run in named if (partial := partly_evaluated(run))]
    if unlike := differences(groups):
        told.append(f"These runs differ in more than the method: {listed(unlike)}. Read the comparison with care.")
    if len({tuple(run.info.versions.items()) for _, run in named}) > 1:
        told.append("These runs were made with different versions; the list of sources names them.")
    if len({len(runs) for runs in groups.values()}) > 1:
        told.append("The methods have different numbers of seeds.")
    return told


def not_validated(groups: Groups) -> str:
    """Say of which methods the reported round was chosen by its test accuracy; nothing if of none."""
    found = [
        name for name, runs in groups.items() if any(run.chosen is not None and run.chosen.by == "test" for run in runs)
    ]
    if not found:
        return ""
    start = "There" if len(found) == len(groups) else f"For {listed(found)} there"
    return f"{start} is no validation part: the best test round is reported, which is optimistic."


def lost_clients(run: Run) -> str:
    """Say in which rounds clients did not reply, and why one of them did not; nothing if all did."""
    rounds = [record for record in run.rounds if record.lost]
    if not rounds:
        return ""
    id, reason = next(iter(rounds[0].lost.items()))
    replies = counted(sum(len(record.lost) for record in rounds), "reply", "replies")
    numbers = listed([str(record.round) for record in rounds], ROUNDS)
    where = f"round{'' if len(rounds) == 1 else 's'} {numbers}"
    who = client_label(run, int(id)) if id in map(str, range(run.info.experiment.clients)) else f"client {id}"
    return f"{replies} did not arrive, in {where}. The first was that of {who}: {reason.rstrip('.')}."


def partly_evaluated(run: Run) -> str:
    """Say in how many rounds a part of the clients was evaluated; nothing if it was always everybody."""
    evaluated = [record for record in run.rounds if record.rules]
    partial = sum("ids" in run.arrays(record) for record in evaluated)
    where = "every round" if partial == len(evaluated) else f"{partial} of {len(evaluated)} evaluated rounds"
    return f"In {where} only a part of the clients was evaluated; accuracies are theirs." if partial else ""


def _state(run: Run) -> str:
    return "stopped" if run.failure else "finished" if run.finished else "unfinished"
