"""The `Experiment`: validated, frozen settings of a run, and the run's key."""

import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cached_property, partial
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_type_hints

import torch
from pydantic import (
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticSerializationError

from protonorm.config.changes import differences
from protonorm.config.components import build, describe
from protonorm.config.hints import hint
from protonorm.config.kinds import KINDS
from protonorm.config.parsing import check_plain
from protonorm.core.algorithm import Algorithm
from protonorm.core.own_failures import error_text
from protonorm.core.robust import Rule
from protonorm.core.settings import sentences
from protonorm.core.systems import System, SystemSettings
from protonorm.core.text import html_table, shortened
from protonorm.core.training import Training, refuse_augmentation
from protonorm.core.types import Below1, Count, Fraction, Positive, Seed, Share, Whole, Width, shown
from protonorm.data import DATASETS
from protonorm.data.partitions import Given
from protonorm.data.splits import LabelNoise
from protonorm.errors import Failed
from protonorm.models import SCALABLE, base_and_width, is_frozen
from protonorm.models.choose import (
    Choice,
    chosen,
    default_width,
    describe_choice,
    described,
    family_of,
    named,
    networks,
)
from protonorm.models.lowering import check_compile

FORMAT = 3  # version of a run's files; part of the key
UNDECISIVE = ("retries", "state_memory")  # settings that do not affect results, and so are not in the key
LONGEST = 60  # bytes of a component of a key
GIVEN = "_given"  # attribute outside the fields with the settings as given; ignored when experiments are compared
LATER = {  # settings that were added later, with their defaults
    "evaluate_all_every": None,
    "start": "own",
    "protect": {"name": "none"},
    "last_batch": "drop",
    "split": "random",
    "combine": "mean",
    "metrics": "usual",
    "local_steps": None,
    "optimiser_state": "new",
    "common_test": "none",
    "held_out": 0.0,
    "keep_prototypes": "some",
    "keep_client_prototypes": "none",
    "keep_classes": False,
    "label_noise": "none",
    "system": asdict(System()),
    "state_memory": 512,
    "compile": False,
}
TORCH_MESSAGE = 120  # characters of an error message of torch
MANY = 200  # clients above which only a round's cohort is evaluated by default, and all clients periodically
ALL_EVERY = 50  # default rounds between evaluations of all clients in that case


class Experiment(Training):
    """Settings that determine a run's results, and how the run handles clients that do not reply.

    Experiments are frozen and validated. `algorithm`, `dataset` and `partition` accept a name, a dict of a name and
    settings, or an object.

    Raises:
        ValueError: A setting is unknown or out of range.

    ```python
    import protonorm as pn

    experiment = pn.Experiment(algorithm=pn.ProtoNorm(gamma=10), dataset={"name": "spiral", "points": 100}, rounds=5)
    other = pn.Experiment.of({"algorithm": "fedproto", "dataset": "spiral", "lr": [0.01, 0.02]})
    ```
    """

    algorithm: Any = Field(default="protonorm", description="the method and its hyper-parameters")
    dataset: Any = Field(default="fashion", description="the data set and its settings, or a Dataset")
    partition: Any = Field(default="dirichlet", description="how the samples are assigned to the clients")
    label_noise: LabelNoise = Field(default="none", description="wrong labels to train on: symmetric:0.4, pair:0.4, …")
    models: Any = Field(default=None, description="a family, or networks: client i takes number i mod n")
    auxiliary: Any = Field(default=None, description="second network of FML, FedKD and FedMRL; the first of the models")
    feature_dim: Width | None = Field(default=None, description="d, width of the decision layer; None is the family's")
    clients: Count = Field(default=20, description="how many clients there are, M")
    participation: Fraction = Field(default=1.0, description="share of the clients that train in a round")
    rounds: Whole = Field(default=20, description="how many rounds, R; 0 records the split without training")
    tested: bool = Field(default=True, description="whether test parts are evaluated; not while settings are searched")
    common_test: Literal["none", "official"] | Share = Field(
        default="none", description="samples that test all clients: the official test split, or a share of each class"
    )
    held_out: Below1 = Field(default=0.0, description="share of the clients, drawn at random, that never train")
    seed: Seed = Field(default=0, description="of all but data and partition, which have their own")
    control: Literal["none", "solo"] = Field(default="none", description="solo: clients federate with themselves alone")
    combine: Rule = Field(
        default="mean",
        description="of messages: mean, median, trimmed:0.2, geometric_median, bounded, cosine or secure_sum",
    )
    early_stopping: Count | None = Field(default=None, description="evaluations without a better one that end a run")
    evaluate: Literal["all", "cohort"] | None = Field(
        default=None, description="who is evaluated: everybody, or the round's cohort; the cohort above 200 clients"
    )
    evaluate_every: Count = Field(default=1, description="rounds between evaluations; the last is always evaluated")
    evaluate_all_every: Count | None = Field(
        default=None, description="rounds between evaluations of everybody, and in the last one, with evaluate=cohort"
    )
    keep_prototypes: Annotated[str, StringConstraints(pattern=r"^(some|all|every:[1-9]\d{0,8})$")] = Field(
        default="some", description="rounds whose global prototypes are kept: some (at most 50), all, or every:N"
    )
    keep_client_prototypes: Annotated[str, StringConstraints(pattern=r"^(none|all|every:[1-9]\d{0,8})$")] = Field(
        default="none", description="rounds whose clients' own prototypes are kept: none, all, or every:N"
    )
    keep_classes: bool = Field(default=False, description="whether right answers are kept by client and class together")
    quorum: Fraction = Field(default=1.0, description="share of the cohort that must reply for a round to count")
    retries: Whole = Field(default=2, description="further tries of a round without a quorum")
    system: SystemSettings = Field(default={}, description="simulated delays and failures, and who is waited for")
    deadline: Positive | None = Field(default=None, description="seconds of a round after which clients are lost")
    state_memory: Whole = Field(
        default=512, description="megabytes of clients' states in main memory, and of their copies on a device"
    )

    _changed: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Create an experiment from a mapping of settings; raise ValueError if one is unknown or out of range."""
        if not isinstance(settings, Mapping):
            raise ValueError(f"An experiment needs settings, such as {{'rounds': 5}}, got {shown(settings)}.")
        try:
            return cls.model_validate(dict(settings))
        except ValidationError as error:
            raise ValueError(_complaint(error, settings)) from None

    if not TYPE_CHECKING:  # type checkers derive the signature from the fields

        def __init__(self, **settings):
            """Create an experiment from its settings; raise ValueError if a setting is invalid."""
            try:
                super().__init__(**settings)
            except ValidationError as error:
                raise ValueError(_complaint(error, settings)) from None

        __init__.__pydantic_base_init__ = True  # lets pydantic skip this wrapper in model_validate

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other settings, which is validated and has its own key."""
        if not update:
            return super().model_copy(deep=deep)
        return type(self).of(self.__dict__.get(GIVEN, self._as_set()) | dict(update))

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Return the experiment as plain data.

        Settings that were added later are left out if they have their default: older records and keys stay valid.

        Raises:
            ValueError: A component cannot be described; errors of the data set are raised unchanged.
        """
        try:
            plain = super().model_dump(**options)
        except PydanticSerializationError as error:
            raise _cause_of(error) from error.__cause__
        listed = sorted(plain, key=Training.model_fields.__contains__)  # method and data before the training settings
        return {name: plain[name] for name in listed if name not in LATER or plain[name] != LATER[name]}

    def model_dump_json(self, *, indent: int | None = None, **options: Any) -> str:
        """Return the experiment as JSON."""
        return json.dumps(self.model_dump(mode="json", **options), indent=indent, ensure_ascii=False)

    @model_validator(mode="before")
    @classmethod
    def _check_plain(cls, settings: Any) -> Any:
        check_plain(settings)
        return settings

    @field_validator("algorithm", "dataset", "partition")
    @classmethod
    def _build(cls, value: Any, info: Any) -> Any:
        component = build(info.field_name, value)
        if info.field_name == "algorithm" and not isinstance(component, Algorithm):
            raise ValueError(f"{shown(value)} is not an algorithm: expected a name or an object of pn.Algorithm.")
        return component

    @field_validator("device")
    @classmethod
    def _check_device(cls, value: str) -> str:
        check_device(value)
        return value

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        """Fill in defaults that depend on other settings, so that records are complete; in `vars`, as it is frozen."""
        self.__dict__.setdefault(GIVEN, self._as_set())  # pydantic may validate an existing experiment again
        dataset = getattr(self.dataset, "name", None) or describe("dataset", self.dataset)["name"]
        family = getattr(self.dataset, "models", None)  # the family declared by a user's data set
        family = family or (DATASETS[dataset].details["models"] if dataset in DATASETS else "light")
        choice = chosen(family if self.models is None else self.models)
        models = family_of(choice)
        self._take_over_clients()
        evaluated = _evaluated(self.evaluate, self.evaluate_all_every, self.evaluate_every, self.clients)
        vars(self).update(models=models, feature_dim=self.feature_dim or default_width(choice), **evaluated)
        vars(self).update(algorithm=self.algorithm.adapted(dataset, [named(item) for item in networks(models)]))
        vars(self).update(auxiliary=_second_network(self.auxiliary, self.algorithm, models))
        if self.algorithm.needs_shared_network:
            self._refuse_different_networks()
        frozen = [named(item) for item in networks(self.models) if is_frozen(item)]
        if frozen:
            refuse_augmentation(frozen[0], self.augment)
        if self.auxiliary is not None and len(frozen) != (
            len(networks(self.models)) if is_frozen(self.auxiliary) else 0
        ):
            raise ValueError(
                f"auxiliary and all models must have frozen trunks, or none of them: auxiliary={named(self.auxiliary)} "
                f"is beside models={shown(describe_choice(self.models))}."
            )
        if self.early_stopping and not self.validation:
            raise ValueError("early_stopping needs a validation part; validation=0 turns it off.")
        if self.held_out and not self.held_out_clients:
            raise ValueError(f"held_out must hold out a client, got {self.held_out:g} of {self.clients} clients.")
        if not self.tested and not self.validation:
            raise ValueError("tested=false needs a validation part: with validation=0 nothing would be evaluated.")
        check_compile(self.compile, self.device)
        self._check_system(self.system)
        usual_settings: dict[str, Any] = {"models": chosen(family), "feature_dim": default_width(models)}
        by_default = evaluated == _evaluated(None, None, self.evaluate_every, self.clients)
        usual_settings |= evaluated if by_default else dict.fromkeys(evaluated)  # both are listed as changed
        self._changed.update(differences(self, dataset, usual_settings))
        return self

    def _refuse_different_networks(self) -> None:
        """Raise ValueError for different networks; some methods allow different widths of one."""
        name, widths, items = type(self.algorithm).__name__, self.algorithm.widths, networks(self.models)
        count = len({base_and_width(item)[0] if widths and isinstance(item, str) else item for item in items})
        needed = f"{name} averages whole models, so that all clients need the same network"
        if widths:
            needed = f"{name} cuts the clients' networks out of one, so that all need the same network at some width, "
            needed += f"such as models={SCALABLE[0]}@1,0.5,0.25"
        if count > 1:
            raise ValueError(f"{needed}, but models={shown(describe_choice(self.models))} has {count} different ones.")

    def _check_system(self, system: System) -> None:
        """Raise ValueError if a simulated system does not fit the other settings."""
        if not system.asynchronous:
            if (system.dropout or system.deadline) and self.quorum == 1:
                raise ValueError("system.dropout and system.deadline need quorum below 1, such as quorum=0.5.")
            return
        if self.control == "solo" or self.algorithm.last_round:
            reason = "is finished after fixed rounds" if self.control == "none" else "has no server with control=solo"
            raise ValueError(f"system.asynchronous must be false for {type(self.algorithm).__name__}, which {reason}.")
        if system.deadline:
            raise ValueError(
                "system.deadline must be left out with system.asynchronous: system.staleness bounds delays."
            )

    def _as_set(self) -> dict[str, Any]:
        """Return the explicitly given settings with their current values."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    def _take_over_clients(self) -> None:
        """Set `clients` and `partition` from data that are already assigned to clients."""
        count = getattr(self.dataset, "clients", None)
        if not isinstance(count, int):
            return
        if "clients" in self.model_fields_set and self.clients != count:
            raise ValueError(f"clients must be {count}, to whom the data belong already, got {self.clients}.")
        if "partition" in self.model_fields_set and not isinstance(self.partition, Given):
            warnings.warn("The data belong to clients already: of the partition only the seed counts.", stacklevel=2)
        vars(self).update(clients=count, partition=Given(self.partition.seed))

    @field_serializer("algorithm", "dataset", "partition", "models", "auxiliary")
    def _describe(self, value: Any, info: Any) -> Any:
        if info.field_name == "models":
            return describe_choice(value)
        if info.field_name == "auxiliary":
            return None if value is None else described(value)
        return describe(info.field_name, value)

    @property
    def changed(self) -> dict[str, Any]:
        """Settings that differ from their defaults, named as on the command line, as plain data."""
        names = json.dumps(self._changed, default=lambda value: named(value) if callable(value) else str(value))
        return dict(json.loads(names))

    def _summary(self) -> dict[str, str]:
        """Format the method, the data set, and all settings that differ from their defaults."""
        first = {kind: KINDS[kind].default for kind in ("algorithm", "dataset")}
        return {name: shortened(str(value)) for name, value in (first | self.changed).items()}

    def __repr__(self) -> str:
        """Return a single line with the method, the data set, and settings that differ from their defaults."""
        return f"Experiment({', '.join(f'{name}={value}' for name, value in self._summary().items())})"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """Return the settings of `repr` as an HTML table for notebooks."""
        rows = list(self._summary().items())
        return html_table("Experiment", ["setting", "value"], rows, "All other settings are the usual ones.")

    @property
    def cohort_size(self) -> int:
        """Number of clients in a round, at least 1."""
        return max(1, int(self.participation * (self.clients - self.held_out_clients) + 1e-9))

    @property
    def held_out_clients(self) -> int:
        """Number of clients that never train; at least one is left."""
        return min(int(self.held_out * self.clients + 1e-9), self.clients - 1)

    @property
    def depends_on_rounds(self) -> bool:
        """Whether a round depends on the total number of rounds; if not, a run can be extended later."""
        every = (self.evaluate_every, self.evaluate_all_every or 1)
        last_is_extra = any(self.rounds % interval for interval in every)  # evaluated only because it is the last round
        return bool(self.algorithm.depends_on_rounds or self.lr_schedule.depends_on_rounds or last_is_extra)

    @cached_property
    def key(self) -> str:
        """Name of the run: readable words, and a hash of all settings that affect results."""
        return key_of(self._decisive(()), self.seed)

    def key_with(self, dataset: Mapping[str, Any]) -> str:
        """Return the key with the data set of a record, so that the record can be identified without the data."""
        return key_of(self._decisive(("dataset",)) | {"dataset": dict(dataset)}, self.seed)

    def _decisive(self, left_out: Iterable[str]) -> dict[str, Any]:
        """Return all settings that affect results, except those left out."""
        excluded = {*left_out, *UNDECISIVE, *(() if self.depends_on_rounds else ("rounds",))}
        excluded |= {"tested"} if self.tested else set()  # a run without test results has another key
        return self.model_dump(mode="json", exclude=excluded)


def _signature() -> Signature:
    """Build a signature of keywords with plain types, because pydantic's lists the bounds of each."""
    types, kind = get_type_hints(Experiment), Parameter.KEYWORD_ONLY
    fields = sorted(Experiment.model_fields.items(), key=lambda item: item[0] in Training.model_fields)
    return Signature([Parameter(name, kind, default=field.default, annotation=types[name]) for name, field in fields])


Experiment.__signature__ = _signature()


def check_device(name: str) -> None:
    """Raise ValueError for an invalid device name or a device that is not available."""
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", name):
        raise ValueError(f"device must be cpu, cuda or cuda:1, got {shown(name)}.")
    if name != "cpu" and (problem := _device_problem(name)):
        raise ValueError(f"device={name!r} cannot be used here: {problem}; cpu always can.")


def _device_problem(name: str) -> str:
    """Return why a device cannot be used; empty if it can."""
    if not torch.backends.cuda.is_built():
        return "this torch was built without CUDA"
    if not (count := torch.cuda.device_count()):
        return "torch finds no GPU"
    if int(name.partition(":")[2] or 0) >= count:
        return f"torch finds {count} GPU{'s' if count > 1 else ''}, counted from 0"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        first = re.split(r"[\n.;:]\s", str(error), maxsplit=1)[0]  # the rest describes torch internals
        return shortened(first, TORCH_MESSAGE) or "torch does not say why"
    return ""


def _evaluated(evaluate: str | None, all_every: int | None, every: int, clients: int) -> dict[str, Any]:
    """Fill in missing evaluation settings; by default all clients are evaluated at most as often as the cohort."""
    if evaluate == "all" and all_every is not None:
        raise ValueError(f"evaluate_all_every must be left out with evaluate=all, got {all_every}; it is for cohort.")
    if evaluate is None and all_every is None:
        evaluate, all_every = ("all", None) if clients <= MANY else ("cohort", max(ALL_EVERY, every))
    return {"evaluate": evaluate or "cohort", "evaluate_all_every": all_every}


def _second_network(choice: Any, algorithm: Algorithm, models: Choice) -> Any:
    """Return the second network of a method that uses one: the given network, or the first of the models."""
    if not algorithm.auxiliary:
        if choice is not None:
            name = type(algorithm).__name__
            raise ValueError(
                f"auxiliary must be left out for {name}, which has no second network, got {shown(choice)}."
            )
        return None
    candidates = networks(models)[:1] if choice is None else networks(chosen(choice, "auxiliary"))
    if len(candidates) > 1:
        raise ValueError(f"auxiliary must be one network, got {len(candidates)}: {shown(choice)}.")
    return candidates[0]


def _complaint(error: ValidationError, settings: Mapping[str, Any]) -> str:
    """Format the validation errors of an experiment."""
    return sentences(error, Experiment.model_fields, "An experiment", hint=partial(hint, settings=settings))


def key_of(decisive: Mapping[str, Any], seed: int) -> str:
    """Build a key from readable words and a hash of all settings that affect results."""
    plain = {"format": FORMAT, **decisive}
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:10]
    words = [plain["algorithm"]["name"], plain["dataset"]["name"], f"seed{seed}", digest]
    plain_words = [re.sub(r"[^\w.-]+", "-", word.split(":")[-1].lower()) for word in words]  # Name of file.py:Name
    return "-".join(word.encode()[:LONGEST].decode(errors="ignore") for word in plain_words)


def _cause_of(error: BaseException) -> Exception:
    """Return the original error of a component that could not be described, such as unreadable data."""
    cause: BaseException = error
    while isinstance(cause, PydanticSerializationError) and cause.__cause__:
        cause = cause.__cause__
    if isinstance(cause, ValueError | OSError | Failed) and not isinstance(cause, PydanticSerializationError):
        return cause
    return ValueError(f"The settings cannot be written down: {error_text(cause)}")
