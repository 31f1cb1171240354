"""From an experiment to its task and its population."""

from __future__ import annotations

from protonorm.config.experiment import Experiment
from protonorm.core.model import SplitModel
from protonorm.core.randomness import seeded
from protonorm.core.task import InputSpec, Task
from protonorm.core.training import check_augmentation
from protonorm.data.dataset import Dataset
from protonorm.data.partitions.given import parts_of
from protonorm.federation.policy import Policy
from protonorm.federation.population import SimulatedPopulation, Training, own
from protonorm.models.choose import Network, Recipe, networks
from protonorm.models.widths import widest


def build(experiment: Experiment, dataset: Dataset | None = None) -> tuple[Task, SimulatedPopulation]:
    """Load the data, unless they are given, assign them to clients, and check that every network fits."""
    data = experiment.dataset.load() if dataset is None else dataset
    if not isinstance(data, Dataset):
        owner = type(experiment.dataset).__name__
        raise ValueError(f"load() of {owner} gives a {type(data).__name__}; expected a pn.Dataset.")
    check_augmentation(experiment.augment, data.inputs.shape[1:])
    recipes = [_recipe(experiment, data, item) for item in networks(experiment.models)]
    task = Task(
        algorithm=experiment.algorithm,
        classes=data.classes,
        feature_dim=_feature_dim(experiment),
        rounds=experiment.rounds,
        seed=experiment.seed,
        input=InputSpec(data.inputs.shape[1:], str(data.inputs.dtype), data.vocabulary),
        shared_network=_shared(experiment, data),
        head_bias=_has_bias(recipes[0]),
        server_lr=own(experiment.lr, 0),
        server_batch_size=own(experiment.batch_size, 0),
    )
    training = Training(
        validation=experiment.validation,
        lr=experiment.lr,
        momentum=experiment.momentum,
        weight_decay=experiment.weight_decay,
        epochs=experiment.epochs,
        batch_size=experiment.batch_size,
        shuffle=experiment.shuffle,
        device=experiment.device,
        precision=experiment.precision,
        optimiser=experiment.optimiser,
        lr_schedule=experiment.lr_schedule,
        label_smoothing=experiment.label_smoothing,
        clip=experiment.clip,
        augment=experiment.augment,
        start=experiment.start,
    )
    parts = parts_of(data, experiment.clients, experiment.partition, experiment.train)
    population = SimulatedPopulation(task, data, parts, recipes, training, data.client_names)
    population.check_networks()
    return task, population


def policy_of(experiment: Experiment, client_names: tuple[str, ...] | None = None) -> Policy:
    """Say who takes part in a round, who is evaluated, and when a round counts."""
    return Policy(
        clients=experiment.clients,
        cohort_size=experiment.cohort_size,
        evaluate=experiment.evaluate or "all",
        parts=evaluated_parts(experiment),
        solo=experiment.control == "solo",
        evaluate_every=experiment.evaluate_every,
        evaluate_all_every=experiment.evaluate_all_every,
        quorum=experiment.quorum,
        retries=experiment.retries,
        deadline=experiment.deadline,
        client_names=client_names,
    )


def evaluated_parts(experiment: Experiment) -> tuple[str, ...]:
    """Name the parts of the clients' samples that are counted; those that are not named are never looked at."""
    parts = {"validation": experiment.validation > 0, "test": experiment.tested}
    return tuple(part for part, wanted in parts.items() if wanted)


def _recipe(experiment: Experiment, data: Dataset, item: str | Network, width: int | None = None) -> Recipe:
    width = _feature_dim(experiment) if width is None else width
    return Recipe(item, data.shape, width, data.num_classes, experiment.lowered, experiment.device)


def _shared(experiment: Experiment, data: Dataset) -> Recipe | None:
    if experiment.algorithm.auxiliary:
        width = experiment.algorithm.auxiliary_dim(_feature_dim(experiment))
        return _recipe(experiment, data, experiment.auxiliary, width)
    if not experiment.algorithm.needs_shared_network:
        return None
    return _recipe(experiment, data, widest(networks(experiment.models)))


def _has_bias(recipe: Recipe) -> bool:
    with seeded(0, 0, 0, "template"):
        model: SplitModel = recipe()
    return any(name.rpartition(".")[2] == "bias" for name, _ in model.head.named_parameters())


def _feature_dim(experiment: Experiment) -> int:
    assert experiment.feature_dim is not None  # resolved when the experiment was made
    return experiment.feature_dim
