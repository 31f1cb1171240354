"""The `Experiment`: validated, frozen settings of a run, and the run's key."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Literal, Self, get_type_hints

from pydantic import (
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticSerializationError

from protonorm.config.components import build, describe
from protonorm.config.hints import hint
from protonorm.config.kinds import KINDS
from protonorm.config.parsing import check_plain
from protonorm.config.resolving import (
    check_device,
    differences,
    plain_values,
    refuse_contradictions,
    second_network,
    usual_values,
    who_is_evaluated,
)
from protonorm.core.algorithm import Algorithm
from protonorm.core.own_failures import told
from protonorm.core.settings import sentences
from protonorm.core.text import html_table
from protonorm.core.training import Training
from protonorm.core.types import Count, Fraction, Positive, Seed, Whole, Width, shortened, shown
from protonorm.data import DATASETS
from protonorm.data.partitions import Given
from protonorm.errors import Failed
from protonorm.models.choose import chosen, describe_choice, described, family_of, named, networks, usual_width

FORMAT = 3  # version of a run's files; part of the key
UNDECISIVE = ("retries",)  # settings that do not affect results, and so are not in the key
LONGEST = 60  # bytes of a component of a key
GIVEN = "_given"  # attribute outside the fields with the settings as given; ignored when experiments are compared
LATER: dict[str, Any] = {
    "evaluate_all_every": None,
    "start": "own",
    "protect": {"name": "none"},
}  # settings that were added later, and their defaults


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
    models: Any = Field(default=None, description="a family, or networks: client i takes number i mod n")
    auxiliary: Any = Field(
        default=None, description="the second network of FML, FedKD and FedMRL; the first of the models if not given"
    )
    feature_dim: Width | None = Field(
        default=None, description="d, the width of the decision layer; the family's if not given"
    )
    clients: Count = Field(default=20, description="how many clients there are, M")
    participation: Fraction = Field(default=1.0, description="share of the clients that train in a round")
    rounds: Whole = Field(default=20, description="how many rounds, R")
    tested: bool = Field(
        default=True, description="whether the test parts are evaluated; false while settings are searched for"
    )
    seed: Seed = Field(default=0, description="of all but data and partition, which have their own")
    control: Literal["none", "solo"] = Field(
        default="none", description="solo: each client federates with itself alone, all else equal"
    )
    early_stopping: Count | None = Field(
        default=None, description="evaluations without a better validation accuracy after which a run ends"
    )
    evaluate: Literal["all", "cohort"] | None = Field(
        default=None, description="who is evaluated: everybody, or the round's cohort; the cohort above 200 clients"
    )
    evaluate_every: Count = Field(
        default=1, description="rounds between evaluations; the last round is always evaluated"
    )
    evaluate_all_every: Count | None = Field(
        default=None, description="rounds between evaluations of everybody, and in the last one, with evaluate=cohort"
    )
    quorum: Fraction = Field(default=1.0, description="share of the cohort that must reply for a round to count")
    retries: Whole = Field(default=2, description="further tries of a round without a quorum")
    deadline: Positive | None = Field(
        default=None, description="seconds that clients have in a round; late ones are lost"
    )

    _changed: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Create an experiment from a mapping of settings.

        Raises:
            ValueError: A setting is unknown or out of range.
        """
        if not isinstance(settings, Mapping):
            raise ValueError(f"{shown(settings)} is refused: expected a mapping of settings, such as {{'rounds': 5}}.")
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
    def _check_plain(cls, given: Any) -> Any:
        check_plain(given)
        return given

    @field_validator("algorithm", "dataset", "partition")
    @classmethod
    def _build(cls, value: Any, info: ValidationInfo) -> Any:
        made = build(str(info.field_name), value)
        if info.field_name == "algorithm" and not isinstance(made, Algorithm):
            raise ValueError(
                f"{shown(value)} is not an algorithm: expected a name or an object of a class of pn.Algorithm."
            )
        return made

    @field_validator("device")
    @classmethod
    def _check_device(cls, value: str) -> str:
        check_device(value)
        return value

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        """Fill in defaults that depend on other settings, so that the record is complete."""
        self.__dict__.setdefault(GIVEN, self._as_set())  # pydantic may validate an existing experiment again
        dataset = getattr(self.dataset, "name", None) or describe("dataset", self.dataset)["name"]
        usual = getattr(self.dataset, "models", None)  # the family declared by a user's data set
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
        """Return the explicitly given settings with their current values."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    def _take_over_clients(self) -> None:
        """Set `clients` and `partition` from data that are already assigned to clients."""
        held = getattr(self.dataset, "clients", None)
        if not isinstance(held, int):
            return
        if "clients" in self.model_fields_set and self.clients != held:
            raise ValueError(f"clients={self.clients} is refused: the data belong to {held} clients already.")
        if "partition" in self.model_fields_set and not isinstance(self.partition, Given):
            warnings.warn("The data belong to clients already: of the partition only the seed counts.", stacklevel=2)
        self._set(clients=held, partition=Given(self.partition.seed))

    def _set(self, **values: Any) -> None:
        """Set fields during validation, although the model is frozen."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

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
        return plain_values(self._changed)

    def _told(self) -> dict[str, str]:
        """Format the method, the data set, and all settings that differ from their defaults."""
        first = {kind: KINDS[kind].default for kind in ("algorithm", "dataset")}
        return {name: shortened(str(value)) for name, value in (first | self.changed).items()}

    def __repr__(self) -> str:
        """Return a single line with the method, the data set, and settings that differ from their defaults."""
        return f"Experiment({', '.join(f'{name}={value}' for name, value in self._told().items())})"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """Return the settings of `repr` as an HTML table for notebooks."""
        rows = list(self._told().items())
        return html_table("Experiment", ["setting", "value"], rows, "All other settings are the usual ones.")

    @property
    def cohort_size(self) -> int:
        """Number of clients in a round, at least 1."""
        return max(1, int(self.participation * self.clients + 1e-9))

    @property
    def depends_on_rounds(self) -> bool:
        """Whether a round depends on the total number of rounds; if not, a run can be extended later."""
        every = (self.evaluate_every, self.evaluate_all_every or 1)
        last_is_extra = any(self.rounds % one for one in every)  # evaluated only because it is the last round
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
        known = {*left_out, *UNDECISIVE, *(() if self.depends_on_rounds else ("rounds",))}
        known |= {"tested"} if self.tested else set()  # a run without test results has another key
        return self.model_dump(mode="json", exclude=known)


def _signature() -> Signature:
    """Build a signature of keywords with plain types, because pydantic's lists the bounds of each."""
    types, kind = get_type_hints(Experiment), Parameter.KEYWORD_ONLY
    fields = sorted(Experiment.model_fields.items(), key=lambda item: item[0] in Training.model_fields)
    return Signature([Parameter(name, kind, default=one.default, annotation=types[name]) for name, one in fields])


Experiment.__signature__ = _signature()


def _complaint(error: ValidationError, settings: Mapping[str, Any]) -> str:
    """Format the validation errors of an experiment."""
    return sentences(error, Experiment.model_fields, "An experiment", hint=partial(hint, given=settings))


def key_of(decisive: Mapping[str, Any], seed: int) -> str:
    """Build a key from readable words and a hash of all settings that affect results."""
    plain = {"format": FORMAT, **decisive}
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:10]
    words = [plain["algorithm"]["name"], plain["dataset"]["name"], f"seed{seed}", digest]
    return "-".join(_word(word) for word in words)


def _word(text: str) -> str:
    """Convert a text to a component of a folder name: lower case, truncated, only the name of file.py:Name."""
    word = re.sub(r"[^\w.-]+", "-", text.split(":")[-1].lower())
    return word.encode()[:LONGEST].decode(errors="ignore")


def _cause_of(error: BaseException) -> Exception:
    """Return the original error of a component that could not be described, such as unreadable data."""
    cause: BaseException = error
    while isinstance(cause, PydanticSerializationError) and cause.__cause__:
        cause = cause.__cause__
    if isinstance(cause, ValueError | OSError | Failed) and not isinstance(cause, PydanticSerializationError):
        return cause
    return ValueError(f"The settings cannot be written down: {told(cause)}")
