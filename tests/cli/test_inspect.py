"""`protonorm inspect`: what a network is, before it is trained."""

import json

import pytest
from typer.testing import CliRunner

from protonorm.cli.app import app
from protonorm.cli.inspect import read_shape


@pytest.fixture
def call():
    runner = CliRunner()
    return lambda *words: runner.invoke(app, ["inspect", *words])


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
        (["cnn4", "--shape", "3x0x32"], "--shape must be numbers such as 3x32x32, or 2 for vectors, got 3x0x32."),
        (["cnn4", "--shape", "large"], "--shape must be numbers such as 3x32x32"),
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
