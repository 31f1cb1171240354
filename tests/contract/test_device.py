"""Everything runs on a device whose tensors never mix with the CPU's, and equals the CPU byte for byte."""

from collections import Counter

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
from protonorm.runs.states import FolderStore, StateCache, load_tensors
from protonorm.session import running
from protonorm.session.build import build
from protonorm.tensors import DeviceCopies, nbytes, on_device
from tests import standin
from tests.contract.playing import each_round, same
from tests.support import FROZEN, cases, long_unless, methods, pictures, run, spiral, vectors

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


def run_on_standin(tmp_path, monkeypatch, **settings):
    """Run an experiment; return its record, its clients' states, and how often a tensor of these was moved."""
    states, read, save = [], [], FolderStore.save

    def load(path, stamp):
        read.append(load_tensors(path, stamp))
        return read[-1]

    with monkeypatch.context() as noting:
        noting.setattr(FolderStore, "save", lambda *one: states.append(one[3]) or save(*one))
        noting.setattr("protonorm.runs.states.load_tensors", load)
        result = run(spiral(**{"device": standin.NAME, "validation": 0.2} | settings), out=tmp_path)
    moves = Counter(value.data_ptr() for value in standin.moved)
    standin.moved.clear()
    by_name = Counter()
    for state in states + read:
        for name, value in state.items():
            by_name[name] = max(by_name[name], moves[value.data_ptr()] if value.numel() else 0)
    return [record.model_dump() for record in result.history], states, by_name


@pytest.mark.parametrize("algorithm", methods())
def test_states_stay_on_the_device_between_rounds(tmp_path, monkeypatch, algorithm):
    """Only what a client computes on the CPU, or receives, is moved there, and only once."""
    stayed, states, moved = run_on_standin(tmp_path / "stayed", monkeypatch, algorithm=algorithm)
    assert max(moved.values()) <= 1
    trained = {name for name in moved if name.startswith("model.") and algorithm not in FROZEN}
    assert not any(moved[name] for name in trained)
    again, others, moved = run_on_standin(tmp_path / "moved", monkeypatch, algorithm=algorithm, state_memory=0)
    assert any(moved.values())
    assert stayed == again
    assert all(map(same, states, others))


@pytest.mark.parametrize("settings", [{"optimiser": "adam"}, {"momentum": 0.9}], ids=["adam", "momentum"])
def test_states_of_optimisers_stay_too(tmp_path, monkeypatch, settings):
    settings |= {"optimiser_state": "kept"}
    stayed, states, moved = run_on_standin(tmp_path / "stayed", monkeypatch, **settings)
    assert not any(moved.values())
    expected, others, _ = run_on_standin(tmp_path / "cpu", monkeypatch, device="cpu", **settings)
    assert stayed == expected
    assert all(map(same, states, others))


def test_fewer_states_stay_where_there_is_no_room_for_all(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "MEGABYTE", 1)
    _, states, _ = run_on_standin(tmp_path / "all", monkeypatch)
    size = max(map(nbytes, states))
    kept, put = [], StateCache.put

    def watched(self, *args):
        put(self, *args)
        copies = [copy for _, _, of in self._states.values() for _, copy, _ in of._copies.values()]
        kept.append(sum(copy.nbytes for copy in copies))

    monkeypatch.setattr(StateCache, "put", watched)
    _, others, moved = run_on_standin(tmp_path / "two", monkeypatch, state_memory=2 * size)
    assert any(moved.values())
    assert size < max(kept) <= 2 * size
    assert all(map(same, states, others))


def test_what_was_changed_in_place_is_moved_again():
    value = torch.ones(2)
    with DeviceCopies():
        first = on_device(value, standin.NAME)
        assert on_device(value, standin.NAME) is first
        value.add_(1)
        second = on_device(value, standin.NAME)
        assert torch.equal(second.cpu(), value)
        second.zero_()
        assert torch.equal(on_device(value, standin.NAME).cpu(), value)
    assert on_device(value, standin.NAME) is not on_device(value, standin.NAME)


def careless(self, logits, y):
    return cross_entropy(logits + torch.zeros(logits.shape[1]), y)


@pytest.mark.parametrize("algorithm", ["protonorm", "fedavg"])
def test_a_tensor_made_on_the_cpu_in_a_loss_is_noticed(algorithm, monkeypatch):
    monkeypatch.setattr(Client, "cross_entropy", careless)
    with pytest.raises(RuntimeError, match="add of tensors on standin has tensors on cpu beside them: torch.float32"):
        everything(standin.NAME, algorithm=algorithm)
