"""Laws that hold for every algorithm, or between two of them."""

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

import protonorm as pn
from protonorm.algorithms import ALGORITHMS
from protonorm.core import Order
from protonorm.federation.client import first_state, train_step
from protonorm.federation.policy import Policy
from protonorm.federation.rounds import begin
from protonorm.session.build import build
from protonorm.tensors import strip_prefix
from tests.contract.playing import outcome, played, same
from tests.support import ALIKE, Given, cases, frozen, pictures, run, spiral, vectors

SMALL = {"models": "plain", "feature_dim": 2, "clients": 3, "rounds": 2, "batch_size": 4, "partition": "iid"}


def tiny(**settings: Any) -> pn.Experiment:
    """Three clients with convolutional networks on noise pictures of four classes."""
    made = {"dataset": pictures(list(range(4)) * 9, 4), **SMALL, **settings}
    if found := frozen(settings):
        made |= found | {"dataset": vectors(made["dataset"])}
    return pn.Experiment.of(made)


@cache
def usual(method: str) -> dict[str, torch.Tensor]:
    """Play two rounds of a method as it is, once for all tests."""
    return outcome(*build(tiny(algorithm=method)))


WEIGHTS = dict.fromkeys(("protonorm", "fedproto", "fedtgp", "feddistill", "targets", "fedorgp"), ("lam",))
WEIGHTS |= {"fedsaf": ("lam", "gamma"), "fedsa": ("lam", "contrast", "calibration")}


@pytest.mark.parametrize("method", WEIGHTS)
def test_without_its_regularisers_a_method_trains_as_local(method):
    """λ = 0: the networks are those of Local, bit for bit."""
    alone = played(*build(tiny(algorithm="local")), 2)["after"]
    found = played(*build(tiny(algorithm={"name": method, **dict.fromkeys(WEIGHTS[method], 0)})), 2)["after"]
    for id, state in alone.items():
        assert same(strip_prefix(found[id], "model"), strip_prefix(state, "model"))


def test_protonorm_without_alignment_and_upscaling_is_fedproto():
    plain = {"name": "protonorm", "alignment": "none", "upscaling": False}
    assert same(outcome(*build(tiny(algorithm=plain)), 3), outcome(*build(tiny(algorithm="fedproto")), 3))


@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
def test_of_one_width_with_all_classes_parts_are_averaged_as_by_fedavg(method):
    """Without batch norm, whose statistics stay at home; weighted by samples as FedAvg's, in a second round too."""
    settings = {"partition": "iid", "models": "mlp"}
    plain = played(*build(spiral(algorithm="fedavg", **settings)), 2)["step"].message
    parts = {"name": method, "masked": False, "weighting": "samples"}
    found = played(*build(spiral(algorithm=parts, **settings)), 2)["step"].message
    torch.testing.assert_close(found, {name: plain[name] for name in found})
    assert all(name in found for name, value in plain.items() if value.is_floating_point())


@pytest.mark.parametrize("method", sorted(ALGORITHMS))
def test_exchanging_the_test_part_changes_no_state_and_no_message(method):
    _, population = build(tiny(algorithm=method))
    before, parts = usual(method), population.parts
    for id in range(len(parts)):  # everybody's test labels become those of the class after
        part = parts[id].test
        population.dataset.labels[part] = (population.dataset.labels[part] + 1) % 4
        population.dataset.inputs[part] = population.dataset.inputs.max() - population.dataset.inputs[part]
    assert same(outcome(*build(tiny(algorithm=method), population.dataset)), before)


@pytest.mark.parametrize("method", sorted(ALGORITHMS))
def test_a_client_computes_the_same_alone_or_after_others(method):
    """Workspaces are shared by all clients with the same network: nothing of a client may stay in them."""
    task, population = build(tiny(algorithm=method))
    message = begin(task, Policy(3, 3)).message
    together = {}
    for id in range(3):
        site = population.site(id)
        together[id] = train_step(task, site, Order(id, 1, 0), first_state(task, site), message)
    task, population = build(tiny(algorithm=method))
    state, reply = train_step(task, population.site(2), Order(2, 1, 0), first_state(task, population.site(2)), message)
    assert same(state, together[2][0])
    assert same(reply.message, together[2][1].message)


COUNTING = {  # methods whose clients say how many samples they train on
    **{name: {} for name in ("fedavg", "feduv", "lgfedavg", "fedmrl", "fjord", "duet", "fedgen", "fednh", "fedhp")},
    **{name: {} for name in ("fedprox", "ditto", "moon", "fedper", "fedrep", "fedpac", "fpl", "tinyproto")},
    **{name: {"weighting": "samples"} for name in ("fedproto", "heterofl", "fedrolex")},
}


@pytest.mark.parametrize("method", COUNTING)
def test_clients_count_the_samples_that_they_train_on(method):
    """Client 1 has 2, 7 and 3 samples of the classes 0, 1 and 3, and trains on 3/4 of the 12, on 9 of them."""
    labels = [0] * 8 + [3, 1, 1, 0, 1, 1, 3, 1, 1, 0, 1, 3]
    shares = Given([list(range(8)), list(range(8, 20))])
    settings = {"dataset": pictures(labels, 4), "partition": shares, "clients": 2, "train": 0.75, "validation": 0}
    task, population = build(tiny(algorithm={"name": method, **COUNTING[method]}, **settings))
    site = population.site(1)
    said = train_step(task, site, Order(1, 1, 0), first_state(task, site), begin(task, Policy(2, 2)).message)[1].message
    own = population.dataset.labels[population.parts[1].train]
    counts = [int((own == k).sum()) for k in range(4)]
    assert sum(counts) == 9 < len(shares.shares[1])
    if "num_examples" in said:
        assert int(said["num_examples"]) == 9
    if "counts" in said:
        classes = said.get("classes", torch.arange(4))
        assert said["counts"].tolist() == [counts[k] for k in classes]
    assert {"num_examples", "counts"} & said.keys()


# Methods whose clients receive a network with batch norm, and how often they train it in a round.
NORMALISING = dict.fromkeys(("fedavg", "feduv", "fedprox", "ditto", "moon", "fpl", "fedper", "fednh"), 1)
NORMALISING |= dict.fromkeys(("fml", "fedkd", "fedmrl", "duet"), 1) | {"fedrep": 2, "fedpac": 2}


@pytest.mark.parametrize("method", sorted(ALGORITHMS))
def test_batch_norm_statistics_go_on_from_the_received_ones(method):
    """Of 12 samples 3/4 train, of which ⌈0.9⌉ validates: 8, in 2 batches of 4. With momentum 0.2 each keeps 0.8 of a
    statistic: where a received one is larger by 1, the reply is larger by 0.64, after two trainings by 0.64².
    """
    task, population = build(tiny(algorithm=method))
    message, site = begin(task, Policy(3, 3)).message, population.site(1)
    moved = {name: value + 1 for name, value in message.items() if name.endswith(("running_mean", "running_var"))}
    assert bool(moved) == (method in NORMALISING)
    state = first_state(task, site)
    said = [train_step(task, site, Order(1, 1, 0), state, given)[1].message for given in (message, message | moved)]
    for name in moved:
        more = (said[1][name] - said[0][name]).tolist()
        assert more == pytest.approx([0.64 ** NORMALISING[method]] * len(more), abs=1e-5)


@pytest.mark.parametrize("method", sorted(ALGORITHMS))
def test_every_method_whose_clients_count_samples_is_listed(method):
    """… so that the test before has them all; some count only if they weigh by samples."""
    task = build(tiny(algorithm={"name": method, **COUNTING.get(method, {})}))[0]
    names = {name for slot in task.schema.up for form in slot for name in form}
    assert (method in COUNTING) == bool({"num_examples", "counts"} & names)


@pytest.mark.parametrize(
    "change", [{"momentum": 0.5}, {"weight_decay": 0.1}, {"lr": 0.02}, {"lr": (0.01, 0.02)}, {"epochs": (1, 2)},
               {"batch_size": 5}, {"shuffle": False}, {"seed": 1}, {"precision": "bfloat16"}], ids=str,
)  # fmt: skip
def test_every_setting_of_training_changes_the_result(change):
    base = usual("fedproto")
    assert not same(outcome(*build(tiny(algorithm="fedproto", **change))), base)


def test_a_learning_rate_of_ones_own_is_ones_own():
    """Only clients 1, 3, … have another; Local's clients do not hear of each other."""
    base = played(*build(tiny(algorithm="local")), 1)["after"]
    found = played(*build(tiny(algorithm="local", lr=(0.01, 0.05))), 1)["after"]
    assert [same(found[id], base[id]) for id in range(3)] == [True, False, True]


# ---- every hyper-parameter of every algorithm -----------------------------------------------------------------------

NUMBERS = (0.0, 1e-3, 0.3, 0.5, 1.0, 2.0, 3.0, 10.0, 1, 2, 3, 5, 70)


def alternatives(annotation: Any, default: Any) -> list[Any]:
    """List other values that a setting may have: all choices, or some numbers of the allowed range."""
    if isinstance(default, bool):
        return [not default]
    if get_origin(annotation) is Literal:
        return [choice for choice in get_args(annotation) if choice != default]
    found = []
    for number in NUMBERS:
        try:
            valid = TypeAdapter(annotation).validate_python(number, strict=isinstance(number, float))
        except ValidationError:
            continue
        if valid != default and type(valid) is type(number):
            found.append(number)
    return found


def settings_of(owner: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """List an object's settings with type and value; those of a nested one by their dotted names."""
    hints, found = get_type_hints(type(owner), include_extras=True), {}
    for field in fields(owner):
        value = getattr(owner, field.name)
        if is_dataclass(value):
            found |= settings_of(value, f"{prefix}{field.name}.")
        else:
            found[f"{prefix}{field.name}"] = hints[field.name], value
    return found


# Settings that others need in order to matter, or to matter in so small a world.
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("protonorm", "schedule.stop"): {"schedule": {"epsilon": 0.1}},
    ("targets", "gamma"): {"loss": "squared"},
    ("fedsaf", "beta"): {"rotation": True},
    ("tinyproto", "mu"): {"scaling": "mean"},
    ("fedkwaz", "alone"): {"global_stage": False},
    ("fedmd", "digest_batch_size"): {"samples": 20},
}
FROM_FILES = {(method, name) for method in ("targets", "fedmd") for name in ("targets", "public", "sha256")}
# … settings whose values are files: tests/algorithms


def with_setting(method: str, name: str, value: Any = None) -> dict[str, Any]:
    """Describe a method with one setting, perhaps a nested one, given beside those that it needs."""
    plain: dict[str, Any] = {"name": method, **BESIDE.get((method, name), {})}
    owner, dot, field = name.partition(".")
    if value is not None:
        plain[owner] = {**plain.get(owner, {}), field: value} if dot else value
    return plain


CASES = [
    (method, setting)
    for method, entry in sorted(ALGORITHMS.items())
    for setting in settings_of(entry.load()())
    if (method, setting) not in FROM_FILES
]


@pytest.mark.parametrize(("method", "setting"), CASES, ids=lambda one: str(one))
def test_every_hyper_parameter_changes_a_result(method, setting):
    """Of choices every one, of numbers some: a setting that changes nothing is not one."""
    annotation, default = settings_of(ALGORITHMS[method].load()())[setting]
    values = alternatives(annotation, default)
    assert values, f"no other value of {method}.{setting} is known"
    needed = (method, setting) in BESIDE
    base = outcome(*build(tiny(algorithm=with_setting(method, setting)))) if needed else usual(method)
    choices = isinstance(values[0], bool | str)
    changed = (
        not same(outcome(*build(tiny(algorithm=with_setting(method, setting, value)))), base) for value in values
    )
    assert all(changed) if choices else any(changed)


# ---- what the record says -------------------------------------------------------------------------------------------


WORLDS = {f"{world}-{name}": (world, name) for world in ("pictures", "spiral") for name in sorted(ALGORITHMS)}


@pytest.mark.parametrize(
    ("world", "method"),
    cases(WORLDS, [name for name, (world, method) in WORLDS.items() if world == "pictures" or method not in ALIKE]),
)
def test_the_record_says_what_the_trained_clients_predict(tmp_path, method, world):
    """For every rule and client, exactly, of the last and of the chosen round: the state after training is paired with
    the message after aggregation."""
    experiment = spiral(algorithm=method) if world == "spiral" else tiny(algorithm=method, train=0.5)
    result = run(experiment, tmp_path)
    data, parts = result.population.dataset, result.population.parts
    exported = pn.load_client(result.clients[1].save(tmp_path / "one"))
    chosen = result.run.chosen.record
    for checkpoint, record in (("last", result.history[-1]), ("chosen", chosen)):
        clients = list(result.trained(checkpoint))
        for rule in result.run.info.rules:
            recorded = result.run.by_client(record, rule)
            for id, client in enumerate(clients):
                test = parts[id].test
                assert (client.predict(data.inputs[test], rule) == data.labels[test]).mean() == recorded[id]
    for rule in result.run.info.rules:
        test, recorded = parts[1].test, result.run.by_client(chosen, rule)
        assert (exported.predict(data.inputs[test], rule) == data.labels[test]).mean() == recorded[1]
    assert not np.isnan(result.accuracy(of="clients")[-1]).any()
    assert torch.is_tensor(exported.state[next(iter(exported.state))])
