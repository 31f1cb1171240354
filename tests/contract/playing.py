"""Rounds played in memory: no files, no engine."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from protonorm.core import SERVER, Order, Task, seeded
from protonorm.federation.client import first_state, train_step
from protonorm.federation.policy import Policy
from protonorm.federation.population import SimulatedPopulation
from protonorm.federation.rounds import begin
from protonorm.session.build import build
from tests.support import spiral

Tensors = dict[str, torch.Tensor]


def same(one: Tensors, two: Tensors) -> bool:
    """Return whether tensors are equal, bit for bit."""
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def server_step(task: Task, round: int, state: Tensors, messages: list[Tensors]) -> Any:
    with seeded(task.seed, round, SERVER):
        return task.algorithm.aggregate(task.server(round), state, iter(messages))


def each_round(task: Task, population: SimulatedPopulation, rounds: int) -> Iterator[dict[str, Any]]:
    """Play some rounds; give the inputs and outputs of each."""
    point = begin(task, Policy(len(population), len(population)))
    state, message = point.state, point.message
    states = {id: first_state(task, population.site(id)) for id in range(len(population))}
    for round in range(1, rounds + 1):
        before, said, held = dict(states), message, state
        replies = {}
        for id in states:
            order = Order(id, round, round - 1)
            states[id], replies[id] = train_step(task, population.site(id), order, states[id], message)
        step = server_step(task, round, state, [reply.message for reply in replies.values()])
        state, message = step.state, step.message
        after = dict(states)
        yield {"before": before, "said": said, "held": held, "replies": replies, "after": after, "step": step}


def played(task: Task, population: SimulatedPopulation, rounds: int) -> dict[str, Any]:
    """Play some rounds; give the last round's inputs and outputs."""
    return list(each_round(task, population, rounds))[-1]


@cache
def spiral_rounds(algorithm: str, rounds: int) -> tuple[Task, SimulatedPopulation, dict[str, Any]]:
    """Play some rounds of the spiral, once for all tests; these leave tensors as they are."""
    task, population = build(spiral(algorithm=algorithm))
    return task, population, played(task, population, rounds)


def outcome(task: Task, population: SimulatedPopulation, rounds: int = 2) -> Tensors:
    """Play some rounds; give all that is remembered and said at the end, in one dict."""
    seen = played(task, population, rounds)
    found = {f"server.{name}": value for name, value in seen["step"].state.items()}
    found |= {f"said.{name}": value for name, value in seen["step"].message.items()}
    for id, state in seen["after"].items():
        found |= {f"{id}.{name}": value for name, value in state.items()}
        found |= {f"{id}.said.{name}": value for name, value in seen["replies"][id].message.items()}
    return found
