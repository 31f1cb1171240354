import pytest
import torch

import protonorm as pn
from protonorm.models import base_and_width, scaled, spelled_out, widest
from protonorm.models.choose import Recipe, chosen


def test_a_layer_keeps_its_share_of_channels_rounded_up():
    assert [scaled(24, width) for width in (1.0, 0.5, 0.3, 0.01)] == [24, 12, 8, 1]
    assert scaled(10, 0.7) == 7  # although 10 · 0.7 is a little more in floating point


def test_numbers_continue_the_network_before_them():
    assert chosen("plain@1,0.5,0.25") == ("plain", "plain@0.5", "plain@0.25")
    assert chosen(["cnn4@1", 0.5, "plain@0.50"]) == ("cnn4", "cnn4@0.5", "plain@0.5")
    assert spelled_out(["timm:convnext_atto@head", "plain"]) == ["timm:convnext_atto@head", "plain"]
    assert widest(["plain@0.25", "plain", "plain@0.5"]) == "plain"
    assert base_and_width("residual@0.5") == ("residual", 0.5)


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        ("plain@0", "A width must be above 0 and at most 1, as in plain@0.5"),
        ("plain@2", "A width must be above 0 and at most 1"),
        ("plain@half", "A width must be above 0 and at most 1"),
        ("dense@0.5", "A width must be of plain, residual, cnn4, mlp, got 'dense@0.5': dense has one width"),
        ("plain,0.5", "Unknown network or family '0.5'"),
    ],
)
def test_other_widths_are_refused_with_a_sentence(models, sentence):
    with pytest.raises(ValueError, match=sentence):
        pn.Experiment(models=models)


@pytest.mark.parametrize(("name", "shape"), [("plain", (3, 32, 32)), ("residual", (3, 32, 32)), ("cnn4", (3, 32, 32))])
def test_a_narrow_network_is_smaller_and_of_the_same_form(name, shape):
    whole, narrow = Recipe(name, shape, 7, 5)(), Recipe(f"{name}@0.5", shape, 7, 5)()
    assert whole.state_dict().keys() == narrow.state_dict().keys()
    sizes = [sum(weight.numel() for weight in one.parameters()) for one in (whole, narrow)]
    assert sizes[1] < 0.6 * sizes[0]
    assert narrow.features(torch.zeros(2, *shape)).shape == (2, 7)
    assert (whole.width, narrow.width) == (1.0, 0.5)
    assert narrow.at_width(1.0).state_dict()["head.weight"].shape == (5, 7)


def test_a_width_keeps_all_its_digits_and_no_layer_is_empty():
    """Rounded to 0.666667 it would have 17 of 24 channels, and it has 16."""
    assert (scaled(24, 0.66666666667), scaled(24, 0.666667)) == (16, 17)
    assert spelled_out(["plain@0.66666666667"]) == ["plain@0.66666666667"]
    assert scaled(24, 1e-12) == 1
