"""Run missing cells one by one, write the outputs after each, and estimate the time left."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from protonorm.core.registry import find
from protonorm.core.text import shortened
from protonorm.data import DATASETS
from protonorm.engines.choice import check_engine
from protonorm.errors import Diverged, Failed
from protonorm.files import make_folder
from protonorm.runs.layout import runs_root

from .accuracy import can_check, leads_somebody
from .cells import Study, find_studies, select_cells
from .findings import Findings, Outcome, expected_outcomes, read_outcomes
from .profiles import PROFILES, PROTOCOLS, USUAL_ROUNDS, Profile, Protocol, Settings, named
from .writing import Written, refuse_foreign_files, write

if TYPE_CHECKING:
    from protonorm.config.experiment import Experiment
    from protonorm.federation.rounds import Round

    Follow = Callable[[Experiment], AbstractContextManager[Callable[[Round], None]]]

Tell = Callable[[str], None]

SHARE = 0.1  # maximum share of time for writing while cells run: short runs would only be drawn
# Seconds per training picture of 32×32, with its share of testing and prototypes, on two idle cores.
COST = {"light": 0.0004, "plain": 0.0004, "residual": 0.0005, "cnn": 0.0007, "paper": 0.0015, "resnet18": 0.0016}
COST_OF_POINTS = 0.00004
TWO_NETWORKS = ("fml", "fedkd", "fedmrl", "duet")  # train a second network beside their own


def _ignore(_: object) -> None:
    """Ignore a message or a round."""


@dataclass
class Reproduction:
    """Reproduction of tables and figures under a profile and a protocol, in a folder of runs."""

    studies: Sequence[Study]
    profile: Profile
    protocol: Protocol
    root: Path  # folder of all runs
    folder: Path  # folder of the outputs
    command: str
    seeds: Sequence[int]
    _expected: dict[str, list[Outcome]] = field(default_factory=dict, init=False)  # by study
    _refused: dict[str, str] = field(default_factory=dict, init=False)  # by key: why a cell could not be run

    def prepare(
        self, engine: str | None = None, workers: int | None = None, *, run: bool = True, check: bool = False
    ) -> None:
        """Raise a ValueError for options and studies that cannot be checked, run or written, before anything starts."""
        check_engine(engine, workers)
        if check and not any(can_check(study, self.profile, len(self.seeds)) for study in self.studies):
            profile, problem = f"the profile {self.profile.name!r}", "states no tolerance for"
            advice = ". Leave --check out, or choose another profile."
            if any(leads_somebody(study, self.profile) for study in self.studies):
                problem = "states who should lead under"
                advice = ", and one seed does not tell a difference from chance. Give several, such as --seeds 0,1,2."
            names = ", ".join(study.name for study in self.studies)
            raise ValueError(f"There is nothing to check: {names} {problem} {profile}{advice}")
        self.outcomes()
        for folder in (self.folder, self.root) if run else (self.folder,):
            _check_writable(folder)
        for study in self.studies:
            refuse_foreign_files(study, self.folder)

    def findings(self, study: Study) -> Findings:
        """Read the state of a study."""
        if study.name not in self._expected:
            self._expected[study.name] = expected_outcomes(study, self.profile, self.protocol, self.seeds)
        outcomes = read_outcomes(self._expected[study.name], self.root, self._refused)
        return Findings(study, self.profile, self.protocol, outcomes, self.command)

    def outcomes(self) -> list[Outcome]:
        """Read the state of all cells of all studies."""
        return [outcome for study in self.studies for outcome in self.findings(study).outcomes]

    def pending(self, outcomes: Sequence[Outcome] | None = None) -> dict[str, Outcome]:
        """List the unfinished runs by key, those of the first seed first; a diverged run counts as finished.

        Cells that differ in the number of rounds may share a run; it is listed with the largest number.
        """
        runs: dict[str, Outcome] = {}
        current = self.outcomes() if outcomes is None else outcomes
        for outcome in sorted(current, key=lambda outcome: self.seeds.index(outcome.seed)):
            if outcome.key and not outcome.missing and outcome.state in ("absent", "begun"):
                runs[outcome.key] = max(
                    runs.get(outcome.key, outcome), outcome, key=lambda outcome: outcome.experiment.rounds
                )
        return runs

    def write(self, key: str | None = None) -> list[Written]:
        """Write all studies, or those that include the run `key`."""
        return [
            write(self.findings(study), self.folder)
            for study in self.studies
            if key is None or any(outcome.key == key for outcome in self._expected.get(study.name, ()))
        ]

    def run(
        self,
        engine: str | None = None,
        workers: int | None = None,
        notify: Tell = _ignore,
        follow: Follow = lambda _: nullcontext(_ignore),
    ) -> list[Written]:
        """Run the missing cells, and write the outputs after each run and on interruption.

        `notify` receives messages; `follow` returns for each experiment the callback for its rounds.
        """
        from protonorm.session.running import tidy  # slow to import

        outcomes, estimate, write_from = self.outcomes(), Estimate(), 0.0
        waiting = self.pending(outcomes)
        for outcome in {outcome.key: outcome for outcome in outcomes}.values():
            if outcome.run:
                estimate.learn(_work(outcome), sum(outcome.run.seconds.values()), len(outcome.run.seconds))
        for key in {outcome.key for outcome in outcomes if outcome.key and outcome.state == "finished"}:
            tidy(self.root / key)  # left by an interruption
        for number, (key, outcome) in enumerate(waiting.items(), 1):
            left = duration(estimate.left([_work(other) for other in list(waiting.values())[number - 1 :]]))
            notify(f"{number} of {len(waiting)} runs: {outcome.where}, seed {outcome.seed}; about {left} left for all.")
            try:
                self._run_one(outcome, engine, workers, estimate, follow)
            except Diverged as error:
                notify(str(error))
            except (Failed, ValueError, BlockingIOError) as error:  # it cannot be run here; the others can
                self._refused[key] = str(error)
                notify(f"Skipped: {error}")
            except BaseException:  # interrupted: write the results so far
                try:
                    self.write()
                except (OSError, ValueError) as error:
                    notify(f"What is there could not be written: {error}")
                raise
            if (start := time.monotonic()) >= write_from:
                self.write(key)
                end = time.monotonic()
                write_from = end + (end - start) * (1 / SHARE - 1)
        return self.write()

    def _run_one(
        self, outcome: Outcome, engine: str | None, workers: int | None, estimate: Estimate, follow: Follow
    ) -> None:
        from protonorm.session.running import run  # slow to import

        # Without training, no processes are worth their start.
        chosen = (engine or self.profile.engine) if outcome.experiment.rounds else "serial"
        with follow(outcome.experiment) as show:

            def watch(round: Round) -> None:
                estimate.learn(_work(outcome), round.seconds["round"])
                show(round)

            processes = None if chosen == "serial" else workers
            run(outcome.experiment, out=self.root, engine=chosen, workers=processes, watch=watch)


def reproduction(
    names: Sequence[str],
    profile: str,
    protocol: str | None,
    out: Path | None,
    to: str | None,
    only: Sequence[str],
    seeds: str | None,
    rounds: int | None,
    command: str,
) -> Reproduction:
    """Build a reproduction from the options of the command."""
    if to is not None and not to.strip():
        raise ValueError("--to must be a folder for tables and figures, got an empty text.")
    size, root = find(PROFILES, profile, "profile"), runs_root(out)
    chosen = find(PROTOCOLS, size.protocol if protocol is None else protocol, "protocol")
    folder_name = size.name if chosen.name == size.protocol else f"{size.name}-{chosen.name}"
    if rounds is not None:
        size, folder_name = size.up_to(rounds), f"{folder_name}-{rounds}-rounds"
    folder = Path(to) if to else root / "reproduction" / folder_name
    command = command.encode(errors="backslashreplace").decode()  # only valid text
    studies, numbers = select_cells(find_studies(names), only), list(size.seeds)
    if seeds is not None:
        parts = [part.strip() for part in seeds.split(",")]
        if not all(part.isdecimal() and len(part) < 19 for part in parts):
            raise ValueError(
                f"--seeds must be whole numbers with commas between them, as 0,1,2, got {shortened(seeds)}."
            )
        numbers = list(dict.fromkeys(map(int, parts)))
    return Reproduction(studies, size, chosen, root, folder, command, numbers)


def _check_writable(folder: Path) -> None:
    """Create a folder and check that it is writable; raise a ValueError otherwise."""
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"Nothing can be written to {folder}: it is, or is inside, a file.") from None
    except OSError as error:
        raise ValueError(f"Nothing can be written to the folder {folder}: {error.strerror}.") from error


class Work(NamedTuple):
    """Remaining work of one run."""

    kind: str  # estimates for runs of one kind are wrong by about the same factor
    rounds: int  # remaining
    guess: float  # seconds per round


def work_left(settings: Settings, done: int = 0) -> Work:
    """Return the remaining work of a run."""
    kind = f"{named(settings.get('dataset'))['name']} {settings.get('models')}"
    return Work(kind, settings.get("rounds", USUAL_ROUNDS) - done, seconds_a_round(settings))


def _work(outcome: Outcome) -> Work:
    return work_left(outcome.experiment.model_dump(mode="json"), outcome.done)


def seconds_a_round(settings: Settings) -> float:
    """Estimate the seconds of a round on two cores."""
    dataset = named(settings.get("dataset"))
    details = DATASETS[dataset["name"]].details if dataset["name"] in DATASETS else {}
    samples = dataset.get("samples") or 6 * dataset.get("points", 0) or int(details.get("samples", 6000))
    size = [int(part) for part in details.get("size", "32×32×3").split("×")]
    models = settings.get("models") or details.get("models", "light")
    cost = COST.get(models if isinstance(models, str) else str(models[0]), 0.001)
    cost = COST_OF_POINTS if len(size) == 1 else cost * size[0] * size[1] / 32**2
    twice = 1.8 if named(settings.get("algorithm"), "protonorm")["name"] in TWO_NETWORKS else 1.0
    return float(0.75 * samples * cost * twice + 0.4)


def guess(study: Study, profile: Profile) -> str:
    """Estimate how long all runs of a study take on two idle cores; a dash if it has none."""
    protocol, pairs = PROTOCOLS[profile.protocol], product(study.cells, profile.seeds)
    settings = [study.settings(cell, profile, protocol, seed) for cell, seed in pairs]
    runs = {str(item): work_left(item) for item in settings}  # equal settings are run once
    return duration(Estimate().left(list(runs.values()))) if runs else "-"


class Estimate:
    """Estimator that corrects guesses by the measured seconds of rounds."""

    def __init__(self) -> None:
        self._guessed, self._taken = defaultdict[str, float](float), defaultdict[str, float](float)  # seconds by kind

    def learn(self, work: Work, taken: float, rounds: int = 1) -> None:
        """Add measured rounds."""
        self._guessed[work.kind] += rounds * work.guess
        self._taken[work.kind] += taken

    def left(self, works: Sequence[Work]) -> float:
        """Return the seconds left; kinds that have not run yet use the correction of all others together."""
        speed = sum(self._taken.values()) / total if (total := sum(self._guessed.values())) else 1.0
        factors = {kind: self._taken[kind] / seconds for kind, seconds in self._guessed.items() if seconds}
        return sum(work.rounds * work.guess * factors.get(work.kind, speed) for work in works)


def duration(seconds: float) -> str:
    """Format a duration: 40 s, 12 min, 5 h, 3 days."""
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
