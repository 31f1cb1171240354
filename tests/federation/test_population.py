"""Clients of a simulation: made when they are asked for, each from its own streams."""

import numpy as np
import pytest
import torch

import protonorm as pn
from protonorm.federation.client import first_state
from protonorm.federation.population import split_validation
from protonorm.session.build import build
from tests.support import pictures, site, spiral


def test_building_a_workspace_draws_nothing_from_the_callers_randomness():
    """Else the server, in whose seeded part replies are read, would draw other numbers when clients live elsewhere."""
    one = site(algorithm="fml")
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    one.client(1)
    assert torch.equal(torch.rand(3), expected)


def test_no_two_draws_of_a_client_come_from_the_same_numbers():
    """FedKD's projection (d, d) once equalled 0.70711 times the first layer's weights: one stream was opened twice."""
    task, population = build(spiral(algorithm="fedkd", feature_dim=4))
    state = first_state(task, population.site(0))
    drawn = state["projection.weight"].flatten()
    for name, value in state.items():
        if name.startswith("model.") and value.numel() >= 4:
            ratios = value.flatten()[:4] / drawn[:4]
            assert not torch.allclose(ratios, ratios[0].expand(4), rtol=1e-3), name


def test_clients_begin_with_weights_of_their_own_or_with_equal_ones_for_equal_networks():
    """Clients 0, 1, 3 and 4 have one network, 2 and 5 a narrower one."""
    for start, alike in (("own", False), ("equal", True)):
        task, population = build(spiral(algorithm="fedproto", models="mlp,mlp,mlp@0.5", start=start))
        states = [first_state(task, population.site(id)) for id in range(6)]
        names = [name for name in states[0] if name.startswith("model.") and name.endswith("weight")]
        assert names
        assert states[0][names[0]].shape != states[2][names[0]].shape
        for one, other in ((0, 1), (0, 3), (0, 4), (2, 5)):
            assert {torch.equal(states[one][name], states[other][name]) for name in names} == {alike}


def test_settings_that_differ_between_clients():
    experiment = spiral(lr=(0.1, 0.2), epochs=(1, 2, 3), batch_size=(4, 8))
    _, population = build(experiment)
    clients = [population.site(id).client(1) for id in range(6)]
    assert [client.lr for client in clients] == [0.1, 0.2] * 3
    assert [client.epochs for client in clients] == [1, 2, 3] * 2
    assert [client.batch_size for client in clients] == [4, 8] * 3


def test_a_client_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="There is no client 6; the population has clients 0 to 5"):
        build(spiral())[1].site(6)


def test_facts_are_those_of_the_data():
    """Labels 0 0 0 0 1 1 to two clients of three samples each: all counts add up to what there is."""
    data = pictures([0] * 4 + [1] * 2, 2)
    settings = {"dataset": data, "clients": 2, "partition": "iid", "models": "plain,dense", "feature_dim": 3}
    facts = build(pn.Experiment.of(settings | {"train": 0.67}))[1].facts()
    assert (facts.train + facts.validation + facts.test).sum(0).tolist() == [4, 2]
    assert facts.train.sum(1).tolist() == [1, 1]
    assert facts.validation.sum(1).tolist() == [1, 1]  # a tenth of two, rounded up
    assert facts.test.sum(1).tolist() == [1, 1]
    assert facts.networks == ("plain", "dense")


def test_facts_of_all_clients_at_once_are_those_of_each_client():
    """Client by client, as its training sees it."""
    for share in (0.0, 0.1, 0.5):
        _, population = build(spiral(clients=9, validation=share, partition={"name": "dirichlet", "least": 1}))
        facts = population.facts()
        for id in range(9):
            client = population.site(id).client(1)
            parts = {name: client.part(name).class_counts(6).tolist() for name in ("train", "validation", "test")}
            assert parts == {name: getattr(facts, name)[id].tolist() for name in parts}


@pytest.mark.parametrize(
    ("size", "share", "held"), [(10, 0.1, 1), (11, 0.1, 2), (1, 0.5, 0), (2, 0.9, 1), (7, 0.0, 0), (20, 0.25, 5)]
)
def test_validation_samples_are_held_out_of_the_training_part_but_never_the_last_one(size, share, held):
    train, validation = split_validation(np.arange(size), share)
    assert (len(train), len(validation)) == (size - held, held)
    assert sorted([*train, *validation]) == list(range(size))


def test_a_network_that_does_not_fit_is_refused_before_anything_begins():
    def wrong(shape, feature_dim, num_classes):
        return pn.SplitModel(torch.nn.Linear(2, feature_dim + 1), torch.nn.Linear(feature_dim + 1, num_classes))

    with pytest.raises(ValueError, match=r"gives features \(2, 3\) and logits \(2, 6\).*expected \(2, 2\)"):
        build(spiral(models=[wrong], feature_dim=2))


def test_what_all_agree_on_tells_one_task_from_another():
    digests = {build(spiral(**change))[0].digest for change in ({}, {"feature_dim": 3}, {"rounds": 4}, {"seed": 1})}
    assert len(digests) == 4
    assert build(spiral())[0].digest == build(spiral(lr=(0.05, 0.3)))[0].digest  # a client's own affair
    assert np.array_equal(build(spiral())[1].parts.cuts, build(spiral())[1].parts.cuts)


def test_clients_and_server_are_told_the_round_and_how_many_there_are():
    """Methods change by them over a run: FedKD's energy, FedRolex's channels, the learning rate."""
    task, population = build(spiral(algorithm="fedkd", rounds=7))
    for node in (population.site(2).client(3), task.server(3)):
        assert (node.round, node.rounds) == (3, 7)
    assert population.site(2).fresh_client().round == task.server(0).round == 0
