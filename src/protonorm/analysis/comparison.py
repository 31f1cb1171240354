"""Rows of a comparison: each method under its prediction rules. Does not import torch."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import NamedTuple

from protonorm.algorithms import ALGORITHMS, display_name
from protonorm.analysis.contrasts import Contrast, against_local, against_solo, not_distinguishable
from protonorm.analysis.settings import data_settings, grouped, labels
from protonorm.analysis.statistics import Interval, mean_interval, share_a_seed, spread
from protonorm.runs.choice import Choice
from protonorm.runs.run import Run, Summary
from protonorm.runs.schema import Accuracy


class Reported(NamedTuple):
    """Accuracy of a run under one rule in the reported round, and its summary over rounds."""

    seed: int
    choice: Choice | None  # the reported round; None if the headline rule has not been evaluated
    chosen: Accuracy | None  # None if the rule was not evaluated in that round
    beside: Summary
    common: Accuracy | None = None  # on the samples that test all clients alike, if there are any
    newcomers: Accuracy | None = None  # of the clients that never train, if there are any


COLUMNS: dict[str, tuple[str, Callable[[Reported], float | None]]] = {  # name: (title, value of a run)
    "accuracy": ("accuracy", lambda run: run.chosen.pooled if run.chosen else None),
    "mean": ("clients", lambda run: run.chosen.mean if run.chosen else None),
    "worst": ("worst 10 %", lambda run: run.chosen.worst if run.chosen else None),
    "common": ("common", lambda run: run.common.pooled if run.common else None),
    "newcomers": ("newcomers", lambda run: run.newcomers.pooled if run.newcomers else None),
    "best": ("best*", lambda run: run.beside.best.pooled),
    "last": ("last", lambda run: run.beside.last.pooled),
    "own_best": ("own best*", lambda run: run.beside.own_best),
}
OPTIONAL = {  # columns that are shown where runs have them: meaning
    "common": "on the samples that test all clients alike",
    "newcomers": "of the clients that never train, all their samples together",
}

RULES = {  # meaning of each prediction rule
    "nearest-global": "nearest global prototype",
    "nearest-local": "nearest local prototype, or fixed target",
    "logits": "the model's own logits",
    "received": "logits of the model as received",
    "shared": "logits of the second network, as received",
    "coarse": "logits of the second network's head on the first joint features",
    "ridge": "ridge regression on frozen features, of all clients",
    "gaussian": "Gaussian classes of frozen features, of all clients",
    "own": "personal ridge regression on the client's own frozen trunk",
    "public": "personal ridge regression on the frozen trunk that all have",
    "both": "weighed sum of own and public",
    "joint": "sum of all rules' log-probabilities, at temperatures fitted on the validation part (1 without one)",
}

MAJORITY = "-"  # rule of the majority-class rows


@dataclass(frozen=True)
class Unread:
    """Run of a comparison whose record is damaged."""

    headline: str  # headline rule of its method
    reason: str


@dataclass(frozen=True)
class Cell:
    """Mean over seeds, with its standard deviation and 95 % interval, as fractions in [0, 1]."""

    mean: float
    std: float | None = None  # None for a single seed
    interval: Interval | None = None  # likewise
    range: Interval | None = None  # of two seeds, shown in place of their very wide interval

    @classmethod
    def of(cls, values: Sequence[float | None], repeated: bool = False) -> "Cell | None":
        """Average over runs; runs that share a seed (`repeated`) are not independent and get no interval."""
        present = [value for value in values if value is not None]
        if not present:
            return None
        std, interval = stdev(present) if len(present) > 1 else None, None if repeated else mean_interval(present)
        return cls(fmean(present), std, interval, spread(present) if interval and len(present) == 2 else None)

    def text(self, scale: int = 100, digits: int = 2) -> str:
        """Format the mean with its spread, or the range alone, by default in per cent."""
        mean = "" if self.range else f"{scale * self.mean:.{digits}f}"
        return f"{mean} {self.spread(scale, digits)}".strip()

    __str__ = text

    def spread(self, scale: int = 100, digits: int = 2) -> str:
        """Format the half-width of the interval, or the range of two seeds; empty without either."""
        if self.range:
            return "–".join(f"{scale * end:.{digits}f}" for end in self.range)
        return f"± {scale * self.interval.half:.{digits}f}" if self.interval else ""

    @property
    def short(self) -> str:
        """Mean alone, in per cent."""
        return f"{100 * self.mean:.2f}"


@dataclass(frozen=True)
class Row:
    """Method under one prediction rule; gains are those of its headline rule."""

    method: str
    rule: str
    headline: bool
    cells: Mapping[str, Cell | None]  # by column
    note: str = ""
    seeds: tuple[int, ...] = ()  # seeds of the averaged runs
    rounds: tuple[int, ...] = ()  # reported round of each run
    chosen_by: str = ""  # validation, test, last; several if runs differ
    local: Contrast | None = None  # against Local
    solo: Contrast | None = None  # against its own solo control
    leads: bool = False  # whether its accuracy is the highest among methods with the same rule
    alike: Mapping[str, str] = field(default_factory=dict)  # methods it cannot be distinguished from, with reasons

    def text(self, column: str) -> str:
        """Format the number in a column; a dash if there is none."""
        return str(self.cells.get(column) or "–")

    def contrast(self, kind: str) -> Contrast | None:
        """Return the method's contrast with `local` or `solo`."""
        return self.local if kind == "local" else self.solo

    @property
    def is_majority(self) -> bool:
        """Whether this is the row of the majority class, not of a method."""
        return self.rule == MAJORITY

    @property
    def stands_out(self) -> bool:
        """Whether its accuracy is the highest of its rule and distinguishable from that of every rival."""
        return self.leads and not self.alike


def rows(runs: Mapping[str, Sequence[Run | Unread]], margin: float = 0.0) -> list[Row]:
    """Build a row for each method and rule, headline rules first, then a `majority` row for each partition of data.

    A method without a readable run has one row, whose note gives the reason. Gains up to the margin count as zero.
    """
    groups = whole(runs)
    table = [row for method, outcomes in runs.items() for row in _method_rows(method, groups.get(method, []), outcomes)]
    leaders = _leaders(table, groups, margin)
    local, solo = against_local(groups, margin), against_solo(groups, margin)
    for position, row in enumerate(table):
        if row.headline:
            leader = leaders.get(row.method)
            marked = replace(row, leads=leader is not None, alike=leader or {})
            table[position] = replace(marked, local=local.get(row.method), solo=solo.get(row.method))
    return [*table, *_majority_rows([run for group in groups.values() for run in group])]


def columns_of(table: Sequence[Row], names: Iterable[str] = COLUMNS) -> list[str]:
    """Return the columns among `names`, without the optional ones that no row has."""
    return [name for name in names if name not in OPTIONAL or any(row.cells.get(name) for row in table)]


def titled(table: Sequence[Row]) -> list[Row]:
    """Return rows with display names in the place of keys, as tables for readers show them."""
    names = display_names([row.method for row in table])

    def named(contrast: Contrast | None) -> Contrast | None:
        return contrast and replace(contrast, reference=names.get(contrast.reference, contrast.reference))

    shown = []
    for row in table:
        rivals = {names[name]: reason for name, reason in row.alike.items()}
        shown.append(replace(row, method=names[row.method], local=named(row.local), solo=named(row.solo), alike=rivals))
    return shown


def display_names(methods: Sequence[str]) -> dict[str, str]:
    """Return the display name of each method of a comparison; a user's own label is unchanged.

    A method whose display name another method has already keeps its key.
    """
    names: dict[str, str] = {}
    for method in dict.fromkeys(methods):
        name, _, settings = method.partition(" (")[0].partition(":")
        words = method.partition(" (")[2].removesuffix(")")
        details = ", ".join(filter(None, [settings.replace(",", ", "), words]))
        title = f"{display_name(name)} ({details})" if details else display_name(name)
        names[method] = title if name in ALGORITHMS and title not in names.values() else method
    return names


def whole(runs: Mapping[str, Sequence[Run | Unread]]) -> dict[str, list[Run]]:
    """Return the readable runs of each method, each once, without methods that have none."""
    read = {method: [run for run in group if isinstance(run, Run)] for method, group in runs.items()}
    return {  # federations of different clients may share a key
        method: list({(run.info.key, tuple(run.info.client_names or ())): run for run in group}.values())
        for method, group in read.items()
        if group
    }


def reported(run: Run, rule: str) -> Reported | None:
    """Return a run's numbers under a rule, in the round chosen under the headline rule; None if there are none."""
    choice, summary = run.chosen, run.summary(rule)
    if summary is None:
        return None
    record = choice.record if choice else None
    parts = (record.rules, record.common, record.newcomers) if record else ({}, {}, {})
    accuracy, common, newcomers = (part.get(rule) for part in parts)
    return Reported(run.info.experiment.seed, choice, accuracy, summary, common, newcomers)


def rules_in_order(run: Run) -> list[str]:
    """List a run's rules, its headline first."""
    return sorted(run.info.rules, key=lambda rule: rule != run.info.headline)


def _majority_rows(runs: Sequence[Run]) -> list[Row]:
    """Build the rows of the majority-class baseline: one per partition, labelled if there are several.

    Each is averaged over the seeds of a partition; equal populations count once.
    """
    parts = grouped((json.dumps(data_settings(run), sort_keys=True), run) for run in runs).values()
    sources = {name: "pooled" for name in COLUMNS if name not in OPTIONAL} | {
        "mean": "mean",
        "worst": "worst",
        "own_best": "mean",
    }
    table = []
    for group, name in zip(parts, labels([data_settings(members[0]) for members in parts]), strict=True):
        levels = {
            (*(part.tobytes() for part in run.population), _drawn_by(run)): run.majority for run in group
        }.values()
        known = [level for level in levels if level]
        cells = {column: Cell.of([getattr(level, source) for level in known]) for column, source in sources.items()}
        table.append(Row(f"majority ({name})" if name else "majority", MAJORITY, True, cells))
    return table


def _drawn_by(run: Run) -> int | None:
    """Return the seed by which clients that never train were drawn; None without them."""
    return run.info.experiment.seed if (run.info.experiment.model_extra or {}).get("held_out") else None


def _leaders(table: Sequence[Row], groups: Mapping[str, Sequence[Run]], margin: float) -> dict[str, dict[str, str]]:
    """Return the method with the highest accuracy of each headline rule, and those not distinguishable from it.

    Methods with different headline rules are not ranked, as the difference might come from the rule. But no method
    stands out if another method is at least as accurate under another rule.
    """
    heads = [(row.method, row.rule, cell.mean) for row in table if row.headline and (cell := row.cells["accuracy"])]
    leaders = {}
    for rule in dict.fromkeys(rule for _, rule, _ in heads):
        means = {method: mean for method, judged_by, mean in heads if judged_by == rule}
        if len(means) > 1:
            top = max(means, key=means.__getitem__)
            leaders[top] = not_distinguishable(top, {method: groups[method] for method in means}, margin)
            for method, other, mean in heads:
                if other != rule and mean >= means[top]:
                    leaders[top][method] = f"no lower, but judged by {other}"
    return leaders


def _method_rows(method: str, runs: Sequence[Run], outcomes: Sequence[Run | Unread]) -> list[Row]:
    """Build a method's rows from its readable runs; unreadable runs are noted."""
    unread = [run for run in outcomes if isinstance(run, Unread)]
    rules = rules_in_order(runs[0]) if runs else [unread[0].headline]
    stopped = sorted({run.failure.round for run in runs if run.failure})
    table = []
    for rule in rules:
        numbers = [values for run in runs if (values := reported(run, rule))]
        repeated = share_a_seed([values.seed for values in numbers])
        evaluated = [(values.seed, values.choice) for values in numbers if values.choice and values.chosen]
        notes = [f"stopped in round {' and '.join(map(str, stopped))}"] if stopped else []
        if 0 < len(evaluated) < len(runs) + len(unread):
            notes.append(f"{len(evaluated)} of {len(runs) + len(unread)} seeds")
        notes += [f"not read: {run.reason.rstrip('.')}" for run in unread]
        cells = {name: Cell.of([get(values) for values in numbers], repeated) for name, (_, get) in COLUMNS.items()}
        row = Row(
            method,
            rule,
            headline=rule == rules[0],
            cells={name: cell for name, cell in cells.items() if cell or name not in OPTIONAL},
            note=", ".join(notes),
            seeds=tuple(seed for seed, _ in evaluated),
            rounds=tuple(choice.record.round for _, choice in evaluated),
            chosen_by=", ".join(sorted({choice.by for _, choice in evaluated})),
        )
        table.append(row)
    return table
