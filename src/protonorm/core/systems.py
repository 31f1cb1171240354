"""Simulated systems: how long clients take, which of them fail, and in which order a server hears of them.

Time is simulated: nobody waits. Everything is drawn from streams of the run's seed, so that it is the same on every
engine and after a resume.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray
from pydantic import AfterValidator

from protonorm.core.randomness import SERVER, seeded
from protonorm.core.settings import dataclass, validated
from protonorm.core.types import NOT_TRUTH, STRICT, Below1, Fraction, NonNegative, Positive, Whole, shown

LONGEST = 1e9  # seconds of a delay, and factor of a straggler
DELAYS = {"constant": 1, "uniform": 2, "exponential": 1, "lognormal": 2}  # numbers of each distribution
DELAY = re.compile(r"(\w+):(\d{1,9}(?:\.\d*)?)(?:,(\d{1,9}(?:\.\d*)?))?", re.ASCII)


def _parse(delay: str) -> tuple[str, float, float]:
    """Return name and numbers of a distribution, as lognormal:10,0.5; raise a ValueError if it is none."""
    match = DELAY.fullmatch(delay)
    if match is None or DELAYS.get(match[1]) != 1 + (match[3] is not None):
        forms = "constant:SECONDS, uniform:LEAST,MOST, exponential:MEAN or lognormal:MEDIAN,SIGMA"
        raise ValueError(f"system.delay must be {forms}, with numbers below 10⁹, got {shown(delay)}.")
    first, second = float(match[2]), float(match[3] or match[2])
    if match[1] == "uniform" and first > second:
        raise ValueError("system.delay=uniform:LEAST,MOST must have the smaller number first.")
    return match[1], first, second


Delay = Annotated[str, AfterValidator(lambda delay: _parse(delay) and delay)]


@dataclass(frozen=True, config=STRICT)
class System:
    """Simulated speed and reliability of the clients, and whether the server waits for all of a round."""

    delay: Delay = "constant:1"  # seconds of a client in a round, drawn for each
    stragglers: Below1 = 0.0  # share of the clients that are always slower …
    slowdown: Annotated[float, Ge(1), Le(LONGEST), NOT_TRUTH] = 10.0  # … by this factor
    dropout: Below1 = 0.0  # probability that a client fails in a round
    deadline: Positive | None = None  # simulated seconds after which a synchronous round goes on without a client
    asynchronous: bool = False  # whether a round ends when part of the running clients have replied
    buffer: Fraction = 0.5  # that part
    staleness: Whole = 5  # largest number of rounds that may pass between a client's message and its reply
    discount: NonNegative = 0.5  # a: a reply that is τ rounds late weighs (1 + τ)^−a

    def factor(self, late: int) -> float:
        """Return the factor of the weight of a reply that is `late` rounds late."""
        return float((1 + late) ** -self.discount)

    def speeds(self, seed: int, clients: int) -> NDArray[np.float64]:
        """Return the factor (M,) of each client's delays."""
        with seeded(seed, 0, SERVER, "system"):
            slow = np.random.permutation(clients)[: round(self.stragglers * clients)]
        factors = np.ones(clients)
        factors[slow] = self.slowdown
        return factors

    def draw(self, seed: int, round: int, clients: int) -> tuple[NDArray[np.float64], NDArray[np.bool_], list[int]]:
        """Draw the delays (M,) of a round, who fails (M,), and an order of all clients."""
        name, first, second = _parse(self.delay)
        with seeded(seed, round, SERVER, "system"):
            if name == "lognormal":
                delays = first * np.exp(second * np.random.standard_normal(clients))
            elif name == "exponential":
                delays = np.random.exponential(first, clients)
            else:
                delays = np.random.uniform(first, second, clients)
            fails, order = np.random.uniform(size=clients) < self.dropout, np.random.permutation(clients)
        return np.minimum(delays, LONGEST), fails, order.tolist()


SystemSettings = Annotated[Any, AfterValidator(lambda given: validated(System, given, "system", "system."))]


class Plan(NamedTuple):
    """Who is heard of in a round of a simulated system."""

    round: int
    cohort: list[int]  # clients that reply or fail, by number
    lost: dict[int, str]  # those that fail, with the reason
    started: dict[int, int]  # round whose message each of the cohort has
    waiting: set[int]  # rounds whose message clients have that go on training
    seconds: float  # simulated, of the round

    @property
    def metrics(self) -> dict[str, float]:
        """What the round's record tells of the system."""
        late = [self.late(id) for id in self.cohort if id not in self.lost]
        return {"simulated.seconds": self.seconds, "simulated.staleness": float(np.mean(late))}

    def late(self, id: int) -> int:
        """Return how many rounds a client's reply is late."""
        return self.round - 1 - self.started[id]


def waited(system: System, seed: int, round: int, clients: int, cohort: list[int], needed: int) -> Plan:
    """Plan a synchronous round: failed and late clients are lost, but `needed` clients are always waited for."""
    delays, fails, _ = system.draw(seed, round, clients)
    delays = delays * system.speeds(seed, clients)
    limit = math.inf if system.deadline is None else system.deadline
    by_need = sorted(cohort, key=lambda id: (bool(fails[id]), delays[id], id))
    lost = {}
    for id in by_need[needed:]:
        if fails[id]:
            lost[id] = "it failed, in simulation"
        elif delays[id] > limit:
            lost[id] = f"it was late, in simulation: {delays[id]:.3g} of {limit:g} seconds"
    kept = max(delays[id] for id in cohort if id not in lost)
    seconds = max(kept, *(min(delays[id], limit) for id in lost)) if lost else kept
    return Plan(round, cohort, dict(sorted(lost.items())), dict.fromkeys(cohort, round - 1), set(), float(seconds))


def arrivals(system: System, seed: int, clients: int, running: int, apart: Sequence[int] = ()) -> Iterator[Plan]:
    """Plan asynchronous rounds: of so many running clients, a round takes the first that finish.

    A client that finished begins again with the message of the round, or another one in its place. A round waits for
    clients that would become more than `staleness` rounds late. Clients that are `apart` never train.
    """
    speeds = system.speeds(seed, clients)
    jobs: dict[int, tuple[float, int, bool]] = {}  # by client: when it finishes, round of its message, whether it fails
    clock, round = 0.0, 0
    while True:
        round += 1
        delays, fails, order = system.draw(seed, round, clients)
        for id in [id for id in order if id not in jobs and id not in apart][: running - len(jobs)]:
            jobs[id] = clock + float(delays[id] * speeds[id]), round - 1, bool(fails[id])
        by_time = sorted(jobs, key=lambda id: (jobs[id][0], id))
        if all(jobs[id][2] for id in by_time):  # somebody has to reply
            jobs[by_time[0]] = (*jobs[by_time[0]][:2], False)
        replying = [id for id in by_time if not jobs[id][2]]
        needed = min(len(replying), math.ceil(system.buffer * running - 1e-9))
        overdue = [jobs[id][0] for id in jobs if round - 1 - jobs[id][1] >= system.staleness]
        end = max(clock, jobs[replying[needed - 1]][0], *overdue)
        cohort = sorted(id for id in jobs if jobs[id][0] <= end)
        started = {id: jobs[id][1] for id in cohort}
        lost = {id: "it failed, in simulation" for id in cohort if jobs[id][2]}
        jobs = {id: job for id, job in jobs.items() if id not in started}
        yield Plan(round, cohort, lost, started, {job[1] for job in jobs.values()}, end - clock)
        clock = end
