"""torchvision can be imported without its compiled operators, by us, by timm and by users' files."""

import sys

import pytest
from torch.library import Library
from typer.testing import CliRunner

from protonorm.cli.app import app
from protonorm.core import own_code
from protonorm.core.own_code import MISSING, SIGNATURE, importable_torchvision, load_file
from protonorm.models import libraries

STUMBLES = f"""
from protonorm.core import own_code

if not own_code._defined:
    raise RuntimeError({MISSING!r})
"""


class FakeLibrary:
    def __init__(self, *words):
        self.words, self.defined = words, []

    def define(self, signature):
        self.defined.append(signature)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Replace torchvision by one of the test's own, in which nothing is declared yet."""
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(own_code, "_defined", [])
    monkeypatch.setattr("torch.library.Library", FakeLibrary)

    def write(text):
        (tmp_path / "torchvision.py").write_text(text)

    yield write
    sys.modules.pop("torchvision", None)


def test_missing_operators_are_declared_and_the_import_repeated(fake):
    fake(STUMBLES)
    assert libraries.torchvision() is sys.modules["torchvision"]
    (library,) = own_code._defined  # kept, or the definitions would go
    assert library.words == ("torchvision", "DEF")
    assert library.defined == ["nms" + SIGNATURE, "qnms" + SIGNATURE]


def test_an_import_that_works_declares_nothing(fake):
    fake("x = 3\n")
    assert libraries.torchvision().x == 3
    assert own_code._defined == []


@pytest.mark.parametrize("error", ["RuntimeError('something else')", "ImportError('no operators')"])
def test_other_failures_are_not_hidden(fake, error):
    fake(f"raise {error}\n")
    with pytest.raises((RuntimeError, ImportError), match="something else|no operators"):
        libraries.torchvision()
    assert own_code._defined == []


def test_it_lasts_as_long_as_it_is_asked_for(fake):
    fake(STUMBLES)
    before = list(sys.meta_path)
    with importable_torchvision():
        assert len(sys.meta_path) == len(before) + 1
    assert sys.meta_path == before
    with pytest.raises(RuntimeError, match=MISSING):
        __import__("torchvision")


def test_a_users_file_can_import_it(fake, tmp_path):
    fake(STUMBLES + "name = 'the fake one'\n")
    (tmp_path / "uses_it.py").write_text("import torchvision\n\nname = torchvision.name\n")
    assert load_file(tmp_path / "uses_it.py").name == "the fake one"
    sys.modules.pop("protonorm_own_uses_it")


def test_the_signature_is_one_that_torch_takes():
    library = Library("protonorm_test", "DEF")
    library.define("nms" + SIGNATURE)


OWN = """
import torchvision
from torch import nn


def at_the_top(shape, feature_dim, num_classes):
    assert torchvision.models
    return nn.Sequential(nn.Linear(shape[0], 4), nn.ReLU(), nn.Linear(4, num_classes))


def inside(shape, feature_dim, num_classes):
    from torchvision.models import list_models

    assert list_models()
    return nn.Sequential(nn.Linear(shape[0], 4), nn.ReLU(), nn.Linear(4, num_classes))
"""


def test_own_networks_with_torchvision_run_in_workers(tmp_path):
    """Workers are new processes: nothing that this one has imported helps them."""
    (tmp_path / "with_it.py").write_text(OWN)
    (tmp_path / "within.py").write_text(OWN.replace("import torchvision\n", "", 1))
    words = ["dataset=spiral", "dataset.points=30", "clients=2", "partition=iid", "rounds=1", "algorithm=local"]
    models = f"models={tmp_path}/with_it.py:at_the_top,{tmp_path}/within.py:inside"
    options = ["--engine", "processes", "--workers", "2", "--out", str(tmp_path / "runs")]
    result = CliRunner().invoke(app, ["run", *words, models, *options])
    assert result.exit_code == 0, result.output
