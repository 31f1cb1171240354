import pytest
import torch
from torch.nn.functional import cross_entropy

import protonorm as pn
from protonorm.algorithms.fedper import FedPAC, feature_statistics, mixture
from protonorm.tensors import snapshot
from tests.algorithms.tasks import federation, normalising_client, server
from tests.contract.playing import same


def test_clients_that_do_not_differ_share_heads_by_their_variance():
    """Equal h: minimise Σ V_j α_j², so that α_j ∝ 1/V_j: of 1, 2 and 4 these are 4/7, 2/7 and 1/7."""
    same_moments = torch.ones(3, 2, 2)
    found = mixture(torch.tensor([1.0, 2.0, 4.0]), same_moments, torch.ones(2, 2))
    torch.testing.assert_close(found, torch.tensor([4.0, 2.0, 1.0]).double() / 7)


def test_the_mixture_of_two_by_hand():
    """h = 0, h_1 = 0, h_2 = 3, V = 1: minimise α² + (1 − α)²(1 + 9), α = 10/11. With no variance all is its own."""
    moments = torch.tensor([[[0.0]], [[3.0]]])
    own = torch.zeros(1, 1)
    torch.testing.assert_close(mixture(torch.ones(2), moments, own), torch.tensor([10 / 11, 1 / 11]).double())
    sure = mixture(torch.zeros(2), moments, own)
    torch.testing.assert_close(sure, torch.tensor([1.0, 0.0]).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(mixture(torch.zeros(2), torch.zeros(2, 1, 1), own), torch.tensor([0.5, 0.5]).double())


def test_the_mixture_is_the_least_among_many():
    """No random point of the simplex is below it; and heads on the far side get nothing."""
    random = torch.Generator().manual_seed(0)
    variances, moments = torch.rand(6, generator=random) / 9, torch.randn(6, 3, 2, generator=random)
    own = moments[2] + 0.1 * torch.randn(3, 2, generator=random)
    shares = mixture(variances, moments, own)
    gaps = (own - moments).flatten(1).double()
    matrix = gaps @ gaps.T + torch.diag(variances.double())
    others = torch.distributions.Dirichlet(torch.full((6,), 0.3)).sample((2000,)).double()
    least = (others @ matrix * others).sum(1).min()
    assert float(shares @ matrix @ shares) <= float(least) + 1e-12
    assert float(shares.min()) >= 0
    assert float(shares.sum()) == pytest.approx(1)
    assert int(shares.argmax()) == 2


def test_statistics_by_hand():
    """(0, 0) of class 0 and (2, 4) of class 1: h = (0, 0), (1, 2), and V = (20/2 − 5)/2 = 2.5."""
    client = normalising_client()
    client.model.features[0].eps = 0.0  # running mean 0 and variance 1: features are the samples
    found = feature_statistics(client, client.model)
    torch.testing.assert_close(found["moments"], torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
    assert float(found["variance"]) == pytest.approx(2.5)


def test_the_received_head_is_the_mixture_and_the_features_the_average():
    method = FedPAC()
    client, state, message = federation(method).started()
    heads = torch.stack([torch.ones(6, 2), 3 * torch.ones(6, 2)])
    moments = torch.zeros(2, 6, 2)
    every = {"all.head.weight": heads, "all.variance": torch.ones(2), "all.moments": moments}
    every |= {"classes": torch.arange(6), "prototypes": torch.zeros(6, 2)}
    trained = state | {"variance": torch.tensor(1.0), "moments": moments[0]}
    received = method.receive(client, trained, message | every)
    torch.testing.assert_close(received["model.head.weight"], 2 * torch.ones(6, 2))
    assert all(torch.equal(received[name], message[name]) for name in message)
    unknown = method.receive(client, state, message | every)  # it has not trained yet: no statistics of its own
    assert unknown["model.head.weight"] is state["model.head.weight"]


def test_the_server_averages_features_and_class_means_and_stacks_the_rest():
    """Features (1·0 + 3·4)/4 = 3, the mean of class 1 (1 + 3)/2 = 2; class 2 keeps its last."""

    def reply(value, examples, classes):
        return {
            "model.features.w": torch.tensor([value]), "num_examples": torch.tensor(examples),
            "head.weight": torch.full((3, 2), value), "variance": torch.tensor(value),
            "moments": torch.full((3, 2), value), "classes": torch.tensor(classes),
            "prototypes": torch.full((len(classes), 2), value - 1 if value else 1.0),
        }  # fmt: skip

    before = {"classes": torch.tensor([2]), "prototypes": torch.full((1, 2), 9.0)}
    step = FedPAC().aggregate(server(), before, iter([reply(0.0, 1, [0, 1]), reply(4.0, 3, [1])]))
    assert step.message["model.features.w"].tolist() == [3.0]
    assert step.message["prototypes"][:, 0].tolist() == [1.0, 2.0, 9.0]
    assert step.message["all.variance"].tolist() == [0.0, 4.0]
    assert step.message["all.head.weight"].shape == (2, 3, 2)
    assert step.state.keys() == {"classes", "prototypes"}


def test_with_no_distance_and_no_aggregate_it_trains_as_fedrep():
    sent = []
    for method in (pn.FedRep(), FedPAC(lam=3.0)):
        client, state, message = federation(method).started()
        torch.manual_seed(0)
        sent.append(method.local_update(client, state, message).state)
    assert same(sent[0], {name: sent[1][name] for name in sent[0]})


def test_a_client_keeps_the_statistics_that_it_sent_last():
    """Those of the round before are replaced: heads are mixed by what the features are now."""
    client, state, message = federation(FedPAC()).started()
    before = {"variance": torch.tensor(9.0), "moments": torch.full((6, 2), 9.0)}
    step = FedPAC().local_update(client, state | before, message)
    for name, value in before.items():
        assert torch.equal(step.state[name], step.message[name])
        assert not torch.equal(step.state[name], value)


def test_the_features_follow_the_class_means():
    """The second part's loss is CE + λ·mean (z − c_y)², of one batch at the start."""
    method = FedPAC(lam=2.0)
    client, state, message = federation(method, batch_size=4096, lr=1e-12).started()
    means = {"classes": torch.arange(6), "prototypes": torch.randn(6, 2)}
    loss = method.local_update(client, state, message | means).metrics["loss"]
    model = client.load(state | message)
    x, y = client.train.batch(torch.arange(len(client.train)))
    with torch.no_grad():
        z = model.features(x)
        wanted = cross_entropy(model.head(z), y) + 2 * (z - means["prototypes"][y]).square().mean()
    assert loss == pytest.approx(float(wanted), rel=1e-5)
    assert snapshot("model", model)


def test_the_head_has_epochs_of_its_own():
    """As FedRep's with three, before the first aggregate."""
    sent = []
    for method in (pn.FedRep(head_epochs=3), FedPAC(head_epochs=3)):
        client, state, message = federation(method).started()
        torch.manual_seed(0)
        sent.append(method.local_update(client, state, message).state)
    assert same(sent[0], {name: sent[1][name] for name in sent[0]})


def test_a_client_trains_the_mixture_and_measures_before_it_trains():
    """Both heads are 3: so is the one that it sends, at a rate of almost nothing. V and h are of received features."""
    method = FedPAC()
    client, state, message = federation(method, lr=1e-12).started()
    moments = torch.zeros(2, 6, 2)
    every = {"all.head.weight": torch.full((2, 6, 2), 3.0), "all.variance": torch.ones(2), "all.moments": moments}
    message |= every
    state |= {"variance": torch.tensor(1.0), "moments": moments[0]}
    step = method.local_update(client, state, message)
    torch.testing.assert_close(step.message["head.weight"], torch.full((6, 2), 3.0))
    measured = feature_statistics(client, client.load(method.receive(client, state, message)))
    moving = federation(method, lr=0.1).client()
    trained = method.local_update(moving, state, message)
    for found in (step.message, step.state, trained.message, trained.state):
        torch.testing.assert_close({name: found[name] for name in measured}, measured)
