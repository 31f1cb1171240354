"""The data sets that come with the package."""

from importlib.resources import files

import numpy as np
import pytest

from protonorm.data import builtin
from protonorm.data.builtin import Fashion, Spiral


def polar(points):
    """Turn (r sin ω, r cos ω) back into r and ω in [0, 2π)."""
    return np.hypot(*points.T), np.arctan2(points[:, 0], points[:, 1]) % (2 * np.pi)


@pytest.mark.parametrize(
    ("form", "arm", "first", "last"),
    [
        # r = 1, ω = 0 and r = 10, ω = π/3: (10·√3/2, 10·½)
        ("linear", 0, (0, 1), (5 * 3**0.5, 5)),
        # ω = π and ω = 4π/3: (−10·√3/2, −10·½)
        ("linear", 3, (0, -1), (-5 * 3**0.5, -5)),
        # arm 0 does not turn: ω = 0 everywhere
        ("paper", 0, (0, 1), (0, 10)),
        # ω = 2π/3: (√3/2, −½); ω = 2π/3 + 2π/3 = 4π/3: (−10·√3/2, −10·½)
        ("paper", 2, (3**0.5 / 2, -0.5), (-5 * 3**0.5, -5)),
        # ω = π and ω = π + π = 2π: at the rim on arm 0
        ("paper", 3, (0, -1), (0, 10)),
    ],
)
def test_ends_of_an_arm_without_noise(form, arm, first, last):
    """i = 1 and i = 5000."""
    points = Spiral(form=form, noise=0).load().inputs.reshape(6, 5000, 2)
    np.testing.assert_allclose(points[arm, 0], first, atol=1e-5)
    np.testing.assert_allclose(points[arm, -1], last, atol=1e-5)


def test_angle_tells_the_default_arms_apart():
    """Noise below 0.5 < π/3: with the turn π/3·(r − 1)/9 taken out, ω lies in [kπ/3, kπ/3 + 0.5)."""
    data = Spiral().load()
    radius, omega = polar(data.inputs.astype(np.float64))
    # Rounding to float32 may put a point a hair before its arm's start.
    arm = np.floor((omega - np.pi / 3 * (radius - 1) / 9 + 1e-5) / (np.pi / 3)).astype(int) % 6
    assert (arm == data.labels).mean() == 1.0


def test_printed_formula_mixes_the_arms():
    """The nearest noiseless angle is right in far fewer than half of the cases, as known for N(0, 1)."""
    data = Spiral(form="paper").load()
    radius, omega = polar(data.inputs.astype(np.float64))
    centre = np.arange(6) * np.pi / 3 * (1 + (radius[:, None] - 1) / 9)
    away = np.abs((omega[:, None] - centre + np.pi) % (2 * np.pi) - np.pi)
    assert 0.25 < (away.argmin(1) == data.labels).mean() < 0.45


def test_settings():
    data = Spiral(points=1, seed=3).load()
    assert data.inputs.shape == (6, 2)
    assert data.inputs.dtype == np.float32
    np.testing.assert_array_equal(data.inputs, Spiral(points=1, seed=3).load().inputs)
    assert not np.array_equal(data.inputs, Spiral(points=1, seed=4).load().inputs)
    with pytest.raises(ValueError, match=" must .*, got "):
        Spiral(form="round")


def test_six_hundred_of_each_class():
    data = Fashion().load()
    assert data.inputs.shape == (6000, 28, 28, 1)
    assert data.inputs.flags["C_CONTIGUOUS"]
    assert data.shape == (1, 28, 28)
    assert np.bincount(data.labels).tolist() == [600] * 10
    assert len(data.classes) == 10


def test_pictures_stand_upright():
    """A trouser (class 1) is higher than wide, a sneaker (class 7) wider than high: count rows and columns in use."""
    data = Fashion().load()
    grey = data.inputs[..., 0].astype(float)
    rows = np.count_nonzero(grey.max(2), axis=1)
    columns = np.count_nonzero(grey.max(1), axis=1)
    taller = rows - columns
    assert taller[data.labels == 1].mean() > 5
    assert taller[data.labels == 7].mean() < -5


def test_the_file_is_small():
    assert len(files("protonorm.data").joinpath("fashion.xz").read_bytes()) < 2_200_000


def test_other_pictures_are_refused(monkeypatch):
    monkeypatch.setattr(builtin, "SHA256", "0" * 64)
    with pytest.raises(ValueError, match="install the package again"):
        Fashion().load()


def test_licence_lies_beside():
    text = files("protonorm.data").joinpath("fashion-licence.txt").read_text(encoding="utf-8")
    assert "MIT" in text
    assert "Zalando" in text
