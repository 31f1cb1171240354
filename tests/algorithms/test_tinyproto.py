import pytest
import torch

import protonorm as pn
from protonorm.algorithms.fedproto import TinyProto
from protonorm.session.build import build
from tests.algorithms.tasks import federation, first_batch_loss, server, task_of
from tests.contract.playing import played, same
from tests.contract.test_laws import tiny


def test_positions_are_a_tenth_in_blocks_and_equally_used():
    """K = 10, d = 512: blocks of 51, one for each class; two positions are unused. K = 100: ten blocks of five."""
    ten = TinyProto().positions(10, 512)
    assert ten.shape == (10, 51)
    assert sorted(ten.flatten().tolist()) == list(range(510))
    assert all((row.diff() == 1).all() for row in ten)
    hundred = TinyProto().positions(100, 512)
    assert hundred.shape == (100, 50)
    assert set(hundred.flatten().bincount(minlength=512).tolist()) == {0, 10}
    masks = torch.zeros(100, 512).scatter(1, hundred, 1.0)
    shared = masks @ masks.T - 50 * torch.eye(100)  # v, in how many positions two masks overlap
    assert float(shared.max()) < 50
    distance = (masks[0] != masks[1]).sum()
    assert int(distance) == 2 * (50 - int(shared[0, 1]))
    assert not torch.equal(hundred, TinyProto(seed=1).positions(100, 512))
    assert TinyProto().positions(6, 2).shape == (6, 1)  # at least one


def test_with_all_positions_it_is_fedproto_weighted_by_samples():
    """Four classes and two features: ρ = 1 is everything; the bits are those of FedProto."""
    settings = {"name": "tinyproto", "rho": 1.0}
    found = played(*build(tiny(algorithm=settings)), 3)
    plain = played(*build(tiny(algorithm={"name": "fedproto", "weighting": "samples"})), 3)
    assert torch.equal(found["step"].message["partial"], plain["step"].message["prototypes"])
    assert all(same(found["after"][id], plain["after"][id]) for id in range(3))


def client_says(value, count, scaling):
    """What a client with n samples of class 1, whose prototype is (value, value), sends at one position."""
    method = TinyProto(scaling=scaling)
    masked = torch.tensor([[value * (1 if scaling == "weighted" else count)]])
    counts = {"counts": torch.tensor([count])} if scaling == "weighted" else {}
    reply = {"classes": torch.tensor([1]), "partial": masked} | counts
    task_of(method).schema.check_up(reply, "It")
    return reply


@pytest.mark.parametrize(("scaling", "wanted"), [("weighted", 3.0), ("mean", 0.6), ("sum", 1.2)])
def test_scaled_means_by_hand(scaling, wanted):
    """n = 3 and 1, c = 2 and 6: 3·2 = 1·6 = 6 are sent. (6 + 6)/4 = 3; of μ = 0.1 the mean 0.6 and the sum 1.2."""
    method = TinyProto(scaling=scaling, mu=0.1)
    step = method.aggregate(server(), {}, iter([client_says(2.0, 3, scaling), client_says(6.0, 1, scaling)]))
    assert step.message["classes"].tolist() == [1]
    assert float(step.message["partial"]) == pytest.approx(wanted)
    again = method.aggregate(server(), step.state, iter([]))
    assert same(again.message, step.message)  # a class that nobody sends keeps its last, without another factor


@pytest.mark.parametrize("scaling", ["weighted", "mean"])
def test_a_client_sends_its_prototypes_at_the_positions_of_their_classes(scaling):
    method = TinyProto(scaling=scaling)
    one = federation(method, feature_dim=8, models="mlp")
    client, state, message = one.started()
    step = method.local_update(client, state, message)
    classes, positions = step.message["classes"], method.positions(6, 8)
    counts = client.train.class_counts(6)[classes]
    for row, label in enumerate(classes):
        own = step.state["prototypes"][row][positions[label]]
        torch.testing.assert_close(step.message["partial"][row], own * (1 if scaling == "weighted" else counts[row]))
    assert ("counts" in step.message) == (scaling == "weighted")


@pytest.mark.parametrize("outside", ["ignore", "zero"])
def test_the_distance_is_to_the_positions_or_to_all_others_too(outside):
    """Six classes in the plane have one position each; its target is 0.5, the other one's zero or nothing."""
    method = TinyProto(outside=outside, lam=2.0)
    positions = method.positions(6, 2)
    message = {"classes": torch.arange(6), "partial": torch.full((6, 1), 0.5)}
    loss, ce, z, y = first_batch_loss(method, message)
    gaps = (z.gather(1, positions[y]) - 0.5).square().squeeze(1)
    rest = z.gather(1, 1 - positions[y]).square().squeeze(1)
    distance = gaps.mean() if outside == "ignore" else ((gaps + rest) / 2).mean()
    assert loss == pytest.approx(ce + 2 * float(distance), rel=1e-5)


def test_the_nearest_global_prototype_has_zeros_outside():
    method = TinyProto()
    client = federation(method).client()
    positions = method.positions(6, 2)
    message = {"classes": torch.tensor([4, 1]), "partial": torch.tensor([[2.0], [3.0]])}
    dense = method.prototypes_of(client, message)["prototypes"]
    assert dense.gather(1, positions[[4, 1]]).tolist() == [[2.0], [3.0]]
    assert dense.count_nonzero() == 2
    assert method.prototypes_of(client, {}) == {}
    x = client.train.batch(torch.arange(3))[0]
    scores = method.scores(client, {}, message, x)["nearest-global"]
    z = client.model.features(x).double()
    wanted = z.square().sum(1) - (z - dense[0].double()).square().sum(1)
    torch.testing.assert_close(scores[:, 4], wanted)
    assert isinstance(pn.TinyProto(), TinyProto)
