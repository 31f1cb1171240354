"""The tables of networks and families."""

import hashlib

import pytest
import torch

from protonorm.models import FAMILIES, MODELS


@pytest.mark.parametrize("name", MODELS)
def test_details_are_true(name):
    """Count the parameters of the usual case: `fashion` for light networks, CIFAR for the paper's, the family's d.

    For tables that of 64 numbers a row, for texts that of 64 of 4096 tokens, both of ten classes.
    """
    owner, family = next((owner, family) for owner, family in FAMILIES.items() if name in family.models)
    shapes = {"light": (1, 28, 28), "mlp": (2,), "tabular": (64,), "text": (64, 4096)}
    shape, classes = shapes.get(owner, (3, 32, 32)), 6 if name == "mlp" else 10
    torch.manual_seed(0)
    model = MODELS[name].load()(shape, family.feature_dim, classes)
    count = sum(weight.numel() for weight in model.parameters())
    assert MODELS[name].details["parameters"] == f"{count / 1000:.{0 if count >= 1000 else 1}f} k"


def test_families_name_networks_that_exist():
    for family in FAMILIES.values():
        assert set(family.models) <= set(MODELS)
        assert len(set(family.models)) == len(family.models)


# Of the names of all parameters and buffers, in their order: a saved client could not be loaded if they changed.
NAMES = {
    "plain": "f43fa1f4d3b7",
    "residual": "ee6a086f4902",
    "depthwise": "9bb4dbee8a75",
    "dense": "dcecb13817ec",
    "resnet8": "0ae7d958207a",
    "cnn4": "f840cfe966d3",
    "mlp": "e12de12b3446",
    "mlp_small": "a534c86cd43a",
    "mlp_wide": "d3d1e8f13092",
    "text_mean": "3e9be7c5a2a6",
    "text_cnn": "f532d1525a5d",
}
SHAPES = {"mlp": (2,), "mlp_small": (2,), "mlp_wide": (2,), "text_mean": (8, 100), "text_cnn": (8, 100)}


@pytest.mark.parametrize("name", NAMES)
def test_names_in_states_never_change(name):
    model = MODELS[name].load()(SHAPES.get(name, (3, 32, 32)), 16, 10)
    assert hashlib.sha256("\n".join(model.state_dict()).encode()).hexdigest()[:12] == NAMES[name]


def test_a_cut_network_keeps_the_names_of_its_library():
    model = MODELS["resnet18"].load()((3, 32, 32), 16, 10)
    names = list(model.state_dict())
    assert names[0] == "features.0.conv1.weight"
    assert names[-2:] == ["head.weight", "head.bias"]
