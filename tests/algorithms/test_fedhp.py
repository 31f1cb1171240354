import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import protonorm as pn
from protonorm.algorithms.fedhp import FedHP, Nearness
from protonorm.core import Client, Samples
from protonorm.core.training import Training
from protonorm.geometry.alignment import equally_spread
from tests.algorithms.tasks import federation, server, task_of
from tests.support import pictures, run, spiral


def reply(rows, counts):
    found = {"prototypes": torch.tensor(rows), "counts": torch.tensor(counts)}
    return {"classes": torch.arange(len(rows)), **found}


def test_a_head_of_distances():
    """z = (3, 4) and prototypes (0, 0), (3, 0): −5 and −4, the root and not the square."""
    head = Nearness(torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
    assert head(torch.tensor([[3.0, 4.0]])).tolist() == [[-5.0, -4.0]]


def example(method, x=(0.0, 0.0), lr=1e-12):
    """One sample of class 0 whose features are itself, K = 2, d = 2."""
    model = pn.SplitModel(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2))
    model.features.weight.data = torch.eye(2)
    samples = Samples(torch.tensor([x]), torch.tensor([0]), torch.tensor([0]))
    client = Client(0, 1, 1, model, None, samples, samples, samples, num_classes=2, feature_dim=2, lr=lr)
    state = method.init_client(client) | {"anchors": torch.eye(2)}
    return client, state


def said(rows):
    return {"classes": torch.arange(2), "prototypes": torch.tensor(rows)}


def test_the_loss_by_hand():
    """z = 0 is as far from (1, 1) as from (−1, 1): log 2. Their cosines with e1 and e2 are √½ and √½: λ(1 − √½)."""
    method = FedHP(lam=3.0)
    client, state = example(method)
    found = method.local_update(client, state, said([[1.0, 1.0], [-1.0, 1.0]])).metrics["loss"]
    # one sample is trained as a batch of two equal ones, and one batch is one step
    assert found == pytest.approx(math.log(2) + 3 * (1 - math.sqrt(0.5)), rel=1e-5)


def test_equally_distant_prototypes_give_log_k():
    method = FedHP(lam=0.0)
    client, state = example(method)
    found = method.local_update(client, state, said([[0.0, 2.0], [2.0, 0.0]])).metrics["loss"]
    assert found == pytest.approx(math.log(2), rel=1e-6)


def test_one_step_by_hand():
    """z = (1, 0) of class 0, prototypes (0, 0) at distance 1 and (3, 0) at 2: q = 1 − p_0 = 1/(1 + e).

    ∂/∂z = q·(z − p_0)/1 − q·(z − p_1)/2 = q·(1, 0) + q·(1, 0), and features are W·z with z = x: W_00 moves by −lr·2q.
    Adam's first step is its rate along the sign of the gradient: p_0 goes towards z, p_1 away from it, along the first
    axis alone; along the second there is no gradient, λ being 0.
    """
    method = FedHP(lam=0.0, prototype_lr=0.25)
    client, state = example(method, x=(1.0, 0.0), lr=0.5)
    step = method.local_update(client, state, said([[0.0, 0.0], [3.0, 0.0]]))
    q = 1 / (1 + math.e)
    assert step.metrics["loss"] == pytest.approx(-math.log(1 - q), rel=1e-6)
    moved = torch.tensor([[1 - 0.5 * 2 * q, 0.0], [0.0, 1.0]])
    torch.testing.assert_close(step.state["model.features.weight"], moved)
    torch.testing.assert_close(step.message["prototypes"], torch.tensor([[0.25, 0.0], [3.25, 0.0]]))
    assert torch.equal(step.state["prototypes"], step.message["prototypes"])
    assert step.message["counts"].tolist() == [1, 0]
    assert torch.equal(step.state["model.head.weight"], state["model.head.weight"])  # not used, not trained


def test_prototypes_do_not_decay_with_the_weights():
    """As above: p_1 goes from 3 away from z. A decay of ½·3 would turn its gradient, −q = −1/(1 + e), around."""
    method = FedHP(lam=0.0, prototype_lr=0.25)
    client, state = example(method, x=(1.0, 0.0))
    step = method.local_update(
        replace(client, training=Training(weight_decay=0.5)), state, said([[0.0, 0.0], [3.0, 0.0]])
    )
    torch.testing.assert_close(step.message["prototypes"], torch.tensor([[0.25, 0.0], [3.25, 0.0]]))


def test_prototypes_turn_to_their_anchors():
    """λ so large that nothing else counts. p_0 = (1, 1), a_0 = e1: the part of a_0 across p_0 is (½, −½). p_1 = (−1, 1)
    and a_1 = e2: (½, ½). Adam's first step is its rate along these signs."""
    method = FedHP(lam=1e6, prototype_lr=0.25)
    client, state = example(method)
    found = method.local_update(client, state, said([[1.0, 1.0], [-1.0, 1.0]])).message["prototypes"]
    torch.testing.assert_close(found, torch.tensor([[1.25, 0.75], [-0.75, 1.25]]))


def test_a_clients_share_of_a_class_is_its_weight():
    """n_1 = (9, 1) and n_2 = (1, 1): class 0 weighs 0.9 : 0.5, class 1 0.1 : 0.5.

    Rows 14 and 0: 14·0.9/1.4 = 9; 6 and 0: 6·0.1/0.6 = 1. All alike: 7 and 3.
    """
    replies = [reply([[14.0, 0.0], [6.0, 0.0]], [9, 1]), reply([[0.0, 0.0], [0.0, 0.0]], [1, 1])]
    state = said([[5.0, 5.0], [5.0, 5.0]])
    found = FedHP().aggregate(server(classes=2), state, iter(replies)).message["prototypes"]
    assert found[:, 0].tolist() == pytest.approx([9.0, 1.0])
    alike = FedHP(weighting="clients").aggregate(server(classes=2), state, iter(replies)).message["prototypes"]
    assert alike[:, 0].tolist() == [7.0, 3.0]


def test_a_class_that_nobody_has_keeps_its_row():
    """In the program it is 0/0 for ever."""
    step = FedHP().aggregate(server(classes=2), said([[5.0, 5.0], [6.0, 7.0]]), iter([reply([[1.0, 2.0]] * 2, [4, 0])]))
    assert step.message["prototypes"].tolist() == [[1.0, 2.0], [6.0, 7.0]]
    nobody = FedHP().aggregate(server(classes=2), step.state, iter([]))
    torch.testing.assert_close(nobody.message, step.message)


def test_all_alike_a_client_counts_in_classes_that_it_lacks_too():
    """Rows 8 and 0 of class 1, which the second client has no sample of: 4."""
    replies = [reply([[1.0, 0.0], [8.0, 0.0]], [4, 4]), reply([[3.0, 0.0], [0.0, 0.0]], [4, 0])]
    step = FedHP(weighting="clients").aggregate(server(classes=2), said([[5.0, 5.0], [5.0, 5.0]]), iter(replies))
    assert step.message["prototypes"][:, 0].tolist() == [2.0, 4.0]


def test_everybody_begins_on_the_same_well_separated_anchors():
    """The mean over classes of the largest cosine with another one is −1/(K − 1) for a simplex, here −1/3."""
    method = FedHP(seed=2)
    begun = method.init_server(server(0, classes=4, width=5)).message["prototypes"]
    cosines = begun @ begun.T - 3 * torch.eye(4)
    assert cosines.amax(1).mean().item() == pytest.approx(-1 / 3, abs=1e-5)
    assert torch.equal(begun, equally_spread(4, 5, 2))
    one = federation(method)
    (_, first, message), (_, other, _) = one.started(0), one.started(3)
    assert torch.equal(first["anchors"], other["anchors"])
    assert torch.equal(first["anchors"], message["prototypes"])


def test_rows_may_come_in_any_order():
    """Row j of what is held is class j's, for a head of distances has no other names."""
    method = FedHP(lam=0.0)
    client, state = example(method)
    turned = {"classes": torch.tensor([1, 0]), "prototypes": torch.tensor([[7.0, 8.0], [5.0, 6.0]])}
    held = method.receive(client, state, turned)
    assert held["classes"].tolist() == [0, 1]
    assert held["prototypes"].tolist() == [[5.0, 6.0], [7.0, 8.0]]
    assert torch.equal(held["anchors"], state["anchors"])
    said_back = method.local_update(client, state, turned).message
    assert said_back["classes"].tolist() == [0, 1]
    torch.testing.assert_close(said_back["prototypes"], held["prototypes"], atol=0.01, rtol=0)


def test_anchors_stay_and_prototypes_move():
    one = federation(FedHP())
    client, state, message = one.started()
    step = one.method.local_update(client, state, message)
    assert torch.equal(step.state["anchors"], state["anchors"])
    assert not torch.equal(step.state["prototypes"], state["anchors"])


def test_a_client_predicts_with_its_own_prototypes_or_with_the_servers(tmp_path):
    result = run(spiral(algorithm=FedHP()), out=tmp_path)
    client = result.clients[0]
    x = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    z = torch.from_numpy(client.features(x)).float()
    for rule, held in (("logits", client.state), ("received", client.message)):
        wanted = -torch.cdist(z, held["prototypes"])
        np.testing.assert_allclose(client.scores(x)[rule], wanted.numpy(), atol=1e-5)
    np.testing.assert_allclose(client.module(torch.from_numpy(x))["logits"].detach(), client.scores(x)["logits"], 1e-4)


def test_bad_words_are_refused():
    schema = task_of(FedHP(), classes=2).schema
    schema.check_up(reply([[1.0, 2.0]] * 2, [3, 0]), "It")
    with pytest.raises(ValueError, match="counts with nothing but zeros"):
        schema.check_up(reply([[1.0, 2.0]] * 2, [0, 0]), "It")
    with pytest.raises(ValueError, match=r"holds classes of shape \(1,\); expected \(K,\)"):
        schema.check_down({"classes": torch.tensor([0]), "prototypes": torch.zeros(1, 2)})


def test_different_networks_on_pictures(tmp_path):
    settings = {"dataset": pictures([0, 1, 2] * 24, 3), "models": "light", "feature_dim": 4}
    last = run(spiral(algorithm=FedHP(), **settings, clients=4, rounds=2), out=tmp_path).history[-1]
    assert last.floats.up == last.floats.down == 4 * 3 * 4
