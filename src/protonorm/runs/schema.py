"""Pydantic schema of a run's record, and reading of its settings. Does not import torch.

Values per client or class are stored in arrays (see `arrays`), never in JSON.
"""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from annotated_types import Ge, Le, MinLen
from pydantic import (
    AfterValidator,
    AllowInfNan,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    model_serializer,
    model_validator,
)

from protonorm.core.registry import nearest
from protonorm.core.text import shortened
from protonorm.core.types import InputSpec, Rule, shown
from protonorm.files import damaged, format_of, unsealed
from protonorm.metrics import metrics
from protonorm.runs.layout import read_file

FORMAT: Final = 3  # version of the run files; part of a run's key

Number = Annotated[float, AllowInfNan(False)]
Whole = Annotated[int, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
Name = Annotated[str, MinLen(1)]


def _is_network(value: Any) -> Any:
    if not isinstance(value["name"] if isinstance(value, dict) and "name" in value else value, str):
        raise ValueError("expected the name of a network, or an object with it")
    return value


Network = Annotated[Any, AfterValidator(_is_network)]  # str, or dict for a user-defined network


class Part(BaseModel):
    """Base class for parts of a record: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Component(BaseModel):
    """Method, dataset or partition: a name and its settings."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    name: Name

    @property
    def settings(self) -> dict[str, Any]:
        """Settings without the name."""
        return dict(self.model_extra or {})


class ExperimentInfo(BaseModel):
    """Settings of a run as plain data; only fields that the record itself reads are typed."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    algorithm: Component
    dataset: Component
    partition: Component
    models: Any
    feature_dim: Annotated[int, Ge(1)]
    clients: Annotated[int, Ge(1)]
    rounds: Whole
    seed: Whole

    def plain(self) -> dict[str, Any]:
        """Return all settings as JSON-compatible data."""
        return self.model_dump(mode="json")


class TrunkInfo(Part):
    """Frozen trunk of a network: what identifies it, and where its weights are from."""

    name: Name  # as in the setting `models`
    digest: Annotated[str, StringConstraints(pattern="[0-9a-f]{64}")]  # SHA-256 of architecture, weights, preprocessing
    width: Annotated[int, Ge(1)]  # D, number of features
    weights: Annotated[str, StringConstraints(pattern="[0-9a-f]{64}")]  # SHA-256 of their file, or of the tensors
    licence: str  # of the weights

    @property
    def identity(self) -> tuple[str, str, int]:
        """Fields of a `Trunk`, which this module does not import: it needs torch."""
        return self.name, self.digest, self.width


class RunInfo(Part):
    """Description of a run, written before its first round (experiment.json)."""

    format: Literal[3]
    key: Name
    experiment: ExperimentInfo
    changed: dict[str, Any]  # settings that differ from the defaults, named as on the command line
    rules: Annotated[list[Rule], MinLen(1)]
    headline: Rule
    networks: Annotated[list[Network], MinLen(1)]  # client i uses networks[i mod n]
    classes: Annotated[list[str], MinLen(1)]
    input: InputSpec | None  # None in a deployed federation, where the server does not know it
    versions: dict[str, str]
    early_stopping: int | None = None  # evaluations without improvement before a run ends
    last_round: int | None = None  # consecutive rounds with replies of all clients after which the method is finished
    client_names: Annotated[list[Name], MinLen(1)] | None = None  # M unique names; None: clients have only numbers
    trunks: list[TrunkInfo] | None = None  # different frozen trunks of all networks, the shared one included

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names, clients = self.client_names, self.experiment.clients
        if self.headline not in self.rules:
            raise ValueError(f"its headline {self.headline!r} is none of its rules, {', '.join(self.rules)}")
        if names is not None and not len(set(names)) == len(names) == clients:
            raise ValueError(f"it does not have {clients} different names of clients")
        return self

    def keeps(self, setting: str, default: str) -> str:
        """Return a setting of what is kept of prototypes, `all` or `every:N`; the default where it is not given."""
        return str((self.experiment.model_extra or {}).get(setting, default))

    @property
    def updated(self) -> int:
        """Round after which a method that was finished was last continued, for clients and samples that came later."""
        return int((self.experiment.model_extra or {}).get("updated") or 0)

    def clients_in(self, round: int) -> int:
        """Return the number of clients in a round; in a deployed federation clients may join later."""
        joined = (self.experiment.model_extra or {}).get("joined")
        return self.experiment.clients if joined is None else sum(first <= round for first in joined)

    def client_name(self, id: int) -> str:
        """Return a client's name, that of its folder or file, or else its number."""
        return str(id) if self.client_names is None else self.client_names[id]

    def find_client(self, client: str | int) -> int:
        """Return a client's number, given its name or number; a str is looked up as a name first."""
        names, clients, text = self.client_names or [], self.experiment.clients, str(client)
        if isinstance(client, str) and client in names:
            return names.index(client)
        if text.isascii() and text.isdecimal() and int(text) < clients:
            return int(text)
        hint = nearest(shortened(text), names) if names else f"the run has clients 0 to {clients - 1}."
        raise ValueError(f"There is no client {shortened(text)}; {hint}")

    def network(self, id: int) -> Any:
        """Return a client's network: a str, or a dict for a user-defined network."""
        return self.networks[id % len(self.networks)]

    def trunk(self, network: Any) -> TrunkInfo | None:
        """Return the frozen trunk of a network of this run; None if it has none."""
        name = str(network["name"] if isinstance(network, dict) else network).partition("+")[0]  # without its head
        return next((trunk for trunk in self.trunks or () if trunk.name == name), None)

    def network_name(self, id: int) -> str:
        """Return the name of a client's network; different user-defined networks of the same name are numbered."""
        network = self.network(id)
        if not isinstance(network, dict):
            return str(network)
        same_name = [other for other in self.networks if isinstance(other, dict) and other["name"] == network["name"]]
        different = [other for position, other in enumerate(same_name) if other not in same_name[:position]]
        return f"{network['name']} no. {different.index(network) + 1}" if len(different) > 1 else str(network["name"])


class Accuracy(Part):
    """Accuracy of a prediction rule in a round, over the evaluated clients."""

    pooled: Share  # correct predictions over samples of all clients
    mean: Share  # mean of the client accuracies
    worst: Share  # mean over the worst tenth of the clients
    p10: Share  # 10th percentile of the client accuracies
    # Extra fields: the metrics of `protonorm.metrics` by name, None where a rule has no value.

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    __pydantic_extra__: dict[str, Number | None] = Field(init=False)

    @model_validator(mode="after")
    def _check_ranges(self) -> Self:
        for name, value in self.metrics.items():
            metric = metrics().get(name)
            if value is not None and (value < 0 or (metric is not None and metric.share and value > 1)):
                raise ValueError(f"{name} is {value:g}, which is outside of its range")
        return self

    @property
    def metrics(self) -> dict[str, float | None]:
        """Metrics other than accuracy, by name."""
        return dict(self.__pydantic_extra__)


class Traffic(Part):
    """Amount of data sent up and down by a round's cohort."""

    up: Whole
    down: Whole


class Distances(Part):
    """Distances between the published prototypes of a round."""

    min: Number
    mean: Number
    max: Number


class ArrayRef(Part):
    """Byte range of a round's arrays in evaluations.bin."""

    start: Whole
    size: Annotated[int, Ge(1)]


class RoundRecord(Part):
    """Record of a round (a line of metrics.jsonl), independent of time and machine."""

    round: Annotated[int, Ge(1)]
    cohort: Annotated[list[Whole], MinLen(1)] | Literal["all"]
    lost: dict[str, str] = Field(default_factory=dict)  # reason by client number, for clients without a reply
    evaluated: Literal["all", "cohort", "some", "nobody"]  # some: not all requested clients replied
    metrics: dict[str, Number]  # client metrics, averaged over the replies: usually `loss`
    rules: dict[Rule, Accuracy | None]  # on the test parts; None for a rule not available yet, {} if not evaluated
    validation: dict[Rule, Accuracy | None]  # on the validation parts; {} also if there are none
    common: dict[Rule, Accuracy | None] = Field(default_factory=dict)  # on the samples that test all clients alike
    newcomers: dict[Rule, Accuracy | None] = Field(default_factory=dict)  # of the clients that never train, on tests
    unseen: Share | None  # share of samples whose class has no local prototype
    bytes: Traffic
    floats: Traffic
    server: dict[str, Number]  # server metrics
    prototypes: Distances | None
    arrays: ArrayRef

    @model_serializer(mode="wrap")
    def _leave_out(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out evaluations that were added later where there are none: older records stay as they are."""
        return {name: value for name, value in plain(self).items() if value or name not in ("common", "newcomers")}

    @property
    def loss(self) -> float | None:
        """Mean training loss; None if the algorithm reports none."""
        return self.metrics.get("loss")


class PendingRound(Part):
    """Record of a round before its evaluation (pending.json)."""

    round: Annotated[int, Ge(1)]
    cohort: Annotated[list[Whole], MinLen(1)] | Literal["all"]
    lost: dict[str, str]
    metrics: dict[str, Number]
    bytes: Traffic
    floats: Traffic
    server: dict[str, Number]
    seconds: dict[str, Number]  # by step


class Failure(Part):
    """Reason and round of a run's failure (failure.json)."""

    round: Whole
    reason: Name


class Provenance(Part):
    """Provenance of the rounds after `done` (a line of provenance.jsonl per start or resumption of a run)."""

    done: Whole  # rounds committed before
    command: str
    commit: str | None  # of the repository of the working directory; None if there is none
    dirty: bool | None  # whether tracked files differ from that commit
    versions: dict[str, str]
    platform: str
    cpu: str
    cores: Whole  # available to the process
    threads: Whole  # per computing process
    engine: str
    device: str


class Seconds(BaseModel):
    """Duration of a round (a line of timings.jsonl)."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    of: Annotated[int, Ge(1)]  # number of the round
    round: Annotated[float, Ge(0), AllowInfNan(False)]  # seconds in total


Model = TypeVar("Model", bound=BaseModel)


def read_info(path: Path) -> RunInfo:
    """Read experiment.json; raise a ValueError if it is missing, damaged or of another format."""
    content = read_file(path)
    if content is None:
        raise ValueError(f"{path} is missing.")
    if (version := format_of(content, path)) != FORMAT:
        raise ValueError(
            f"{path.parent} was written by another version of protonorm (format {version}); this version reads "
            f"format {FORMAT}. Run the experiment again, or read it with the version that wrote it."
        )
    return typed(RunInfo, unsealed(content, path, pretty=True), path)


def typed(model: type[Model], value: dict[str, Any], path: Path) -> Model:
    """Validate plain data as a record type; raise a ValueError that names the file and the field."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        reason = first["ctx"]["error"] if first["type"] == "value_error" else first["msg"]
        raise damaged(path, f"{where}: {str(reason)[0].lower()}{str(reason)[1:]}" if where else str(reason)) from None


def refuse_other_names(
    folder: Path, recorded: RunInfo, classes: Sequence[str], client_names: Sequence[str] | None
) -> None:
    """Raise a ValueError if the run has other names of classes or clients, which are not part of its key."""
    pairs = {"classes": (recorded.classes, classes), "clients": (recorded.client_names, client_names)}
    for noun, (before, current) in pairs.items():
        for number, (was, new) in enumerate(zip_longest(before or (), current or ())):
            if was != new:
                was, new = ("without a name" if name is None else shown(name) for name in (was, new))
                raise ValueError(
                    f"{folder} is a run of data with other names of {noun}: number {number} was {was}, and is {new} "
                    "now. The run is left as it is; give another folder with --out (out=… in Python), or move this one "
                    "away."
                )
