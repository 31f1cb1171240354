"""What a run's record holds, as types. Nothing here needs torch.

Numbers that there are for each client or class are in arrays (see `arrays`), never in text.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Le, MinLen
from pydantic import AfterValidator, AllowInfNan, BaseModel, ConfigDict, Field, model_validator

FORMAT: Final = 3  # of a run's files; another one gives another key

Number = Annotated[float, AllowInfNan(False)]
Whole = Annotated[int, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
Name = Annotated[str, MinLen(1)]
Text = Annotated[str, MinLen(1)]


def _is_network(value: Any) -> Any:
    if not isinstance(value["name"] if isinstance(value, dict) and "name" in value else value, str):
        raise ValueError("expected the name of a network, or an object with it")
    return value


Network = Annotated[Any, AfterValidator(_is_network)]  # a text, or a dict for one of the user's own


class Part(BaseModel):
    """A part of a record: frozen, and nothing in it is unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class InputInfo(Part):
    """One sample, as it is stored."""

    shape: Annotated[list[Annotated[int, Ge(1)]], MinLen(1)]  # (H, W, C), (D,) or (L,)
    type: Name
    vocabulary: Annotated[int, Ge(1)] | None = None  # V, if it is tokens

    @property
    def network_shape(self) -> tuple[int, ...]:
        """Give the shape that a network is made for: (C, H, W) for pictures, (D,) for vectors, (L, V) for tokens."""
        size = self.shape
        if self.vocabulary is not None:
            return (*size, self.vocabulary)
        return (size[2], size[0], size[1]) if len(size) == 3 else tuple(size)


class Component(BaseModel):
    """A method, a data set or a partition: its name, and whatever settings it has."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    name: Name

    @property
    def settings(self) -> dict[str, Any]:
        """Give its settings without the name."""
        return dict(self.model_extra or {})


class ExperimentInfo(BaseModel):
    """The settings of a run, as plain data; those that the record itself needs are typed."""

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
        """Give all settings as plain data."""
        return self.model_dump(mode="json")


class RunInfo(Part):
    """What a run is, written before its first round (experiment.json)."""

    format: Literal[3]
    key: Name
    experiment: ExperimentInfo
    changed: dict[str, Any]  # the settings that differ from the usual ones, named as on the command line
    rules: Annotated[list[Name], MinLen(1)]
    headline: Name
    networks: Annotated[list[Network], MinLen(1)]  # client i has number i mod n
    classes: Annotated[list[str], MinLen(1)]
    input: InputInfo
    versions: dict[str, str]
    early_stopping: int | None = None  # evaluations without a better validation accuracy after which a run ends
    client_names: Annotated[list[Name], MinLen(1)] | None = None  # M, no two alike; None: clients have numbers alone

    @model_validator(mode="after")
    def _headline_is_a_rule(self) -> RunInfo:
        if self.headline not in self.rules:
            raise ValueError(f"its headline {self.headline!r} is none of its rules, {', '.join(self.rules)}")
        return self

    @model_validator(mode="after")
    def _every_client_has_a_name(self) -> RunInfo:
        names = self.client_names
        if names is not None and not len(set(names)) == len(names) == self.experiment.clients:
            raise ValueError(f"it does not have {self.experiment.clients} different names of clients")
        return self

    def client_name(self, id: int) -> str:
        """Name a client: as its folder or file is named, or by its number."""
        return str(id) if self.client_names is None else self.client_names[id]

    def network(self, id: int) -> Any:
        """Name a client's network: a text, or a dict for one of the user's own."""
        return self.networks[id % len(self.networks)]

    def network_name(self, id: int) -> str:
        """Name a client's network in one word; different ones of one name, of the user's own files, have numbers."""
        network = self.network(id)
        if not isinstance(network, dict):
            return str(network)
        alike: list[Any] = []
        for other in self.networks:
            if isinstance(other, dict) and other["name"] == network["name"] and other not in alike:
                alike.append(other)
        number = f" no. {alike.index(network) + 1}" if len(alike) > 1 else ""
        return f"{network['name']}{number}"


class Accuracy(Part):
    """One rule in one round, over the clients that were evaluated."""

    pooled: Share  # right answers over samples of all clients
    mean: Share  # mean of the clients' own accuracies
    worst: Share  # mean of the worst tenth of the clients
    p10: Share  # the accuracy that a tenth of the clients does not reach
    balanced: Share | None = None  # mean over clients of the mean recall of their classes
    f1: Share | None = None  # mean over clients of the mean F1 of classes
    log_loss: Number | None = None  # mean over samples of −log p of the true class; for rules with probabilities
    calibration: Share | None = None  # expected calibration error in 15 bins; likewise


class Traffic(Part):
    """What a round's cohort sent and was sent."""

    up: Whole
    down: Whole


class Distances(Part):
    """Distances between the published prototypes of a round."""

    min: Number
    mean: Number
    max: Number


class ArrayRef(Part):
    """Where a round's arrays stand in evaluations.bin."""

    start: Whole
    size: Annotated[int, Ge(1)]


class RoundRecord(Part):
    """One round (a line of metrics.jsonl); nothing in it depends on the time or the machine."""

    round: Annotated[int, Ge(1)]
    cohort: Annotated[list[Whole], MinLen(1)] | Literal["all"]
    lost: dict[str, str] = Field(default_factory=dict)  # clients that did not answer, by number, and why
    evaluated: Literal["all", "cohort", "some", "nobody"]  # some: clients that were asked did not answer
    metrics: dict[str, Number]  # what clients reported, averaged over those that replied: usually `loss`
    rules: dict[str, Accuracy | None]  # on the test parts: None for a rule that does not exist yet; {} if not evaluated
    validation: dict[str, Accuracy | None]  # the same on the validation parts; {} also where there are none
    unseen: Share | None  # share of the samples whose class has no local prototype
    bytes: Traffic
    floats: Traffic
    server: dict[str, Number]  # what the server reported
    prototypes: Distances | None
    arrays: ArrayRef

    @property
    def loss(self) -> float | None:
        """Give the mean training loss; None for an algorithm that reports none."""
        return self.metrics.get("loss")


class PendingRound(Part):
    """What is known of a round before its evaluation (pending.json)."""

    round: Annotated[int, Ge(1)]
    cohort: Annotated[list[Whole], MinLen(1)] | Literal["all"]
    lost: dict[str, str]
    metrics: dict[str, Number]
    bytes: Traffic
    floats: Traffic
    server: dict[str, Number]
    seconds: dict[str, Number]  # that it took, by what was done


class Failure(Part):
    """Why and where a run stopped (failure.json)."""

    round: Whole
    reason: Text


class Provenance(Part):
    """Where the rounds from one on come from (a line of provenance.jsonl, each time a run is begun or goes on)."""

    done: Whole  # rounds that were there already
    command: str
    commit: str | None  # of the repository of the folder that the command was given in; None if there is none
    dirty: bool | None  # whether files of it were changed since that commit
    versions: dict[str, str]
    platform: str
    cpu: str
    cores: Whole  # that the process may use
    threads: Whole  # of each process that computes
    engine: str
    device: str


class Seconds(BaseModel):
    """How long a round took (a line of timings.jsonl)."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    of: Annotated[int, Ge(1)]  # the round
    round: Annotated[float, Ge(0), AllowInfNan(False)]  # all of it
