"""Settings of measures, local work and optimisers: equal bits on every engine, and after a resumption."""

import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from protonorm.config.experiment import LATER
from protonorm.core import Order, seeded
from protonorm.core.node import OPTIMISER, OptimiserMemory
from protonorm.federation.client import first_state, train_step
from protonorm.runs.run import read_run
from protonorm.session.build import build
from protonorm.session.result import load_run
from tests.support import contents, run, run_folder, site, spiral

ENGINES = ["processes", *(["ray"] if find_spec("ray") and sys.platform != "win32" else [])]
OWN = """
import torch

def make(weights, lr):
    return torch.optim.RMSprop(weights, lr, momentum=0.5)

def no_optimiser(weights, lr):
    return lr

def counting(weights, lr):
    class Counting(torch.optim.SGD):
        def step(self):
            for weight in weights:
                self.state[weight]["number"] = 3
    return Counting(weights, lr)

def other(weights):
    return torch.optim.SGD(weights)
"""
CHOICES = {
    "protonorm": {"metrics": "ranking", "local_steps": [7, 0.5], "optimiser": "adam", "optimiser_state": "kept"},
    "fedproto": {
        "keep_classes": True,
        "keep_prototypes": "every:2",
        "keep_client_prototypes": "every:2",
        "participation": 0.7,
        "rounds": 5,
    },
    "fedhp": {"optimiser_state": "kept", "optimiser": "OWN:make"},  # it has a second optimiser
}


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return str(tmp_path / "own.py")


def placed(settings, own):
    return {name: value.replace("OWN", own) if isinstance(value, str) else value for name, value in settings.items()}


def chosen(method, own):
    return {"algorithm": method} | placed(CHOICES[method], own)


@pytest.mark.parametrize("method", CHOICES)
def test_bits_are_equal_on_engines_and_after_a_resumption(tmp_path, own, method):
    settings = chosen(method, own)
    whole = run(spiral(**settings), tmp_path / "serial")
    run(spiral(**settings | {"rounds": 1}), tmp_path / "resumed")
    for out, engine in (("resumed", "serial"), ("processes", "processes")):
        again = run(spiral(**settings), tmp_path / out, engine, workers=2 if engine == "processes" else None)
        assert contents(again.run.folder) == contents(whole.run.folder)


@pytest.mark.long
@pytest.mark.skipif("ray" not in ENGINES, reason="Ray is not installed")
@pytest.mark.parametrize("method", CHOICES)
def test_bits_are_equal_on_ray(tmp_path, own, method):
    settings = chosen(method, own)
    runs = [run(spiral(**settings), tmp_path / engine, engine) for engine in ("serial", "ray")]
    sys.modules["protonorm.engines.ray.cluster"].disconnect()
    assert contents(runs[0].run.folder) == contents(runs[1].run.folder)


def test_defaults_are_in_no_key_and_no_record(tmp_path):
    usual = {name: value for name, value in LATER.items() if name not in ("protect", "evaluate_all_every")}
    assert spiral(**usual).key == spiral().key
    assert not usual.keys() & spiral(**usual).model_dump(mode="json").keys()


def by_hand(make, batches_of, rounds=2):
    """Train a client in plain torch, with one optimiser for all rounds; return its weights."""
    where = site(0)
    client = where.fresh_client()
    model = client.model
    optimiser = make(list(model.parameters()))
    for number in range(1, rounds + 1):
        model.train()
        with seeded(0, number, 0):
            for x, y in batches_of(where.client(number)):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimiser.step()
    return {name: value.detach() for name, value in model.state_dict().items()}


MAKERS = {
    "sgd": ({"optimiser": "sgd", "momentum": 0.9}, lambda weights: torch.optim.SGD(weights, 0.05, momentum=0.9)),
    "adam": ({"optimiser": "adam"}, lambda weights: torch.optim.Adam(weights, 0.05)),
    "own": ({"optimiser": torch.optim.RMSprop}, lambda weights: torch.optim.RMSprop(weights, 0.05)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_kept_state_goes_on_where_it_ended(name):
    """Two rounds are those of one optimiser in plain torch; with a new state in each round they are not."""
    settings, make = MAKERS[name]
    expected = by_hand(make, lambda client: client.batches())
    weights = {}
    for choice in ("kept", "new"):
        task, population = build(spiral(algorithm="local", **settings, optimiser_state=choice))
        where = population.site(0)
        state = first_state(task, where)
        for number in (1, 2):
            before = {key: value.clone() for key, value in state.items()}
            after, _ = train_step(task, where, Order(0, number, number - 1), state, {})
            assert all(torch.equal(state[key], before[key]) for key in before)  # pure: a round may be tried again
            state = after
        weights[choice] = {key: state[f"model.{key}"] for key in expected}
        assert any(key.startswith(f"{OPTIMISER}.") for key in state) == (choice == "kept")
    assert all(torch.allclose(weights["kept"][key], expected[key], atol=1e-6) for key in expected)
    assert not all(torch.allclose(weights["new"][key], expected[key], atol=1e-4) for key in expected)


@pytest.mark.parametrize(("steps", "batches"), [(1, 1), (7, 7), (0.5, 3), (0.01, 1), (0.99, 6)])
def test_local_steps_take_the_place_of_epochs(steps, batches):
    """Of 48 samples 6 batches of 8; of seven, the first six have every sample once."""
    client = build(spiral(clients=1, partition="iid", dataset={"name": "spiral", "points": 12}, local_steps=steps))[1]
    client = client.site(0).client(1)
    assert len(client.train) // 8 == 6
    with seeded(0, 1, 0):
        rows = [x for x, _ in client.batches()]
    assert [len(x) for x in rows] == [8] * batches
    assert len(torch.cat(rows[:6]).unique(dim=0)) == min(batches, 6) * 8


def test_an_optimiser_of_ones_own_is_recorded_by_name_and_source(tmp_path, own):
    result = run(spiral(algorithm="local", optimiser=f"{own}:make"), tmp_path)
    plain = read_run(result.run.folder).info.experiment.plain()["optimiser"]
    assert plain["name"] == "own.py:make"
    assert len(plain["source"]) == 16
    assert result.experiment.changed["optimiser"] == "own.py:make"
    with pytest.raises(ValueError, match=r"own\.py:make"):
        _ = load_run(result.run.folder).experiment
    assert load_run(result.run.folder, optimiser=f"{own}:make").experiment.key == result.experiment.key
    assert result.trained()[0].predict(build(result.experiment)[1].dataset.inputs[:2]).shape == (2,)


REFUSED = [
    ({"optimiser": "sgdx"}, "optimiser must be sgd, adam, adamw, file.py:NAME or a function"),
    ({"optimiser": "own.py"}, "name the optimiser in it"),
    ({"optimiser": 3}, "optimiser must be sgd"),
    ({"optimiser": "OWN:other"}, r"other\(weights\) has other arguments"),
    ({"optimiser": "OWN:make", "momentum": 0.5}, "momentum must be 0"),
    ({"optimiser": "OWN:make", "weight_decay": 0.5}, "weight_decay must be 0"),
    ({"optimiser_state": "kept"}, "which has no state"),
    ({"local_steps": 0}, "local_steps must be "),
    ({"local_steps": 1.5}, "local_steps must be "),
    ({"local_steps": True}, "local_steps must be "),
    ({"local_steps": 3, "epochs": 2}, "epochs must be left out"),
    ({"local_steps": 3, "shuffle": False}, "shuffle must be true"),
    ({"metrics": "auroc"}, "metrics must be "),
    ({"keep_prototypes": "every:0"}, "keep_prototypes must "),
    ({"keep_client_prototypes": "some"}, "keep_client_prototypes must "),
    ({"keep_classes": "perhaps"}, "keep_classes must "),
]


@pytest.mark.parametrize(("settings", "sentence"), REFUSED, ids=str)
def test_what_cannot_be_is_refused(own, settings, sentence):
    settings = placed(settings, own)
    with pytest.raises(ValueError, match=sentence):
        spiral(**settings)


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("no_optimiser", {}, "gives a float; expected a torch.optim.Optimizer"),
        ("counting", {"optimiser_state": "kept"}, "whose number is a int: only tensors are kept"),
    ],
)
def test_an_optimiser_that_does_not_fit_ends_the_run_in_a_sentence(tmp_path, own, name, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        run(spiral(algorithm="local", optimiser=f"{own}:{name}", **settings), tmp_path)
    assert not read_run(run_folder(spiral(algorithm="local", optimiser=f"{own}:{name}", **settings), tmp_path)).rounds


def test_each_call_of_a_round_has_a_state_of_its_own():
    """A method may train its head, then its features; calls in another order in the next round are refused."""
    where = site(0, momentum=0.9, optimiser_state="kept").client(1)

    def trained(before, *parts):
        memory = OptimiserMemory(before)
        client = replace(where, memory=memory)
        for part in parts:
            client.fit(lambda x, y: client.cross_entropy(client.model(x), y), getattr(client.model, part))
        return memory.after

    kept = trained({}, "head", "features")
    heads = len(list(where.model.head.parameters()))
    assert sum(name.startswith("0.0.") for name in kept) == heads
    assert {name[:4] for name in kept} == {"0.0.", "1.0."}
    assert trained(kept, "head", "features").keys() == kept.keys()
    with pytest.raises(ValueError, match="optimiser_state must be new where weights change"):
        trained(kept, "features", "head")
