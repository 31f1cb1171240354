"""How large a reproduction is: as printed, for two cores, or as small as possible. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from protonorm.core.registry import nearest
from protonorm.reproduction.cells import Settings

CPU_SAMPLES = {"cifar10": 30_000, "cifar100": 30_000, "tinyimagenet": 10_000}  # of 60,000 pictures and more
PUBLISHED = (*CPU_SAMPLES, "flowers102")

USUAL_ROUNDS = 20  # of an experiment that does not say
CPU_ROUNDS, CPU_WIDTH = 100, 512
SMOKE_SAMPLES, SMOKE_ROUNDS, SMOKE_POINTS, SMOKE_CLASSES = 600, 2, 60, 2
SMOKE_CLIENTS = {20: 10, 50: 12, 100: 15}
SMOKE_WIDTHS = {512: 128, 1024: 256}
SMOKE_MODELS = {"paper": "light", "cnn": "plain", "resnet18": "residual"}


@dataclass(frozen=True)
class Profile:
    """How large everything is."""

    name: str
    summary: str
    seeds: tuple[int, ...]
    cut: Callable[[Settings], dict[str, Any]]  # the paper's settings to those that are run
    protocol: str = "validated"  # unless the command says otherwise
    engine: str | None = None  # unless the command says otherwise
    is_result: bool = True  # otherwise outputs are stamped, and no printed numbers stand beside ours

    def up_to(self, rounds: int) -> Profile:
        """Stop earlier: cells with more rounds than these end with them."""

        def shorter(settings: Settings) -> dict[str, Any]:
            cut = self.cut(settings)
            return cut | ({"rounds": rounds} if cut.get("rounds", USUAL_ROUNDS) > rounds else {})

        return replace(self, cut=shorter)

    @property
    def stamp(self) -> str:
        """Give the word that is laid over outputs that are no results; none for results."""
        return "" if self.is_result else self.name.upper()


def as_printed(settings: Settings) -> dict[str, Any]:
    """Leave everything as the paper has it."""
    return dict(settings)


def for_two_cores(settings: Settings) -> dict[str, Any]:
    """Take fewer pictures and rounds, and small networks with the paper's width; the toy data stay as they are."""
    smaller, rounds = dict(settings), settings.get("rounds", USUAL_ROUNDS)
    if rounds == 0:
        return smaller  # samples are assigned, and nothing is trained
    name = _dataset(settings)["name"]
    if name in CPU_SAMPLES:
        smaller["dataset"] = _dataset(settings) | {"samples": CPU_SAMPLES[name]}
    if name in PUBLISHED:
        smaller["rounds"] = min(rounds, CPU_ROUNDS)
    if settings.get("models") == "paper":
        smaller |= {"models": "light", "feature_dim": settings.get("feature_dim", CPU_WIDTH)}
    if settings.get("models") == "resnet18":
        smaller |= {"models": "residual", "feature_dim": settings.get("feature_dim", CPU_WIDTH)}
    return smaller


def for_seconds(settings: Settings) -> dict[str, Any]:
    """Take the pictures inside the package and two rounds: it shows that everything works, and nothing else."""
    smaller = dict(settings)
    dataset = _dataset(settings)
    if dataset["name"] in PUBLISHED:
        smaller["dataset"] = {"name": "fashion", "samples": SMOKE_SAMPLES}
        smaller["clients"] = SMOKE_CLIENTS.get(settings.get("clients", 20), 10)
        smaller["rounds"] = min(settings.get("rounds", SMOKE_ROUNDS), SMOKE_ROUNDS)
        smaller["models"] = SMOKE_MODELS.get(settings.get("models", "paper"), "light")
        smaller["feature_dim"] = SMOKE_WIDTHS.get(settings.get("feature_dim", 512), 64)
        smaller["batch_size"] = 16
        if isinstance(partition := settings.get("partition"), Mapping) and "classes_per_client" in partition:
            smaller["partition"] = {**partition, "classes_per_client": SMOKE_CLASSES}
    elif dataset["name"] == "spiral":
        smaller |= {"dataset": dataset | {"points": SMOKE_POINTS}, "rounds": 4}
    return smaller


def _dataset(settings: Settings) -> dict[str, Any]:
    """Write the data set as a dict with its name, which is empty for an object of the user's own."""
    given = settings.get("dataset", "fashion")
    if isinstance(given, Mapping):
        return {"name": "fashion", **given}
    return {"name": given if isinstance(given, str) else ""}


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            "paper",
            "everything as printed: all pictures, 300 rounds, three seeds",
            (0, 1, 2),
            as_printed,
            protocol="paper",
        ),
        Profile(
            "cpu",
            "a size for two cores: 30,000 pictures, 100 rounds, small networks, one seed",
            (0,),
            for_two_cores,
        ),
        Profile(
            "smoke",
            "seconds a cell, on pictures inside the package; shows that everything works, no result",
            (0,),
            for_seconds,
            engine="serial",  # starting processes would take longer than such a run
            is_result=False,
        ),
    )
}


def find_profile(name: str) -> Profile:
    """Look a profile up, or refuse it with the nearest valid one."""
    if name not in PROFILES:
        raise ValueError(f"Unknown profile {name!r}; {nearest(name, PROFILES)}")
    return PROFILES[name]
