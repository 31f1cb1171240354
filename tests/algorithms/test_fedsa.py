import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import protonorm as pn
from protonorm.algorithms.fedsa import FedSA, draw_anchors, margin
from protonorm.algorithms.parts.prototypes import class_means
from protonorm.core import Client, Samples
from protonorm.geometry.losses import margin_loss
from tests.algorithms.tasks import federation, first_batch_loss, server, task_of
from tests.algorithms.tasks import vectors as reply
from tests.support import pictures, run, spiral

ANCHORS = torch.tensor([[3.0, 0.0], [0.0, 4.0]])


def test_the_margin_is_the_mean_distance_to_the_nearest_neighbour():
    """(3, 0) and (0, 4) are 5 apart, and so is the nearest neighbour of each. Of (0, 0), (1, 0), (10, 0) the nearest
    neighbours are 1, 1 and 9 away: 11/3, less than 5; ten times that is more."""
    assert margin(ANCHORS, None) == pytest.approx(5.0)
    own = torch.tensor([[0.0, 0.0], [1.0, 0.0], [10.0, 0.0]])
    assert margin(ANCHORS, own) == pytest.approx(5.0)
    assert margin(ANCHORS, 10 * own) == pytest.approx(110 / 3)


def test_a_client_of_one_class_and_a_task_of_one_have_no_say_in_the_margin():
    assert margin(ANCHORS, torch.tensor([[9.0, 9.0]])) == pytest.approx(5.0)
    assert margin(ANCHORS[:1], torch.tensor([[9.0, 9.0]])) == 0.0


def test_the_contrast_by_hand():
    """z = 0, y = 0, δ = 5: distances 3 and 4, logits −8 and −4, so log(1 + e⁴)."""
    found = margin_loss(torch.zeros(1, 2), torch.tensor([0]), ANCHORS, 5.0)
    assert found.item() == pytest.approx(math.log1p(math.exp(4.0)), rel=1e-6)


def said(**more):
    """Anchors of the spiral's six classes."""
    return {"anchors": torch.arange(12.0).reshape(6, 2) / 10} | more


def test_the_clients_loss_has_four_parts():
    """δ: neighbours are (0.2, 0.2) apart, so 0.2·√2. The first head is asked for the classes of all six anchors."""
    method = FedSA(lam=2.0, contrast=0.5, calibration=3.0)
    loss, ce, z, y = first_batch_loss(method, said())
    one = federation(method, batch_size=4096, lr=1e-12, rounds=1)
    client = one.client()
    head = client.load(one.method.init_client(client)).head
    anchors = said()["anchors"]
    calibration = float(cross_entropy(head(anchors), torch.arange(6)).detach())
    contrast = float(margin_loss(z, y, anchors, 0.2 * math.sqrt(2)))
    wanted = ce + 2.0 * float((z - anchors[y]).square().mean()) + 0.5 * contrast + 3.0 * calibration
    assert loss == pytest.approx(wanted, rel=1e-5)


def trained_features(method):
    """One step at lr = 0.1 on one sample x = (1, 0) of class 0, z = W·x with W = I, and a head that says nothing."""
    model = pn.SplitModel(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    model.features.weight.data, model.head.weight.data = torch.eye(2), torch.zeros(2, 2)
    samples = Samples(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.tensor([0]))
    client = Client(0, 1, 1, model, None, samples, samples, samples, num_classes=2, feature_dim=2, lr=0.1)
    step = method.local_update(client, method.init_client(client), {"anchors": ANCHORS})
    return step.state["model.features.weight"]


def test_features_are_pulled_to_the_anchor():
    """∂/∂z of the mean squared error to (3, 0) is 2(z − a)/d = (−2, 0), and W's first column moves by 0.1 of that."""
    found = trained_features(FedSA(lam=1.0, contrast=0.0, calibration=0.0))
    torch.testing.assert_close(found, torch.tensor([[1.2, 0.0], [0.0, 1.0]]))


def test_features_that_lie_on_their_anchor_have_finite_gradients():
    """z = a_0: the distance is 0, where the root of a square has no gradient."""
    model = pn.SplitModel(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    model.features.weight.data = torch.eye(2)
    samples = Samples(torch.tensor([[3.0, 0.0]]), torch.tensor([0]), torch.tensor([0]))
    client = Client(0, 1, 1, model, None, samples, samples, samples, num_classes=2, feature_dim=2, lr=0.1)
    method = FedSA(lam=1.0, contrast=1.0, calibration=1.0)
    step = method.local_update(client, method.init_client(client), {"anchors": ANCHORS})
    assert all(value.isfinite().all() for value in step.state.values())


def test_features_are_pushed_by_the_contrast():
    """Distances 2 and √17, δ = 5: logits −7 and −√17, q = 1 − p_0 = 1/(1 + e^(√17 − 7)).

    ∂/∂z = q·(z − a_0)/2 − q·(z − a_1)/√17 = −q·(1 + 1/√17, −4/√17): 0.1 of it, 0.11763 and −0.09184, is W's step.
    """
    found = trained_features(FedSA(lam=0.0, contrast=1.0, calibration=0.0))
    torch.testing.assert_close(found, torch.tensor([[1.11763, 0.0], [-0.09184, 1.0]]), atol=1e-5, rtol=0)


def test_the_margin_is_that_of_ones_own_prototypes_if_they_are_wider_apart():
    client, state, _ = federation(FedSA(lam=0.0, calibration=0.0), lr=1e-30).started()
    near = FedSA().local_update(client, state, said()).metrics["loss"]
    wide = state | {"prototypes": torch.tensor([[0.0, 0.0], [30.0, 0.0]]), "classes": torch.tensor([0, 1])}
    far = FedSA().local_update(client, wide, said()).metrics["loss"]
    assert far - near == pytest.approx(30 - 0.28, abs=2.0)  # the true class always loses by about δ


def test_anchors_follow_what_was_sent_and_stay_where_nothing_was():
    """decay 0.75: class 0 was sent as (1, 2) and (3, 4), mean (2, 3): ¾·(3, 0) + ¼·(2, 3) = (2.75, 0.75)."""
    state = {"anchors": ANCHORS, **reply([1], [[7.0, 7.0]])}
    replies = [reply([0], [[1.0, 2.0]]), reply([0], [[3.0, 4.0]])]
    step = FedSA(decay=0.75).aggregate(server(classes=2), state, iter(replies))
    assert step.message["anchors"][0].tolist() == pytest.approx([2.75, 0.75])
    assert torch.equal(step.message["anchors"][1], ANCHORS[1])
    assert step.message["classes"].tolist() == [0, 1]
    assert step.message["prototypes"].tolist() == [[2.0, 3.0], [7.0, 7.0]]  # class 1 keeps its last one
    assert torch.equal(state["anchors"], torch.tensor([[3.0, 0.0], [0.0, 4.0]]))


def test_anchors_hardly_move_as_published():
    """a = (3, 0) towards c = (13, 0): 3 + 10⁻⁴·10."""
    step = FedSA().aggregate(server(classes=2), {"anchors": ANCHORS}, iter([reply([0], [[13.0, 0.0]])]))
    assert step.message["anchors"][0, 0].item() == pytest.approx(3.001, abs=1e-6)


def test_drawn_anchors_are_not_negative_and_vary_over_the_classes():
    """Batch norm gives every number mean 0 and deviation 1 over the classes before the last ReLU cuts it."""
    torch.manual_seed(0)
    found = draw_anchors(40, 8)
    assert found.shape == (40, 8)
    assert float(found.min()) == 0.0
    assert found.mean(0).tolist() == pytest.approx([0.4] * 8, abs=0.1)  # of a normal number cut at 0: 1/√(2π)
    assert len(found.unique(dim=0)) == 40


def test_anchors_come_through_two_layers():
    torch.manual_seed(3)
    found = draw_anchors(5, 4)
    torch.manual_seed(3)
    one, two, drawn = nn.Linear(4, 4), nn.Linear(4, 4), torch.randn(5, 4)
    with torch.no_grad():
        for layer in (one, two):
            sent = layer(drawn)
            drawn = ((sent - sent.mean(0)) / (sent.var(0, correction=0) + 1e-5).sqrt()).relu()
    torch.testing.assert_close(found, drawn)


def test_the_anchor_of_a_single_class_is_not_normalised():
    torch.manual_seed(0)
    found = draw_anchors(1, 8)
    torch.manual_seed(0)
    one, two, drawn = nn.Linear(8, 8), nn.Linear(8, 8), torch.randn(1, 8)
    torch.testing.assert_close(found, two(one(drawn).relu()).relu().detach())
    assert float(found.max()) > 0


def test_anchors_alone_are_said_before_the_first_round():
    method = FedSA()
    step = method.init_server(server(0))
    assert set(step.message) == set(step.state) == {"anchors"}
    schema = task_of(method).schema
    schema.check_down(step.message)
    schema.check_down(step.message | reply([1], [[0.0, 1.0]]))
    with pytest.raises(ValueError, match="lacks anchors"):
        schema.check_down(reply([1], [[0.0, 1.0]]))


def test_prototypes_are_those_of_the_trained_model_or_of_its_training():
    client, state, message = federation(FedSA()).started()
    step = FedSA().local_update(client, state, message)
    after = class_means(client, client.load(step.state))["prototypes"]
    assert torch.equal(step.message["prototypes"], after)
    during = FedSA(measured="during").local_update(client, state, message)
    assert not torch.equal(during.message["prototypes"], after)


def test_prototypes_measured_during_training_are_running_means_of_its_batches():
    """With one batch of everything, the running mean is that of the untrained network in training mode."""
    method = FedSA(measured="during")
    client, state, message = federation(method, batch_size=4096).started()
    client.load(state).train()
    x, y = client.train.batch(torch.arange(len(client.train)))
    z = client.model.features(x).detach()
    found = method.local_update(client, state, message).message
    for label, mean in zip(found["classes"], found["prototypes"], strict=True):
        torch.testing.assert_close(mean, z[y == label].mean(0))


def test_different_networks_on_pictures(tmp_path):
    settings = {"dataset": pictures([0, 1, 2] * 24, 3), "models": "light", "feature_dim": 4}
    last = run(spiral(algorithm=FedSA(), **settings, clients=4, rounds=2), out=tmp_path).history[-1]
    assert last.floats.down == 4 * (3 * 4 + 3 * 4)  # anchors and prototypes to each of four
