import pytest
import torch
from torch.nn.functional import cross_entropy

import protonorm as pn
from protonorm.core import Server
from protonorm.setup import Setup
from tests.support import spiral


def server(round=1, classes=3, width=2):
    return Server(round, 10, classes, width, None, None, 0.01, 32)


def reply(classes, vectors):
    return {"classes": torch.tensor(classes), "prototypes": torch.tensor(vectors, dtype=torch.float32)}


def test_two_classes_become_antipodal():
    """Means (1, 0) and (0.8, 0.6): in the plane two points on the circle end opposite each other, distance 2."""
    step = pn.ProtoNorm(alignment="auto").aggregate(server(), {}, iter([reply([0, 1], [[1, 0], [0.8, 0.6]])]))
    prototypes = step.message["prototypes"]
    assert torch.dist(prototypes[0], prototypes[1]) == pytest.approx(2.0)
    assert prototypes.norm(dim=1).tolist() == pytest.approx([1.0, 1.0])


def test_the_average_is_unweighted_whatever_clients_hold():
    """Two clients send (2, 0) and (0, 4) for one class: their midpoint (1, 2) is published by PA off."""
    replies = [reply([1], [[2.0, 0.0]]), reply([1], [[0.0, 4.0]])]
    step = pn.ProtoNorm(alignment="none").aggregate(server(), {}, iter(replies))
    assert step.message["classes"].tolist() == [1]
    assert step.message["prototypes"].tolist() == [[1.0, 2.0]]


def test_normalise_only_brings_to_unit_length():
    step = pn.ProtoNorm(alignment="normalise").aggregate(server(), {}, iter([reply([0, 2], [[3, 4], [0, 2]])]))
    torch.testing.assert_close(step.message["prototypes"], torch.tensor([[0.6, 0.8], [0.0, 1.0]]))


def test_a_class_that_nobody_sent_is_kept_and_aligned_with_the_others():
    method = pn.ProtoNorm(alignment="exact")
    first = method.aggregate(server(), {}, iter([reply([0, 1, 2], [[1, 0], [0, 1], [-1, -1]])]))
    second = method.aggregate(server(2), first.state, iter([reply([0, 1], [[1, 0.1], [0.2, 1]])]))
    assert second.message["classes"].tolist() == [0, 1, 2]
    apart = torch.pdist(second.message["prototypes"])
    assert apart.tolist() == pytest.approx([3**0.5] * 3, rel=1e-5)  # three points on the circle


def first_batch_loss(method, message):
    """One step on one batch of everything with lr → 0: the mean loss is the loss at the start."""
    setup = Setup(spiral(algorithm=method, batch_size=4096, lr=1e-12, rounds=1))
    client = setup.fresh_client(0)
    state = method.init_client(client)
    loss = method.local_update(client, state, message).metrics["loss"]
    client.load(state).train()
    x, y = client.train.batch(torch.arange(len(client.train)))
    with torch.no_grad():
        z = client.model.features(x)
        return loss, float(cross_entropy(client.model.head(z), y)), z, y


def everything(value=0.5):
    return {"classes": torch.arange(6), "prototypes": torch.full((6, 2), value)}


def test_the_loss_is_cross_entropy_plus_lambda_times_mean_squared_distance_to_gamma_c():
    """R = Σ‖z − γc‖²/(B·d), the mean of all B·d squared differences (Eqs. 4, 15 as coded)."""
    loss, ce, z, _ = first_batch_loss(pn.ProtoNorm(lam=3.0, gamma=4.0), everything())
    assert loss == pytest.approx(ce + 3.0 * float(((z - 4.0 * 0.5) ** 2).mean()), rel=1e-5)


def test_without_upscaling_the_target_is_the_unit_prototype():
    loss, ce, z, _ = first_batch_loss(pn.ProtoNorm(lam=3.0, gamma=4.0, upscaling=False), everything())
    assert loss == pytest.approx(ce + 3.0 * float(((z - 0.5) ** 2).mean()), rel=1e-5)


def test_a_class_without_prototype_adds_nothing_but_stays_in_the_mean():
    message = {"classes": torch.tensor([2]), "prototypes": torch.ones(1, 2)}
    loss, ce, z, y = first_batch_loss(pn.ProtoNorm(lam=1.0, gamma=2.0), message)
    known = y == 2
    expected = float(((z[known] - 2.0) ** 2).sum()) / z.numel()
    assert loss == pytest.approx(ce + expected, rel=1e-5)


def test_without_any_prototype_the_loss_is_cross_entropy():
    loss, ce, *_ = first_batch_loss(pn.ProtoNorm(), {})
    assert loss == pytest.approx(ce, rel=1e-6)


def test_the_printed_regulariser_sums_distances_of_class_means():
    loss, ce, z, y = first_batch_loss(pn.ProtoNorm(lam=1.0, gamma=2.0, distance="classes"), everything())
    expected = sum(float((z[y == k].mean(0) - 1.0).norm()) for k in y.unique())
    assert loss == pytest.approx(ce + expected, rel=1e-5)


def test_stale_prototypes_are_those_of_the_weights_before_training():
    method = pn.ProtoNorm(measured="before")
    setup = Setup(spiral(algorithm=method))
    client = setup.fresh_client(0)
    state = method.init_client(client)
    before = client.class_means(client.load(state))
    said = method.local_update(client, state, {}).message
    assert torch.equal(said["prototypes"], before["prototypes"])
    fresh = pn.ProtoNorm().local_update(client, state, {}).message
    assert not torch.equal(fresh["prototypes"], before["prototypes"])


def test_initial_prototypes_if_asked_for():
    assert pn.ProtoNorm().init_server(server(0)).message == {}
    said = pn.ProtoNorm(initial="random", alignment="exact").init_server(server(0)).message
    assert torch.pdist(said["prototypes"]).tolist() == pytest.approx([3**0.5] * 3, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "gamma"), [("cifar10", 100), ("cifar100", 200), ("flowers102", 200), ("tinyimagenet", 400)]
)
def test_gamma_of_the_paper(name, gamma):
    assert pn.ProtoNorm().adapted(name).gamma == gamma
    assert pn.ProtoNorm(gamma=7).adapted(name).gamma == 7
