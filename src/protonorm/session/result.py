"""Result of a run: rounds as arrays and frames, trained clients, and the reconstructed experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from protonorm.analysis.breakdown import ACCURACIES, about, check_rule, client_rows, rows_by
from protonorm.config.experiment import Experiment
from protonorm.core.text import html_table, percent, shortened
from protonorm.core.types import shown, truncate_start
from protonorm.data import DATASETS, PARTITIONS
from protonorm.data.partitions import Given
from protonorm.metrics import METRICS
from protonorm.models import is_frozen
from protonorm.models.choose import networks
from protonorm.runs.layout import RECORDS, find_run, find_runs, runs_root
from protonorm.runs.run import Run, Summary, read_run
from protonorm.runs.schema import Accuracy, RoundRecord
from protonorm.session.build import build

if TYPE_CHECKING:
    import pandas

    from protonorm.federation.population import SimulatedPopulation
    from protonorm.inference.trained import TrainedClient

ABSENT = {  # parts that few runs have: how they get them
    "common": "common_test=official or a share sets samples aside that test all clients",
    "newcomers": "held_out=SHARE holds out clients that never train",
}


@dataclass(frozen=True, repr=False)
class Result:
    """Result of a run, returned by `pn.run` and `pn.load_run`, and by `pn.compare` for each method and seed.

    Accuracies are fractions in [0, 1]. Only the population, test parts and confusion matrices need the data.
    """

    given: Experiment | None  # the experiment that was run; None for a loaded run
    run: Run  # the record

    @cached_property
    def experiment(self) -> Experiment:
        """Experiment of the run; for a loaded run, reconstructed from the record if it is complete."""
        return self.given or experiment_of(self.run)

    def push_to_hub(self, repository: str, *, private: bool = True) -> str:
        """Upload the record, without networks, to a dataset repository OWNER/NAME of the Hub; return its address."""
        from protonorm.runs.archive import archive_runs
        from protonorm.runs.hub import upload

        with TemporaryDirectory() as folder:
            archive_runs([self.run.folder], Path(folder))
            return upload(Path(folder), repository, "dataset", (RECORDS,), private=private)

    @classmethod
    def from_pretrained(cls, source: str | Path, run: str = "", *, revision: str | None = None) -> Result:
        """Load the record of a run, or the only one, from a folder of records or a repository OWNER/NAME of the Hub."""
        from protonorm.runs.hub import fetch

        root = fetch(source, "dataset", (RECORDS,), revision)
        runs = find_runs(root)
        return load_run(run or (runs[0].name if len(runs) == 1 else "which"), out=root)

    @property
    def history(self) -> list[RoundRecord]:
        """Records of all rounds."""
        return self.run.rounds

    @property
    def rounds(self) -> NDArray[np.int64]:
        """Round numbers (R,)."""
        return np.array([record.round for record in self.history], dtype=np.int64)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, K."""
        return tuple(self.run.info.classes)

    @property
    def client_names(self) -> tuple[str, ...]:
        """Client names, M: names of their folders or files, or their numbers."""
        return tuple(map(self.run.client_name, range(self.run.info.experiment.clients)))

    def accuracy(
        self,
        rule: str | None = None,
        of: str = "pooled",
        part: Literal["test", "validation", "common", "newcomers"] = "test",
    ) -> NDArray[np.float64]:
        """Return the accuracy of a prediction rule in every round; NaN where it was not evaluated.

        Args:
            rule: Prediction rule; the method's headline rule by default.
            of: A measure over clients (`pooled`, `mean`, `worst`, `p10`, `balanced`, `f1`, `log_loss`, `calibration`,
                with `metrics="ranking"` also `auroc`, `auprc`, `sensitivity90` and so on), or `clients` or `classes`.
            part: `test`, `validation`, the samples `common` to all clients, or the `newcomers`, which never train.

        Returns:
            An array (R,), or (R, M) for `of="clients"` and (R, K) for `of="classes"`.

        Raises:
            ValueError: If the run has no such rule or part, or `of` is unknown or was not measured.
        """
        rule = check_rule(self.run, rule)
        if not isinstance(of, str) or of not in (*ACCURACIES, "clients", "classes"):
            raise ValueError(f"of must be {', '.join(ACCURACIES)}, clients or classes, got {shown(of)}.")
        if part not in ("test", "validation", "common", "newcomers"):
            raise ValueError(f"part must be test, validation, common or newcomers, got {shown(part)}.")
        if of in METRICS and of not in self.run.measures:
            raise ValueError(f"This run has no {of}: metrics=ranking measures it.")
        if part in ABSENT and not any(getattr(record, part) for record in self.history):
            raise ValueError(f"This run has no part {part}: {ABSENT[part]}.")
        if part == "newcomers" and of in ("clients", "classes"):
            raise ValueError(f"Newcomers are recorded together: of must be a measure over clients, got {shown(of)}.")
        if of in ("clients", "classes"):
            find = self.run.by_client if of == "clients" else self.run.by_class
            width = len(self.client_names if of == "clients" else self.classes)
            return np.array([find(record, rule, part) for record in self.history]).reshape(-1, width)
        parts = [record.rules if part == "test" else getattr(record, part) for record in self.history]
        accuracies: list[Accuracy | None] = [accuracies.get(rule) for accuracies in parts]
        return np.array(
            [np.nan if accuracy is None else getattr(accuracy, of, np.nan) for accuracy in accuracies], dtype=np.float64
        )

    def summary(self, rule: str | None = None) -> Summary | None:
        """Summarise the rounds: best, last, and mean of each client's own best; None if the rule was never evaluated.

        The best rounds are selected by test accuracy, which is optimistic; report `run.chosen` instead.
        """
        return self.run.summary(check_rule(self.run, rule))

    def frame(
        self, by: str = "round", *, rule: str | None = None, alone: Result | Run | None = None
    ) -> pandas.DataFrame:
        """Return a pandas frame of the run. Needs pandas, `protonorm[frame]`.

        Every row has the method, seed and round; rows by client also have its name, number, network and sample counts.

        Args:
            by: `round` for one row per round and rule; `client`, `class`, `rule` or `client,class` for the reported
                round; `client,round`, `class,round` or, with `keep_classes=True`, `client,class,round` for every one.
            rule: Prediction rule of the numbers by client and class; the method's headline rule by default.
            alone: Run of the same clients without an exchange, whose accuracy and the gain over it are added.
        """
        if not isinstance(alone, Result | Run | None):
            raise ValueError(f"alone must be a run or the result of one, got {shown(alone)}.")
        rows = rows_by(self.run, by, rule, alone.run if isinstance(alone, Result) else alone, partial(self.cells, rule))
        from protonorm.data.own.tables import import_pandas  # optional dependency

        frame: pandas.DataFrame = import_pandas().DataFrame(rows)
        return frame

    @property
    def clients(self) -> TrainedClients:
        """Trained clients in the chosen round, by number or name; each is loaded on access."""
        return TrainedClients(self)

    def trained(self, checkpoint: Literal["chosen", "last"] = "chosen") -> TrainedClients:
        """Return the trained clients in the chosen or the last round."""
        if not isinstance(checkpoint, str) or checkpoint not in ("chosen", "last"):
            raise ValueError(f"checkpoint must be chosen or last, got {shown(checkpoint)}.")
        return TrainedClients(self, checkpoint)

    def figures(self) -> dict[str, pandas.DataFrame]:
        """Return the data behind every figure of the run's report page, as `Comparison.figures` does."""
        from protonorm.data.own.tables import import_pandas
        from protonorm.report.page import by_method, figure_rows

        return {name: import_pandas().DataFrame(rows) for name, rows in figure_rows(by_method([self.run])).items()}

    def cells(self, rule: str | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Count right answers and test samples (M, K) by client and class, with the trained clients."""
        matrices = np.zeros((len(self.client_names), len(self.classes), len(self.classes)), np.int64)
        chosen = self.run.chosen.record if self.run.chosen else None
        for id in np.flatnonzero(self.run.support(chosen)).tolist() if chosen else ():
            matrices[id] = self.confusion(id, rule)
        return matrices.diagonal(axis1=1, axis2=2), matrices.sum(2)

    def confusion(self, client: int | str | None = None, rule: str | None = None) -> NDArray[np.int64]:
        """Return a confusion matrix (K, K) on the test part: rows are true classes, columns predicted classes.

        The trained client in the chosen round predicts its test part again, which needs the data.

        Args:
            client: Number or name of a client; None sums over all clients.
            rule: Prediction rule; the method's headline rule by default.

        Raises:
            ValueError: If the data have changed since the run.
        """
        rule, size = check_rule(self.run, rule), len(self.classes)
        counts = np.zeros((size, size), np.int64)
        chosen = self.run.chosen.record if self.run.chosen else None
        for id in range(len(self.client_names)) if client is None else [self.run.find_client(client)]:
            evaluated = client is not None or chosen is None or self.run.support(chosen)[id]
            if not self.run.population.test[id].any() or not evaluated:
                continue
            data, part = self.population.dataset, self.population.parts[id].test
            labels = data.labels[part]
            if not np.array_equal(np.bincount(labels, minlength=size), self.run.population.test[id]):
                raise ValueError("The data are no longer those of the run: its clients test on other samples.")
            predicted = self.clients[id].predict(data.inputs[part], rule)
            counts += np.bincount(labels * size + predicted, minlength=size * size).reshape(size, size)
        return counts

    @cached_property
    def population(self) -> SimulatedPopulation:
        """Population of the run; loads and partitions the data."""
        return build(self.experiment)[1]

    def __repr__(self) -> str:
        """Return one line: method, data, seed, progress and accuracy."""
        return f"Result({self._about()}; {truncate_start(str(self.run.folder))})"

    def _repr_html_(self) -> str:
        """Return the table of clients as HTML, for notebooks."""
        head = ["client", "network", "train", "test", "classes", "accuracy"]
        rows = [
            [*(client[name] for name in head[:-1]), percent(client["accuracy"])] for client in client_rows(self.run)
        ]
        return html_table(self._about(), head, rows, f"Accuracy in per cent, rule {self.run.info.headline}.")

    def _about(self) -> str:
        run, settings = self.run, self.run.info.experiment
        record = run.chosen.record if run.chosen else None
        accuracy = record.rules.get(run.info.headline) if record else None
        number = f", accuracy {percent(accuracy.pooled)} % in round {record.round}" if record and accuracy else ""
        method, data = shortened(about(run, record)["method"], 30), shortened(settings.dataset.name, 30)
        return f"{method} on {data}, seed {settings.seed}: {len(run.rounds)} of {settings.rounds} rounds{number}"


@dataclass(frozen=True, repr=False)
class TrainedClients(Sequence["TrainedClient"]):
    """Trained clients of a run, by number or name."""

    result: Result
    checkpoint: Literal["chosen", "last"] = "chosen"

    def __len__(self) -> int:
        return self.result.run.info.experiment.clients

    @overload
    def __getitem__(self, id: int | str) -> TrainedClient: ...
    @overload
    def __getitem__(self, id: slice) -> list[TrainedClient]: ...
    def __getitem__(self, id: int | str | slice) -> TrainedClient | list[TrainedClient]:
        """Load a client, or a slice of clients; without the run's data a client can predict but has no test part."""
        if isinstance(id, slice):
            return [self[number] for number in range(len(self))[id]]
        run, number = self.result.run, self._number(id)
        from protonorm.inference.loading import load_from_run  # not needed by runs that only train

        return load_from_run(run, number, checkpoint=self.checkpoint, **self._of_the_experiment(number))

    def __iter__(self) -> Iterator[TrainedClient]:
        """Load the clients in order."""
        return (self[id] for id in range(len(self)))

    def __repr__(self) -> str:
        """Return the number of clients, the run's key and the checkpoint."""
        return f"TrainedClients({len(self)} of {self.result.run.info.key}, {self.checkpoint} round)"

    def _number(self, id: int | str) -> int:
        """Return a client's number; negative numbers count from the end."""
        if isinstance(id, str):
            return self.result.run.find_client(id)
        if not hasattr(id, "__index__") or isinstance(id, bool):
            raise ValueError(f"A client must be given by its number or its name, got {shown(id)}.")
        try:
            return range(len(self))[id]
        except IndexError:
            raise IndexError(f"There is no client {id}; the run has clients 0 to {len(self) - 1}.") from None

    def _of_the_experiment(self, number: int) -> dict[str, Any]:
        """Return what the record lacks: the user's own code, and the test part."""
        result = self.result
        try:
            test = result.population.site(number).client(0).test
        except ValueError:
            info = result.run.info
            if result.given or "source" in info.experiment.algorithm.settings or _own_network(info.networks):
                raise
            return {}  # the record alone suffices
        choice = networks(result.experiment.models)
        item, second = choice[number % len(choice)], result.experiment.auxiliary
        return {
            "network": None if isinstance(item, str) and not is_frozen(item) else item,
            "auxiliary": None if isinstance(second, str) and not is_frozen(second) else second,
            "algorithm": result.experiment.algorithm,
            "test": test,
        }


def load_run(run: str | Path, *, out: str | Path | None = None, **settings: Any) -> Result:
    """Load a run from its record; no data are needed.

    Args:
        run: Folder of the run, its name, or the beginning of its name under `out`.
        out: Folder of all runs; `PROTONORM_RUNS` or `./runs` by default.
        **settings: The user's own data and code, of which the record holds only the name, as in an `Experiment`:
            `dataset="clients:partners"`, `models=[small, large]`. They are checked against the record.

    Raises:
        ValueError: If no run or several runs match the name, or the settings do not match the record.
    """
    if not isinstance(run, str | Path):
        raise ValueError(f"run must be the folder or the name of a run, got {shown(run)}.")
    record = read_run(find_run(runs_root(out), str(Path(run).expanduser())))
    return Result(experiment_of(record, settings) if settings else None, record)


def experiment_of(run: Run, components: Mapping[str, Any] | None = None) -> Experiment:
    """Reconstruct the experiment of a run; `given` holds settings of which the record has only the name.

    These are the user's own data and code: they are never searched for or executed unless given.
    """
    components, info = dict(components or {}), run.info.experiment
    if unknown := components.keys() - Experiment.model_fields.keys():
        raise ValueError(f"An experiment has no setting {shown(sorted(unknown)[0])}.")
    settings = info.plain()
    settings["dataset"] = components["dataset"] if "dataset" in components else _dataset(run)
    partition = info.partition
    if partition.name == "given" and partition.settings.keys() == {"seed"}:
        settings["partition"] = Given(**partition.settings)
    elif (partition.name not in PARTITIONS or "sha256" in partition.settings) and "partition" not in components:
        raise _not_held(run, "partition", partition.name)
    if "algorithm" not in components and "source" in info.algorithm.settings:
        raise _not_held(run, "algorithm", info.algorithm.name)
    for name in ("models", "auxiliary", "optimiser"):
        if name not in components and (own := _own_network(settings.get(name))):
            raise _not_held(run, name, own)
    experiment = Experiment.of(settings | components)
    if experiment.key != run.info.key:
        source = f"{', '.join(sorted(components))} as given" if components else "the data and the version that are here"
        other = f"is another experiment, {experiment.key}: data or code have changed."
        raise ValueError(f"The record of {run.info.key} with {source} {other}")
    return experiment


def _own_network(choice: Any) -> str:
    """Return the name of the first user-defined network in a choice; empty if there is none."""
    items = choice if isinstance(choice, list) else [choice]
    return next((str(item["name"]) for item in items if isinstance(item, Mapping)), "")


def _dataset(run: Run) -> dict[str, Any]:
    """Return the data set of a run with its settings; the experiment's key verifies its content."""
    name, settings = run.info.experiment.dataset.name, run.info.experiment.dataset.settings
    allowed = {field.name for field in fields(DATASETS[name].load())} if name in DATASETS else {"path"}
    if "path" in allowed:
        raise _not_held(run, "dataset", name)
    if "sha256" in settings and "of" not in settings:
        allowed.discard("samples")  # all samples were used
    return {"name": name, **{key: value for key, value in settings.items() if key in allowed}}


def _not_held(run: Run, name: str, value: str) -> ValueError:
    return ValueError(
        f"The {name} {value} of {run.info.key} is the user's own: its record holds no more than the name. "
        f"pn.load_run(…, {name}=…) takes it, or pn.run the experiment itself."
    )
