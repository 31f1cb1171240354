import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import protonorm as pn
from protonorm.algorithms.duet import Duet, weigh
from protonorm.core import Client, Samples, seeded
from protonorm.tensors import strip_prefix
from tests.algorithms.tasks import OneNetwork, federation, server, task_of
from tests.support import pictures, run, spiral

X = torch.tensor([[3.0, 4.0]])
RISE = torch.tensor([0.128, -0.096])  # ∂cos(z, t)/∂z = (t − cos·z/‖z‖)/‖z‖ at z = (3, 4), t = (1, 0): (0.64, −0.48)/5


def layer(weight):
    """A linear layer without bias, of the given weights."""
    made = nn.Linear(2, 2, bias=False)
    made.weight.data = torch.tensor(weight)
    return made


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


def example(method, lr=1e-12, labels=(0,)):
    """Samples x = (3, 4), K = d = 2, targets (1, 0) and (−1, 0), s = 1. f(x) = x: cosines ±0.6; f_g(x) = (4, 3): ±0.8.

    One sample of class 0 and a = 1: π = (2/3, 1/3), of which the logarithms differ by log 2.
    """
    own = pn.SplitModel(layer([[1.0, 0.0], [0.0, 1.0]]), layer([[0.0, 0.0], [0.0, 0.0]]))
    other = pn.SplitModel(layer([[0.0, 1.0], [1.0, 0.0]]), layer([[0.0, 0.0], [0.0, 0.0]]))
    samples = Samples(X.repeat(len(labels), 1), torch.tensor(labels), torch.arange(len(labels)))
    client = Client(0, 1, 1, own, other, samples, samples, samples, num_classes=2, feature_dim=2, lr=lr)
    state = method.init_client(client) | {"targets": torch.tensor([[1.0, 0.0], [-1.0, 0.0]])}
    said = {"shared.features.weight": torch.tensor([[0.0, 1.0], [1.0, 0.0]]), "weight": torch.tensor(0.5)}
    return client, state, said


def test_the_loss_by_hand():
    """CE = log(1 + e^(−1.2)/2), CE_g = log(1 + e^(−1.6)/2); without π: q = σ(1.2), q_g = σ(1.6), and H(q_g, q)."""
    method = Duet(lam=0.5, scale=1.0, smoothing=1.0)
    alone = math.log1p(math.exp(-1.2) / 2) + math.log1p(math.exp(-1.6) / 2)
    imitated = -sigmoid(1.6) * math.log(sigmoid(1.2)) - sigmoid(-1.6) * math.log(sigmoid(-1.2))
    assert method.local_update(*example(method)).metrics["loss"] == pytest.approx(alone + 0.5 * imitated, rel=1e-6)


@pytest.mark.parametrize("lam", [0.0, 3.0])
def test_one_step_by_hand(lam):
    """lr = 1, s = 2: scores ±1.2 and ±1.6, which rise and fall with their cosines, times 2.

    ∂/∂cos = 4·(p − 1) + 4λ(q − q_g), p = σ(2.4 + log 2), q = σ(2.4), q_g = σ(3.2). The shared network has its own
    label to learn from alone: 4·(σ(3.2 + log 2) − 1) at z = (4, 3), where ∂cos/∂z = (1 − 0.64, −0.48)/5.
    """
    method = Duet(lam=lam, scale=2.0, smoothing=1.0)
    step = method.local_update(*example(method, lr=1.0))
    slope = 4 * (sigmoid(2.4 + math.log(2)) - 1) + 4 * lam * (sigmoid(2.4) - sigmoid(3.2))
    torch.testing.assert_close(step.state["model.features.weight"], torch.eye(2) - slope * RISE.outer(X[0]))
    slope = 4 * (sigmoid(3.2 + math.log(2)) - 1)
    moved = torch.tensor([[0.0, 1.0], [1.0, 0.0]]) - slope * torch.tensor([0.072, -0.096]).outer(X[0])
    torch.testing.assert_close(step.message["shared.features.weight"], moved)
    assert torch.equal(step.state["shared.features.weight"], step.message["shared.features.weight"])  # kept


def test_class_shares_by_hand():
    """Classes 0, 0, 1 of three, a = ½: (2.5, 1.5, 0.5)/4.5; without them zeros."""
    samples = Samples(torch.zeros(3, 2), torch.tensor([0, 0, 1]), torch.arange(3))
    client = Client(0, 1, 1, *[nn.Identity()] * 2, *[samples] * 3, num_classes=3, feature_dim=2)
    found = Duet(smoothing=0.5).log_shares(client)
    torch.testing.assert_close(found, torch.log(torch.tensor([2.5, 1.5, 0.5]) / 4.5))
    assert Duet(balanced=False).log_shares(client).tolist() == [0.0] * 3


def test_both_networks_answer_with_the_clients_class_shares():
    """One sample of class 1, a = 1: log π = log(1/3), log(2/3). s = 5, w = ¼: cosines ±(0.6/4 + 3·0.8/4) = ±0.75.

    The shared network just published has f_g(x) = (3, −4), cosines ±0.6; the client's own was trained before that.
    """
    method = Duet(scale=5.0, smoothing=1.0)
    client, state, _ = example(method, labels=(1,))
    client.load(state)
    said = {"shared.features.weight": torch.tensor([[1.0, 0.0], [0.0, -1.0]]), "weight": torch.tensor(1.0)}
    found = method.scores(client, state | {"weight": torch.tensor(0.25)}, said, X)
    low, high = math.log(1 / 3), math.log(2 / 3)
    torch.testing.assert_close(found["logits"], torch.tensor([[3.75 + low, -3.75 + high]]))
    torch.testing.assert_close(found["shared"], torch.tensor([[3.0 + low, -3.0 + high]]))


def test_the_weight_that_the_server_says_is_the_clients():
    """w = 1 is the own network alone, cosines ±0.6, although the client began with ½; s = 5."""
    method = Duet(scale=5.0, balanced=False)
    client, state, said = example(method)
    chosen = said | {"weight": torch.tensor(1.0)}
    held = method.receive(client, state, chosen)
    torch.testing.assert_close(method.scores(client, held, chosen, X)["logits"], torch.tensor([[3.0, -3.0]]))
    assert method.local_update(client, state, chosen).state["weight"] == 1.0


def test_with_equal_weights_the_sum_of_log_probabilities_has_the_same_order():
    """log p + log p_g = s(cos + cos_g) + 2 log π + …, twice what is scored."""
    one = federation(Duet())
    client, state, message = one.started()
    x, _ = client.train.batch(torch.arange(5))
    model = client.load(state).eval()
    both = one.method.scores(client, state | message, message, x)["logits"]
    shared = one.method.second(client, state, message)
    apart = torch.zeros_like(both)
    for features in (model.features, shared.features):
        z = features(x)
        cosines = z @ state["targets"].T / z.norm(dim=1, keepdim=True)
        apart += (16.0 * cosines + state["prior"]).log_softmax(1)
    torch.testing.assert_close(both.log_softmax(1), (apart / 2).log_softmax(1))


def test_weights_are_judged_by_validation_samples_before_training():
    """Trained on two of class 0, a = 1: π = (3/4, 1/4). s = 1, cos = 0.8 − 0.2 w; −log p of a validation sample of
    class 0 is log(1 + e^(−2 cos)/3), of one of class 1 log(1 + 3 e^(2 cos))."""
    method = Duet(scale=1.0, smoothing=1.0)
    client, state, message = example(method, lr=1.0, labels=(0, 0))
    held = Samples(X.repeat(2, 1), torch.tensor([0, 1]), torch.arange(2))
    said = method.local_update(replace(client, validation=held), state, message).message
    cosines = [0.8 - 0.02 * tenth for tenth in range(11)]
    wanted = [math.log1p(math.exp(-2 * cos) / 3) + math.log1p(3 * math.exp(2 * cos)) for cos in cosines]
    torch.testing.assert_close(said["nll"], torch.tensor(wanted))


def test_weights_are_judged_in_evaluation_mode():
    """Batch norm that has seen nothing changes no direction then, so that nll is as above without it.

    In training mode it would take samples that are all alike for the zero vector, and remember them.
    """
    method = Duet(scale=1.0, smoothing=1.0)
    client, _, _ = example(method, labels=(0, 0))
    for network in (client.model, client.auxiliary):
        network.features = nn.Sequential(network.features, nn.BatchNorm1d(2))
        network.train()
    state = method.init_client(client) | {"targets": torch.tensor([[1.0, 0.0], [-1.0, 0.0]])}
    network = method.network(client, state)
    wanted = [2 * math.log1p(math.exp(-2 * (0.8 - 0.02 * tenth)) / 3) for tenth in range(11)]
    torch.testing.assert_close(weigh(client, network), torch.tensor(wanted))
    for kept in (client.model, client.auxiliary):
        assert kept.features[1].running_mean.tolist() == [0.0, 0.0]
        assert int(kept.features[1].num_batches_tracked) == 0


def reply(value, samples, best):
    """What a client says whose shared network has one number, and whose best weight has the given place."""
    nll = (torch.arange(11.0) - best).abs() * samples
    return {"shared.features.w": torch.tensor([value]), "num_examples": torch.tensor(samples), "nll": nll}


def test_all_clients_choose_one_weight():
    """1·|k − 2| + 3·|k − 9| is least at k = 9: w = 0.9. With nobody's validation samples it stays as it was."""
    step = Duet().aggregate(server(), {"weight": torch.tensor(0.5)}, iter([reply(0.0, 1, 2), reply(0.0, 3, 9)]))
    assert step.message["weight"] == step.state["weight"] == torch.tensor(0.9)
    assert step.metrics == {"weight": pytest.approx(0.9)}
    silent = reply(0.0, 1, 2) | {"nll": torch.zeros(11)}
    kept = Duet().aggregate(server(), {"weight": torch.tensor(0.7)}, iter([silent]))
    assert kept.message["weight"] == kept.state["weight"] == torch.tensor(0.7)


def test_shared_networks_are_averaged_by_samples():
    """0 with three samples and 4 with one: 1."""
    step = Duet().aggregate(server(), {}, iter([reply(0.0, 3, 2), reply(4.0, 1, 2)]))
    assert step.message == step.state
    assert step.message.keys() == {"shared.features.w", "weight"}
    assert step.message["shared.features.w"].tolist() == [1.0]


def test_both_networks_count_alike_at_first_and_a_client_by_the_samples_that_it_trained_on():
    one = federation(Duet())
    client, state, message = one.started()
    assert state["weight"] == message["weight"] == 0.5
    said = one.method.local_update(client, state, message).message
    assert int(said["num_examples"]) == len(client.train) != len(client.validation)


def test_all_clients_turn_towards_the_same_directions_and_another_seed_has_others():
    """Six directions in the plane at equal angles: the nearest two have the cosine ½."""
    one = federation(Duet())
    first, second = (one.started(id)[1]["targets"] for id in (0, 1))
    assert torch.equal(first, second)
    others = (first @ first.T).fill_diagonal_(-1.0)
    torch.testing.assert_close(others.amax(1), torch.full((6,), 0.5), rtol=0, atol=1e-3)
    assert not torch.equal(first, federation(Duet(seed=1)).started()[1]["targets"])


def test_only_by_imitation_does_the_own_network_learn_from_others():
    def own(lam, factor):
        one = federation(Duet(lam=lam))
        client, state, message = one.started()
        said = {name: factor * value for name, value in message.items()}
        with seeded(0, 1, 0):  # the same batches
            return strip_prefix(one.method.local_update(client, state, said).state, "model")

    alone, other = own(0.0, 1.0), own(0.0, 1.5)
    assert all(torch.equal(alone[name], other[name]) for name in alone)
    taught, otherwise = own(1.0, 1.0), own(1.0, 1.5)
    assert not torch.equal(taught["features.0.weight"], otherwise["features.0.weight"])


def test_heads_stay_at_home_and_what_is_no_shared_network_is_refused():
    make = OneNetwork(lambda: pn.SplitModel(nn.Linear(2, 2), nn.Linear(2, 3)))
    schema = task_of(Duet(), shared_network=make).schema
    said = {f"shared.features.{name}": value for name, value in make().features.state_dict().items()}
    said["weight"] = torch.tensor(0.5)
    schema.check_down(said)
    with pytest.raises(ValueError, match=r"lacks shared\.features\.bias"):
        schema.check_down({name: value for name, value in said.items() if name != "shared.features.bias"})
    with pytest.raises(ValueError, match=r"shared\.head\.bias"):
        schema.check_down(said | {"shared.head.bias": torch.zeros(3)})
    with pytest.raises(ValueError, match="holds weight from 2 to 2; expected numbers from 0 to 1"):
        schema.check_down(said | {"weight": torch.tensor(2.0)})


def test_an_exported_client_has_both_networks_and_answers_alike(tmp_path):
    settings = {"dataset": pictures([0, 1, 2] * 24, 3), "models": "light", "auxiliary": "plain", "feature_dim": 5}
    result = run(spiral(algorithm=Duet(), **settings, clients=4, rounds=2), out=tmp_path)
    assert all(result.history[-1].rules[rule] is not None for rule in Duet().rules)
    x = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 1), dtype=np.uint8)
    again = pn.load_client(result.clients[1].save(tmp_path / "one"))
    found = again.module(torch.from_numpy(x))
    for rule in Duet().rules:
        np.testing.assert_array_equal(again.scores(x)[rule], result.clients[1].scores(x)[rule])
        np.testing.assert_allclose(found[rule].detach().numpy(), again.scores(x)[rule], rtol=1e-4, atol=1e-4)
    assert not np.allclose(again.scores(x)["logits"], again.scores(x)["shared"])


def test_without_its_second_network_a_client_cannot_predict():
    client, state, message = example(Duet())
    alone = Client(0, 1, 1, client.model, None, *[client.train] * 3, num_classes=2, feature_dim=2)
    with pytest.raises(ValueError, match="predicts with two networks"):
        Duet().scores(alone, state, message, X)
