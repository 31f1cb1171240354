"""`protonorm doctor gpu`: what it finds on the CPU, on a device that computes wrongly, and where there is none."""

import json

import pytest
import torch
from typer.testing import CliRunner

from protonorm.algorithms import ALGORITHMS
from protonorm.cli.app import app
from protonorm.core.node import Client
from protonorm.session import gpu
from tests import standin
from tests.contract.test_device import careless

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    monkeypatch.setattr(gpu, "SECONDS", 0.0)
    monkeypatch.setattr(gpu, "NETWORKS", ("plain",))
    monkeypatch.setattr(gpu, "ALGORITHMS", {name: ALGORITHMS[name] for name in ("choir", "protonorm")})
    monkeypatch.setattr(gpu, "PRECISIONS", {"float32": torch.float32})  # autocast knows no devices of tests
    monkeypatch.setattr(gpu, "check_device", lambda name: None)


def findings(device):
    found = list(gpu.diagnose(device))
    return {finding.what: finding for finding in found}, {finding.what for finding in found if not finding.ok}


@pytest.mark.parametrize("device", ["cpu", standin.NAME])
@pytest.mark.usefixtures("on_standin")
def test_a_device_that_computes_as_the_cpu_is_fine(device):
    found, wrong = findings(device)
    assert not wrong
    assert list(found) == ["device", "networks", "methods", "plain", "report"]
    assert "2 compared with the CPU; the largest relative difference is 0.0e+00" in found["methods"].text
    assert found["plain"].text.startswith("float32 ")


@pytest.mark.usefixtures("on_standin")
def test_a_device_that_computes_wrongly_is_named(monkeypatch):
    """Its products with a bias are thrice too large: those of every head."""
    monkeypatch.setitem(standin.FORMS, aten.addmm.default, lambda *a, **k: 3 * aten.addmm.default(*a, **k))
    found, wrong = findings(standin.NAME)
    assert wrong == {"plain", "protonorm"}
    assert "differs from the CPU by" in found["protonorm"].text


@pytest.mark.usefixtures("on_standin")
def test_a_device_whose_numbers_are_no_numbers_is_named(monkeypatch):
    monkeypatch.setitem(standin.FORMS, aten.addmm.default, lambda *a, **k: aten.addmm.default(*a, **k) * float("nan"))
    monkeypatch.setattr(gpu, "ALGORITHMS", {})
    bad = [finding.text for finding in gpu.diagnose(standin.NAME) if not finding.ok]
    assert bad == ["The network differs from the CPU by nan of its numbers; expected 0.02."]


@pytest.mark.usefixtures("on_standin")
def test_a_method_that_fails_there_is_named(monkeypatch):
    monkeypatch.setattr(Client, "cross_entropy", careless)
    found, wrong = findings(standin.NAME)
    assert wrong == {"protonorm"}
    assert "cannot be trained on standin: add of tensors" in found["protonorm"].text


def test_a_machine_without_one_is_told_in_a_sentence(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    done = CliRunner().invoke(app, ["doctor", "gpu"])
    assert done.exit_code == 2
    assert done.output == "protonorm: device='cuda' cannot be used here: torch finds no GPU; cpu always can.\n"


def test_what_is_reported_is_json():
    done = CliRunner().invoke(app, ["doctor", "gpu", "--device", "cpu", "--json"])
    found = json.loads(done.stdout)
    assert found["ok"]
    assert found["findings"][0]["what"] == "device"
