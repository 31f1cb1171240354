"""An experiment: frozen, validated plain data, and its key."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import torch
from annotated_types import Ge, Le, MinLen
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from protonorm.config.components import build, describe, known_fields, sentences
from protonorm.config.devices import check_device
from protonorm.config.differences import differences, plain_values
from protonorm.config.elsewhere import hint
from protonorm.config.evaluating import usual_values, who_is_evaluated
from protonorm.config.fitting import refuse_contradictions, second_network
from protonorm.config.keys import UNDECISIVE, key_of
from protonorm.config.kinds import KINDS
from protonorm.config.plain import check_plain
from protonorm.config.writing import own_words
from protonorm.core.algorithm import Algorithm
from protonorm.core.html import html_table
from protonorm.core.training import Augmentation, LrSchedule, Optimiser
from protonorm.core.types import (
    LARGEST,
    NOT_TRUTH,
    Below1,
    Count,
    Fraction,
    NonNegative,
    Positive,
    Seed,
    Share,
    Whole,
    Width,
    shortened,
    shown,
)
from protonorm.data import DATASETS
from protonorm.data.partitions.given import Given
from protonorm.models.choose import chosen, describe_choice, described, family_of, named, networks, usual_width

Size = Annotated[int, Ge(2), Le(LARGEST), NOT_TRUTH]  # of a batch: batch norm needs two samples

Precision = Literal["float32", "bfloat16"]

GIVEN = "_given"  # beside the fields: settings as they came, which do not make equal experiments unequal
LATER: dict[str, Any] = {"evaluate_all_every": None, "start": "own"}  # settings that came later, and their usual values


class Experiment(BaseModel):
    """Everything that decides a run's numbers, and how it deals with clients that do not answer.

    It is frozen and checked: a setting that is unknown or out of range raises a ValueError that says what was expected.
    `algorithm`, `dataset` and `partition` take a name, a dict of a name and settings, or an object.

    ```python
    import protonorm as pn

    experiment = pn.Experiment(algorithm=pn.ProtoNorm(gamma=10), dataset={"name": "spiral", "points": 100}, rounds=5)
    other = pn.Experiment.of({"algorithm": "fedproto", "dataset": "spiral", "lr": [0.01, 0.02]})
    ```
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    algorithm: Any = Field("protonorm", description="the method and its hyper-parameters")
    dataset: Any = Field("fashion", description="the data set and its settings, or a Dataset")
    partition: Any = Field("dirichlet", description="how the samples are assigned to the clients")
    models: Any = Field(None, description="a family, or networks: client i takes number i mod n")
    auxiliary: Any = Field(
        None, description="the second network of FML, FedKD and FedMRL; the first of the models if not given"
    )
    # epochs, batch_size and lr are one value for all, or a list: client i takes number i mod n
    feature_dim: Width | None = Field(None, description="d, the width of the decision layer; the family's if not given")
    clients: Count = Field(20, description="how many clients there are, M")
    participation: Fraction = Field(1.0, description="share of the clients that train in a round")
    rounds: Whole = Field(20, description="how many rounds, R")
    epochs: Count | Annotated[tuple[Count, ...], MinLen(1)] = Field(1, description="local epochs a round")
    batch_size: Size | Annotated[tuple[Size, ...], MinLen(1)] = Field(32, description="samples of a batch, B")
    lr: Positive | Annotated[tuple[Positive, ...], MinLen(1)] = Field(
        0.01, description="learning rate of the clients' SGD"
    )
    momentum: Below1 = Field(0.0, description="of the clients' SGD")
    weight_decay: NonNegative = Field(0.0, description="of the clients' optimiser")
    optimiser: Optimiser = Field("sgd", description="of the clients, new in every round: sgd, adam or adamw")
    lr_schedule: Any = Field("constant", description="the learning rate over the rounds, and its settings")
    label_smoothing: Below1 = Field(
        0.0, description="share of each label that all classes get alike, in the clients' cross-entropies"
    )
    clip: Positive | None = Field(None, description="bound of the norm of all of a client's gradients together")
    augment: Augmentation = Field("none", description="pictures that train: mirrored (flip), and moved (crop+flip)")
    start: Literal["own", "equal"] = Field(
        "own", description="of clients' own networks: weights of their own before round 1, or equal for equal networks"
    )
    shuffle: bool = Field(True, description="new batches each epoch; the authors' code keeps one order")
    train: Share = Field(0.75, description="share of a client's samples to train on; the others test")
    validation: Below1 = Field(
        0.1, description="share of the training part held out to choose rounds and settings; 0 for none"
    )
    tested: bool = Field(
        True, description="whether the test parts are evaluated; false while settings are searched for"
    )
    seed: Seed = Field(0, description="of all but data and partition, which have their own")
    control: Literal["none", "solo"] = Field(
        "none", description="solo: each client federates with itself alone, all else equal"
    )
    early_stopping: Count | None = Field(
        None, description="evaluations without a better validation accuracy after which a run ends"
    )
    evaluate: Literal["all", "cohort"] | None = Field(
        None, description="who is evaluated: everybody, or the round's cohort; the cohort above 200 clients"
    )
    evaluate_every: Count = Field(1, description="rounds between evaluations; the last round is always evaluated")
    evaluate_all_every: Count | None = Field(
        None, description="rounds between evaluations of everybody, and in the last one, with evaluate=cohort"
    )
    quorum: Fraction = Field(1.0, description="share of the cohort that must reply for a round to count")
    retries: Whole = Field(2, description="further tries of a round without a quorum")
    deadline: Positive | None = Field(None, description="seconds that clients have in a round; late ones are lost")
    device: str = Field("cpu", description="where to compute: cpu, cuda, cuda:1")
    precision: Precision = Field("float32", description="of the networks' products: float32 or bfloat16")
    lowering: bool = Field(True, description="exact forms of convolutions that a CPU computes faster")

    _changed: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Make an experiment from plain data, or say in sentences what is wrong with it."""
        if not isinstance(settings, Mapping):
            raise ValueError(f"{shown(settings)} is refused: expected a mapping of settings, such as {{'rounds': 5}}.")
        try:
            return cls.model_validate(dict(settings))
        except ValidationError as error:
            raise ValueError(_complaint(error, settings)) from None

    if not TYPE_CHECKING:  # so that checkers see the fields

        def __init__(self, **settings):
            """Make an experiment from its settings, or say in sentences what is wrong with them."""
            try:
                super().__init__(**settings)
            except ValidationError as error:
                raise ValueError(_complaint(error, settings)) from None

        __init__.__pydantic_base_init__ = True  # what is read from plain data need not pass here

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy it with other settings: an experiment of its own, which is checked and has a key of its own."""
        if not update:
            return super().model_copy(deep=deep)
        return type(self).of(self.__dict__.get(GIVEN, self._as_set()) | dict(update))

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Write it as plain data; what is wrong with its data is said as they say it.

        A setting that came later is left out unless it was changed: records and keys from before stay as they are.
        """
        with own_words():
            plain = super().model_dump(**options)
        return {name: value for name, value in plain.items() if name not in LATER or value != LATER[name]}

    def model_dump_json(self, *, indent: int | None = None, **options: Any) -> str:
        """Write it as JSON."""
        return json.dumps(self.model_dump(mode="json", **options), indent=indent, ensure_ascii=False)

    @model_validator(mode="before")
    @classmethod
    def _check_plain(cls, given: Any) -> Any:
        check_plain(given)
        return given

    @field_validator("algorithm")
    @classmethod
    def _build_algorithm(cls, value: Any) -> Any:
        algorithm = build("algorithm", value)
        if not isinstance(algorithm, Algorithm):
            raise ValueError(
                f"{shown(value)} is not an algorithm: expected a name or an object of a class of pn.Algorithm."
            )
        return algorithm

    @field_validator("dataset")
    @classmethod
    def _build_dataset(cls, value: Any) -> Any:
        return build("dataset", value)

    @field_validator("partition")
    @classmethod
    def _build_partition(cls, value: Any) -> Any:
        return build("partition", value)

    @field_validator("lr_schedule")
    @classmethod
    def _build_schedule(cls, value: Any) -> Any:
        try:
            return TypeAdapter(LrSchedule).validate_python({"name": value} if isinstance(value, str) else value)
        except ValidationError as error:
            raise ValueError(sentences(error, known_fields(LrSchedule), "lr_schedule", "lr_schedule.")) from None

    @field_validator("device")
    @classmethod
    def _check_device(cls, value: str) -> str:
        check_device(value)
        return value

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        """Fill in what depends on other settings, so that the record says what was run."""
        self.__dict__.setdefault(GIVEN, self._as_set())  # it may be checked again once it is made
        dataset = getattr(self.dataset, "name", None) or describe("dataset", self.dataset)["name"]
        usual = getattr(self.dataset, "models", None)  # the family that data of one's own name
        usual = usual or (DATASETS[dataset].details["models"] if dataset in DATASETS else "light")
        given = chosen(usual if self.models is None else self.models)
        models = family_of(given)
        self._take_over_clients()
        found = who_is_evaluated(self.evaluate, self.evaluate_all_every, self.evaluate_every, self.clients)
        self._set(**found._asdict())
        self._set(models=models, feature_dim=self.feature_dim or usual_width(given))
        self._set(algorithm=self.algorithm.adapted(dataset, [named(item) for item in networks(models)]))
        self._set(auxiliary=second_network(self.auxiliary, self.algorithm, models))
        refuse_contradictions(self)
        usual_settings = {"models": chosen(usual), "feature_dim": usual_width(models)}
        usual_settings |= usual_values(found, self.evaluate_every, self.clients)
        self._changed.update(differences(self, dataset, usual_settings))
        return self

    def _as_set(self) -> dict[str, Any]:
        """List the settings that somebody gave, with their present values."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    def _take_over_clients(self) -> None:
        """Let data that are assigned to clients already say how many clients there are."""
        held = getattr(self.dataset, "clients", None)
        if not isinstance(held, int):
            return
        if "clients" in self.model_fields_set and self.clients != held:
            raise ValueError(f"clients={self.clients} is refused: the data belong to {held} clients already.")
        if "partition" in self.model_fields_set and not isinstance(self.partition, Given):
            warnings.warn("The data belong to clients already: of the partition only the seed counts.", stacklevel=2)
        self._set(clients=held, partition=Given(self.partition.seed))

    def _set(self, **values: Any) -> None:
        """Set fields while the experiment is still being made; it is frozen for everybody else."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @field_serializer("algorithm", "dataset", "partition")
    def _describe(self, value: Any, info: Any) -> dict[str, Any]:
        return describe(info.field_name, value)

    @field_serializer("models")
    def _describe_models(self, value: Any) -> Any:
        return describe_choice(value)

    @field_serializer("auxiliary")
    def _describe_auxiliary(self, value: Any) -> Any:
        return None if value is None else described(value)

    @property
    def changed(self) -> dict[str, Any]:
        """List the settings that differ from the usual ones, named as on the command line, as plain data."""
        return plain_values(self._changed)

    def _told(self) -> dict[str, str]:
        """Write the method, the data, and all settings that differ from the usual ones."""
        first = {kind: KINDS[kind].default for kind in ("algorithm", "dataset")}
        return {name: shortened(str(value)) for name, value in (first | self.changed).items()}

    def __repr__(self) -> str:
        """Say in a line what is run, and which settings differ from the usual ones."""
        return f"Experiment({', '.join(f'{name}={value}' for name, value in self._told().items())})"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """Show the same as a table in a notebook."""
        rows = list(self._told().items())
        return html_table("Experiment", ["setting", "value"], rows, "All other settings are the usual ones.")

    @property
    def lowered(self) -> bool:
        """Tell whether networks take their CPU forms."""
        return self.lowering and torch.device(self.device).type == "cpu" and self.precision == "float32"

    @property
    def cohort_size(self) -> int:
        """Count the clients of a round; at least one."""
        return max(1, int(self.participation * self.clients + 1e-9))

    @property
    def depends_on_rounds(self) -> bool:
        """Tell whether what happens in a round depends on how many there will be; if not, more can be run later."""
        every = (self.evaluate_every, self.evaluate_all_every or 1)
        last_is_extra = any(self.rounds % one for one in every)  # it is evaluated only because it is the last
        return bool(self.algorithm.depends_on_rounds or self.lr_schedule.depends_on_rounds or last_is_extra)

    @cached_property
    def key(self) -> str:
        """Name the run: readable words, and a hash of everything that decides its numbers."""
        return key_of(self._decisive(()), self.seed)

    def key_with(self, dataset: Mapping[str, Any]) -> str:
        """Name the run as if its data were those of a record: who lacks the data finds the record all the same."""
        return key_of(self._decisive(("dataset",)) | {"dataset": dict(dataset)}, self.seed)

    def _decisive(self, left_out: Iterable[str]) -> dict[str, Any]:
        """Write all settings that decide numbers, but for some."""
        known = {*left_out, *UNDECISIVE, *(() if self.depends_on_rounds else ("rounds",))}
        known |= {"tested"} if self.tested else set()  # a run without test numbers is another run
        return self.model_dump(mode="json", exclude=known)


def _complaint(error: ValidationError, settings: Mapping[str, Any]) -> str:
    """Say what is wrong with the settings of an experiment."""
    return sentences(error, Experiment.model_fields, "An experiment", hint=partial(hint, given=settings))
