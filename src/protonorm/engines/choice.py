"""Parsing and validation of engine settings such as `ray:num_gpus=0.5`, and the default engine of small runs."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from annotated_types import Ge, Le
from pydantic import AllowInfNan

from protonorm.config.parsing import parse_value
from protonorm.core.registry import find
from protonorm.core.settings import dataclass, validated
from protonorm.core.text import shortened
from protonorm.core.training import own
from protonorm.core.types import STRICT, shown
from protonorm.engines import ENGINES

if TYPE_CHECKING:
    from protonorm.federation.population import SimulatedPopulation

Amount = Annotated[float, Ge(0), Le(1024), AllowInfNan(False)]

START = 8.0  # seconds that worker processes take to start, load torch and receive their first messages
COST = 3e-3  # core seconds per sample and epoch, for networks not in COSTS
COSTS = {"plain": 4e-4, "residual": 5e-4, "depthwise": 7e-4, "dense": 7e-4, "cnn4": 5e-4}
COSTS |= dict.fromkeys(("mlp", "mlp_small", "mlp_wide"), 5e-5)


class EngineChoice(NamedTuple):
    """Engine name and the settings for its constructor."""

    name: str
    settings: dict[str, Any]


def check_engine(engine: str | None, workers: int | None) -> EngineChoice | None:
    """Parse an engine; raise a ValueError if the engine or its number of workers is invalid."""
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ValueError(f"workers must be a whole number of at least 1, got {shown(workers)}.")
    choice = None if engine is None else read_engine(engine)
    if choice and choice.name == "serial" and (workers or 1) > 1:
        raise ValueError(f"workers must be 1 with the engine serial, which has one process, got {workers}.")
    return choice


def worth_processes(population: "SimulatedPopulation", rounds: int, cohort: int, workers: int) -> bool:
    """Return whether worker processes save more time than they take to start.

    The work is estimated from samples, epochs, rounds and networks, never measured, so that an experiment always uses
    the same engine on the same machine. Results are equal on every engine.
    """
    samples: list[int] = population.parts.sizes().sum(1).tolist()
    training = population.training

    def passes(id: int, count: int) -> float:
        steps = training.local_steps and own(training.local_steps, id)
        if not steps:
            return own(training.epochs, id)
        return steps if steps < 1 else steps * own(training.batch_size, id) / max(count, 1)

    seconds = sum(
        count * passes(id, count) * COSTS.get("mlp" if recipe.trunk else recipe.name, COST)
        for id, count in enumerate(samples)
        for recipe in [population.recipe(id)]
    )
    work = seconds * rounds * cohort / len(samples)
    return work * (1 - 1 / min(workers, cohort)) > START


def read_engine(word: str) -> EngineChoice:
    """Parse NAME or NAME:field=value,field=value; raise a ValueError for an unknown engine or setting."""
    name, colon, text = word.partition(":")
    extra = find(ENGINES, shortened(name), "engine").details.get("extra")
    if extra and find_spec(extra) is None:
        raise ValueError(
            f"The engine {name} needs a package that is not installed: pip install '.[{extra}]' in a checkout."
        )
    if not colon:
        return EngineChoice(name, {})
    if name != "ray":
        raise ValueError(f"The engine {name} has no settings, got {shown(word)}.")
    values: dict[str, Any] = {}
    for field in text.split(","):
        key, equals, value = field.partition("=")
        if not equals:
            raise ValueError(f"The engine's settings must be field=value, got {shown(field)} in {shown(word)}.")
        values[key.strip()] = parse_value(key, value)
    settings = validated(ActorSettings, values, f"The engine {name}", f"{name}:")
    return EngineChoice(name, {key: getattr(settings, key) for key in values})


@dataclass(frozen=True, config=STRICT)
class ActorSettings:
    """Cores and GPUs that Ray reserves per actor; fractions are allowed. An actor computes with a single thread."""

    num_cpus: Amount = 1.0
    num_gpus: Amount = 0.0

    def __post_init__(self) -> None:
        """Raise a ValueError for fractional GPUs above 1, and for actors without resources, which have no limit."""
        if self.num_gpus > 1 and not self.num_gpus.is_integer():
            raise ValueError(f"num_gpus above 1 must be a whole number, got {self.num_gpus:g}.")
        if not self.num_cpus and not self.num_gpus:
            raise ValueError("num_cpus and num_gpus must not both be 0.")

    def check_device(self, device: str) -> None:
        """Raise a ValueError if the device is a GPU but actors have none."""
        if device.startswith("cuda") and not self.num_gpus:
            raise ValueError(f"device must be cpu where actors have no GPU, got {device}; or: --engine ray:num_gpus=1.")

    def fit(self, cpus: float, gpus: float) -> int:
        """Return the number of actors that fit into the given resources."""
        limits = [cpus / self.num_cpus] if self.num_cpus else []
        limits += [gpus / self.num_gpus] if self.num_gpus else []
        return int(min(limits) + 1e-9)
