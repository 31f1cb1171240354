"""Any network is cut at its decision layer, or refused in words that say what to do."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax

import protonorm as pn
from protonorm.models.split import Cut


def samples(count=3, shape=(3, 32, 32)):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(1))


def plain_network():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 20), nn.ReLU(), nn.Linear(20, 7))


class Twins(nn.Module):
    """Two decisions from the same features."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(3072, 12), nn.ReLU())
        self.left, self.right = nn.Linear(12, 4), nn.Linear(12, 6)

    def forward(self, x):
        z = self.body(x)
        return {"left": self.left(z), "right": self.right(z)}


class Averaged(Twins):
    """Two decisions of equal width, of which the mean is given."""

    def __init__(self):
        super().__init__()
        self.right = nn.Linear(12, 4)

    def forward(self, x):
        z = self.body(x)
        return (self.left(z) + self.right(z)) / 2


class Odd(nn.Module):
    """A network whose layers are used in unusual ways."""

    def __init__(self, way):
        super().__init__()
        self.way, self.layer, self.idle = way, nn.Linear(32, 32), nn.Linear(32, 5)

    def forward(self, x):
        if self.way == "twice":
            return self.layer(self.layer(x)).mean((1, 2))
        return self.layer(x.flatten(0, 2))  # "rows": every row of a picture for itself


def test_the_cut_reads_what_the_last_layer_read():
    torch.manual_seed(0)
    network = plain_network()
    first = copy.deepcopy(network)
    model = pn.split(network, 20, 5)
    assert torch.equal(model.features(samples()), first[:3](samples()))
    assert model(samples()).shape == (3, 5)
    assert isinstance(model.head, nn.Linear)
    assert (model.features[1].layer, model.features[1].width) == ("3", 20)
    assert sum(weight.numel() for weight in model.features.parameters()) == 3072 * 20 + 20


@pytest.mark.parametrize("feature_dim", [2, 10, 20, 64])
def test_features_become_d(feature_dim):
    network = plain_network()
    read = network[:3](samples())
    assert torch.equal(pn.split(network, feature_dim, 5).features(samples()), Cut("", 20, feature_dim)(read))


def test_every_weight_that_is_left_learns():
    model = pn.split(plain_network(), 8, 3).train()
    cross_entropy(model(samples()), torch.tensor([0, 1, 2])).backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())


def test_vectors():
    model = pn.split(nn.Sequential(nn.Linear(2, 9), nn.Tanh(), nn.Linear(9, 3)), 4, 6, shape=(2,))
    assert model.features(torch.zeros(5, 2)).shape == (5, 4)


def test_a_network_that_is_its_decision_layer():
    model = pn.split(nn.Linear(6, 3), 6, 2, shape=(6,))
    x = torch.randn(4, 6)
    assert torch.equal(model.features(x), x)


def test_a_reshaped_output():
    """A view of a layer's output is that output; so is what dropout leaves alone in evaluation mode."""
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 8), nn.ReLU(), nn.Linear(8, 6), nn.Dropout(), nn.Unflatten(1, (2, 3))
    )
    assert pn.split(network, 8, 2).features[1].layer == "3"


def test_an_output_that_is_made_from_one_layers():
    """log_softmax gives another tensor: the only layer with as many outputs is taken."""

    class Logs(nn.Sequential):
        def forward(self, x):
            return log_softmax(super().forward(x), 1)

    assert pn.split(Logs(*plain_network()), 20, 2).features[1].layer == "3"


def test_a_convolution_that_decides_at_every_point():
    """A 1×1 convolution before the average: what it reads is averaged over the map."""
    body = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU())
    read = body(samples()).mean((2, 3))
    network = nn.Sequential(body, nn.Conv2d(8, 11, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = pn.split(network, 8, 2)
    assert model.features[1].layer == "1"
    assert torch.allclose(model.features(samples()), read)


def test_a_layer_that_decides_at_every_token():
    """Tokens (B, T, L) are averaged: the mean of a linear layer's outputs is its output for the mean."""
    network = nn.Sequential(nn.Flatten(2), nn.Linear(1024, 10), nn.ReLU(), nn.Linear(10, 4))
    read = network[:3](samples()).mean(1)
    assert torch.allclose(pn.split(network, 10, 2).features(samples()), read)


@pytest.mark.parametrize("layer", ["left", "right"])
def test_several_outputs_need_a_name(layer):
    with pytest.raises(ValueError, match=r"gives 2 outputs that several .* 'right' \(12 → 6\) or 'left' \(12 → 4\)"):
        pn.split(Twins(), 8, 3)
    model = pn.split(Twins(), 12, 3, layer=layer).train()
    assert model(samples()).shape == (3, 3)
    assert model.features[1].layer == layer
    cross_entropy(model(samples()), torch.tensor([0, 1, 2])).backward()
    assert model.features[0].network.body[1].weight.grad.any()


def test_a_mean_of_decisions_needs_a_name():
    with pytest.raises(ValueError, match="several linear layers may decide"):
        pn.split(Averaged(), 8, 3)
    assert pn.split(Averaged(), 8, 3, layer="left")(samples()).shape == (3, 3)


def test_further_outputs_in_training_do_no_harm():
    class Helped(Averaged):
        def forward(self, x):
            z = self.body(x)
            return (self.left(z), self.right(z)) if self.training else self.left(z)

    model = pn.split(Helped(), 8, 3)
    assert model.features[1].layer == "left"
    assert model.train()(samples()).shape == model.eval()(samples()).shape == (3, 3)


def test_a_layer_with_two_names():
    network = Averaged()
    network.alias = network.left
    model = pn.split(network, 12, 3, layer="left")
    assert not any(
        layer.out_features == 4 and layer is network.left for layer in model.modules() if isinstance(layer, nn.Linear)
    )
    assert network.alias is network.left


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (lambda: "resnet", {}, "'resnet' is not a network"),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), {}, "has no linear layer that runs"),
        (
            lambda: nn.Sequential(nn.Linear(32, 4), nn.ReLU(), nn.Conv2d(3, 4, 3)),
            {},
            "no linear layer decides by itself",
        ),
        (plain_network, {"shape": (3, 16, 16)}, r"does not take samples of shape \(3, 16, 16\): mat1 and mat2"),
        (plain_network, {"shape": (3, 0, 16)}, r"shape must be of whole numbers from 1, got \(3, 0, 16\)"),
        (plain_network, {"shape": ()}, r"shape must be of whole numbers from 1, got \(\)"),
        (plain_network, {"layer": "fc"}, "has no layer 'fc'; known: 1, 3"),
        (Twins, {"layer": "lef"}, "did you mean 'left'"),
        (plain_network, {"layer": "2"}, "'2' of the network Sequential is a ReLU; expected a linear layer"),
        (lambda: Odd("rows"), {"layer": "idle"}, "does not run in a forward pass"),
        (lambda: Odd("twice"), {"layer": "layer"}, "runs 2 times"),
        (lambda: Odd("rows"), {}, r"gives \(192, 32\) for 2 samples"),
    ],
)
def test_refusals(make, options, said):
    with pytest.raises(ValueError, match=said):
        pn.split(make(), 8, 3, **options)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [((0, 3), "feature_dim .*got 0"), ((8, -1), "num_classes .*got -1"), ((2.5, 3), "feature_dim .*got 2.5")],
)
def test_refused_sizes(sizes, said):
    with pytest.raises(ValueError, match=said):
        pn.split(plain_network(), *sizes)


def test_a_refused_network_is_left_as_it_was():
    network = Twins().train()
    network.body.eval()
    before = {name: (type(part), part.training, len(part._forward_hooks)) for name, part in network.named_modules()}
    with pytest.raises(ValueError, match="several"):
        pn.split(network, 8, 3)
    assert {
        name: (type(part), part.training, len(part._forward_hooks)) for name, part in network.named_modules()
    } == before


def test_splitting_draws_nothing_but_the_head():
    """The dry run leaves the random state alone: the head is what would be drawn without it."""
    network = plain_network()
    torch.manual_seed(3)
    model = pn.split(network, 20, 5)
    torch.manual_seed(3)
    assert torch.equal(model.head.weight, nn.Linear(20, 5).weight)


def test_running_statistics_are_not_touched():
    network = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3072, 4))
    pn.split(network, 8, 3)
    assert network[0].num_batches_tracked == 0


def test_a_cut_network_can_be_copied_after_a_pass():
    model = pn.split(plain_network(), 8, 3)
    model(samples())
    again = copy.deepcopy(model)
    assert torch.equal(again(samples()), model(samples()))
    with torch.no_grad():
        next(again.parameters()).zero_()
    assert not torch.equal(again(samples()), model(samples()))


def low_rank(shape, feature_dim, num_classes):
    """A frozen layer and a trained one beside it, drawn after it."""
    with torch.random.fork_rng():
        torch.manual_seed(5)  # as if from a file
        base = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.BatchNorm1d(16)).requires_grad_(False)
    features = nn.Sequential(base, nn.Linear(16, feature_dim))
    return pn.keep_trained(pn.SplitModel(features, nn.Linear(feature_dim, num_classes)))


def test_the_state_of_a_network_with_frozen_weights_has_only_what_may_change():
    """Buffers are kept; a network made again gets the frozen weights from where they came from."""
    model, again = low_rank(None, 4, 3), low_rank(None, 4, 3)
    buffers = {f"features.0.2.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert set(model.state_dict()) == buffers | {
        f"{part}.{name}" for part in ("features.1", "head") for name in ("weight", "bias")
    }
    assert set(model.features.state_dict()) == {
        name.removeprefix("features.") for name in model.state_dict() if name.startswith("features")
    }
    x = torch.randn(5, 784)
    assert not torch.equal(model.eval()(x), again.eval()(x))
    again.load_state_dict(model.state_dict())
    assert torch.equal(model(x), again(x))
    with pytest.raises(RuntimeError, match=r"Missing key.*features.1.bias"):
        again.load_state_dict({name: value for name, value in model.state_dict().items() if name != "features.1.bias"})
    torch.testing.assert_close(copy.deepcopy(model).state_dict(), model.state_dict())


def test_clients_with_frozen_weights_send_and_store_the_others(tmp_path):
    """FedAvg's message is what `keep_trained` leaves; 784·16 + 16 + 2·16 frozen numbers are not in it."""
    settings = {"dataset": {"name": "fashion", "samples": 200}, "models": low_rank, "feature_dim": 4, "clients": 2}
    run = pn.run(pn.Experiment(**settings, algorithm="fedavg", rounds=1), out=tmp_path, engine="serial")
    sent = run.history[-1].bytes.up
    trained = 4 * (16 * 4 + 4 + 4 * 10 + 10 + 2 * 16)  # float32: layer, head, running mean and variance
    assert 2 * trained <= sent < 2 * (trained + 4 * 784)
    assert run.clients[0].predict(pn.Experiment(**settings).dataset.load().inputs[:3]).shape == (3,)
