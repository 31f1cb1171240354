"""Lowered networks are the same functions: float64 comparisons with the networks as published."""

import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import protonorm as pn
from protonorm.models import FAMILIES, MODELS, lowering
from protonorm.models.choose import Recipe, network
from protonorm.models.lowering import Convolution, DenseConv2d, DepthwiseConv2d, PointwiseConv2d, lower
from tests.support import long_unless

PAPER = ("resnet8", "mobilenet_v2", "shufflenet_v2", "efficientnet_b0", "cnn4", "resnet18")
OTHERS = (
    "densenet121",
    "googlenet",
    "mnasnet0_5",
    "mobilenet_v3_large",
    "mobilenet_v3_small",
    "regnet_x_400mf",
    "regnet_y_400mf",
    "resnet34",
    "resnext50_32x4d",
    "shufflenet_v2_x0_5",
    "squeezenet1_1",
)
LIGHT = ("plain", "residual", "depthwise", "dense")


def close(a, b):
    return (a - b).abs().max() <= 1e-10 * max(1.0, a.abs().max())


def pair(name):
    torch.manual_seed(0)
    original = network(name, (3, 32, 32), 64, 7).double()
    lowered = copy.deepcopy(original)
    lower(lowered)
    return original, lowered


def answers(model, x, *, train):
    """Return the output, and the gradients of the input and of every parameter."""
    x = x.clone().requires_grad_()
    model.train(train)
    torch.manual_seed(1)  # dropout and stochastic depth
    out = model(x)
    torch.manual_seed(2)
    (out * torch.randn(out.shape, dtype=out.dtype)).sum().backward()
    gradients = {key: value.grad for key, value in model.named_parameters()}
    model.zero_grad()
    return out.detach(), x.grad, gradients


FEW = ("resnet8", "mobilenet_v2", "shufflenet_v2", "cnn4", "dense")  # full, depthwise, pointwise and grouped kernels


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", long_unless(FEW, [*PAPER, *LIGHT, *(f"torchvision:{name}" for name in OTHERS)]))
def test_lowered_and_original_networks_agree(name, train):
    original, lowered = pair(name)
    # Batch norm over fewer samples than this on maps of one point magnifies any rounding without bounds.
    x = torch.randn(16, 32, 32, 3, dtype=torch.float64).permute(0, 3, 1, 2)  # channels_last
    before = {key: value.clone() for key, value in original.state_dict().items()}
    out, down, gradients = answers(original, x, train=train)
    other, other_down, other_gradients = answers(lowered, x, train=train)
    assert close(out, other)
    assert close(down, other_down)
    assert gradients.keys() == other_gradients.keys()
    for key, value in gradients.items():
        assert (value is None) == (other_gradients[key] is None), key
        assert value is None or close(value, other_gradients[key]), key
    for key, value in original.state_dict().items():  # running statistics too
        assert close(value.double(), lowered.state_dict()[key].double()), key
    assert before.keys() == lowered.state_dict().keys()
    assert all(before[key].shape == value.shape for key, value in lowered.state_dict().items())


@pytest.mark.parametrize(
    ("channels", "side", "slow"), [(256, 2, True), (128, 2, False), (256, 3, False), (512, 4, False)]
)
def test_dense_kernels_are_lowered_where_that_was_measured_to_pay(channels, side, slow):
    """Ratios of standard and lowered training steps of 3×3 kernels: 2.7, 0.8, 0.8 and, with 256 channels, 0.8."""
    layer = nn.Conv2d(channels, 4, 3, padding=1, bias=False)
    lower(layer)
    assert isinstance(layer(torch.randn(2, channels, side, side)).grad_fn, Convolution._backward_cls) == slow


@pytest.mark.parametrize("side", [1, 2, 4])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_kernels_are_exact_under_autocast(side, stride):
    """Inputs of eight bits, products of 24: as in float32, then rounded once."""
    layer = nn.Conv2d(8, 8, 3, stride, padding=1, groups=8)
    lower(layer)
    x = torch.randn(3, 8, side, side).bfloat16()
    expected = layer(x.float()).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x), expected)


@pytest.mark.parametrize("name", long_unless(("resnet8",), PAPER))
def test_lowered_networks_train_in_bfloat16_as_well_as_others(name):
    """Their gradients are no further from those of float64 than what torch's own convolutions give."""
    original, lowered = pair(name)
    x = torch.randn(16, 32, 32, 3).permute(0, 3, 1, 2)
    exact = answers(original, x.double(), train=False)[2]
    with torch.autocast("cpu", torch.bfloat16):
        found = [answers(model.float(), x, train=False)[2] for model in (original, lowered)]
    usual, ours = (sum(float((of[key] - exact[key]).square().sum()) for key in exact) for of in found)
    assert all(value.dtype == torch.float32 for value in found[1].values())
    assert ours < 1.5 * usual


def test_pictures_of_one_point_are_multiplied_by_one_weight():
    """Torch makes a copy of the weight for each picture if the strides of maps of one point mislead it."""

    class Operations(TorchDispatchMode):
        names = set()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.add(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    layer = nn.Conv2d(4, 6, 1, bias=False)
    lower(layer)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), Operations():
        layer(torch.randn(5, 4, 1, 1).bfloat16().as_strided((5, 4, 1, 1), (4, 1, 1, 1)))
    assert "mm" in Operations.names
    assert "bmm" not in Operations.names


def test_a_lowered_network_has_lowered_layers():
    _, lowered = pair("efficientnet_b0")
    kinds = {type(layer) for layer in lowered.modules()}
    assert {DenseConv2d, DepthwiseConv2d, PointwiseConv2d} <= kinds
    assert nn.Conv2d not in kinds


@pytest.fixture
def _few_channels(monkeypatch):
    """Lower small layers as large ones are."""
    monkeypatch.setattr(lowering, "MIN_CHANNELS", 32)


@pytest.mark.usefixtures("_few_channels")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 3), (4, 4), (5, 4), (8, 8)])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(3, 1, 1), (5, 2, 2), (5, 1, 2), (3, 2, 1), ((3, 5), 1, 2), (1, 2, 0)]
)
@pytest.mark.parametrize("groups", [1, 36])
@pytest.mark.parametrize("bias", [True, False])
def test_a_lowered_convolution_agrees_on_every_size(layout, size, kernel, stride, padding, groups, bias):
    torch.manual_seed(0)
    layer = nn.Conv2d(36, 36, kernel, stride, padding, groups=groups, bias=bias).double()
    x = torch.randn(3, 36, *size, dtype=torch.float64).to(memory_format=layout)
    lowered = copy.deepcopy(layer)
    lower(lowered)
    assert type(lowered) is not nn.Conv2d
    ours, theirs = answers(lowered, x, train=True), answers(layer, x, train=True)
    assert ours[0].shape == theirs[0].shape
    assert close(theirs[0], ours[0])
    assert close(theirs[1], ours[1])
    assert all(close(value, ours[2][key]) for key, value in theirs[2].items())


@pytest.mark.parametrize(("kernel", "groups"), [(1, 1), (3, 1), (3, 4)])
def test_a_picture_without_a_batch_is_taken_too(kernel, groups):
    layer = nn.Conv2d(4, 4, kernel, padding=kernel // 2, groups=groups).double()
    x = torch.randn(4, 2, 2, dtype=torch.float64)
    expected = layer(x)
    lower(layer)
    assert torch.equal(layer(x), expected)


@pytest.mark.usefixtures("_few_channels")
def test_the_gradient_of_small_maps_has_a_gradient():
    x = torch.randn(2, 32, 2, 2, dtype=torch.float64, requires_grad=True)
    for groups in (1, 32):
        layer = nn.Conv2d(32, 32, 3, padding=1, groups=groups, bias=False).double()
        lower(layer)
        out = layer(x)
        assert isinstance(out.grad_fn, Convolution._backward_cls)
        (first,) = torch.autograd.grad(out.square().sum(), layer.weight, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        usual = nn.functional.conv2d(x, layer.weight, padding=1, groups=groups)
        (first_usual,) = torch.autograd.grad(usual.square().sum(), layer.weight, create_graph=True)
        (second_usual,) = torch.autograd.grad(first_usual.sum(), x)
        assert close(second_usual, second)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 8, 3, groups=2),
        nn.Linear(3, 4),
    ],
)
def test_other_layers_stay_as_they_are(layer):
    kind = type(layer)
    lower(layer)
    assert type(layer) is kind


def test_a_users_own_layer_stays_as_it_is():
    class Own(nn.Conv2d):
        pass

    layer = Own(4, 4, 1)
    lower(layer)
    assert type(layer) is Own


def test_every_network_of_the_package_is_compared():
    others = {name for family in ("mlp", "tabular", "text") for name in FAMILIES[family].models}  # of no pictures
    assert set(MODELS) - others == {*PAPER, *LIGHT}


def test_a_recipe_lowers_its_network_only_if_asked_to():
    kinds = [
        {type(layer) for layer in Recipe("depthwise", (1, 28, 28), 16, 10, lowered=lowered)().modules()}
        for lowered in (True, False)
    ]
    assert DepthwiseConv2d in kinds[0]
    assert DepthwiseConv2d not in kinds[1]


def test_lowering_is_part_of_the_key():
    on, off = (pn.Experiment.of({"models": "depthwise", "lowering": lowering}) for lowering in (True, False))
    assert on.key != off.key
    assert on.key == pn.Experiment.of({"models": "depthwise"}).key
