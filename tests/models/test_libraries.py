"""Networks of torchvision and timm by name: cut, found by their nearest name, run in an experiment."""

import importlib.util
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import protonorm as pn
from protonorm.models import libraries
from protonorm.models.choose import chosen, network
from tests.support import pictures, run

ROOT = Path(__file__).parents[2]
needs_timm = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")

QUICK = ["torchvision:mobilenet_v3_small", "torchvision:shufflenet_v2_x0_5", "torchvision:squeezenet1_1"]
QUICK_TIMM = [
    "timm:convnext_atto",
    "timm:deit_tiny_distilled_patch16_224@head",
    "timm:efficientvit_b0",
    "timm:lcnet_050",
]
QUICK_TIMM += ["timm:vit_tiny_patch16_224", "timm:xcit_nano_12_p8_224"]
EVERY = [*QUICK, *(pytest.param(name, marks=needs_timm) for name in QUICK_TIMM)]


@pytest.mark.parametrize("name", EVERY)
def test_cut_and_trained(name):
    """One channel; a batch of two in training mode; another d than any network has."""
    model = network(name, (1, 32, 32), 48, 3)
    x = torch.randn(2, 1, 32, 32)
    assert model.features(x).shape == (2, 48)
    model(x).sum().backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.grad is not None)


def table_tool():
    spec = importlib.util.spec_from_file_location("split_table", ROOT / "tools" / "split_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", EVERY)
def test_the_table_in_the_documentation_is_true(name):
    """All cells but the last, which depends on random weights; of that, whether features can be negative."""
    page = (ROOT / "docs" / "split-table.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
    (*cells, negative, _), (*now, negative_now, _) = (
        text.split(" | ") for text in (line + " | ", table_tool().row(name) + " | ")
    )
    assert cells == now
    assert (negative == "none |") == (negative_now == "none |")


def test_the_table_has_more_than_40_lines():
    page = (ROOT / "docs" / "split-table.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| `((?:timm|torchvision):\S+)` \|", page, re.MULTILINE)
    assert len(set(names)) == len(names) >= 40
    assert names == table_tool().NAMES


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("torchvision:mobilenet_v3_smal", "did you mean 'mobilenet_v3_small'"),
        ("torchvision:r3d_18", "torchvision has no network 'r3d_18' for pictures; it has"),
        ("torchvision:", "has no network ''"),
        pytest.param("timm:convnext_ato", "did you mean 'convnext_atto'", marks=needs_timm),
        pytest.param("timm:hf-hub:someone/something", "has no network 'hf-hub:someone/something'", marks=needs_timm),
        ("tensorflow:resnet50", "Unknown network or family 'tensorflow:resnet50'"),
    ],
)
def test_unknown_names(name, said):
    with pytest.raises(ValueError, match=said):
        chosen(name)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("torchvision:resnet18", (2,), r"takes pictures \(C, H, W\)"),
        ("torchvision:alexnet", (3, 32, 32), r"AlexNet does not take samples of shape \(3, 32, 32\)"),
        ("torchvision:maxvit_t", (3, 32, 32), "maxvit_t cannot be made for samples of shape .*divisible"),
        ("torchvision:vit_b_16", (3, 48, 32), "square pictures"),
        ("torchvision:squeezenet1_1@classifier.2", (3, 32, 32), "is a ReLU; expected a linear layer"),
        pytest.param(
            "timm:deit_tiny_distilled_patch16_224",
            (3, 32, 32),
            "@NAME in models.*'head_dist'.*'head'",
            marks=needs_timm,
        ),
    ],
)
def test_networks_that_do_not_fit(name, shape, said):
    with pytest.raises(ValueError, match=said):
        network(name, shape, 8, 3)


def test_timm_is_asked_for_only_by_its_networks(monkeypatch):
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    libraries._timm_names.cache_clear()
    assert chosen("torchvision:resnet18,plain") == ("torchvision:resnet18", "plain")
    with pytest.raises(ValueError, match=r"pip install .\.\[timm\]"):
        chosen("plain,timm:convnext_atto")


@needs_timm
def test_nothing_is_downloaded(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr("socket.socket.connect", refuse)
    for name in ("torchvision:shufflenet_v2_x0_5", "timm:lcnet_050"):
        network(name, (3, 32, 32), 8, 3)


def test_families_and_networks_in_one_list():
    assert chosen(["paper", "cnn4"]) == ("resnet8", "mobilenet_v2", "shufflenet_v2", "efficientnet_b0", "cnn4")


def uncut(shape, feature_dim, num_classes):
    """A user's own network, not cut."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape[1] * shape[2], 9), torch.nn.Linear(9, 100))


def unmade(shape, feature_dim, num_classes):
    return "a network"


def test_own_networks_are_cut_if_they_do_not_come_cut():
    model = network(uncut, (1, 4, 4), 9, 3)
    assert model.features[1].layer == "2"
    assert model(torch.zeros(2, 1, 4, 4)).shape == (2, 3)
    with pytest.raises(ValueError, match="expected a pn.SplitModel or any nn.Module"):
        network(unmade, (1, 4, 4), 9, 3)


def test_a_layer_cannot_be_named_for_a_network_that_comes_cut():
    with pytest.raises(ValueError, match="comes cut"):
        network("resnet8", (3, 32, 32), 8, 3, layer="head")


def test_torchvision_has_its_networks():
    assert libraries.torchvision().models.resnet18 is libraries.torchvision().models.resnet18


@needs_timm
def test_timm_has_its_networks():
    assert libraries.timm().is_model("resnet18")


def test_a_missing_timm_is_said_with_the_extra(monkeypatch):
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install '\.\[timm\]' in a checkout"):
        libraries.timm()


def test_choosing_own_networks_imports_neither():
    code = (
        "import sys; from protonorm.models.choose import chosen, network; chosen('light'); chosen('paper'); "
        "network('resnet8', (3, 32, 32), 8, 2); assert not {'torchvision', 'timm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_timm
@pytest.mark.parametrize("algorithm", ["protonorm", "lgfedavg"])
def test_an_experiment_with_networks_from_everywhere(tmp_path, algorithm):
    data = pictures([0, 1, 2] * 16, 3, side=32)
    experiment = pn.Experiment(
        algorithm=algorithm,
        dataset=data,
        models="efficientnet_b0,torchvision:shufflenet_v2_x0_5,timm:lcnet_050",
        feature_dim=16,
        partition="iid",
        clients=3,
        rounds=1,
        batch_size=4,
    )
    result = run(experiment, tmp_path)
    assert result.run.info.networks == ["efficientnet_b0", "torchvision:shufflenet_v2_x0_5", "timm:lcnet_050"]
    assert result.clients[2].predict(data.inputs[:5]).shape == (5,)
