"""An experiment: frozen, validated plain data, and its key."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import torch
from annotated_types import Ge, Lt, MinLen
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_serializer, field_validator, model_validator

from protonorm.algorithms import ALGORITHMS
from protonorm.components import build, describe, located, sentences
from protonorm.core import Algorithm
from protonorm.data import DATASETS, PARTITIONS
from protonorm.data.given import Given
from protonorm.models import FAMILIES
from protonorm.models.choose import chosen, described
from protonorm.settings import Count, Fraction, NonNegative, Positive, Share, Whole

Size = Annotated[int, Ge(2)]  # of a batch: batch norm needs two samples

Precision = Literal["float32", "bfloat16", "float16"]

FORMAT = 1  # of a run's files; another one gives another key


class Experiment(BaseModel):
    """Everything that decides a run's numbers, and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    algorithm: Any = Field("protonorm", description="the method and its hyper-parameters")
    dataset: Any = Field("fashion", description="the data set and its settings, or a Dataset")
    partition: Any = Field("dirichlet", description="how the samples are dealt out to the clients")
    models: Any = Field(None, description="a family, or networks: client i takes number i mod n")
    # epochs, batch_size and lr are one value for all, or a list: client i takes number i mod n
    feature_dim: Count | None = Field(None, description="d, the width of the decision layer; usual value: the family's")
    clients: Count = Field(20, description="M")
    participation: Fraction = Field(1.0, description="share of the clients that train in a round")
    rounds: Whole = Field(20, description="R")
    epochs: Count | Annotated[tuple[Count, ...], MinLen(1)] = Field(1, description="local epochs a round")
    batch_size: Size | Annotated[tuple[Size, ...], MinLen(1)] = Field(32, description="B")
    lr: Positive | Annotated[tuple[Positive, ...], MinLen(1)] = Field(
        0.01, description="learning rate of the clients' SGD"
    )
    momentum: Annotated[float, Ge(0), Lt(1)] = Field(0.0, description="of the clients' SGD")
    weight_decay: NonNegative = Field(0.0, description="of the clients' SGD")
    shuffle: bool = Field(True, description="new batches each epoch; the authors' code keeps one order")
    train: Share = Field(0.75, description="share of a client's samples to train on; the others test")
    seed: Whole = Field(0, description="of all but data and partition, which have their own")
    device: str = Field("cpu", description="where to compute: cpu, cuda, cuda:1, mps")
    precision: Precision = Field("float32", description="of the networks' products: float32, bfloat16 or float16")
    lowering: bool = Field(True, description="exact forms of convolutions that a CPU computes faster")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Make an experiment from plain data, or say in sentences what is wrong with it."""
        try:
            return cls(**settings)
        except ValidationError as error:
            raise ValueError(sentences(error, cls.model_fields, "An experiment")) from None

    @field_validator("algorithm")
    @classmethod
    def _build_algorithm(cls, value: Any) -> Any:
        algorithm = build(ALGORITHMS, "algorithm", value, "protonorm")
        if not isinstance(algorithm, Algorithm):
            raise ValueError(f"{value!r} is not an algorithm: expected a name or an object of a class of pn.Algorithm.")
        return algorithm

    @field_validator("dataset")
    @classmethod
    def _build_dataset(cls, value: Any) -> Any:
        return _with_method(build(DATASETS, "dataset", located(DATASETS, value), "fashion"), "load", "a data set")

    @field_validator("partition")
    @classmethod
    def _build_partition(cls, value: Any) -> Any:
        return _with_method(build(PARTITIONS, "partition", value, "dirichlet"), "assign", "a partition")

    @field_validator("device")
    @classmethod
    def _check_device(cls, value: str) -> str:
        try:
            torch.empty(0, device=value)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0].split(", hint")[0]
            raise ValueError(f"device={value!r} cannot be used here ({reason}); cpu always can.") from None
        return value

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        """Fill in what depends on other settings, so that the record says what was run."""
        dataset = getattr(self.dataset, "name", None) or describe(DATASETS, self.dataset)["name"]
        usual = DATASETS[dataset].details["models"] if dataset in DATASETS else "light"
        models = chosen(usual if self.models is None else self.models)
        width = FAMILIES[models].feature_dim if isinstance(models, str) else 512
        algorithm = self.algorithm.adapted(dataset)
        self._take_over_clients()
        # Frozen for everybody else; here the experiment is still being made.
        for name, value in (("models", models), ("feature_dim", self.feature_dim or width), ("algorithm", algorithm)):
            object.__setattr__(self, name, value)
        networks = FAMILIES[models].models if isinstance(models, str) else models
        if not algorithm.heterogeneous and len(set(networks)) > 1:
            raise ValueError(
                f"{type(algorithm).__name__} averages whole models, so that all clients need the same network, "
                f"but models={models} has {len(set(networks))} different ones."
            )
        return self

    def _take_over_clients(self) -> None:
        """Let data that are dealt out already say how many clients there are."""
        held = getattr(self.dataset, "clients", None)
        if not isinstance(held, int):
            return
        if "clients" in self.model_fields_set and self.clients != held:
            raise ValueError(f"clients={self.clients} is refused: the data are dealt out to {held} clients already.")
        if "partition" in self.model_fields_set and not isinstance(self.partition, Given):
            warnings.warn("The data are dealt out already: of the partition only the seed counts.", stacklevel=2)
        object.__setattr__(self, "clients", held)
        object.__setattr__(self, "partition", Given(self.partition.seed))

    @field_serializer("algorithm", "dataset", "partition")
    def _describe(self, value: Any) -> dict[str, Any]:
        return describe({**ALGORITHMS, **DATASETS, **PARTITIONS}, value)

    @field_serializer("models")
    def _describe_models(self, value: Any) -> Any:
        return described(value)

    @property
    def lowered(self) -> bool:
        """Tell whether networks take their CPU forms."""
        return self.lowering and torch.device(self.device).type == "cpu" and self.precision == "float32"

    @property
    def cohort_size(self) -> int:
        """Count the clients of a round; at least one."""
        return max(1, int(self.participation * self.clients + 1e-9))

    @cached_property
    def key(self) -> str:
        """Name the run: readable words, and a hash of everything that decides its numbers."""
        plain = {"format": FORMAT, **self.model_dump(mode="json")}
        digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:10]
        words = [plain["algorithm"]["name"], plain["dataset"]["name"], f"seed{self.seed}", digest]
        return "-".join(word.split(":")[-1].lower() for word in words)


def _with_method(value: Any, method: str, kind: str) -> Any:
    if not callable(getattr(value, method, None)):
        raise ValueError(f"{value!r} is not {kind}: expected a name or an object with a method {method!r}.")
    return value
