import pytest
import torch
from torch import nn

import protonorm as pn
from protonorm.algorithms import ALGORITHMS
from protonorm.algorithms.parts.messages import Averaged, shared
from protonorm.algorithms.parts.prototypes import class_means, mean_outputs, stack_prototypes
from protonorm.algorithms.parts.training import descend, shuffled
from protonorm.core.combine import Mean, combine
from protonorm.tensors import prefixed, strip_prefix
from tests.algorithms.tasks import OneNetwork, federation, normalising, normalising_client, server, task_of
from tests.algorithms.tasks import vectors as reply


def test_no_method_inherits_from_another():
    """Each file reads like its paper; what methods share are functions, and bases that are no methods."""
    methods = {entry.load() for entry in ALGORITHMS.values()}
    assert not {(one.__name__, two.__name__) for one in methods for two in methods if two in one.__mro__[1:]}


def model(value, examples):
    return {"model.w": torch.tensor(value), "num_examples": torch.tensor(examples)}


def test_the_average_is_weighted_by_numbers_of_samples():
    """(1·2 + 4·7)/5 = 6."""
    parts = (Averaged.contribution(None, None, {}, one) for one in (model([2.0], 1), model([7.0], 4)))
    assert combine(parts, Mean()).means["model.w"] == 6.0


def test_buffers_are_shared_or_stay():
    """Batch norm on 3 channels: weight, bias, running mean and variance float; the batch counter is an integer."""
    assert shared("a", nn.BatchNorm1d(3), "averaged").keys() == {
        "a.weight",
        "a.bias",
        "a.running_mean",
        "a.running_var",
    }
    assert shared("a", nn.BatchNorm1d(3), "local").keys() == {"a.weight", "a.bias"}


def test_mean_outputs_are_those_of_evaluation():
    """A network in training mode would normalise by its batch, and move its running statistics: (0, 0) and (2, 4) stay.

    With the statistics at the start, mean 0 and variance 1, features are the inputs.
    """
    client = normalising_client()
    client.model.train()
    before = {name: value.clone() for name, value in client.model.state_dict().items()}
    means = mean_outputs(client, client.model.features, "outputs", 2)
    torch.testing.assert_close(means["outputs"], torch.tensor([[0.0, 0.0], [2.0, 4.0]]), rtol=1e-4, atol=0)
    assert all(value.equal(before[name]) for name, value in client.model.state_dict().items())


WITH_STATISTICS = {  # methods whose server says running statistics, and the name of the network that it says
    "fedavg": (pn.FedAvg(), "model"),
    "feduv": (pn.FedUV(), "model"),
    "fednh": (pn.FedNH(scale=20.0), "model"),
    "local": (pn.Local(initial="server"), "model"),
    "fml": (pn.FML(), "meme"),
    "fedkd": (pn.FedKD(), "student"),
    "fedmrl": (pn.FedMRL(), "small"),
    "duet": (pn.Duet(), "shared"),
}


def statistics(network, mean, variance):
    """Running statistics of the first layer of a network's features, equal in both channels."""
    values = {"running_mean": mean, "running_var": variance}
    return {f"{network}.features.0.{name}": torch.full((2,), value) for name, value in values.items()}


def first_message(method):
    """What a server says at first of networks with batch norm."""
    nets = {"auxiliary": normalising()} if method.auxiliary else {"model": normalising()}
    return method.init_server(server(0, classes=2, **nets)).message


@pytest.mark.parametrize("name", WITH_STATISTICS)
def test_training_begins_from_the_received_batch_norm_statistics(name):
    """Means 10 and 10 arrive; a batch of mean (1, 2) makes them 0.9·10 + 0.1·1 = 9.1 and 0.9·10 + 0.1·2 = 9.2.

    Variances 5 and 5 arrive; those of 0, 2 and of 0, 4 are 2 and 8 (n − 1): 0.9·5 + 0.2 = 4.7 and 4.5 + 0.8 = 5.3.
    From the client's own, 0 and 1, they would be (0.1, 0.2) and (1.1, 1.7). A client of Local says nothing.
    """
    method, network = WITH_STATISTICS[name]
    client = normalising_client()
    message = first_message(method) | statistics(network, 10.0, 5.0)
    step = method.local_update(client, method.init_client(client), message)
    mean, variance = statistics(network, 0.0, 1.0)
    for found in [step.message or step.state, *([step.state] if network == "model" else [])]:
        torch.testing.assert_close(found[mean], torch.tensor([9.1, 9.2]))
        torch.testing.assert_close(found[variance], torch.tensor([4.7, 5.3]))


@pytest.mark.parametrize("method", [pn.FedAvg, pn.FedUV, pn.FedNH])
def test_local_batch_norm_statistics_go_on_from_the_clients_own(method):
    """Means 4 and 4 of the round before become 0.9·4 + 0.1·(1, 2) = (3.7, 3.8), and are not said."""
    method = method(buffers="local", **({"scale": 20.0} if method is pn.FedNH else {}))
    client, message = normalising_client(), first_message(method)
    state = method.init_client(client) | statistics("model", 4.0, 1.0)
    step = method.local_update(client, state, message)
    torch.testing.assert_close(step.state["model.features.0.running_mean"], torch.tensor([3.7, 3.8]))
    assert not any("running" in name for said in (message, step.message) for name in said)


@pytest.mark.parametrize("name", ["fedavg", "feduv", "fednh", "fedmrl", "duet"])
def test_a_received_network_is_evaluated_with_the_received_batch_norm_statistics(name):
    method, network = WITH_STATISTICS[name]
    client, message = normalising_client(), statistics(network, 10.0, 5.0)
    state = method.init_client(client)
    received = method.receive(client, state, message)
    assert all(torch.equal(received[one], value) for one, value in message.items())
    assert state[f"{network}.features.0.running_mean"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["fml", "fedkd", "duet"])
def test_an_average_second_network_answers_with_the_received_batch_norm_statistics(name):
    method, network = WITH_STATISTICS[name]
    client = normalising_client()
    message = first_message(method) | statistics(network, 10.0, 5.0)
    method.second(client, method.init_client(client), message)
    layer = client.auxiliary.features[0]
    assert (layer.running_mean.tolist(), layer.running_var.tolist()) == ([10.0, 10.0], [5.0, 5.0])


class Tied(nn.Module):
    """Two layers with one weight, and batch norm between them."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.norm(self.first(x)))


def tied(shape, feature_dim, num_classes):
    return pn.SplitModel(Tied(), nn.Linear(feature_dim, num_classes))


@pytest.mark.parametrize("buffers", ["averaged", "local"])
@pytest.mark.parametrize("method", [pn.FedAvg, pn.FedUV, pn.FedNH])
def test_a_weight_of_two_layers_arrives_in_both(method, buffers):
    """Under the name of one layer alone, the other layer's name would bring the client's own weight back."""
    one = federation(method(buffers=buffers), models=[tied], feature_dim=2)
    client, state, message = one.started(1)
    assert not torch.equal(state["model.features.first.weight"], message["model.features.first.weight"])
    loaded = client.load(one.method.receive(client, state, message))
    for layer in (loaded.features.first, loaded.features.second):
        assert torch.equal(layer.weight, message["model.features.first.weight"])
    said = one.method.local_update(client, state, message).message
    one.task.schema.check_up(said, "It")
    assert torch.equal(said["model.features.first.weight"], said["model.features.second.weight"])
    assert ("model.features.norm.running_mean" in said) is (buffers == "averaged")


def tiny():
    return pn.SplitModel(nn.BatchNorm1d(2), nn.Linear(2, 3, bias=False))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model.head.weight": torch.ones(1, 2)}, r"holds model.head.weight of shape \(1, 2\); expected \(3, 2\)"),
        ({"model.head.weight": None}, "lacks model.head.weight"),
        ({"model.head.w": torch.ones(3, 2)}, "holds model.head.w, which is not expected"),
        ({"model.features.num_batches_tracked": torch.tensor(3)}, "holds model.features.num_batches_tracked, which"),
        ({"model.features.running_var": torch.tensor([1, torch.inf])}, "holds model.features.running_var with numbers"),
        (
            {"num_examples": torch.tensor(0)},
            "holds num_examples from 0 to 0; expected whole numbers from 1 to 2147483647",
        ),
        ({"num_examples": torch.tensor(-3)}, "holds num_examples from -3 to -3"),
        ({"num_examples": torch.tensor(1.5)}, "holds num_examples as torch.float32"),
        ({"num_examples": torch.tensor([1, 2])}, r"holds num_examples as torch.int64 of shape \(2,\)"),
        ({"num_examples": None}, "lacks num_examples"),
    ],
)
@pytest.mark.parametrize("method", [pn.FedAvg(), pn.FedUV()])
def test_what_is_not_a_model_is_refused_with_a_sentence(method, changes, sentence):
    fine = shared("model", tiny(), "averaged") | {"num_examples": torch.tensor(7)}
    schema = task_of(method, shared_network=OneNetwork(tiny)).schema
    schema.check_up(fine, "It")
    with pytest.raises(ValueError, match=f"It {sentence}"):
        schema.check_up({name: value for name, value in (fine | changes).items() if value is not None}, "It")


KINDS = ("local", "averaged")
HEADS_AT_HOME = (pn.FedPer, pn.FedRep, pn.FedPAC)


@pytest.mark.parametrize("method", [pn.FedAvg, pn.FedUV, pn.FedProx, pn.MOON, pn.FPL, *HEADS_AT_HOME])
def test_local_statistics_are_neither_said_nor_expected(method):
    schema = task_of(method(buffers="local"), shared_network=OneNetwork(tiny)).schema
    part = "model.features." if method in HEADS_AT_HOME else "model."
    local, averaged = (prefixed(part[:-1], strip_prefix(shared("model", tiny(), kind), part[:-1])) for kind in KINDS)
    schema.check_down(local)
    with pytest.raises(ValueError, match="holds model.features.running_mean, .*running_var, which is not expected"):
        schema.check_down(averaged)


def test_prototypes_are_stacked_in_the_order_of_the_replies():
    stacked, labels = stack_prototypes([reply([2, 0], [[1, 2], [3, 4]]), reply([2], [[5, 6]])], server())
    assert stacked.tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert labels.tolist() == [2, 0, 2]


def test_a_class_that_nobody_sent_keeps_its_last_vector():
    """Class 1 is sent by two, class 0 is known from before, class 2 is new; class 3 stays unknown."""
    state = reply([0, 1], [[9, 9], [8, 8]])
    replies = [reply([1], [[1, 2]]), reply([1, 2], [[3, 4], [5, 6]])]
    found = pn.FedProto().aggregate(server(classes=4), state, replies).message
    assert found["classes"].tolist() == [0, 1, 2]
    assert found["prototypes"].tolist() == [[9, 9], [2, 3], [5, 6]]
    assert found["prototypes"].dtype == torch.float32


def test_features_that_are_not_finite_are_told_with_client_and_round():
    client = federation(pn.Local()).client(2)
    nn.init.constant_(client.model.features[0].bias, torch.inf)
    with pytest.raises(pn.Diverged, match="The prototypes of client 2 are not finite after round 0"):
        class_means(client, client.model)


def test_nobody_sends_no_prototypes():
    stacked, labels = stack_prototypes([], server())
    assert stacked.shape == (0, 2)
    assert list(shuffled(stacked, labels, 3, 4)) == []


def test_every_epoch_has_all_rows_once_and_the_last_batch_may_be_smaller():
    rows, labels = torch.arange(5.0).unsqueeze(1), torch.arange(5)
    batches = list(shuffled(rows, labels, epochs=2, size=2))
    assert [len(y) for _, y in batches] == [2, 2, 1] * 2
    assert all(torch.equal(x.flatten().long(), y) for x, y in batches)
    for epoch in (batches[:3], batches[3:]):
        assert sorted(torch.cat([y for _, y in epoch]).tolist()) == [0, 1, 2, 3, 4]


def test_every_epoch_has_an_order_of_its_own():
    """Of 10! orders of ten rows, four epochs have four, none of which is the given one."""
    rows = torch.arange(10)
    orders = [y.tolist() for _, y in shuffled(rows.float(), rows, epochs=4, size=10)]
    assert len({tuple(order) for order in [rows.tolist(), *orders]}) == 5


def test_descend_takes_a_step_a_batch_and_gives_the_mean_loss():
    """w² from w = 1 with lr 0.25: 1 − 0.5 = 0.5, then 0.25; losses 1 and 0.25, mean 0.625."""
    w = torch.ones(1, requires_grad=True)
    mean = descend(lambda: (w**2).sum(), [(), ()], torch.optim.SGD([w], 0.25), server())
    assert w.item() == 0.25
    assert mean == 0.625


def test_no_batch_is_no_step():
    w = torch.ones(1, requires_grad=True)
    assert descend(lambda: w.sum(), [], torch.optim.SGD([w], 0.25), server()) == 0.0
    assert w.item() == 1.0


def test_a_server_that_leaves_the_finite_numbers_says_so():
    w = torch.ones(1, requires_grad=True)
    with pytest.raises(pn.Diverged, match="The server's training loss became inf in round 3"):
        descend(lambda: (w / 0).sum(), [()], torch.optim.SGD([w], 0.25), server(3))
