"""Size of a reproduction, choice of its reported round, and descriptions of reductions. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import stdev
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from protonorm.analysis.statistics import mean_interval
from protonorm.core.registry import find
from protonorm.core.text import counted, listed

if TYPE_CHECKING:
    from .findings import Findings

Settings = Mapping[str, Any]

TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "flowers102": "Flowers-102", "tinyimagenet": "Tiny ImageNet"}
CPU_SAMPLES = {"cifar10": 30_000, "cifar100": 30_000, "tinyimagenet": 10_000}  # of 60,000 pictures and more
USUAL_ROUNDS = 20  # default of an experiment
CPU_ROUNDS, CPU_WIDTH = 100, 512
CPU_MODELS = {"paper": "light", "resnet18": "residual"}
SMOKE_SAMPLES, SMOKE_ROUNDS = 600, 2
SMOKE_CLIENTS = {20: 10, 50: 12, 100: 15}
SMOKE_WIDTHS = {512: 128, 1024: 256}
SMOKE_MODELS = {"paper": "light", "cnn": "plain", "resnet18": "residual"}


@dataclass(frozen=True)
class Profile:
    """Size of a reproduction."""

    name: str
    summary: str
    seeds: tuple[int, ...]
    cut: Callable[[Settings], dict[str, Any]]  # maps the paper's settings to those that are run
    protocol: str = "validated"  # unless the command gives another
    engine: str | None = None  # unless the command gives another
    is_result: bool = True  # otherwise outputs are stamped, and printed numbers are not shown

    def up_to(self, rounds: int) -> Profile:
        """Return a profile in which cells have at most `rounds` rounds."""

        def shorter(settings: Settings) -> dict[str, Any]:
            cut = self.cut(settings)
            return cut | ({"rounds": rounds} if cut.get("rounds", USUAL_ROUNDS) > rounds else {})

        return replace(self, cut=shorter)

    @property
    def stamp(self) -> str:
        """Word that marks outputs that are no results; empty for results."""
        return "" if self.is_result else self.name.upper()


def for_two_cores(settings: Settings) -> dict[str, Any]:
    """Reduce pictures and rounds, and use small networks with the paper's width; the toy data stay as they are."""
    smaller, rounds, dataset = dict(settings), settings.get("rounds", USUAL_ROUNDS), named(settings.get("dataset"))
    if rounds == 0:
        return smaller  # samples are assigned, and nothing is trained
    if dataset["name"] in CPU_SAMPLES:
        smaller["dataset"] = dataset | {"samples": CPU_SAMPLES[dataset["name"]]}
    if dataset["name"] in TITLES:
        smaller["rounds"] = min(rounds, CPU_ROUNDS)
    if isinstance(models := settings.get("models"), str) and models in CPU_MODELS:
        smaller |= {"models": CPU_MODELS[models], "feature_dim": settings.get("feature_dim", CPU_WIDTH)}
    return smaller


def for_seconds(settings: Settings) -> dict[str, Any]:
    """Use the pictures inside the package and two rounds, which only shows that everything works."""
    smaller, dataset, partition = dict(settings), named(settings.get("dataset")), settings.get("partition")
    if dataset["name"] in TITLES:
        smaller |= {
            "dataset": {"name": "fashion", "samples": SMOKE_SAMPLES},
            "clients": SMOKE_CLIENTS.get(settings.get("clients", 20), 10),
            "rounds": min(settings.get("rounds", SMOKE_ROUNDS), SMOKE_ROUNDS),
            "models": SMOKE_MODELS.get(settings.get("models", "paper"), "light"),
            "feature_dim": SMOKE_WIDTHS.get(settings.get("feature_dim", 512), 64),
            "batch_size": 16,
        }
        if isinstance(partition, Mapping) and "classes_per_client" in partition:
            smaller["partition"] = {**partition, "classes_per_client": 2}
    elif dataset["name"] == "spiral":
        smaller |= {"dataset": dataset | {"points": 60}, "rounds": 4}
    return smaller


def named(component: Any, usual: str = "fashion") -> dict[str, Any]:
    """Return a component as a dict with its name, `usual` if not given, and empty for a user-defined object."""
    if component is None or isinstance(component, Mapping):
        return {"name": usual, **(component or {})}
    return {"name": component if isinstance(component, str) else ""}


PAPER = Profile(
    "paper", "everything as printed: all pictures, 300 rounds, three seeds", (0, 1, 2), dict, protocol="paper"
)
CPU = Profile("cpu", "a size for two cores: 30,000 pictures, 100 rounds, small networks, one seed", (0,), for_two_cores)
SMOKE = Profile(
    "smoke",
    "seconds a cell, on pictures inside the package; shows that everything works, no result",
    (0,),
    for_seconds,
    engine="serial",  # starting processes would take longer than such a run
    is_result=False,
)
PROFILES = {profile.name: profile for profile in (PAPER, CPU, SMOKE)}


@dataclass(frozen=True)
class Protocol:
    """Evaluation protocol: what is held out, which round is reported, and the meaning of ±."""

    name: str
    validation: float  # share of a client's training part that is held out
    by: Literal["validation", "test"]  # how the reported round is chosen
    sentence: str  # consequence for the numbers
    spread_is: str  # meaning of ±

    @property
    def is_optimistic(self) -> bool:
        """Whether the reported round is chosen by the numbers that it reports."""
        return self.by == "test"

    def spread(self, numbers: Sequence[float]) -> float | None:
        """Return the number after ± for the numbers of seeds; None for a single seed."""
        if len(numbers) < 2:
            return None
        interval = None if self.is_optimistic else mean_interval(numbers)
        return interval.half if interval else stdev(numbers)


PROTOCOLS = {
    "paper": Protocol(
        "paper",
        0.0,
        "test",
        "Nothing is held out for validation, and the best test round is reported, as in the authors' program. It "
        "is chosen by looking at what it reports, so that it is optimistic.",
        "the standard deviation",
    ),
    "validated": Protocol(
        "validated",
        0.1,
        "validation",
        "A tenth of each client's training part is held out, which the paper's clients train on too. The reported "
        "round is chosen on it, once, under the method's headline rule; the test part decides nothing. The best "
        "test round stands beside, marked best*: it is chosen by looking at what it reports, so that it is "
        "optimistic.",
        "half of the 95 % interval of the mean (Student's t)",
    ),
}


def find_profile(name: str) -> Profile:
    """Return a profile by name; raise a ValueError with the nearest valid name if it is unknown."""
    return find(PROFILES, name, "profile")


def find_protocol(name: str) -> Protocol:
    """Return a protocol by name; raise a ValueError with the nearest valid name if it is unknown."""
    return find(PROTOCOLS, name, "protocol")


COMPARE = "So compare methods with each other inside a column. The printed numbers stand beside for orientation."
NO_RESULT = "Nothing here is a result."


class Cut(NamedTuple):
    """Reduction relative to the paper."""

    short: str  # for a caption
    sentence: str  # for a page


SMOKE_PICTURES = Cut(
    f"{SMOKE_SAMPLES} pictures of fashion in place of every data set, fewer clients and classes",
    f"SMOKE: {SMOKE_SAMPLES} pictures of `fashion` in place of every data set, fewer clients and classes.",
)
NETWORKS = {  # by the networks that are run
    "light": Cut(
        "networks of the family light instead of the paper's",
        "The four networks of the family `light`, with decision layers of the paper's width, instead of the paper's "
        "four: they are of four kinds too, and about four times as fast.",
    ),
    "residual": Cut("the network residual instead of ResNet-18", "ResNet-18 is replaced by the network `residual`."),
}


def cuts(findings: Findings) -> list[str]:
    """Describe what was reduced in a study, and why; empty if all is as printed."""
    sentences = [cut.sentence for cut in _cuts(findings)]
    if not findings.profile.is_result:
        return [*sentences, NO_RESULT] if sentences else []
    if not findings.study.paper:
        return sentences
    count = {1: ["One seed"], 2: ["Two seeds"]}.get(len({outcome.seed for outcome in findings.outcomes}), [])
    seeds = [f"{few} instead of three; `--seeds 0,1,2` adds the others." for few in count]
    return [*sentences, *seeds, *([COMPARE] if sentences else [])]


def cut_in_short(findings: Findings) -> str:
    """Describe briefly what was reduced in the cells; empty if all is as printed."""
    return "; ".join(cut.short for cut in _cuts(findings))


def _cuts(findings: Findings) -> list[Cut]:
    """List the reductions, from the settings that actually changed."""
    both = [(cell.settings, findings.profile.cut(cell.settings)) for cell in findings.study.cells]
    datasets = [run["dataset"] for printed, run in both if run.get("dataset") != printed.get("dataset")]
    models = dict.fromkeys(run["models"] for printed, run in both if run.get("models") != printed.get("models"))
    rounds = dict.fromkeys((run.get("rounds", USUAL_ROUNDS), one.get("rounds", USUAL_ROUNDS)) for one, run in both)
    shorter = listed([f"{counted(run, 'round')} instead of {one}" for run, one in rounds if run != one])
    reductions, names = [], {dataset["name"] for dataset in datasets}
    if findings.profile.is_result and datasets:
        sizes = dict.fromkeys((TITLES.get(one["name"], one["name"]), f"{one['samples']:,}") for one in datasets)
        reductions += [
            Cut(
                listed([f"{size} pictures of {name}" for name, size in sizes]),
                f"Of {listed([f'{name} {size}' for name, size in sizes])} pictures are used, of each class its share, "
                "because a round costs what its pictures cost; so a client has less to learn from, and accuracies are "
                "likely to be lower than printed.",
            )
        ]
    elif "fashion" in names:
        reductions += [SMOKE_PICTURES]
    if not findings.profile.is_result and "spiral" in names:
        reductions += [Cut("a few points of the spiral", "SMOKE: a few points of the spiral.")]
    if shorter:
        reductions += [Cut(shorter, f"{shorter}, because of the time that they take.")]
    return reductions + [NETWORKS[name] for name in models if findings.profile.is_result]
