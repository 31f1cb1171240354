"""What clients may say of one model at several widths: a part of one width, with all rows of the head."""

import pytest
import torch

import protonorm as pn
from protonorm.algorithms.heterofl import FedRolex, FjORD, HeteroFL
from protonorm.models.choose import Recipe
from tests.algorithms.tasks import task_of

WIDTHS = (1.0, 0.7, 0.5, 1 / 3, 0.25, 0.1, 0.01)
SHAPES = {"plain": (1, 16, 16), "residual": (1, 16, 16), "cnn4": (1, 28, 28), "mlp": (2,)}


def task(network="plain", method=None):
    """K = 4 classes, d = 6; the widest network is the one named."""
    recipe = Recipe(network, SHAPES[network.partition("@")[0]], 6, 4)
    return task_of(method or HeteroFL(), classes=4, width=6, shared_network=recipe)


def reply(network, classes=(0, 3)):
    """What a client with that network says."""
    made = Recipe(network, SHAPES[network.partition("@")[0]], 6, 4)()
    said = {f"model.{name}": value.detach() for name, value in made.named_parameters()}
    return said | {"classes": torch.tensor(classes)}


@pytest.mark.parametrize("network", sorted(SHAPES))
def test_a_part_of_any_width_is_welcome(network):
    schema = task(network).schema
    for width in WIDTHS:
        schema.check_up(reply(f"{network}@{width!r}"), "It")


@pytest.mark.parametrize("method", [HeteroFL(), FedRolex(), FjORD()])
def test_the_head_comes_with_all_rows(method):
    """Of classes 0 and 3 two rows would be no head: row 3 of two is asked for."""
    said = reply("plain@0.5", (3,))
    if isinstance(method, FjORD):
        said["num_examples"] = said.pop("classes").sum()
    schema = task(method=method).schema
    schema.check_up(said, "It")
    for name, short, whole in (("weight", (2, 6), "(4, 6)"), ("weight", (4, 3), "(4, 6)"), ("bias", (2,), "(4,)")):
        bad = said | {f"model.head.{name}": torch.zeros(short)}
        with pytest.raises(ValueError, match="It holds model.head") as error:
            schema.check_up(bad, "It")
        assert str(error.value).endswith(f"expected {whole}.")


def test_parts_of_different_widths_are_no_network():
    said, narrow = reply("plain@0.5"), reply("plain@0.25")
    for name in said:
        if said[name].shape != narrow[name].shape:
            with pytest.raises(ValueError, match=r"It holds model\..* of shape .*; expected .* of a network of width"):
                task().schema.check_up(said | {name: narrow[name]}, "It")


def test_a_channel_behind_a_flattening_comes_with_all_its_pixels():
    """Of 512 channels of 4 × 4 pixels half are 4096 columns; 4095 are no channels."""
    said = reply("cnn4@0.5")
    name = next(name for name, value in said.items() if value.ndim == 2)
    rows, columns = said[name].shape
    pixels = columns // said[next(one for one in reversed(said) if said[one].ndim == 4)].shape[0]
    assert pixels > 1
    for short in (columns - 1, columns - pixels):
        with pytest.raises(ValueError, match="of a network of width"):
            task("cnn4").schema.check_up(said | {name: torch.zeros(rows, short)}, "It")


def test_a_whole_that_is_narrow_itself():
    """The widest client has half the channels: a quarter is a part, all of them are too many."""
    schema = task("plain@0.5").schema
    for network in ("plain@0.5", "plain@0.25", "plain@0.3"):
        schema.check_up(reply(network), "It")
    with pytest.raises(ValueError, match=r"of shape \(24, 1, 3, 3\); expected \(12, 1, 3, 3\) at most"):
        schema.check_up(reply("plain"), "It")


def test_of_a_network_of_one_width_nothing_may_be_left_out():
    made = Recipe("dense", (1, 16, 16), 6, 4)
    said = {f"model.{name}": value.detach() for name, value in made().named_parameters()}
    said["classes"] = torch.tensor([1])
    schema = task_of(HeteroFL(), classes=4, width=6, shared_network=made).schema
    schema.check_up(said, "It")
    name = next(iter(said))
    with pytest.raises(ValueError, match=f"It holds {name} of shape") as error:
        schema.check_up(said | {name: said[name][:1]}, "It")
    assert "at most" not in str(error.value)


def test_a_schema_is_known_by_what_may_be_said():
    assert task().schema == task().schema
    assert task().schema != task("plain@0.5").schema
    assert isinstance(task().schema, pn.Schema)
