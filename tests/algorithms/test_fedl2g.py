from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, mse_loss

import protonorm as pn
from protonorm.algorithms.fedl2g import FedL2G, guide_gradients
from tests.algorithms.tasks import federation, server
from tests.support import pictures


class Squared:
    """A client whose loss on quiz samples is the mean square of the outputs, and whose rate is a tenth."""

    lr = 0.1

    def cross_entropy(self, o, y):
        return o.square().mean()


def test_one_parameter_by_hand():
    """z = θx, x = 1, V = 2, θ = 1, η = 0.1: (θ − V)² leads to θ' = 1.2; Q = θ'² has u = 2.4: G = 2·0.1·1·2.4 = 0.48."""
    model = pn.SplitModel(nn.Linear(1, 1, bias=False), nn.Identity())
    nn.init.ones_(model.features.weight)
    x, y = torch.ones(1, 1), torch.tensor([0])
    h = model.features(x)
    found = guide_gradients(Squared(), model, h, (h - 2).square().mean(), (x, y))
    assert float(found) == pytest.approx(0.48)


@pytest.mark.parametrize("target", ["features", "logits"])
def test_it_is_the_gradient_through_the_step(target):
    """∂Q/∂V by two backward passes through θ − η∇, on a network with a convolution and batch norm, as trained here."""
    one = federation(
        FedL2G(target=target), dataset=pictures([0, 1, 2] * 20, 3), models="plain", clients=2, feature_dim=4
    )
    client, model = one.client(), one.client().model.train()
    x, y = client.train.batch(torch.arange(9))
    quiz = client.train.batch(torch.arange(9, 18))
    guides = torch.randn(3, 4 if target == "features" else 3, requires_grad=True)

    def study():
        z = model.features(x)
        o = model.head(z)
        h = z if target == "features" else o
        return h, cross_entropy(o, y) + mse_loss(h, guides[y])

    named = dict(model.named_parameters())
    steps = torch.autograd.grad(study()[1], list(named.values()), create_graph=True)
    moved = {name: weight - client.lr * step for (name, weight), step in zip(named.items(), steps, strict=True)}
    wanted = torch.autograd.grad(cross_entropy(functional_call(model, moved, (quiz[0],)), quiz[1]), guides)[0]
    rows = guide_gradients(client, model, *study(), quiz)
    found = torch.zeros_like(guides).index_add(0, y, rows)
    assert float(wanted.norm()) > 0
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-7)


def test_features_that_cannot_move_cannot_be_guided():
    """Frozen features: G = 0."""
    model = pn.SplitModel(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 3))
    x, y = torch.randn(4, 2), torch.tensor([0, 1, 2, 0])
    h = model.features(x)
    loss = cross_entropy(model.head(h), y) + h.square().mean()
    client = federation(FedL2G()).client()
    assert not guide_gradients(client, model, h, loss, (x, y)).any()


def test_guides_move_against_the_mean_gradient_of_each_class():
    """Class 0: (2 + 4)/2 = 3 twice; class 1: 0.5; class 2 of nobody stays. η_s = 0.1."""
    before = {"guides": torch.ones(3, 2)}
    replies = [vectors_of([0, 1], [[2.0, 2.0], [0.5, 0.5]]), vectors_of([0], [[4.0, 4.0]])]
    step = FedL2G(server_lr=0.1).aggregate(server(), before, iter(replies))
    torch.testing.assert_close(step.message["guides"], torch.tensor([[0.7, 0.7], [0.95, 0.95], [1.0, 1.0]]))
    far = FedL2G(server_lr=1.0).aggregate(server(), before, iter([vectors_of([0], [[300.0, 400.0]])]))
    torch.testing.assert_close(far.message["guides"][0], 1 - torch.tensor([60.0, 80.0]))  # of norm 500: 100 is left
    usual = FedL2G().aggregate(server(), before, iter([vectors_of([0], [[0.01, 0.0]])]))
    torch.testing.assert_close(usual.message["guides"][0], torch.tensor([0.0, 1.0]))  # 1 − 100·0.01


def vectors_of(classes, rows):
    return {"classes": torch.tensor(classes), "gradients": torch.tensor(rows)}


def test_quiz_samples_are_drawn_once_and_never_trained_on(monkeypatch):
    one = federation(FedL2G(), batch_size=2)
    client, state, message = one.started()
    size = len(client.train)
    assert len(state["quiz"]) == 2
    seen, bounds = [], []
    monkeypatch.setattr(
        pn.Client, "fit", lambda self, *_, clip: bounds.append(clip) or seen.append(self.train.index) or 0.5
    )
    step = one.method.local_update(client, state, message)
    quiz = client.train.index[state["quiz"]]
    assert len(seen[0]) == size - 2
    assert not set(seen[0].tolist()) & set(quiz.tolist())
    assert torch.equal(step.state["quiz"], state["quiz"])
    assert len(step.message["classes"]) >= 1
    assert bounds == [100.0]


def test_clients_with_less_than_two_batches_train_on_all_and_send_nothing():
    one = federation(FedL2G(), batch_size=4096)
    client, state, message = one.started()
    step = one.method.local_update(client, state, message)
    assert len(state["quiz"]) == 0
    one.task.schema.check_up(step.message, "It")
    assert step.message["gradients"].shape == (0, 2)


def test_in_the_warm_up_only_the_guides_move():
    method = FedL2G(warmup=3)
    one = federation(method, batch_size=2)
    client, state, message = one.started()
    early = method.local_update(replace(client, round=3), state, message)
    assert all(torch.equal(early.state[name], value) for name, value in state.items())
    assert len(early.message["classes"]) >= 1
    assert "loss" not in early.metrics
    late = method.local_update(replace(client, round=4), state, message)
    assert not torch.equal(late.state["model.head.weight"], state["model.head.weight"])


def test_the_loss_of_a_batch_by_hand():
    """CE + mean (h − V_y)², of features and of logits."""
    for target, width in (("features", 2), ("logits", 6)):
        one = federation(FedL2G(target=target), batch_size=4096, lr=1e-12)
        client, state, _ = one.started()
        guides = torch.randn(6, width)
        loss = one.method.local_update(replace(client, round=1), state, {"guides": guides}).metrics["loss"]
        model = client.load(state)
        x, y = client.train.batch(torch.arange(len(client.train)))
        with torch.no_grad():
            z = model.features(x)
            h = z if target == "features" else model.head(z)
            wanted = cross_entropy(model.head(z), y) + (h - guides[y]).square().mean()
        assert loss == pytest.approx(float(wanted), rel=1e-5)


def test_a_client_sends_the_gradient_of_a_study_batch_that_is_not_the_quiz(monkeypatch):
    """By two backward passes, in training mode, of the first samples that are not in the quiz; nothing is trained."""
    monkeypatch.setattr(torch, "randperm", lambda size: torch.arange(size))
    settings = {"dataset": pictures([0, 1, 2] * 20, 3), "models": "plain", "clients": 2, "feature_dim": 4}
    one = federation(FedL2G(warmup=1), batch_size=8, **settings)
    client, state, message = one.started()
    step = one.method.local_update(replace(client, round=1), state, message)
    assert all(torch.equal(step.state[name], value) for name, value in state.items()), "also batch norm's statistics"
    model, guides = client.load(state).train(), message["guides"].clone().requires_grad_()
    (quiz, labels), (x, y) = (client.train.batch(torch.arange(*rows)) for rows in ((0, 8), (8, 16)))
    z = model.features(x)
    loss = cross_entropy(model.head(z), y) + mse_loss(z, guides[y])
    named = dict(model.named_parameters())
    steps = torch.autograd.grad(loss, list(named.values()), create_graph=True)
    moved = {name: weight - client.lr * grad for (name, weight), grad in zip(named.items(), steps, strict=True)}
    wanted = torch.autograd.grad(cross_entropy(functional_call(model, moved, (quiz,)), labels), guides)[0]
    assert step.message["classes"].tolist() == sorted(set(y.tolist()))
    torch.testing.assert_close(step.message["gradients"], wanted[step.message["classes"]], rtol=1e-3, atol=1e-7)
