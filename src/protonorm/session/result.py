"""What a run gives: its rounds as arrays, and its trained clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, overload

import numpy as np
from numpy.typing import NDArray

from protonorm.config.experiment import Experiment
from protonorm.inference.loading import load_from_run
from protonorm.inference.trained import TrainedClient
from protonorm.models.choose import networks
from protonorm.runs.reader import Run, Summary
from protonorm.runs.schema import RoundRecord
from protonorm.session.build import build

if TYPE_CHECKING:
    import pandas

    from protonorm.federation.population import SimulatedPopulation


@dataclass(frozen=True)
class Result:
    """A finished run."""

    experiment: Experiment
    run: Run

    @property
    def history(self) -> list[RoundRecord]:
        """Give every round, as recorded."""
        return self.run.rounds

    @property
    def rounds(self) -> NDArray[np.int64]:
        """Number the rounds (R,)."""
        return np.array([record.round for record in self.history], dtype=np.int64)

    def accuracy(self, rule: str | None = None, of: str = "pooled") -> NDArray[np.float64]:
        """Give a rule's accuracy (R,), or (R, M) for of="clients", (R, K) for of="classes"; NaN where there is none."""
        rule = rule or self.run.info.headline
        if of in ("clients", "classes"):
            find = self.run.by_client if of == "clients" else self.run.by_class
            width = self.experiment.clients if of == "clients" else len(self.run.info.classes)
            return np.array([find(record, rule) for record in self.history]).reshape(-1, width)
        found = [record.rules.get(rule) for record in self.history]
        return np.array([np.nan if one is None else getattr(one, of) for one in found], dtype=np.float64)

    def summary(self, rule: str | None = None) -> Summary | None:
        """Condense the rounds: best, last, and the mean of each client's own best."""
        return self.run.summary(rule)

    def frame(self) -> pandas.DataFrame:
        """Give one row for each round and rule as a pandas frame; needs pandas."""
        import pandas

        return pandas.DataFrame(
            {"round": record.round, "loss": record.loss, "rule": rule}
            | {name: getattr(value, name, None) for name in ("pooled", "mean", "worst")}
            for record in self.history
            for rule, value in record.rules.items()
        )

    @property
    def clients(self) -> TrainedClients:
        """Give the trained clients as of the chosen round; each is loaded when it is asked for."""
        return TrainedClients(self)

    def trained(self, checkpoint: Literal["chosen", "last"] = "chosen") -> TrainedClients:
        """Give the trained clients as of the chosen or the last round."""
        return TrainedClients(self, checkpoint)

    @cached_property
    def population(self) -> SimulatedPopulation:
        """Load the data, and assign them to the clients as in the run."""
        return build(self.experiment)[1]


@dataclass(frozen=True)
class TrainedClients(Sequence[TrainedClient]):
    """The clients of a run, loaded when they are asked for."""

    result: Result
    checkpoint: Literal["chosen", "last"] = "chosen"

    def __len__(self) -> int:
        """Count the clients, M."""
        return self.result.experiment.clients

    @overload
    def __getitem__(self, id: int) -> TrainedClient: ...
    @overload
    def __getitem__(self, id: slice) -> list[TrainedClient]: ...
    def __getitem__(self, id: int | slice) -> TrainedClient | list[TrainedClient]:
        """Load a client, or some of them."""
        if isinstance(id, slice):
            return [self[one] for one in range(len(self))[id]]
        number = range(len(self))[id]
        result = self.result
        choice = networks(result.experiment.models)
        item = choice[number % len(choice)]
        test = result.population.site(number).client(0).test
        network = None if isinstance(item, str) else item
        return load_from_run(
            result.run,
            number,
            network=network,
            algorithm=result.experiment.algorithm,
            test=test,
            checkpoint=self.checkpoint,
        )

    def __iter__(self) -> Iterator[TrainedClient]:
        """Load one client after the other."""
        return (self[id] for id in range(len(self)))
