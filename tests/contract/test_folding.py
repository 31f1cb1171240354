"""Servers fold replies one by one: however many there are, no more than a few are alive at a time."""

import weakref

import pytest

from protonorm.algorithms import ALGORITHMS
from protonorm.core import SERVER, seeded
from protonorm.federation.policy import Policy
from protonorm.federation.server import Gathering, Replies, admit
from tests.contract.playing import same, spiral_rounds

# Their servers train on all prototypes of a round, cluster them, or pass on all heads.
STACKING = {"fedtgp", "fedorgp", "fedgh", "fedre", "fpl", "fedpac"}
MANY = 40


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_no_server_holds_more_replies_than_its_method_needs(algorithm):
    """Of forty replies, made as they are asked for, at most the first, the last and the next one are there."""
    task, _, seen = spiral_rounds(algorithm, 1)
    said = list(seen["replies"].values())
    alive, most = [], 0

    def arriving():
        nonlocal most
        for number in range(MANY):
            reply = said[number % len(said)]
            message = {name: value.clone() for name, value in reply.message.items()}
            alive.extend(weakref.ref(value) for value in list(message.values())[:1])  # some methods say nothing
            most = max(most, sum(one() is not None for one in alive))
            yield reply._replace(message=message)
            del message

    replies, gathered = Replies(), Gathering(task, 2, seen["step"].state)
    for reply in arriving():
        assert admit(task, reply, replies, Policy(MANY, MANY))
        gathered.add(reply.message)
        del reply
    gathered.conclude()
    assert len(replies.ids) == MANY
    assert most <= (MANY if algorithm in STACKING else 3)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_replies_are_summed_in_the_order_in_which_they_come(algorithm):
    """A list and an iterator that is read once give the same bits."""
    task, _, seen = spiral_rounds(algorithm, 1)
    messages = [reply.message for reply in seen["replies"].values()]
    steps = []
    for replies in (iter(messages), (dict(one) for one in messages)):
        with seeded(task.seed, 2, SERVER):
            steps.append(task.algorithm.aggregate(task.server(2), seen["step"].state, replies))
    assert same(steps[0].state, steps[1].state)
    assert same(steps[0].message, steps[1].message)


def test_heads_that_are_passed_on_are_in_the_order_of_their_clients():
    task, _, seen = spiral_rounds("fedpac", 1)
    gathered = Gathering(task, 2, seen["step"].state)
    for reply in seen["replies"].values():
        gathered.add(reply.message)
    said = gathered.conclude().message["all.variance"].tolist()
    assert said == [float(reply.message["variance"]) for reply in seen["replies"].values()]
    assert said != said[::-1]
