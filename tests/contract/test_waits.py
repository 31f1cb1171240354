"""On a GPU a program that reads a value, or copies from one place to the other, waits for the device.

Nobody waits inside a loop over batches: not while training, and not while evaluating.
"""

import pytest

from protonorm.core import Order, samples, seeded
from protonorm.federation import population
from protonorm.federation.client import evaluate_step, first_state, train_step
from protonorm.federation.policy import Policy
from protonorm.federation.rounds import begin
from protonorm.session.build import build
from tests import standin
from tests.support import methods, pictures, spiral

pytestmark = pytest.mark.usefixtures("on_standin")


SETTINGS = {
    "augmented": {"dataset": pictures([0, 1, 2] * 24, 3), "models": "plain", "augment": "crop+flip", "batch_size": 4},
    "clipped": {"clip": 1.0, "optimiser": "adam", "last_batch": "keep"},
    "data outside": {},
}


def second_round(algorithm, **settings):
    """Play a client's first round; return its task, its site, its state, and the server's message."""
    task, population = build(spiral(algorithm=algorithm, device=standin.NAME, validation=0.3, **settings))
    point, site = begin(task, Policy(6, 6)), population.site(0)
    state, reply = train_step(task, site, Order(0, 1, 0), first_state(task, site), point.message)
    with seeded(0, 1, 0):
        said = task.algorithm.aggregate(task.server(1), point.state, iter([reply.message])).message
    return task, site, state, said


@pytest.mark.parametrize("algorithm", methods())
def test_more_batches_wait_no_more_often(algorithm):
    trained_without_waiting(algorithm)


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_do_not_wait_either(name, monkeypatch):
    if name == "data outside":
        monkeypatch.setattr(population, "free_memory", lambda device: 0)
    trained_without_waiting("protonorm", **SETTINGS[name])


def trained_without_waiting(algorithm, **settings):
    def waits(epochs):
        task, site, state, said = second_round(algorithm, epochs=epochs, **settings)
        standin.waits.clear()
        train_step(task, site, Order(0, 2, 1), state, said)
        return dict(standin.waits)

    few, many = waits(1), waits(5)
    assert few
    assert few == many


@pytest.mark.parametrize("algorithm", methods())
def test_evaluation_in_more_batches_waits_no_more_often(algorithm, monkeypatch):
    task, site, state, said = second_round(algorithm)

    def waits(size):
        monkeypatch.setattr(samples, "evaluation_batch", lambda inputs: size)
        standin.waits.clear()
        evaluate_step(task, site, Order(0, 1, 1), state, said, ["validation", "test"])
        return dict(standin.waits)

    assert len(site.client(1).test) > 1
    few, many = waits(256), waits(1)
    assert few
    assert few == many
