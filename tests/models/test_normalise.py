"""Pretrained networks get pictures with the means and deviations that they were trained with."""

import numpy as np
import pytest
import torch
from torch import nn

import protonorm as pn
from protonorm.core.samples import as_input
from protonorm.session.build import build
from tests.support import pictures, run

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def test_bytes_become_what_imagenets_networks_expect():
    """By hand, for the bytes 0, 51 = 0.2·255 and 255: (0 − 0.485)/0.229 = −2.117904, (0.2 − 0.456)/0.224 = −1.142857,
    (1 − 0.406)/0.225 = 2.64."""
    pixel = torch.tensor([[[[0, 51, 255]]]], dtype=torch.uint8)  # (1, 1, 1, 3)
    found = pn.Normalise()(as_input(pixel))
    assert found.flatten().tolist() == pytest.approx([-2.117904, -1.142857, 2.64], abs=1e-5)


def test_other_means_and_grey_pictures():
    """A byte of 255 is 1: (1 − 0.5)/0.25 = 2 and (1 − 0)/0.5 = 2, (1 − 1)/1 = 0 in three channels of one."""
    pixel = as_input(torch.full((2, 4, 4, 1), 255, dtype=torch.uint8))
    found = pn.Normalise(mean=(0.5, 0.0, 1.0), std=(0.25, 0.5, 1.0))(pixel)
    assert found.shape == (2, 3, 4, 4)
    assert found[1, :, 2, 3].tolist() == pytest.approx([2.0, 2.0, 0.0], abs=1e-6)


def make(shape, feature_dim, num_classes):
    torch.manual_seed(5)  # stands for weights that are read from a file
    base = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(pn.Normalise(), nn.Sequential(base, nn.Linear(4, 1000)))


def experiment():
    return pn.Experiment(
        dataset=pictures([0, 1] * 20, classes=2), models=make, feature_dim=4, clients=2, rounds=1, partition="iid"
    )


def test_a_client_begins_with_the_given_weights_and_the_right_pictures():
    """Its first features are those that plain torch gives for (x/255 − mean)/std with the same weights."""
    given = experiment()
    client = build(given)[1].site(0).client(1)
    x = given.dataset.inputs[:5]  # (5, 16, 16, 1) uint8
    plain = (x.astype(np.float64) / 255 - np.array(MEAN)) / np.array(STD)  # (5, 16, 16, 3)
    with torch.no_grad():
        wanted = make((1, 16, 16), 4, 2)[1][0](torch.from_numpy(plain).permute(0, 3, 1, 2).float())
        found = client.model.eval().features(as_input(torch.from_numpy(x)))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_it_is_in_no_state_and_leaves_with_the_client(tmp_path):
    result = run(experiment(), tmp_path)
    client = result.clients[0]
    assert not [name for name in client.state if "scale" in name or "shift" in name]
    x = result.experiment.dataset.inputs[:5]
    client.save(tmp_path / "client")
    loaded = pn.load_client(tmp_path / "client", network=make)
    np.testing.assert_array_equal(loaded.scores(x)["nearest-global"], client.scores(x)["nearest-global"])
    found = client.module(torch.from_numpy(x))["logits"].detach().numpy()
    np.testing.assert_allclose(found, client.scores(x)["logits"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("mean", "std"), [((0.5,), (0.5, 0.5)), ((), ()), ((0.5,), (0.0,)), ((float("nan"),), (1.0,))])
def test_impossible_numbers_are_refused(mean, std):
    with pytest.raises(ValueError, match="mean and std must have a number for each channel"):
        pn.Normalise(mean, std)


def test_pictures_of_other_channels_are_refused():
    with pytest.raises(ValueError, match="The pictures have 4 channels; expected 3, or 1"):
        pn.Normalise()(torch.zeros(2, 4, 8, 8))
