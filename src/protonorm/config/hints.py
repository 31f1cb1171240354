"""Hints for misplaced settings and for names that other tools use.

The names are those of PFLlib and HtFLlib, Flower, fluke and others, in lower case, with _ for - and for spaces. Names
with a spelling close to a setting are left to `nearest`, which compares spellings.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from protonorm.config.kinds import COMPONENTS, KINDS
from protonorm.core.own_code import load_own
from protonorm.core.settings import known_fields
from protonorm.core.text import shortened

OURS: dict[str, str] = {  # setting: names in other tools, separated by spaces
    "algorithm": "method strategy aggregator aggregation server_strategy",
    "partition": "split_type heterogeneity niid noniid iid sampling_method",
    "partition.alpha": "dirichlet_alpha dir_alpha dirichlet alpha_dirichlet concentration dirichlet_beta",
    "partition.classes_per_client": "class_per_client shards shards_per_client n_classes_per_client classes_per_node",
    "models": "net network networks model_heterogeneity architecture arch backbone",
    "auxiliary": "meme student student_model teacher global_model",
    "feature_dim": "d dim embedding_size hidden_dim",
    "clients": "m nc num_users n_users num_nodes num_supernodes num_partitions n_parties num_parties",
    "participation": "c join_ratio jr frac fraction fraction_fit fraction_train eligible_perc sample_ratio "
    "sampling_rate client_fraction clients_per_round client_num_per_round num_clients_per_round min_fit_clients",
    "rounds": "r gr global_epochs communication_rounds",
    "epochs": "e local_ep ls client_epochs local_epochs local_training_epochs",
    "local_steps": "local_iterations local_updates tau",
    "batch_size": "b bs lbs local_bs",
    "lr": "learning_rate local_learning_rate local_lr client_lr client_learning_rate eta optimizer_lr step_size",
    "lr_schedule": "learning_rate_decay lr_decay ld sched learning_rate_decay_gamma lr_decay_gamma",
    "lr_schedule.warmup": "warmup_rounds warmup_epochs",
    "weight_decay": "wd l2 l2_reg",
    "clip": "gradient_clip max_norm max_grad_norm clip_grad_norm clipping_norm",
    "augment": "transform transforms",
    "train": "train_fraction test_size test_split client_split",
    "validation": "val val_size client_val_split",
    "seed": "random_state",
    "early_stopping": "patience auto_break",
    "evaluate": "fraction_eval eval_clients",
    "evaluate_every": "eval_gap eg eval_interval eval_freq eval_each",
    "quorum": "min_available_clients min_clients accept_failures min_replies",
    "deadline": "timeout round_timeout",
    "device": "gpu gpus cuda gpu_id did use_cuda use_gpu",
    "precision": "dtype amp fp16 bf16 half",
    "algorithm.lam": "lambda lamda lambd lambda_ lamb proto_weight lam_proto",
    "algorithm.tau": "margin margin_threshold margin_threthold",
    "algorithm.server_epochs": "se server_epoch",
    "algorithm.server_lr": "slr server_learning_rate",
}

OTHERS: dict[str, str] = {alias: setting for setting, names in OURS.items() for alias in names.split()}

NO_SETTINGS: dict[str, str] = {  # hint: names that are not settings, separated by spaces
    "who follows a run is tracker=… of pn.run, and of the commands.": "tracker logger wandb tensorboard use_wandb",
    "the data say how many classes there are.": "num_classes n_classes ncl nb_classes",
    "where runs are kept is the option --out, and out=… of pn.run.": (
        "out output output_dir out_dir save_dir log_dir results results_dir save_folder_name"
    ),
    "how many processes are used is the option --workers, and workers=… of pn.run.": (
        "workers num_workers n_workers n_jobs processes num_cpus"
    ),
    "where clients live is the option --engine, and engine=… of pn.run.": "engine backend client_resources",
    "one run has one seed=…; `compare` and `sweep` take several, as seeds=0,1,2.": (
        "seeds times n_seeds num_seeds repeats trials n_runs"
    ),
    "the loss is a part of the algorithm; `protonorm list algorithms` has them.": "loss criterion loss_fn",
    "networks begin with random weights; one of your own, file.py:function, may load others.": "pretrained weights",
}

MISSPELT = 0.7  # similarity from which a name may be another one misspelt
OTHER_KINDS = ("dataset", "partition")  # whose settings may be called as those of a method

REMARKS: dict[str, str] = {name: remark for remark, names in NO_SETTINGS.items() for name in names.split()}


def hint(name: str, settings: Mapping[str, Any]) -> str | None:
    """Return a hint for an unknown setting of an experiment; None to fall back to similar spellings."""
    plain = plain_name(name)
    places = list(_places(settings))
    paths = [path for path in places if path.endswith(f".{plain}")]
    paths += [OTHERS[plain]] if plain in OTHERS else []
    if not paths and plain not in REMARKS and not difflib.get_close_matches(plain, _settings(), cutoff=MISSPELT):
        close = difflib.get_close_matches(plain, [path.rpartition(".")[2] for path in places], 1, MISSPELT)
        paths = [path for path in places if close and path.endswith(f".{close[0]}")]
    if paths:
        return f"did you mean {' or '.join(repr(shortened(path)) for path in paths)}?"
    return REMARKS.get(plain)


def hint_inside(name: str, kind: str, fields: Iterable[str]) -> str | None:
    """Return a hint for an unknown setting of a component; None if there is none."""
    plain = plain_name(name)
    if (plain, kind) == ("label", "algorithm"):
        return "label=… names a row of `protonorm compare`, and nothing elsewhere."
    if plain in _settings():
        return f"{plain!r} is a setting of the experiment itself: {plain}=…."
    meant = OTHERS.get(plain, "")
    if meant in _settings():
        return f"did you mean {meant!r}, a setting of the experiment itself?"
    owner, _, field = meant.partition(".")
    return f"did you mean {field!r}?" if owner == kind and field in fields else None


def hint_dotted(name: str) -> str | None:
    """Return a hint for owner.field with an unknown owner, such as optimizer.lr."""
    plain = plain_name(name.rpartition(".")[2])
    close = difflib.get_close_matches(plain, _settings(), n=1, cutoff=0.5)
    return (hint(plain, {}) if plain else None) or (f"did you mean {close[0]!r}?" if close else None)


def plain_name(name: str) -> str:
    """Normalise a name to the spelling of these tables."""
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def _settings() -> Iterable[str]:
    from protonorm.config.experiment import Experiment

    return Experiment.model_fields


def is_method_setting(name: str, methods: Iterable[Any], settings: Mapping[str, Any]) -> bool:
    """Return whether a name without owner, such as gamma, means a setting of methods: nothing else has the name."""
    if name in _settings() or any(
        name in known_fields(component_class(kind, settings.get(kind))) for kind in OTHER_KINDS
    ):
        return False
    first, _, inner = name.partition(".")
    fields = [known_fields(component_class("algorithm", method)) for method in methods]
    return any(first in own and (not inner or inner in own[first]) for own in fields)


def _places(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings of the chosen components, named as on the command line: algorithm.schedule.eta."""
    from protonorm.core.systems import System
    from protonorm.core.training import LrSchedule

    chosen = {kind: component_class(kind, settings.get(kind)) for kind in COMPONENTS}
    chosen |= {"lr_schedule": LrSchedule, "system": System}
    for owner, cls in chosen.items():
        for field, inner in known_fields(cls).items():
            yield f"{owner}.{field}"
            yield from (f"{owner}.{field}.{name}" for name in inner)


def component_class(kind: str, value: Any) -> Any:
    """Return the class of a component as given; None if it cannot be determined."""
    if value is not None and not isinstance(value, str | Mapping):
        return type(value)
    name = value if isinstance(value, str) else (value or {}).get("name", KINDS[kind].default)
    if ".py:" in str(name):
        with suppress(ValueError):
            return load_own(":".join(str(name).split(":")[:2]), kind)
    entry = KINDS[kind].table().get(str(name).partition(":")[0])
    return entry.load() if entry else None
