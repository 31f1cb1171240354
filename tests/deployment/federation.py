"""A federation in one process: the deployed round loop, a transport that tests may disturb, and clients' real nodes."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import protonorm as pn
from protonorm.core.frames import split
from protonorm.core.randomness import one_thread
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.engine import Arrived, FederationEngine
from protonorm.deployment.events import Event
from protonorm.deployment.federation import report_rounds
from protonorm.deployment.node import Node
from protonorm.federation.rounds import begin
from protonorm.runs.writer import DeferredWriter
from protonorm.session.build import build, policy_of
from protonorm.session.running import _counts, info_of
from tests.deployment.sites import agreement_of, make_nodes, own_sites
from tests.support import contents, run, run_folder, spiral

PARTS = ("validation", "test")


class Killed(BaseException):
    """The server's process ends here; nothing that it would do at its end is done."""


class Line:
    """A transport whose clients live in this process. Time passes only while nothing arrives."""

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self.nodes = nodes
        self.waiting: list[Arrived] = []
        self.sent: list[dict[str, Any]] = []  # headers of requests that reached a client
        self.requests: list[tuple[int, bytes]] = []
        self.away: dict[int, str] = {}  # clients that cannot be reached, and why
        self.deaf: set[int] = set()  # clients whose requests are lost on their way, and nobody notices
        self.change: Callable[[int, dict[str, Any], bytes], Sequence[bytes | Arrived]] | None = None  # what arrives
        self.plans: list[tuple[float, Callable[[], None]]] = []  # what happens at a time, in order
        self.now = 0.0

    def push(self, requests: Mapping[int, bytes]) -> Mapping[int, str]:
        away = dict(self.away)
        for id, content in reversed(requests.items()):  # answers come in another order than requests go
            if id not in away and id not in self.deaf:
                header = split(content)[0]
                self.sent.append(header)
                self.requests.append((id, content))
                answer = self.nodes[id].answer(content)
                for one in self.change(id, header, answer) if self.change else [answer]:
                    self.waiting.append(one if isinstance(one, Arrived) else Arrived(id, one))
        return {id: reason for id, reason in away.items() if id in requests}

    def pull(self, seconds: float) -> Sequence[Arrived]:
        found, self.waiting = self.waiting, []
        if not found:
            assert seconds > 0
            assert self.now < 5000, "the loop waits for ever"
            due = self.plans and self.plans[0][0] <= self.now + seconds
            self.now = max(self.now, self.plans[0][0]) if due else self.now + seconds
            if due:
                self.plans.pop(0)[1]()
        return found

    def close(self) -> None:
        pass

    def kinds(self) -> list[tuple[int, str]]:
        """List the calls: round and kind, each once."""
        return list(dict.fromkeys((header["round"], header["kind"]) for header in self.sent))


class Federation:
    """A server and its clients; the server writes the record that a simulation of the same experiment would write."""

    def __init__(self, experiment: pn.Experiment, folder: Path, **change: Any) -> None:
        self.experiment, self.folder, self.place = experiment, folder, folder / "server"
        self.simulated, self.population = build(experiment)
        terms = agreement_of(self.simulated, PARTS, experiment.evaluate_every)
        self.agreement = Agreement.read(terms.write())
        self.task = self.agreement.task
        self.policy = policy_of(experiment, self.population.client_names)
        sites = own_sites(self.task, self.population)
        self.line = Line(make_nodes(self.agreement, sites, folder / "nodes"))
        self.told: list[Event] = []
        self.engine = self.new_engine()

    def new_engine(self, chosen: int = 0) -> FederationEngine:
        return FederationEngine(self.agreement, self.line, self.policy, self.told.append, lambda: self.line.now, chosen)

    def run(self, rounds: int | None = None) -> Path:
        """Resume in a new server process, to the end or for some rounds; it may be killed."""
        writer = DeferredWriter(self.place, self.experiment.key)
        writer.__enter__()
        try:
            with one_thread():
                writer.describe(info_of(self.experiment, self.simulated), _counts(self.population))
                point = writer.resume() or begin(self.task, self.policy)
                self.engine = self.new_engine(writer.chosen)
                for round in report_rounds(self.task, self.engine, self.policy, point, writer, self.told.append):
                    if round.number == rounds:
                        break
            writer.__exit__()
        finally:
            writer._lock.close()
        return self.place

    def serial(self) -> dict[str, bytes]:
        """Run the simulation; give its files but for the clients' states."""
        run(self.experiment, self.folder)
        return without_states(run_folder(self.experiment, self.folder))

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.place / "metrics.jsonl").read_text().splitlines()]

    def heard(self, what: str) -> list[Event]:
        return [event for event in self.told if event.what == what]


def small(**settings: Any) -> pn.Experiment:
    return spiral(**{"clients": 3, "rounds": 3, "dataset": {"name": "spiral", "points": 20}} | settings)


def without_states(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(folder).items() if not name.startswith("clients/")}
