"""What was cut of a study, in words, from the settings that really changed. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from protonorm.analysis.wording import listed
from protonorm.reproduction.cells import Settings
from protonorm.reproduction.findings import TITLES, Findings
from protonorm.reproduction.profiles import SMOKE_SAMPLES, USUAL_ROUNDS

PAPER_SEEDS = 3
COMPARE = "So compare methods with each other inside a column. The printed numbers stand beside for orientation."
NO_RESULT = "Nothing here is a result."


class Cut(NamedTuple):
    """Something that is smaller than printed."""

    short: str  # for a caption
    sentence: str  # for a page


NETWORKS = {  # by what is run
    "light": Cut(
        "networks of the family light instead of the paper's",
        "The four networks of the family `light`, with decision layers of the paper's width, instead of the paper's "
        "four: they are of four kinds too, and about four times as fast.",
    ),
    "residual": Cut("the network residual instead of ResNet-18", "ResNet-18 is replaced by the network `residual`."),
}


class Change(NamedTuple):
    """The settings of a cell as printed, and those that are run."""

    printed: Settings
    run: Settings

    def of(self, name: str) -> bool:
        """Tell whether a setting changed."""
        return bool(self.printed.get(name) != self.run.get(name))


def cuts(findings: Findings) -> list[str]:
    """Say in sentences what was cut of a study, and why; nothing if all is as printed."""
    found = [one.sentence for one in _cuts(findings)]
    if not findings.profile.is_result:
        return [*found, NO_RESULT] if found else []
    compare = [COMPARE] if found and findings.study.paper else []
    return [*found, *_seeds(findings), *compare]


def cut_in_short(findings: Findings) -> str:
    """Say in few words what was cut of the cells; nothing if all is as printed."""
    return "; ".join(one.short for one in _cuts(findings))


def _cuts(findings: Findings) -> list[Cut]:
    changes = [Change(one.settings, findings.profile.cut(one.settings)) for one in findings.study.cells]
    if findings.profile.is_result:
        return [*_pictures(changes), *_rounds(changes), *_networks(changes)]
    return [*_stand_ins(changes), *_rounds(changes)]


def _pictures(changes: Sequence[Change]) -> Iterator[Cut]:
    taken = [one.run["dataset"] for one in changes if one.of("dataset")]
    sizes = dict.fromkeys((TITLES.get(one["name"], one["name"]), one["samples"]) for one in taken)
    if sizes:
        yield Cut(
            listed([f"{size:,} pictures of {name}" for name, size in sizes]),
            f"Of {listed([f'{name} {size:,}' for name, size in sizes])} pictures are used, of each class its share, "
            "because a round costs what its pictures cost; so a client has less to learn from, and accuracies are "
            "likely to be lower than printed.",
        )


def _rounds(changes: Sequence[Change]) -> Iterator[Cut]:
    both = [(one.run.get("rounds", USUAL_ROUNDS), one.printed.get("rounds", USUAL_ROUNDS)) for one in changes]
    shorter = dict.fromkeys((run, printed) for run, printed in both if run != printed)
    if shorter:
        told = listed([f"{run} {'round' if run == 1 else 'rounds'} instead of {printed}" for run, printed in shorter])
        yield Cut(told, f"{told}, because of the time that they take.")


def _networks(changes: Sequence[Change]) -> Iterator[Cut]:
    for name in dict.fromkeys(one.run["models"] for one in changes if one.of("models")):
        yield NETWORKS[name]


def _stand_ins(changes: Sequence[Change]) -> Iterator[Cut]:
    """Say what stands in for the paper's data in a profile that gives no results."""
    names = {one.run["dataset"]["name"] for one in changes if one.of("dataset")}
    if "fashion" in names:
        told = f"{SMOKE_SAMPLES} pictures of `fashion` in place of every data set, fewer clients and classes"
        yield Cut(told.replace("`", ""), f"SMOKE: {told}.")
    if "spiral" in names:
        yield Cut("a few points of the spiral", "SMOKE: a few points of the spiral.")


def _seeds(findings: Findings) -> list[str]:
    seeds = {one.seed for one in findings.outcomes}
    if not findings.study.paper or not 0 < len(seeds) < PAPER_SEEDS:
        return []
    return [f"{'One seed' if len(seeds) == 1 else 'Two seeds'} instead of three; `--seeds 0,1,2` adds the others."]
