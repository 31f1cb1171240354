"""Everything runs on a device whose tensors never mix with the CPU's, and equals the CPU byte for byte."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import protonorm as pn
from protonorm.algorithms import ALGORITHMS
from protonorm.core import Order
from protonorm.core.node import Client
from protonorm.federation import population
from protonorm.federation.client import evaluate_step
from protonorm.models import FAMILIES, MODELS
from protonorm.session.build import build
from tests import standin
from tests.contract.playing import each_round, same
from tests.support import cases, long_unless, methods, pictures, run, spiral, vectors

pytestmark = pytest.mark.usefixtures("on_standin")

LABELS = np.arange(24) % 3
PICTURES = pictures(LABELS, 3)
TOKENS = pn.Dataset("tokens", np.random.default_rng(0).integers(0, 50, (24, 6)), LABELS, ("a", "b", "c"))
LARGER = pictures(LABELS, 3, side=40)  # maps of a single point have two layouts, whose products are rounded otherwise
LIGHT = FAMILIES["light"].models
INPUTS = {"vectors": vectors(PICTURES), "tokens": TOKENS}
SMALL = {"clients": 2, "partition": "iid", "train": 0.6, "validation": 0.2, "lowering": False}
SMALL |= {"dataset": PICTURES, "models": "plain", "feature_dim": 8}


def everything(device, rounds=2, **settings):
    """Play some rounds; return all states, messages and counts in one dict."""
    task, clients = build(spiral(device=device, **settings))
    found = {}
    for number, seen in enumerate(each_round(task, clients, rounds), 1):
        step = seen["step"]
        parts = {"server": step.state, "said": step.message}
        for id, state in seen["after"].items():
            order, both = Order(id, number, number), ["validation", "test"]
            counts = evaluate_step(task, clients.site(id), order, state, step.message, both).counts
            parts |= {f"{id}": state, f"{id} said": seen["replies"][id].message, f"{id} counts": counts}
        found |= {f"{number} {part} {name}": value for part, named in parts.items() for name, value in named.items()}
    return found


def equal_to_the_cpu(**settings):
    """Check that a device gives the bytes of the CPU, and that nothing of it is left on the device."""
    ours, theirs = (everything(device, **settings) for device in (standin.NAME, "cpu"))
    assert not any(isinstance(value, standin.StandIn) for value in ours.values())
    assert same(ours, theirs)


@pytest.mark.parametrize("algorithm", methods())
def test_every_method_trains_and_is_evaluated(algorithm):
    equal_to_the_cpu(algorithm=algorithm, validation=0.2)


@pytest.mark.parametrize("name", long_unless(("plain", "mlp_small", "text_cnn"), sorted(MODELS)))
def test_every_network_trains_and_is_evaluated(name):
    data = INPUTS.get(MODELS[name].details["input"], PICTURES if name in LIGHT else LARGER)
    equal_to_the_cpu(**SMALL | {"dataset": data, "models": name}, rounds=1)


CHANGES = {
    "augmented": {**SMALL, "augment": "crop+flip"},
    "adam": {"optimiser": "adam", "clip": 1.0, "label_smoothing": 0.1, "last_batch": "keep", "weight_decay": 0.01},
    "widths": {**SMALL, "algorithm": "heterofl", "models": "plain@1,0.5"},
    "small shared network": {**SMALL, "algorithm": "fml", "auxiliary": "plain@0.5"},
    "robust": {"algorithm": "fedavg", "combine": "median"},
    "few are not sent": {"protect": {"name": "minimum_count", "least": 3}},
    "nobody else": {"control": "solo"},
}


@pytest.mark.parametrize("change", cases(CHANGES, ["augmented", "adam"]))
def test_settings_that_change_training(change):
    equal_to_the_cpu(**change)


def test_replies_with_noise():
    """Their noise is nobody's to repeat: that it is drawn where it must be is all that can be seen."""
    assert everything(standin.NAME, algorithm="choir", protect={"name": "gaussian", "epsilon": 8})


@pytest.mark.parametrize("algorithm", long_unless(("protonorm",), sorted(ALGORITHMS)))
def test_data_that_do_not_fit_stay_outside(algorithm, monkeypatch):
    monkeypatch.setattr(population, "free_memory", lambda device: 0)
    assert type(build(spiral(device=standin.NAME))[1].site(0).client(1).train.inputs) is torch.Tensor
    equal_to_the_cpu(algorithm=algorithm)


def test_a_whole_run_is_recorded_alike(tmp_path):
    ours, theirs = (run(spiral(device=device), out=tmp_path).history for device in (standin.NAME, "cpu"))
    assert [record.model_dump() for record in ours] == [record.model_dump() for record in theirs]


def careless(self, logits, y):
    return cross_entropy(logits + torch.zeros(logits.shape[1]), y)


@pytest.mark.parametrize("algorithm", ["protonorm", "fedavg"])
def test_a_tensor_made_on_the_cpu_in_a_loss_is_noticed(algorithm, monkeypatch):
    monkeypatch.setattr(Client, "cross_entropy", careless)
    with pytest.raises(RuntimeError, match="add of tensors on standin has tensors on cpu beside them: torch.float32"):
        everything(standin.NAME, algorithm=algorithm)
