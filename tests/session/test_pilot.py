"""A pilot says whether exchange pays: on folders of pictures whose classes clients share, and on others."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from protonorm.analysis.comparison import Row
from protonorm.analysis.contrasts import Contrast, measure
from protonorm.session.pilot import Pilot, pilot

TRUNK = """
from torch import nn

def pixels():
    return nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten())
"""
CLASSES, EACH = 8, 8


def draw(folder, shuffled):
    """Make three clients with eight pictures of each of eight classes: a pattern each, under noise.

    If `shuffled`, each client has patterns of its own: what others know of a class is wrong.
    """
    random = np.random.default_rng(0)
    common = random.normal(size=(CLASSES, 8, 8))
    for client in ("a", "b", "c"):
        patterns = random.normal(size=(CLASSES, 8, 8)) if shuffled else common
        for k, pattern in enumerate(patterns):
            (folder / client / f"class {k}").mkdir(parents=True)
            for number in range(EACH):
                picture = 128 + 20 * pattern + 70 * random.normal(size=(8, 8))
                large = np.kron(picture.clip(0, 255), np.ones((4, 4))).astype(np.uint8)
                Image.fromarray(large).save(folder / client / f"class {k}" / f"{number}.png")


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "trunks.py").write_text(TRUNK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_best_method_is_that_of_the_largest_gain_on_training_alone():
    """`one` owes more to the exchange, 0.3 against 0.1, but `two` does more for its clients, 0.2 against 0.1."""

    def row(method, local, solo):
        gains = {"local": local, "solo": solo}
        contrasts = {name: Contrast(name, measure([np.full(3, gain)] * 2)) for name, gain in gains.items()}
        return Row(method, "logits", headline=True, cells={}, **contrasts)

    assert Pilot(SimpleNamespace(rows=[row("one", 0.1, 0.3), row("two", 0.2, 0.1)])).best.method == "two"


@pytest.mark.parametrize(
    ("shuffled", "verdict"), [(False, "Federating pays, by choir:lam=1"), (True, "does not pay|is open")]
)
def test_a_pilot_says_whether_exchange_pays(place, shuffled, verdict):
    draw(place / "owners", shuffled)
    settings = ["models=frozen:trunks.py:pixels", "rounds=2", "feature_dim=8"]
    found = pilot(
        place / "owners", settings, methods=["choir:lam=1"], out=place / "runs", engine="serial", progress=False
    )
    pays, sends, costs = found.sentences
    assert re.search(verdict, pays), pays
    assert list(found.clients()) == ["a", "b", "c"]
    gain = found.best.local.transfer.mean  # with two rounds, Local has hardly trained
    assert (found.best.solo.transfer.mean > 0.08) == (not shuffled)
    assert np.mean([mean for mean, _ in found.clients().values()]) == pytest.approx(gain)
    # G has 65·66/2 = 2,145 and R 65·8 = 520 numbers of four bytes, once each way
    assert sends.startswith("A client sends 0.01 MB and is sent 0.01 MB in 2 rounds; its messages hold sums")
    assert costs.startswith("All clients together take ")
