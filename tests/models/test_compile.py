"""Networks in code that torch compiles: the same functions to rounding, and refusals where that cannot be."""

from copy import deepcopy

import pytest
import torch
from torch._dynamo.utils import counters

from protonorm.errors import Failed
from protonorm.models.choose import Recipe
from protonorm.models.lowering import check_compile, compile_features
from protonorm.runs.states import FolderStore
from tests.contract.playing import same
from tests.support import contents, run, run_folder, spiral


def compiled(name, shape):
    """Make a network twice: as it is, and with features that are compiled."""
    plain, other = (Recipe(name, shape, 8, 3)() for _ in range(2))
    other.load_state_dict(plain.state_dict())
    compile_features(other, graphs=False)
    return plain, other


def test_compiled_networks_compute_the_same():
    """Of each batch size; copies, evaluation and the names of the state are those of any network."""
    plain, other = compiled("mlp_small", (2,))
    for size in (8, 5):
        gradients = []
        for model in (plain, other):
            model.train().zero_grad()
            model(torch.randn(size, 2, generator=torch.Generator().manual_seed(0))).square().mean().backward()
            gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
        assert (gradients[0] - gradients[1]).norm() < 1e-5 * gradients[0].norm()
    frames = counters["frames"]["ok"]
    assert frames
    plain.load_state_dict(other.state_dict())
    x = torch.randn(6, 2)
    assert torch.equal(plain.eval()(x), other.eval()(x))
    copied = deepcopy(other.train())
    with torch.no_grad():
        copied.features[0].weight.zero_()
    assert torch.equal(deepcopy(copied)(x), copied(x))
    assert counters["frames"]["ok"] == frames


def test_graphs_are_a_mode_of_torch(monkeypatch):
    """No GPU is here: that torch is asked for them, once for a network, is all that can be seen."""
    asked = []
    monkeypatch.setattr(torch, "compile", lambda code, **options: asked.append(options) or code)
    model = Recipe("mlp_small", (2,), 8, 3)().train()
    compile_features(model, graphs=True)
    for _ in range(2):
        model(torch.randn(8, 2))
    assert asked == [{"dynamic": False, "mode": "reduce-overhead"}]


def test_a_network_that_cannot_be_compiled_ends_the_run_with_a_sentence(monkeypatch):
    _, other = compiled("mlp_small", (3,))
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda *_, **__: 1 / 0)
    with pytest.raises(Failed, match="A network cannot be compiled: .*; compile=false trains it"):
        other.train()(torch.randn(8, 3))


def test_where_nothing_can_be_compiled_it_is_refused(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="compile=graphs must be with device=cuda, .* got device='cpu'"):
        spiral(compile="graphs")
    with pytest.raises(ValueError, match="compile must "):
        spiral(compile="fast")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(ValueError, match=r"compile=true needs Python's headers, and .*Python.h is missing; compile=f"):
        spiral(compile=True)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"needs a C\+\+ compiler, and there is no no-such-compiler \(CXX names"):
        spiral(compile=True)
    monkeypatch.setattr("protonorm.models.lowering.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="compile=graphs needs the package triton on a GPU, and it is not installed"):
        check_compile("graphs", "cuda")
    check_compile(False, "cuda")


def test_compiling_is_part_of_the_key_but_keys_of_before_stay():
    assert spiral(compile=True).key != spiral().key
    assert "compile" not in spiral().model_dump()


def test_a_run_with_compiled_networks_equals_one_without_to_rounding(tmp_path):
    settings = {"models": "mlp_small", "rounds": 2, "clients": 2, "algorithm": "fedavg"}
    plain, other = (run(spiral(compile=on, **settings), tmp_path) for on in (False, True))
    for id in range(2):
        weights, others = (
            FolderStore(result.run.folder / "clients", result.experiment.key).load(id, 2) for result in (plain, other)
        )
        assert all(torch.allclose(value, others[name], rtol=1e-4, atol=1e-6) for name, value in weights.items())
        assert not same(weights, others)  # otherwise nothing was compiled


@pytest.mark.long
def test_compiled_runs_are_equal_in_a_process_of_their_own(tmp_path):
    experiment = spiral(models="mlp_small", compile=True)
    for engine in ("serial", "processes"):
        run(experiment, tmp_path / engine, engine, workers=1)
    one, other = (contents(run_folder(experiment, tmp_path / engine)) for engine in ("serial", "processes"))
    assert one == other
