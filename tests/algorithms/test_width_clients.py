"""A client of HeteroFL, FedRolex and FjORD by hand: its loss, what it says, and its batch norm's statistics."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import protonorm as pn
from protonorm.algorithms.heterofl import FedRolex, FjORD, HeteroFL, measure, parameters
from protonorm.core import Client, Samples
from tests.algorithms.tasks import Federation
from tests.algorithms.test_widths import tiny
from tests.support import build

E = math.e
HEAD = [[1.0, 0.0], [5.0, 5.0], [0.0, 0.0]]


def client_of(model, rows, labels, **settings):
    """A client in round 1 of K = 3 classes; its test samples are those that it trains on."""
    samples = Samples(torch.tensor(rows), torch.tensor(labels), torch.arange(len(labels)))
    return Client(0, 1, 5, model, None, *[samples] * 3, num_classes=3, feature_dim=2, **settings)


def lacking_class_1():
    """f(x) = x, and a head that would take everything for class 1. Two samples (1, 0), of classes 0 and 2."""
    model = pn.SplitModel(nn.Linear(2, 2, bias=False), nn.Linear(2, 3, bias=False))
    model.features.weight.data, model.head.weight.data = torch.eye(2), torch.tensor(HEAD)
    return client_of(model, [[1.0, 0.0], [1.0, 0.0]], [0, 2], lr=1.0)


@pytest.mark.parametrize("kind", [HeteroFL, FedRolex])
def test_the_row_of_a_class_that_one_lacks_does_not_move(kind):
    """Logits 1, 0 for the absent one, 0: p = (e, 1, 1)/(e + 2), the loss log(e + 2) − ½. The head's rows 0 and 2 have
    the gradients (p − ½)·x, and lr is 1. Row 1, at 5, is neither in the loss nor moved."""
    client, method = lacking_class_1(), kind(weighting="samples")
    step = method.local_update(client, method.init_client(client), parameters(client.model))
    assert step.metrics["loss"] == pytest.approx(math.log(E + 2) - 0.5, rel=1e-6)
    wanted = torch.tensor([[1.5 - E / (E + 2), 0.0], [5.0, 5.0], [0.5 - 1 / (E + 2), 0.0]])
    torch.testing.assert_close(step.message["model.head.weight"], wanted)
    torch.testing.assert_close(step.state["model.head.weight"], wanted)
    assert step.message["classes"].tolist() == step.state["classes"].tolist() == [0, 2]
    assert int(step.message["num_examples"]) == 2


@pytest.mark.parametrize("kind", [HeteroFL, FedRolex])
def test_unmasked_all_rows_move(kind):
    """Logits 1, 5 and 0: the loss is log(e + e⁵ + 1) − ½, and nobody's number of samples is said."""
    client, method = lacking_class_1(), kind(masked=False)
    step = method.local_update(client, method.init_client(client), parameters(client.model))
    assert step.metrics["loss"] == pytest.approx(math.log(E + E**5 + 1) - 0.5, rel=1e-6)
    assert step.message["model.head.weight"][1, 0] < 4.5
    assert step.message["classes"].tolist() == [0, 2]  # the server's average leaves the row out all the same
    assert "num_examples" not in step.message


@pytest.mark.parametrize("kind", [HeteroFL, FedRolex])
def test_a_class_that_one_lacks_is_not_predicted_unless_unmasked(kind):
    """x = (1, 0) has the logits 1, 5 and 0."""
    client = lacking_class_1()
    for masked, absent in ((True, -torch.inf), (False, 5.0)):
        method = kind(masked=masked)
        found = method.scores(client, method.init_client(client), {}, torch.tensor([[1.0, 0.0]]))
        assert found["logits"].tolist() == [[1.0, absent, 0.0]]


@pytest.mark.parametrize("method", [HeteroFL(weighting="samples"), FedRolex(weighting="samples"), FjORD()])
def test_the_number_of_samples_is_that_of_the_training_part(method):
    one = Federation(*build(tiny(method)))
    client, state, message = one.started(1)
    said = one.method.local_update(client, state, message).message
    assert int(said["num_examples"]) == len(client.train) != len(client.test)


def test_a_client_that_sat_rounds_out_is_evaluated_with_the_channels_that_it_trained():
    """Trained in round 1, so that it has the first six of 24 channels; after round 3 they are still the ones."""
    one = Federation(*build(tiny(FedRolex(), lr=1e-30)))
    _, state, message = one.started(2)
    site, whole = one.population.site(2), message["model.features.0.0.weight"]
    first = one.method.local_update(site.client(1), state, message).state
    for round in (1, 3):
        found = one.method.receive(site.client(round), first, message)
        assert torch.equal(found["model.features.0.0.weight"], whole[:6])
    second = one.method.local_update(site.client(2), first, message).state
    found = one.method.receive(site.client(3), second, message)
    assert torch.equal(found["model.features.0.0.weight"], whole[[23, 0, 1, 2, 3, 4]])


def test_the_whole_network_teaches_the_narrower_one():
    """Two channels: z = a·b over them, head (1, 0); all weights 1 and x = 1, so that o = (2, 0), and of the first
    channel alone, which is always drawn, o_p = (1, 0). With p = softmax o, q = softmax o_p and y = 0 the loss is

        log(1 + e⁻²) + p_0·log(1 + e⁻¹) + p_1·log(1 + e).

    The second channel learns from the label alone, ∂/∂a_2 = p_0 − 1; the first also from p: p_0 − 1 + q_0 − p_0.
    """

    def make(width=1.0):
        channels = 2 if width > 0.5 else 1
        layers = nn.Sequential(nn.Linear(1, channels, bias=False), nn.Linear(channels, 1, bias=False))
        model = pn.SplitModel(layers, nn.Linear(1, 2, bias=False))
        model.at_width, model.width = make, width
        return model

    model = make()
    for layer in model.features:
        layer.weight.data.fill_(1.0)
    model.head.weight.data = torch.tensor([[1.0], [0.0]])
    samples = Samples(torch.tensor([[1.0], [1.0]]), torch.tensor([0, 0]), torch.arange(2))
    client = Client(0, 1, 5, model, None, *[samples] * 3, num_classes=2, feature_dim=1, lr=1.0)
    method = FjORD(steps=2, distillation=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("numpy.random.randint", lambda count: 0)
        step = method.local_update(client, method.init_client(client), parameters(model))
    p, q = 1 / (1 + E**-2), 1 / (1 + 1 / E)
    wanted = math.log1p(E**-2) + p * math.log1p(1 / E) + (1 - p) * math.log1p(E)
    assert step.metrics["loss"] == pytest.approx(wanted, rel=1e-6)
    torch.testing.assert_close(step.message["model.features.0.weight"], torch.tensor([[2 - q], [2 - p]]))


# ---- statistics of batch norm ---------------------------------------------------------------------------------------


def normalised(size=5, **settings):
    """f(x) = batch norm of w·x; the server's w is 2, the client's own 1; samples 1, 3, 5, …"""

    def make(width=1.0):
        return pn.SplitModel(nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1)), nn.Linear(1, 3))

    model = make()
    model.at_width = make
    model.features[0].weight.data.fill_(1.0)
    client = client_of(model, [[2.0 * one + 1] for one in range(size)], [0] * size, batch_size=2, **settings)
    return client, parameters(model) | {"model.features.0.weight": torch.tensor([[2.0]])}


@pytest.mark.parametrize("method", [HeteroFL(), FedRolex(), FjORD()])
def test_a_client_that_never_trained_measures_the_published_weights(method):
    """Batches 2·(1, 3, 5) and 2·(7, 9): means 6 and 16, variances 16 and 8, on average 11 and 12. Nothing is drawn."""
    client, message = normalised()
    state = method.init_client(client)
    before = torch.get_rng_state()
    found = method.receive(client, state, message)
    assert torch.equal(torch.get_rng_state(), before)
    assert found["model.features.1.running_mean"].tolist() == [11.0]
    assert found["model.features.1.running_var"].tolist() == [12.0]
    assert found["model.features.0.weight"].tolist() == [[2.0]]
    assert found.keys() == state.keys()
    assert state["model.features.1.running_mean"].tolist() == [0.0]


@pytest.mark.parametrize("method", [HeteroFL(), FedRolex(), FjORD()])
def test_a_client_that_trained_has_its_own_statistics(method):
    """They are in its state, so that a client predicts elsewhere, without samples, as it was evaluated."""
    client, message = normalised()
    state = method.init_client(client)
    after = method.local_update(replace(client, lr=1e-30), state, message).state
    assert int(after["model.features.1.num_batches_tracked"]) == 2
    elsewhere = replace(client, train=Samples.none((1,)))
    for one in (client, elsewhere):
        found = method.receive(one, after, {name: 3 * value for name, value in message.items()})
        assert torch.equal(found["model.features.1.running_mean"], after["model.features.1.running_mean"])
        assert found["model.features.0.weight"].tolist() == [[6.0]]
    fresh = method.receive(elsewhere, state, message)
    assert fresh["model.features.1.running_mean"].tolist() == [0.0]


def test_fjord_measures_after_training_with_all_samples_in_their_order():
    """As above, with the server's w = 2, which does not learn."""
    client, message = normalised(lr=1e-30)
    method = FjORD()
    after = method.local_update(client, method.init_client(client), message).state
    assert after["model.features.1.running_mean"].tolist() == [11.0]
    assert after["model.features.1.running_var"].tolist() == [12.0]


@pytest.mark.parametrize(("size", "mean"), [(1, 1.0), (2, 2.0), (3, 3.0)])
def test_few_samples_are_one_batch(size, mean):
    client, _ = normalised(size)
    measure(client, client.model)
    assert client.model.features[1].running_mean.tolist() == [mean]
    assert int(client.model.features[1].num_batches_tracked) == 1
