"""What `inspect` says of a network."""

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import protonorm as pn
from protonorm.cli import app
from protonorm.cli_models import read_shape
from protonorm.models.facts import examine


@pytest.fixture
def call():
    runner = CliRunner()
    return lambda *words: runner.invoke(app, ["inspect", *words])


def shifted(shape, feature_dim, num_classes):
    """6 → 4, at least −1, and a linear layer: 24 + 4 parameters, 24 multiplications."""
    return nn.Sequential(nn.Linear(6, 4), nn.Hardtanh(-1, 1), nn.Linear(4, 100))


def narrow(shape, feature_dim, num_classes):
    return pn.SplitModel(nn.Linear(6, feature_dim + 1), nn.Linear(feature_dim, num_classes))


def test_facts_by_hand():
    """Cut to d = 8 and K = 3: a head of 8 · 3 + 3 parameters; 6 · 4 + 8 · 3 multiplications in all."""
    facts = examine(shifted, (6,), 8, 3)
    assert facts.network.endswith("test_facts:shifted")
    assert (facts.layer, facts.width, facts.feature_dim) == ("2", 4, 8)
    assert (facts.base, facts.head, facts.macs) == (28, 27, 48)
    assert -1 <= facts.smallest < 0
    assert 0 < facts.negative < 1


def test_the_cnn_by_hand():
    """28² · 75 · 32 + 10² · 800 · 64 + 1600 · 512 + 512 · 10 multiplications."""
    facts = examine("cnn4", (3, 32, 32), 512, 10)
    assert facts.macs == 28 * 28 * 75 * 32 + 100 * 800 * 64 + 1600 * 512 + 5120
    assert (facts.layer, facts.width, facts.smallest, facts.negative) == ("head", 512, 0, 0)


def test_the_same_facts_twice_and_no_random_number_used():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    assert examine("plain", (1, 16, 16), 8, 3) == examine("plain", (1, 16, 16), 8, 3)
    assert torch.equal(torch.rand(1), expected)


def test_a_network_whose_features_have_another_width():
    with pytest.raises(ValueError, match=r"gives features \(16, 9\) for 16 samples; expected \(16, 8\)"):
        examine(narrow, (6,), 8, 3)
    with pytest.raises(ValueError, match=r"does not take samples of shape \(5,\)"):
        examine(narrow, (5,), 8, 3)


@pytest.mark.parametrize(
    ("text", "shape"), [("3x32x32", (3, 32, 32)), ("1X28×28", (1, 28, 28)), ("2", (2,)), ("3,8,8", (3, 8, 8))]
)
def test_shapes(text, shape):
    assert read_shape(text) == shape


def test_a_table_for_people_and_json_for_machines(call):
    result = call("torchvision:shufflenet_v2_x0_5", "--shape", "1x28x28", "--d", "64", "--classes", "7")
    assert result.exit_code == 0, result.output
    for word in (
        "torchvision:shufflenet_v2_x0_5",
        "fc",
        "1024",
        "(B, 64)",
        "455",
        "1×28×28, 7 classes",
        "random inputs",
    ):
        assert word in result.output
    found = json.loads(call("light", "--shape", "1x28x28", "--json").stdout)
    assert [facts["network"] for facts in found["networks"]] == ["plain", "residual", "depthwise", "dense"]
    assert (found["shape"], found["feature_dim"], found["classes"]) == ([1, 28, 28], 512, 10)
    assert {facts["layer"] for facts in found["networks"]} == {None}


def test_a_layer_can_be_named(call):
    found = json.loads(call("torchvision:squeezenet1_1", "--layer", "features.12.squeeze", "--json").stdout)
    assert (found["networks"][0]["layer"], found["networks"][0]["width"]) == ("features.12.squeeze", 512)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resnet88"], "did you mean 'resnet8'"),
        (["torchvision:resnet19"], "did you mean 'resnet18'"),
        (["cnn4", "--shape", "3x32"], "takes pictures"),
        (["cnn4", "--shape", "3x0x32"], "--shape 3x0x32 is refused"),
        (["cnn4", "--shape", "large"], "expected numbers such as 3x32x32"),
        (["cnn4", "--layer", "head"], "comes cut"),
        (["torchvision:resnet18", "--layer", "conv1"], "is a Conv2d; expected a linear layer"),
        (["nowhere.py:network"], "no Python file"),
        (["cnn4", "--d", "0"], "--d"),
    ],
)
def test_refusals(call, words, said):
    result = call(*words)
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output
