import math

import pytest
import torch
from torch.nn.functional import cross_entropy, log_softmax

from protonorm.algorithms.feddistill import FedDistill
from protonorm.algorithms.parts.prototypes import class_means
from protonorm.geometry.losses import distillation_loss
from protonorm.tensors import floats
from tests.algorithms.tasks import federation, server, task_of, vectors
from tests.support import pictures, run, spiral


def reply(classes, logits):
    return vectors(classes, logits, "logits")


def one_client(method, **settings):
    return federation(method, **settings).client()


HALVES = torch.full((2, 2), 0.5)  # softmax of equal logits


def test_the_distillation_loss_by_hand():
    """Logits (0, ln 3) are p = (1/4, 3/4); towards (1/2, 1/2): −½ ln ¼ − ½ ln ¾ = ln 4 − ½ ln 3."""
    logits, y = torch.tensor([[0.0, math.log(3.0)]]), torch.tensor([0])
    value = distillation_loss(logits, y, HALVES, torch.tensor([True, True]))
    assert value.item() == pytest.approx(math.log(4.0) - 0.5 * math.log(3.0))


def test_a_class_without_logits_has_gradient_zero_and_stays_in_the_mean():
    """Two samples with p = (1/4, 3/4), the second of a class that is not known.

    The loss is half the one above, the gradient (p − t)/2 = (−1/8, 1/8) for the first and zero for the second.
    """
    logits = torch.tensor([[0.0, math.log(3.0)]] * 2, requires_grad=True)
    value = distillation_loss(logits, torch.tensor([0, 1]), HALVES, torch.tensor([True, False]))
    value.backward()
    assert value.item() == pytest.approx((math.log(4.0) - 0.5 * math.log(3.0)) / 2)
    torch.testing.assert_close(logits.grad, torch.tensor([[-0.125, 0.125], [0.0, 0.0]]))


def first_loss(method, message):
    """One step on one batch of everything with lr → 0: the mean loss is the loss at the start."""
    client = one_client(method, batch_size=4096, lr=1e-12)
    state = method.init_client(client)
    loss = method.local_update(client, state, message).metrics["loss"]
    x, y = client.train.batch(torch.arange(len(client.train)))
    with torch.no_grad():
        return loss, client.load(state).train()(x), y


def test_the_clients_loss():
    """Equal logits for all classes: CE + λ·mean of −Σ_k log p_k / K."""
    message = {"classes": torch.arange(6), "logits": torch.full((6, 6), 3.0)}
    loss, logits, y = first_loss(FedDistill(lam=2.5), message)
    soft = -log_softmax(logits, 1).mean()
    assert loss == pytest.approx(float(cross_entropy(logits, y) + 2.5 * soft), rel=1e-5)


def test_the_target_is_the_softmax_of_the_mean_logits_of_the_samples_class():
    """Logits (ln 2, 0, …, 0) of class 4 are (2, 1, 1, 1, 1, 1)/7; samples of other classes add nothing but count."""
    loss, logits, y = first_loss(FedDistill(), reply([4], [[math.log(2.0), 0, 0, 0, 0, 0]]))
    t = torch.tensor([2.0, 1, 1, 1, 1, 1]) / 7
    assert 0 < int((y == 4).sum()) < len(y)
    soft = sum(-float(t @ log_softmax(row, 0)) for row in logits[y == 4]) / len(y)
    assert loss == pytest.approx(float(cross_entropy(logits, y)) + soft, rel=1e-5)


def test_without_any_logits_the_loss_is_cross_entropy():
    loss, logits, y = first_loss(FedDistill(), {})
    assert loss == pytest.approx(float(cross_entropy(logits, y)), rel=1e-6)


def test_the_average_is_unweighted_over_the_clients_that_have_the_class():
    """Class 0: (0, 0, 0) and (1, 2, 3) meet halfway, whatever their numbers of samples; class 2 is of one client."""
    replies = [reply([0], [[0, 0, 0]]), reply([0, 2], [[1, 2, 3], [4, 5, 6]])]
    step = FedDistill().aggregate(server(), {}, iter(replies))
    assert step.message["classes"].tolist() == [0, 2]
    assert step.message["logits"].tolist() == [[0.5, 1.0, 1.5], [4.0, 5.0, 6.0]]


def test_a_class_that_nobody_sent_keeps_its_last_logits():
    first = FedDistill().aggregate(server(), {}, iter([reply([0, 2], [[1, 2, 3], [4, 5, 6]])]))
    second = FedDistill().aggregate(server(2), first.state, iter([reply([1, 2], [[7, 8, 9], [0, 0, 0]])]))
    assert second.message["classes"].tolist() == [0, 1, 2]
    assert second.message["logits"].tolist() == [[1.0, 2.0, 3.0], [7.0, 8.0, 9.0], [0.0, 0.0, 0.0]]


def test_logits_measured_after_training_are_those_of_the_trained_model():
    """The head is linear, so that mean logits are the logits of mean features. Float payload: K_i·K up."""
    method = FedDistill()
    client = one_client(method)
    step = method.local_update(client, method.init_client(client), {})
    means = class_means(client, client.load(step.state))
    assert torch.equal(step.message["classes"], means["classes"])
    with torch.no_grad():
        torch.testing.assert_close(step.message["logits"], client.model.head(means["prototypes"]))
    assert sum(value.numel() for value in floats(step.message).values()) == len(means["classes"]) * 6


def test_logits_measured_during_training_are_running_means_of_its_batches():
    """With one batch of everything, the running mean is that of the untrained network in training mode."""
    method = FedDistill(measured="during")
    client = one_client(method, batch_size=4096)
    state = method.init_client(client)
    x, y = client.train.batch(torch.arange(len(client.train)))
    logits = client.load(state).train()(x).detach()
    said = method.local_update(client, state, {}).message
    assert said["classes"].tolist() == y.unique().tolist()
    for label, mean in zip(said["classes"], said["logits"], strict=True):
        torch.testing.assert_close(mean, logits[y == label].mean(0))


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (reply([0], [[math.inf, 0, 0]]), "holds logits with numbers that are not finite"),
        (reply([0], [[1, 2]]), r"holds logits of shape \(1, 2\); expected \(K_i, K\)"),
        (reply([3], [[1, 2, 3]]), "holds classes from 3 to 3"),
        (vectors([0], [[1, 2, 3]]), "lacks logits"),
    ],
)
def test_a_bad_reply_is_refused(bad, sentence):
    with pytest.raises(ValueError, match=f"It {sentence}"):
        task_of(FedDistill()).schema.check_up(bad, "It")


def test_the_server_says_nothing_before_round_1():
    schema = task_of(FedDistill(), width=7).schema  # d plays no part
    schema.check_down({})
    schema.check_down(reply([2], [[1, 2, 3]]))


@pytest.mark.parametrize("measured", ["after", "during"])
def test_different_networks_on_pictures(tmp_path, measured):
    """More features than classes, and the other way round on the spiral: logits are (K_i, K) all the same."""
    method = FedDistill(measured=measured)
    settings = {"dataset": pictures([0, 1, 2] * 24, 3), "models": "light", "feature_dim": 5}
    history = run(spiral(algorithm=method, **settings, clients=4, rounds=2), out=tmp_path).history
    assert history[-1].bytes.down == 4 * (3 * 3 * 4 + 3 * 8)  # logits in float32, classes in int64
