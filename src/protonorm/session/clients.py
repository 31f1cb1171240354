"""The trained clients of a run, loaded when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from protonorm.inference.loading import load_from_run
from protonorm.inference.trained import TrainedClient
from protonorm.models.choose import networks
from protonorm.session.rebuild import holds_own_code

if TYPE_CHECKING:
    from protonorm.session.result import Result


@dataclass(frozen=True)
class TrainedClients(Sequence[TrainedClient]):
    """The clients of a run, by number or by name."""

    result: Result
    checkpoint: Literal["chosen", "last"] = "chosen"

    def __len__(self) -> int:
        """Count the clients, M."""
        return self.result.run.info.experiment.clients

    @overload
    def __getitem__(self, id: int | str) -> TrainedClient: ...
    @overload
    def __getitem__(self, id: slice) -> list[TrainedClient]: ...
    def __getitem__(self, id: int | str | slice) -> TrainedClient | list[TrainedClient]:
        """Load a client, or some of them; without the data of its run a client has no test part, but can predict."""
        if isinstance(id, slice):
            return [self[one] for one in range(len(self))[id]]
        run = self.result.run
        number = run.find_client(id) if isinstance(id, str) else range(len(self))[id]
        return load_from_run(run, number, checkpoint=self.checkpoint, **self._of_the_experiment(number))

    def __iter__(self) -> Iterator[TrainedClient]:
        """Load one client after the other."""
        return (self[id] for id in range(len(self)))

    def _of_the_experiment(self, number: int) -> dict[str, Any]:
        """Give what is not in the record: code of the user's own, and the test part."""
        result = self.result
        try:
            test = result.population.site(number).client(0).test
        except ValueError:
            if result.given or holds_own_code(result.run):
                raise
            return {}  # the record alone makes the client
        choice = networks(result.experiment.models)
        item, second = choice[number % len(choice)], result.experiment.auxiliary
        return {
            "network": None if isinstance(item, str) else item,
            "auxiliary": None if isinstance(second, str) else second,
            "algorithm": result.experiment.algorithm,
            "test": test,
        }
