"""torchvision imports here and elsewhere, and networks of it and timm are found, never downloaded."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
from torch.library import Library

from protonorm.models import vision
from protonorm.models.vision import MISSING, SIGNATURE

needs_timm = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")


def test_torchvision_has_its_networks():
    assert vision.torchvision().models.resnet18 is vision.torchvision().models.resnet18


@needs_timm
def test_timm_has_its_networks():
    assert vision.timm().is_model("resnet18")


def test_an_import_that_works_defines_nothing(monkeypatch):
    monkeypatch.setattr(vision, "_defined", [])
    monkeypatch.setattr(vision, "import_module", lambda name: name)
    assert vision.torchvision() == "torchvision"
    assert vision._defined == []


def importing(*answers):
    """Stand in for import_module: raise or give one answer after the other."""
    left = list(answers)

    def import_module(name):
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return import_module


class FakeLibrary:
    def __init__(self, *words):
        self.words, self.defined = words, []

    def define(self, signature):
        self.defined.append(signature)


def test_missing_operators_are_declared_and_the_import_repeated(monkeypatch):
    monkeypatch.setattr(vision, "_defined", [])
    monkeypatch.setattr(vision, "Library", FakeLibrary)
    monkeypatch.setattr(vision, "import_module", importing(RuntimeError(MISSING), "torchvision"))
    assert vision.torchvision() == "torchvision"
    (library,) = vision._defined  # kept, or the definitions would go
    assert library.words == ("torchvision", "DEF")
    assert library.defined == ["nms" + SIGNATURE, "qnms" + SIGNATURE]


@pytest.mark.parametrize("error", [RuntimeError("something else"), ImportError("no torchvision")])
def test_other_failures_are_not_hidden(monkeypatch, error):
    monkeypatch.setattr(vision, "_defined", [])
    monkeypatch.setattr(vision, "Library", FakeLibrary)
    monkeypatch.setattr(vision, "import_module", importing(error, "torchvision"))
    with pytest.raises(type(error), match=str(error)):
        vision.torchvision()
    assert vision._defined == []


def test_the_signature_is_one_that_torch_takes():
    library = Library("protonorm_test", "DEF")
    library.define("nms" + SIGNATURE)


def test_a_missing_timm_is_said_with_the_extra(monkeypatch):
    monkeypatch.setattr(vision, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'protonorm\[timm\]'"):
        vision.timm()


def test_choosing_own_networks_imports_neither():
    code = (
        "import sys; from protonorm.models.choose import chosen, network; chosen('light'); chosen('paper'); "
        "network('resnet8', (3, 32, 32), 8, 2); assert not {'torchvision', 'timm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
