"""Build the task and the population of an experiment."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from protonorm.config.experiment import Experiment
from protonorm.core.node import COMMON
from protonorm.core.randomness import seeded
from protonorm.core.systems import System
from protonorm.core.task import Task
from protonorm.core.training import check_augmentation, own
from protonorm.data.dataset import Dataset
from protonorm.data.features import with_trunks
from protonorm.data.splits import noisy_labels, parts_of
from protonorm.federation.policy import Policy, draw_held_out
from protonorm.federation.population import SimulatedPopulation
from protonorm.models import widest
from protonorm.models.choose import Network, Recipe, networks

_loaded: ContextVar[dict[int, tuple[Any, Dataset]] | None] = ContextVar("loaded", default=None)


@contextmanager
def shared_data() -> Iterator[None]:
    """Share loaded data sets between experiments that are built inside this context and refer to the same object."""
    before = _loaded.set({})
    try:
        yield
    finally:
        _loaded.reset(before)


def build(experiment: Experiment, dataset: Dataset | None = None) -> tuple[Task, SimulatedPopulation]:
    """Build an experiment: load its data unless `dataset` is given, partition them, and check the networks."""
    data, algorithm, width = dataset, experiment.algorithm, experiment.feature_dim
    data = _load(experiment.dataset) if data is None else data
    assert width is not None  # resolved when the experiment was created
    check_augmentation(experiment.augment, data.inputs.shape[1:])

    def recipe(item: str | Network, width: int = width) -> Recipe:
        return Recipe(item, data.shape, width, data.num_classes, experiment.lowered, experiment.device)

    unfrozen = [recipe(item) for item in networks(experiment.models)]
    shared = recipe(widest(networks(experiment.models))) if algorithm.needs_shared_network else None
    if algorithm.auxiliary:
        shared = recipe(experiment.auxiliary, algorithm.auxiliary_dim(width))
    adapted, features = with_trunks([*unfrozen, *([shared] if shared else [])], data.inputs)
    recipes, shared = adapted[: len(unfrozen)], adapted[-1] if shared else None
    with seeded(0, 0, 0, "template"):
        head = recipes[0]().head
    task = Task(
        algorithm=algorithm,
        classes=data.classes,
        feature_dim=width,
        rounds=experiment.rounds,
        seed=experiment.seed,
        input=data.spec,
        shared_network=shared,
        head_bias=any(name.rpartition(".")[2] == "bias" for name, _ in head.named_parameters()),
        server_lr=own(experiment.lr, 0),
        server_batch_size=own(experiment.batch_size, 0),
        combine=experiment.combine,
        trunks=tuple(dict.fromkeys(recipe.trunk for recipe in recipes if recipe.trunk)),
        noise_length=experiment.protect.shared_length,
    )
    shares = experiment.train, experiment.split, experiment.validation
    parts = parts_of(data, experiment.clients, experiment.partition, *shares, experiment.common_test)
    names, held = data.client_names, data
    if experiment.label_noise != "none":
        wrong = noisy_labels(data.labels, data.num_classes, parts, experiment.label_noise, experiment.partition.seed)
        held = replace(data, labels=wrong)
    population = SimulatedPopulation(task, held, parts, recipes, experiment.training, names, features=features)
    population.check_networks()
    experiment.protect.check_rounds(task)
    if task.secure:
        task.check_members(1 if experiment.control == "solo" else experiment.cohort_size)
    if experiment.system.asynchronous and task.secure:
        raise ValueError("system.asynchronous must be false with combine=secure_sum, whose members are of one round.")
    if experiment.system.asynchronous and not task.combines:
        name = type(algorithm).__name__
        raise ValueError(f"system.asynchronous must be false for {name}, whose server does not add up messages.")
    return task, population


def _load(source: Any) -> Dataset:
    loaded = _loaded.get()
    if loaded is not None and id(source) in loaded:
        return loaded[id(source)][1]
    data = source.load()
    if not isinstance(data, Dataset):
        raise ValueError(f"load() of {type(source).__name__} gives a {type(data).__name__}; expected a pn.Dataset.")
    if loaded is not None:
        loaded[id(source)] = source, data  # keep the source alive: its id must not be reused
    return data


def policy_of(experiment: Experiment, client_names: tuple[str, ...] | None = None) -> Policy:
    """Return the policy of an experiment: cohort, evaluation schedule, quorum, retries and deadline."""
    parts = ["validation"] if experiment.validation > 0 else []  # parts that are not named are never read
    parts += ["test"] if experiment.tested else []
    parts += [COMMON] if experiment.tested and experiment.common_test != "none" else []
    held_out = draw_held_out(experiment.seed, experiment.clients, experiment.held_out_clients)
    return Policy(
        clients=experiment.clients,
        cohort_size=experiment.cohort_size,
        evaluate=experiment.evaluate or "all",
        parts=tuple(parts),
        solo=experiment.control == "solo",
        evaluate_every=experiment.evaluate_every,
        evaluate_all_every=experiment.evaluate_all_every,
        quorum=experiment.quorum,
        retries=experiment.retries,
        deadline=experiment.deadline,
        client_names=client_names,
        by_cell=experiment.keep_classes,
        held_out=held_out,
        system=None if experiment.system == System() else experiment.system,
        last_round=experiment.algorithm.last_round,
    )
