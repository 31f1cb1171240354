"""What every registered algorithm promises. A new one is covered by its registration line."""

import json
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import safetensors.torch
import torch

from protonorm.algorithms import ALGORITHMS
from protonorm.core import Order, seeded
from protonorm.federation.client import train_step
from protonorm.federation.policy import Policy
from protonorm.federation.rounds import begin
from protonorm.session.build import build
from tests.contract.playing import each_round, same, server_step, spiral_rounds
from tests.support import ALIKE, FROZEN, contents, long_unless, methods, run, run_folder, spiral

ENGINES = ["processes"]
if find_spec("ray") and sys.platform != "win32":
    ENGINES.append("ray")


@pytest.fixture(scope="module", autouse=True)
def _end_cluster():
    """All runs on Ray have one cluster; nothing of it is left behind."""
    yield
    if "protonorm.engines.ray.cluster" in sys.modules:
        sys.modules["protonorm.engines.ray.cluster"].disconnect()


@pytest.fixture(params=sorted(ALGORITHMS))
def algorithm(request):
    return request.param


def backwards(tensors):
    return dict(reversed(tensors.items()))


def copied(tensors):
    return {name: value.clone() for name, value in tensors.items()}


def test_a_whole_number_that_sums_cannot_hold_is_refused(algorithm):
    """Four counts of 2**62 are 2**64, which int64 does not have: no client may say a number of that size."""
    task, _, seen = spiral_rounds(algorithm, 1)
    reply = seen["replies"][1].message
    task.schema.check_up(reply, "It")
    for name in [name for name, value in reply.items() if value.dtype == torch.int64]:
        with pytest.raises(ValueError, match=f"It holds {name} from .* expected whole numbers from . to "):
            task.schema.check_up(reply | {name: torch.full_like(reply[name], 2**62)}, "It")


def test_it_is_pure(algorithm):
    """Equal inputs give equal outputs, and inputs are left as they were."""
    task, population, seen = spiral_rounds(algorithm, 2)
    state, message = seen["before"][1], seen["said"]
    kept_state, kept_message = copied(state), copied(message)
    again_state, again = train_step(task, population.site(1), Order(1, 2, 1), state, message)
    assert same(again_state, seen["after"][1])
    assert same(again.message, seen["replies"][1].message)
    assert same(state, kept_state)
    assert same(message, kept_message)
    replies = [reply.message for reply in seen["replies"].values()]
    kept = [copied(reply) for reply in replies], copied(seen["held"])
    step = server_step(task, 2, seen["held"], replies)
    assert same(step.message, seen["step"].message)
    assert same(step.state, seen["step"].state)
    assert all(map(same, replies, kept[0]))
    assert same(seen["held"], kept[1])


def test_the_order_of_names_does_not_matter(algorithm):
    """Tensors come from files and wires in another order than they were put there."""
    task, population, seen = spiral_rounds(algorithm, 2)
    given = backwards(seen["before"][1]), backwards(seen["said"])
    state, reply = train_step(task, population.site(1), Order(1, 2, 1), *given)
    assert same(state, seen["after"][1])
    assert same(reply.message, seen["replies"][1].message)
    said = [backwards(reply.message) for reply in seen["replies"].values()]
    step = server_step(task, 2, backwards(seen["held"]), said)
    assert same(step.message, seen["step"].message)
    assert same(step.state, seen["step"].state)


def test_a_method_with_several_classifiers_also_lets_them_answer_together(algorithm):
    """Choir weighs its own by leave-one-out."""
    rules = spiral_rounds(algorithm, 2)[0].algorithm.rules
    assert ("joint" in rules) == (len(rules) > 1 and "both" not in rules)


def test_it_relies_on_nothing_but_its_inputs(algorithm):
    """Whatever weights the workspace last held, equal states and messages give equal answers."""
    task, population, seen = spiral_rounds(algorithm, 2)
    client = population.site(1).client(2)
    for module in filter(None, (client.model, client.auxiliary)):
        for weight in module.parameters():
            weight.data.fill_(7.0)
    with seeded(task.seed, 2, 1):
        step = task.algorithm.local_update(client, seen["before"][1], seen["said"])
    assert same(step.state, seen["after"][1])
    assert same(step.message, seen["replies"][1].message)


@pytest.mark.parametrize("change", [{}, {"participation": 0.4}, {"partition": {"name": "pathological"}}], ids=str)
def test_all_that_is_said_fits_the_schema(algorithm, change):
    """In every round, also the first, and with clients and classes missing."""
    task, population = build(spiral(algorithm=algorithm, **change))
    task.schema.check_down(begin(task, Policy(len(population), len(population))).message)
    for seen in each_round(task, population, 2):
        task.schema.check_down(seen["step"].message)
        for reply in seen["replies"].values():
            task.schema.check_up(reply.message, "A reply")


def test_what_does_not_fit_the_schema_is_refused_and_the_tensor_named(algorithm):
    """Every tensor of every message: another type, one more axis, numbers that are not finite, and its absence."""
    task, _, seen = spiral_rounds(algorithm, 2)
    check = task.schema
    pairs = [(seen["step"].message, check.check_down), (seen["replies"][0].message, lambda m: check.check_up(m, "It"))]
    for message, check_message in pairs:
        with pytest.raises(ValueError, match="strange"):
            check_message(message | {"strange": torch.ones(1)})
        for name, value in message.items():
            wrong = [value.to(torch.float16), value.unsqueeze(0)]
            wrong += [value * torch.nan] if value.is_floating_point() else [value - 10**6]
            for one in wrong:
                with pytest.raises(ValueError, match=name.replace(".", r"\.")):
                    check_message(message | {name: one})
            rest = {other: one for other, one in message.items() if other != name}
            if rest:  # to say nothing at all may be allowed
                with pytest.raises(ValueError, match="lacks|which is not expected"):
                    check_message(rest)


def test_messages_and_states_survive_the_wire(algorithm):
    _, _, seen = spiral_rounds(algorithm, 2)
    for tensors in (seen["step"].message, seen["step"].state, seen["after"][0], seen["replies"][0].message):
        whole = {name: value.contiguous() for name, value in tensors.items()}
        assert same(safetensors.torch.load(safetensors.torch.save(whole)), tensors)


@pytest.mark.parametrize("algorithm", methods())
def test_worker_processes_give_the_bytes_of_serial(tmp_path, algorithm):
    same_bytes(tmp_path, algorithm, "processes")


@pytest.mark.skipif("ray" not in ENGINES, reason="there is no Ray")
@pytest.mark.parametrize("algorithm", long_unless((), sorted(ALGORITHMS)))
def test_actors_of_ray_give_the_bytes_of_serial(tmp_path, algorithm):
    same_bytes(tmp_path, algorithm, "ray")


def same_bytes(tmp_path, algorithm, engine):
    experiment = spiral(algorithm=algorithm)
    run(experiment, out=tmp_path / "serial")
    run(experiment, out=tmp_path / engine, engine=engine, workers=2)
    assert contents(run_folder(experiment, tmp_path / engine)) == contents(run_folder(experiment, tmp_path / "serial"))


@pytest.mark.parametrize("algorithm", methods())
def test_resumed_on_other_engines_with_other_workers_equals_unbroken(tmp_path, algorithm):
    """Two workers for the first round, none for the second, others for the third; not everybody in every round."""
    experiment = spiral(algorithm=algorithm, participation=0.7)
    run(experiment, out=tmp_path / "whole")

    def stop(_):
        raise KeyboardInterrupt

    for engine, workers in (("processes", 2), ("serial", None)):
        with pytest.raises(KeyboardInterrupt):
            run(experiment, out=tmp_path / "broken", engine=engine, workers=workers, watch=stop)
    last, count = ("ray", 2) if "ray" in ENGINES and algorithm in ALIKE else ("processes", 1)  # Ray takes long
    run(experiment, out=tmp_path / "broken", engine=last, workers=count)
    assert contents(run_folder(experiment, tmp_path / "broken")) == contents(run_folder(experiment, tmp_path / "whole"))


def test_a_client_with_one_class_in_a_cohort_of_one(tmp_path, algorithm):
    experiment = spiral(
        algorithm=algorithm,
        partition={"name": "pathological", "classes_per_client": 1},
        participation=0.1,
        rounds=4,
    )
    result = run(experiment, out=tmp_path)
    for record in result.history:
        json.dumps(record.model_dump(), allow_nan=False)
    assert not np.isnan(result.accuracy(result.run.info.headline if algorithm in FROZEN else "logits", "clients")).any()


# Six classes cannot be orthogonal in the plane, where the spiral's features are: FedORGP would chase a moving target.
# Nor can six heads of six clients' own agree there on one average of features.
ROOM = {name: {"feature_dim": 8} for name in ("fedorgp", "fedper", "fedrep")}
ROOM["fedpac"] = {"feature_dim": 8, "epochs": 2}


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.keys() - FROZEN.keys()))
def test_training_lowers_the_loss(tmp_path, algorithm):
    """From the second round on, when the server's word is part of the loss; where there is training."""
    settings = {"partition": "iid", "rounds": 20, "dataset": {"name": "spiral", "points": 300}, "lr": 0.005}
    experiment = spiral(algorithm=algorithm, **settings, **ROOM.get(algorithm, {}))
    losses = [record.loss for record in run(experiment, out=tmp_path).history]
    assert losses[-1] < 0.98 * losses[1]


def test_bytes_are_those_of_the_messages(tmp_path, algorithm):
    experiment = spiral(algorithm=algorithm)
    lines = run(experiment, out=tmp_path).history
    _, _, seen = spiral_rounds(algorithm, FROZEN.get(algorithm, 3))
    assert len(lines) == FROZEN.get(algorithm, 3)  # no more than needed

    def count(tensors):
        return sum(value.nbytes for value in tensors.values())

    assert lines[-1].bytes.up == sum(count(reply.message) for reply in seen["replies"].values())
    assert lines[-1].bytes.down == 6 * count(seen["said"])
