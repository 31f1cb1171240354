import math

import numpy as np
import pytest
import torch
from torch import nn

import protonorm as pn
from protonorm.algorithms.fedmrl import FedMRL
from protonorm.core import Client, Samples
from protonorm.tensors import strip_prefix
from tests.algorithms.tasks import OneNetwork, federation, server, task_of
from tests.contract.playing import played
from tests.support import pictures, run, spiral


def layer(weight):
    """A linear layer without bias, of the given weights."""
    made = nn.Linear(len(weight[0]), len(weight), bias=False)
    made.weight.data = torch.tensor(weight, dtype=torch.float32)
    return made


def example(lr=1e-12, projector=((1.0, 0.0, 0.0), (0.0, 1.0, 1.0))):
    """One sample x = (1, 2) of class 0; d = 2, d_s = 1: f_g(x) = 1 + 2 = 3, f_i(x) = x, h = (3, 1 + 2) = (3, 3)."""
    own = pn.SplitModel(layer([[1, 0], [0, 1]]), layer([[1, 0], [0, 1]]))
    small = pn.SplitModel(layer([[1, 1]]), layer([[1], [0]]))
    samples = Samples(torch.tensor([[1.0, 2.0]]), torch.tensor([0]), torch.tensor([0]))
    client = Client(0, 1, 1, own, small, samples, samples, samples, num_classes=2, feature_dim=2, lr=lr)
    state = FedMRL(shared_dim=1).init_client(client)
    state |= {"projector.weight": torch.tensor(projector), "projector.bias": torch.zeros(2)}
    return client, state


def test_the_loss_by_hand():
    """g_i(h) = (3, 3): log 2. g_g(h[:1]) = (3, 0): log(1 + e⁻³)."""
    client, state = example()
    step = FedMRL(shared_dim=1).local_update(client, state, {})
    assert step.metrics["loss"] == pytest.approx(math.log(2) + math.log1p(math.exp(-3)), rel=1e-6)


def test_one_step_by_hand():
    """lr = 1. Own head: p = (½, ½), gradient of its first row −½·(3, 3). Small head: q = 1/(1 + e³), the gradient of
    its first row −q·3. ∂/∂h = (−½, ½) + (−q, 0), so that the projector's bias moves by (½ + q, −½)."""
    client, state = example(lr=1.0)
    found = FedMRL(shared_dim=1).local_update(client, state, {}).state
    q = 1 / (1 + math.exp(3))
    torch.testing.assert_close(found["model.head.weight"], torch.tensor([[2.5, 1.5], [-1.5, -0.5]]))
    torch.testing.assert_close(found["small.head.weight"], torch.tensor([[1 + 3 * q], [-3 * q]]))
    torch.testing.assert_close(found["projector.bias"], torch.tensor([0.5 + q, -0.5]))
    # f_g feeds h_0 alone: its gradient is (−½ − q)·x. Both numbers of f_i feed h_1: ½·(1, 1)ᵀx.
    torch.testing.assert_close(found["small.features.weight"], 1 + (0.5 + q) * torch.tensor([[1.0, 2.0]]))
    moved = torch.tensor([[0.5, -1.0], [-0.5, 0.0]])  # identity − ½·(1, 1)ᵀ(1, 2)
    torch.testing.assert_close(found["model.features.weight"], moved)


def test_the_joint_features_are_scored():
    client, state = example(projector=((1.0, 0.0, 0.0), (0.0, 0.0, 1.0)))
    client.load(state)
    found = FedMRL(shared_dim=1).scores(client, state, {}, torch.tensor([[1.0, 2.0], [0.0, 5.0]]))
    assert found["logits"].tolist() == [[3.0, 2.0], [5.0, 5.0]]  # h = (x_0 + x_1, x_1)
    assert found["coarse"].tolist() == [[3.0, 0.0], [5.0, 0.0]]  # g_g(h_0) = (h_0, 0)
    assert FedMRL.rules == ("received", "logits", "coarse", "joint")


def test_the_projector_has_the_size_of_the_papers():
    """d_s + d = 128 + 512 numbers in, 512 out, and a bias: 640·512 + 512 = 328,192."""
    client = Client(0, 1, 1, *[nn.Identity()] * 2, *[None] * 3, num_classes=2, feature_dim=512)
    assert sum(weight.numel() for weight in FedMRL()._projector(client).parameters()) == 328_192
    assert (FedMRL().auxiliary_dim(512), FedMRL().auxiliary_dim(2)) == (128, 2)


def test_small_networks_are_averaged_by_samples_or_all_alike():
    """0 with three samples and 4 with one: 1, or 2."""
    replies = [{"small.w": torch.tensor([0.0])}, {"small.w": torch.tensor([4.0])}]
    counted = [one | {"num_examples": torch.tensor(n)} for one, n in zip(replies, (3, 1), strict=True)]
    assert FedMRL().aggregate(server(), {}, iter(counted)).message["small.w"].tolist() == [1.0]
    assert FedMRL(weighting="clients").aggregate(server(), {}, iter(replies)).state["small.w"].tolist() == [2.0]


def test_of_one_client_the_server_has_the_small_network_and_the_client_a_trained_projector():
    one = federation(FedMRL(), clients=1, partition="iid")
    first = one.started()[1]
    seen = played(one.task, one.population, 1)
    kept = strip_prefix(seen["after"][0], "small")
    assert strip_prefix(seen["step"].message, "small").keys() <= kept.keys()
    for name, value in strip_prefix(seen["step"].message, "small").items():
        assert torch.equal(value, kept[name])
    assert not torch.equal(seen["after"][0]["projector.weight"], first["projector.weight"])


def test_the_trained_projector_is_the_next_rounds():
    client, state = example(lr=0.5)
    method = FedMRL(shared_dim=1)
    once = method.local_update(client, state, {}).state
    again = method.local_update(client, once, {}).state
    still = method.local_update(client, once | {"projector.bias": state["projector.bias"]}, {}).state
    assert not torch.equal(again["projector.bias"], still["projector.bias"])


def test_a_client_takes_the_servers_small_network_and_keeps_its_own_parts():
    client, state = example()
    said = {"small.features.weight": torch.zeros(1, 2), "small.head.weight": torch.zeros(2, 1)}
    step = FedMRL(shared_dim=1).local_update(client, state, said)
    # h = (0, 3) and no logit of the small head: log(1 + e³) + log 2
    assert step.metrics["loss"] == pytest.approx(math.log1p(math.exp(3)) + math.log(2), rel=1e-6)
    assert int(step.message["num_examples"]) == 1


def test_a_client_says_how_many_samples_it_trained_on():
    client, state, message = federation(FedMRL()).started()
    step = FedMRL().local_update(client, state, message)
    assert int(step.message["num_examples"]) == len(client.train) > 1


def test_what_is_no_small_network_is_refused_with_a_sentence():
    make = OneNetwork(lambda: pn.SplitModel(nn.Linear(2, 1), nn.Linear(1, 3)))
    schema = task_of(FedMRL(weighting="clients"), shared_network=make).schema
    said = {f"small.{name}": value for name, value in make().state_dict().items()}
    schema.check_down(said)
    with pytest.raises(ValueError, match="lacks small.head.bias"):
        schema.check_up({name: value for name, value in said.items() if name != "small.head.bias"}, "It")


def test_the_small_network_has_its_own_width_and_the_record_tells_so(tmp_path):
    """A `plain` network with d_s = 3 features beside two others with d = 5, and an exported client with both."""
    settings = {"dataset": pictures([0, 1, 2] * 24, 3), "models": "light", "auxiliary": "plain", "feature_dim": 5}
    experiment = spiral(algorithm=FedMRL(shared_dim=3), **settings, clients=4, rounds=2)
    result = run(experiment, out=tmp_path)
    assert result.clients[0].message["small.head.weight"].shape == (3, 3)
    assert result.history[-1].rules["received"] is not None
    x = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 1), dtype=np.uint8)
    again = pn.load_client(result.clients[1].save(tmp_path / "one"))
    np.testing.assert_array_equal(again.scores(x)["received"], result.clients[1].scores(x)["received"])
    found = again.module(torch.from_numpy(x))
    for rule in ("logits", "received"):
        np.testing.assert_allclose(found[rule].detach().numpy(), again.scores(x)[rule], rtol=1e-4, atol=1e-4)
    assert not np.allclose(again.scores(x)["logits"], again.scores(x)["received"])


def test_without_its_second_network_a_client_cannot_predict():
    client, state = example()
    alone = Client(0, 1, 1, client.model, None, *[client.train] * 3, num_classes=2, feature_dim=2)
    with pytest.raises(ValueError, match="predicts with two networks"):
        FedMRL(shared_dim=1).scores(alone, state, {}, torch.zeros(1, 2))
