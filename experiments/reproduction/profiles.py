"""Size of a reproduction, choice of its reported round, and descriptions of reductions. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import stdev
from typing import TYPE_CHECKING, Any, Literal

from protonorm.analysis.statistics import mean_interval
from protonorm.core.text import counted, listed
from protonorm.models import is_frozen

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
        limit = CPU_SAMPLES[dataset["name"]]
        smaller["dataset"] = dataset | {"samples": min(limit, dataset.get("samples") or limit)}
    if dataset["name"] in TITLES:
        smaller["rounds"] = min(rounds, CPU_ROUNDS)
    if isinstance(models := settings.get("models"), str) and models in CPU_MODELS:
        smaller |= {"models": CPU_MODELS[models], "feature_dim": settings.get("feature_dim", CPU_WIDTH)}
    return smaller


def for_seconds(settings: Settings) -> dict[str, Any]:
    """Use the pictures inside the package and two rounds, which only shows that everything works."""
    smaller, dataset, partition = dict(settings), named(settings.get("dataset")), settings.get("partition")
    if any(map(is_frozen, settings.get("models") or ())):  # pre-trained weights are not in the package
        smaller |= {"dataset": {"name": "spiral", "points": 60}, "models": "frozen:identity", "feature_dim": 4}
        smaller |= {"clients": 6, "rounds": min(settings.get("rounds", SMOKE_ROUNDS), SMOKE_ROUNDS), "batch_size": 8}
    elif dataset["name"] in TITLES:
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


def named(component: Any, default: str = "fashion") -> dict[str, Any]:
    """Return a component as a dict with its name, `usual` if not given, and empty for a user-defined object."""
    if component is None or isinstance(component, Mapping):
        return {"name": default, **(component or {})}
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


COMPARE = "So accuracies are likely to be lower than printed: compare methods with each other inside a column."
NO_RESULT = "Nothing here is a result."
SMOKE_DATA = {
    "fashion": f"{SMOKE_SAMPLES} pictures of fashion in place of every data set, fewer clients and classes",
    "spiral": "a few points of the spiral",
}
NETWORKS = {  # by the networks that are run
    "light": "networks of the family light instead of the paper's",
    "residual": "the network residual instead of ResNet-18",
}


def cuts(findings: Findings) -> list[str]:
    """Describe what was reduced in a study, in sentences; empty if all is as printed."""
    reduced = [f"Cut: {short}."] if (short := cut_in_short(findings)) else []
    if not findings.profile.is_result:
        return [*reduced, NO_RESULT] if reduced else []
    if not findings.study.paper:
        return reduced
    count = {1: ["One seed"], 2: ["Two seeds"]}.get(len({outcome.seed for outcome in findings.outcomes}), [])
    seeds = [f"{size} instead of three; `--seeds 0,1,2` adds the others." for size in count]
    return [*reduced, *seeds, *([COMPARE] if reduced else [])]


def cut_in_short(findings: Findings) -> str:
    """List the reductions of the cells, from the settings that actually changed; empty if all is as printed."""
    pairs = [(cell.settings, findings.profile.cut(cell.settings)) for cell in findings.study.cells]
    datasets = [run["dataset"] for printed, run in pairs if run.get("dataset") != printed.get("dataset")]
    models = dict.fromkeys(run["models"] for printed, run in pairs if run.get("models") != printed.get("models"))
    rounds = dict.fromkeys(
        (run.get("rounds", USUAL_ROUNDS), original.get("rounds", USUAL_ROUNDS)) for original, run in pairs
    )
    shorter = listed([f"{counted(run, 'round')} instead of {original}" for run, original in rounds if run != original])
    if findings.profile.is_result:
        sizes = (
            f"{dataset['samples']:,} pictures of {TITLES.get(dataset['name'], dataset['name'])}" for dataset in datasets
        )
        return "; ".join(filter(None, [listed(list(dict.fromkeys(sizes))), shorter, *map(NETWORKS.get, models)]))
    names = {dataset["name"] for dataset in datasets}
    return "; ".join(filter(None, [*(text for name, text in SMOKE_DATA.items() if name in names), shorter]))
