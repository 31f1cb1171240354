"""The tables of networks and families."""

import pytest
import torch

from protonorm.models import FAMILIES, MODELS


@pytest.mark.parametrize("name", MODELS)
def test_details_are_true(name):
    """Count the parameters of the usual case: `fashion` for light networks, CIFAR for the paper's, the family's d."""
    family = next(family for family in FAMILIES.values() if name in family.models)
    light = name in FAMILIES["light"].models
    shape, classes = ((2,), 6) if name == "mlp" else ((1, 28, 28) if light else (3, 32, 32), 10)
    torch.manual_seed(0)
    model = MODELS[name].load()(shape, family.feature_dim, classes)
    count = sum(weight.numel() for weight in model.parameters())
    assert MODELS[name].details["parameters"] == f"{count / 1000:.{0 if count >= 1000 else 1}f} k"


def test_families_name_networks_that_exist():
    for family in FAMILIES.values():
        assert set(family.models) <= set(MODELS)
        assert len(set(family.models)) == len(family.models)
