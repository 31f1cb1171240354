"""What a run gives: its rounds as arrays and frames, and its trained clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from protonorm.analysis.breakdown import ACCURACIES, about, check_rule, class_rows, client_rows, round_rows, rule_rows
from protonorm.config.experiment import Experiment
from protonorm.core.html import html_table, percent
from protonorm.data.own.tables import import_pandas
from protonorm.runs.run import Run, Summary
from protonorm.runs.schema import RoundRecord
from protonorm.session.build import build
from protonorm.session.clients import TrainedClients
from protonorm.session.rebuild import experiment_of

if TYPE_CHECKING:
    import pandas

    from protonorm.federation.population import SimulatedPopulation

By = Literal["round", "client", "class", "rule"]


@dataclass(frozen=True, repr=False)
class Result:
    """A run and what it gave; its data are needed for nothing but its population, test parts and confusions.

    `pn.run` and `pn.load_run` give one, and `pn.compare` one for each method and seed. Accuracies are parts of one.
    """

    given: Experiment | None  # the experiment that was run; None for a run that was loaded
    run: Run  # the record

    @cached_property
    def experiment(self) -> Experiment:
        """Give the experiment; that of a loaded run is made again from its record, if that holds all of it."""
        return self.given or experiment_of(self.run)

    @property
    def history(self) -> list[RoundRecord]:
        """Give every round, as recorded."""
        return self.run.rounds

    @property
    def rounds(self) -> NDArray[np.int64]:
        """Number the rounds (R,)."""
        return np.array([record.round for record in self.history], dtype=np.int64)

    @property
    def classes(self) -> tuple[str, ...]:
        """Name the classes, K."""
        return tuple(self.run.info.classes)

    @property
    def client_names(self) -> tuple[str, ...]:
        """Name the clients, M: as their folders or files are named, or by their numbers."""
        return tuple(map(self.run.client_name, range(self.run.info.experiment.clients)))

    def accuracy(self, rule: str | None = None, of: str = "pooled") -> NDArray[np.float64]:
        """Give a rule's accuracy (R,), or (R, M) for of="clients", (R, K) for of="classes"; NaN where there is none.

        `rule` is the method's headline rule if none is given. `of` may also be any measure over clients: `pooled`,
        `mean`, `worst`, `p10`, `balanced`, `f1`, `log_loss`, `calibration`.
        """
        rule = check_rule(self.run, rule)
        if of not in (*ACCURACIES, "clients", "classes"):
            raise ValueError(f"of={of!r} is refused: expected {', '.join(ACCURACIES)}, clients or classes.")
        if of in ("clients", "classes"):
            find = self.run.by_client if of == "clients" else self.run.by_class
            width = len(self.client_names if of == "clients" else self.classes)
            return np.array([find(record, rule) for record in self.history]).reshape(-1, width)
        found = [record.rules.get(rule) for record in self.history]
        return np.array([np.nan if one is None else getattr(one, of) for one in found], dtype=np.float64)

    def summary(self, rule: str | None = None) -> Summary | None:
        """Condense the rounds: best, last, and the mean of each client's own best; None if the rule never existed.

        The best rounds are chosen by their test accuracy, which is optimistic: `run.chosen` is the one to report.
        """
        return self.run.summary(rule)

    def frame(
        self, by: By = "round", *, rule: str | None = None, alone: Result | Run | None = None
    ) -> pandas.DataFrame:
        """Give a pandas frame: a row for each round and rule, or for each client, class or rule in the reported round.

        By client and class the numbers are those under `rule`, the method's headline if none is given. With `alone`,
        the run of the same clients without an exchange, the accuracy there and the gain on it stand beside. Every row
        has the method, seed and round; by client also its name, number, network and numbers of samples. Needs pandas,
        `protonorm[frame]`.
        """
        rows = rows_by(self.run, by, rule, alone.run if isinstance(alone, Result) else alone)
        found: pandas.DataFrame = import_pandas().DataFrame(rows)
        return found

    @property
    def clients(self) -> TrainedClients:
        """Give the trained clients as of the chosen round, by number or by name; each is loaded when asked for."""
        return TrainedClients(self)

    def trained(self, checkpoint: Literal["chosen", "last"] = "chosen") -> TrainedClients:
        """Give the trained clients as of the chosen or the last round."""
        return TrainedClients(self, checkpoint)

    def confusion(self, client: int | str | None = None, rule: str | None = None) -> NDArray[np.int64]:
        """Count a client's test samples (K, K) by their class (rows) and the class that it takes them for (columns).

        The trained client of `clients` predicts its test part again, which needs the data. Without a client the counts
        of all are added up.
        """
        rule = check_rule(self.run, rule)
        if client is None:
            found = [self.confusion(id, rule) for id in range(len(self.client_names)) if self._is_tested(id)]
            return np.sum(found, axis=0) if found else np.zeros((len(self.classes),) * 2, np.int64)
        id, size = self.run.find_client(client), len(self.classes)
        if not self._is_tested(id):
            return np.zeros((size, size), np.int64)
        data, part = self.population.dataset, self.population.parts[id].test
        labels = data.labels[part]
        if not np.array_equal(np.bincount(labels, minlength=size), self.run.population.test[id]):
            raise ValueError("The data are no longer those of the run: its clients test on other samples.")
        predicted = self.clients[id].predict(data.inputs[part], rule)
        return np.bincount(labels * size + predicted, minlength=size * size).reshape(size, size)

    def _is_tested(self, id: int) -> bool:
        return bool(self.run.population.test[id].any())

    @cached_property
    def population(self) -> SimulatedPopulation:
        """Load the data, and assign them to the clients as in the run."""
        return build(self.experiment)[1]

    def __repr__(self) -> str:
        """Say in a line what was run, and what came out."""
        return f"Result({self._told()}; {self.run.folder})"

    def _repr_html_(self) -> str:
        """Show the clients in a notebook."""
        head = ["client", "network", "train", "test", "classes", "accuracy"]
        rows = [
            [one["client"], one["network"], one["train"], one["test"], one["classes"], percent(one["accuracy"])]
            for one in client_rows(self.run)
        ]
        return html_table(self._told(), head, rows, f"Accuracy in per cent, rule {self.run.info.headline}.")

    def _told(self) -> str:
        run, settings = self.run, self.run.info.experiment
        record = run.chosen.record if run.chosen else None
        of = f"{about(run, record)['method']} on {settings.dataset.name}, seed {settings.seed}"
        done = f"{len(run.rounds)} of {settings.rounds} rounds"
        found = record.rules.get(run.info.headline) if record else None
        number = f", accuracy {percent(found.pooled)} % in round {record.round}" if record and found else ""
        return f"{of}: {done}{number}"


def rows_by(run: Run, by: str, rule: str | None = None, alone: Run | None = None) -> list[dict[str, Any]]:
    """Make the rows of a frame of one run."""
    ways: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "round": lambda: round_rows(run),
        "client": lambda: client_rows(run, alone, rule),
        "class": lambda: class_rows(run, alone, rule),
        "rule": lambda: rule_rows(run),
    }
    if by not in ways:
        raise ValueError(f"by={by!r} is refused: expected {', '.join(ways)}.")
    return ways[by]()
