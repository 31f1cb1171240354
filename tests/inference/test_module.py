"""A trained client as one torch module gives the scores that the method gives."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import protonorm as pn
from protonorm.inference.module import ClientModule, Nearest
from protonorm.models.lowering import DenseConv2d
from tests.support import pictures, run, spiral

METHODS = ["protonorm", "fedproto", "fedtgp", "fedavg", "fednh", "lgfedavg", "fedkd", "fml", "fedmrl", "fedhp", "local"]


def trained(folder, **settings):
    data = pictures([0, 1, 2] * 12, 3)
    usual = {"dataset": data, "models": "plain", "feature_dim": 8, "partition": "iid", "clients": 2, "rounds": 1}
    return run(pn.Experiment.of(usual | {"batch_size": 8} | settings), folder)


@pytest.mark.parametrize("algorithm", METHODS)
def test_the_module_scores_as_the_client_does(algorithm, tmp_path):
    result = trained(tmp_path, algorithm=algorithm)
    client, x = result.clients[1], result.population.dataset.inputs
    module = client.module
    assert isinstance(module, nn.Module)
    assert not module.training
    with torch.no_grad():
        found = module(torch.from_numpy(x))
    wanted = client.scores(x)
    assert tuple(found) == module.rules
    assert set(found) == set(wanted)
    assert ("joint" in found) == (len(found) > 1)
    for rule, value in wanted.items():
        np.testing.assert_allclose(found[rule].numpy(), value, rtol=1e-4, atol=1e-4 * np.abs(value).max())


def test_its_layers_are_torchs_own_and_its_weights_are_not_the_clients(tmp_path):
    client = trained(tmp_path).clients[0]
    assert any(isinstance(layer, DenseConv2d) for layer in client.client.model.modules())
    module = client.module
    assert {type(layer) for layer in module.modules() if isinstance(layer, nn.Conv2d)} == {nn.Conv2d}
    x = np.zeros((2, 16, 16, 1), np.uint8)
    before = client.scores(x)["logits"]
    with torch.no_grad():
        for weight in module.parameters():
            weight.zero_()
    np.testing.assert_array_equal(client.scores(x)["logits"], before)
    assert any(isinstance(layer, DenseConv2d) for layer in client.client.model.modules())


def test_parts_of_the_module(tmp_path):
    client = run(spiral(rounds=1), tmp_path).clients[0]
    module, x = client.module, np.array([[1.0, -2.0], [0.5, 4.0]], np.float32)
    with torch.no_grad():
        np.testing.assert_allclose(module.features(torch.from_numpy(x)).numpy(), client.features(x), rtol=1e-5)
    assert list(module.scores) == ["by_nearest-global", "by_nearest-local", "by_logits"]
    assert module.received is module.second is None
    assert module.rules == ("nearest-global", "nearest-local", "logits", "joint")
    assert isinstance(module, ClientModule)


def test_nearest_by_hand():
    """z = (1, 2), c = (3, 4): 2·11 − 25 = −3; class 0 has no prototype."""
    layer = Nearest(torch.tensor([1]), torch.tensor([[3.0, 4.0]]), 2)
    assert layer(torch.tensor([[1.0, 2.0]])).tolist() == [[-float("inf"), -3.0]]


def test_rules_of_ones_own_are_refused(tmp_path):
    class Odd(pn.FedProto):
        def scores(self, client, state, message, x):
            found = super().scores(client, state, message, x)
            return found | {"logits": 2 * found["logits"]}

    client = run(spiral(rounds=1), tmp_path).clients[0]
    with pytest.raises(ValueError, match="rules of its own, which cannot be made one torch module"):
        replace(client, algorithm=Odd()).module  # noqa: B018
