"""What every registered algorithm promises. A new one is covered by its registration line."""

import json

import pytest
import safetensors.torch
import torch

from protonorm.algorithms import ALGORITHMS
from protonorm.core import SERVER, seeded
from protonorm.federation import begin, client_step, first_state
from protonorm.setup import Setup
from tests.support import contents, run, run_folder, spiral

ENGINES = ["processes"]


@pytest.fixture(params=sorted(ALGORITHMS))
def algorithm(request):
    return request.param


def copied(tensors):
    return {name: value.clone() for name, value in tensors.items()}


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def server_step(setup, round, state, messages):
    with seeded(setup.experiment.seed, round, SERVER):
        return setup.experiment.algorithm.aggregate(setup.server(round), state, iter(messages))


def played(setup, rounds):
    """Play some rounds in memory; give the last round's inputs and outputs."""
    point = begin(setup)
    state, message = point.state, point.message
    states = {id: first_state(setup, id) for id in range(setup.experiment.clients)}
    for round in range(1, rounds + 1):
        before, said, held = dict(states), message, state
        replies = {}
        for id in states:
            states[id], replies[id] = client_step(setup, id, round, states[id], message, True)
        step = server_step(setup, round, state, [reply.message for reply in replies.values()])
        state, message = step.state, step.message
    return {
        "before": before,
        "said": said,
        "held": held,
        "replies": replies,
        "after": states,
        "step": step,
        "round": rounds,
    }


def test_it_is_pure(algorithm):
    """Equal inputs give equal outputs, and inputs are left as they were."""
    setup = Setup(spiral(algorithm=algorithm))
    seen = played(setup, 2)
    state, message = seen["before"][1], seen["said"]
    kept_state, kept_message = copied(state), copied(message)
    again_state, again = client_step(setup, 1, 2, state, message, True)
    assert same(again_state, seen["after"][1])
    assert same(again.message, seen["replies"][1].message)
    assert same(state, kept_state)
    assert same(message, kept_message)
    replies = [reply.message for reply in seen["replies"].values()]
    kept = [copied(reply) for reply in replies], copied(seen["held"])
    step = server_step(setup, 2, seen["held"], replies)
    assert same(step.message, seen["step"].message)
    assert same(step.state, seen["step"].state)
    assert all(map(same, replies, kept[0]))
    assert same(seen["held"], kept[1])


def test_it_relies_on_nothing_but_its_inputs(algorithm):
    """Whatever weights the workspace last held, equal states and messages give equal answers."""
    setup = Setup(spiral(algorithm=algorithm))
    seen = played(setup, 2)
    client = setup.client(1, 2)
    for module in filter(None, (client.model, client.auxiliary)):
        for weight in module.parameters():
            weight.data.fill_(7.0)
    with seeded(setup.experiment.seed, 2, 1):
        step = setup.experiment.algorithm.local_update(client, seen["before"][1], seen["said"])
    assert same(step.state, seen["after"][1])
    assert same(step.message, seen["replies"][1].message)


def test_messages_and_states_survive_the_wire(algorithm):
    seen = played(Setup(spiral(algorithm=algorithm)), 2)
    for tensors in (seen["step"].message, seen["step"].state, seen["after"][0], seen["replies"][0].message):
        whole = {name: value.contiguous() for name, value in tensors.items()}
        assert same(safetensors.torch.load(safetensors.torch.save(whole)), tensors)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_gives_the_bytes_of_serial(tmp_path, algorithm, engine):
    experiment = spiral(algorithm=algorithm)
    run(experiment, out=tmp_path / "serial")
    run(experiment, out=tmp_path / engine, engine=engine, workers=2)
    assert contents(run_folder(experiment, tmp_path / engine)) == contents(run_folder(experiment, tmp_path / "serial"))


def test_resumed_on_other_engines_with_other_workers_equals_unbroken(tmp_path, algorithm):
    """Two workers for the first round, none for the second, one for the third; not everybody in every round."""
    experiment = spiral(algorithm=algorithm, participation=0.7)
    run(experiment, out=tmp_path / "whole")

    def stop(_):
        raise KeyboardInterrupt

    for engine, workers in (("processes", 2), ("serial", None)):
        with pytest.raises(KeyboardInterrupt):
            run(experiment, out=tmp_path / "broken", engine=engine, workers=workers, watch=stop)
    run(experiment, out=tmp_path / "broken", engine="processes", workers=1)
    assert contents(run_folder(experiment, tmp_path / "broken")) == contents(run_folder(experiment, tmp_path / "whole"))


def test_a_client_with_one_class_in_a_cohort_of_one(tmp_path, algorithm):
    experiment = spiral(
        algorithm=algorithm,
        partition={"name": "pathological", "classes_per_client": 1},
        participation=0.1,
        rounds=4,
    )
    history = run(experiment, out=tmp_path).history
    json.dumps(history, allow_nan=False)
    assert all(None not in line["rules"]["logits"]["clients"] for line in history)


def test_training_lowers_the_loss(tmp_path, algorithm):
    """From the second round on, when the server's word is part of the loss."""
    experiment = spiral(algorithm=algorithm, partition="iid", rounds=12, dataset={"name": "spiral", "points": 300})
    losses = [line["loss"] for line in run(experiment, out=tmp_path).history]
    assert losses[-1] < 0.97 * losses[1]


def test_bytes_are_those_of_the_messages(tmp_path, algorithm):
    experiment = spiral(algorithm=algorithm)
    lines = run(experiment, out=tmp_path).history
    seen = played(Setup(experiment), 3)

    def count(tensors):
        return sum(value.nbytes for value in tensors.values())

    assert lines[-1]["bytes"]["up"] == sum(count(reply.message) for reply in seen["replies"].values())
    assert lines[-1]["bytes"]["down"] == 6 * count(seen["said"])
