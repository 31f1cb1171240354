"""One grammar: methods with settings, bare names and seeds mean the same in words, files and Python."""

import numpy as np
import pytest

import protonorm as pn
from protonorm.config.methods import read_experiment
from protonorm.config.parsing import read_seeds, read_settings, seeds_word
from protonorm.search.grid import commands, read_grid
from protonorm.search.space import read_space
from tests.support import experiments_of

SPIRAL = ["dataset=spiral", "dataset.points=30", "partition.alpha=0.5", "clients=3", "rounds=2"]
METHOD = """
from dataclasses import dataclass
import protonorm as pn

@dataclass(frozen=True)
class Mine(pn.Local):
    mu: float = 1.0
"""


def one(*words):
    return pn.Experiment.of(read_experiment([*SPIRAL, *words]))


@pytest.mark.parametrize(
    "words",
    [
        ["protonorm:gamma=5,lam=10"],
        ["algorithm=protonorm:gamma=5,lam=10"],
        ["protonorm", "algorithm.gamma=5", "algorithm.lam=10"],
        ["algorithm.gamma=5", "protonorm:lam=10"],
        ["protonorm", "gamma=5", "lam=10"],
        ["gamma=5", "lam=10"],
        ["protonorm:gamma=7,lam=10", "gamma=5"],  # the later one wins
        ["gamma=7", "algorithm.gamma=5", "lam=10"],
    ],
    ids=" ".join,
)
def test_a_method_with_settings_is_written_in_many_ways(words):
    assert one(*words).key == one("algorithm.gamma=5", "algorithm.lam=10").key


def test_nested_settings_and_lists_are_values_of_a_method():
    found = one("protonorm:schedule.eta=0.5,gamma=auto").algorithm
    assert (found.schedule.eta, found.gamma) == (0.5, "auto")
    assert one("protonorm", "schedule.eta=0.5").algorithm.schedule.eta == 0.5
    assert read_settings(["fedproto:x=[1,2],y='a,b'"])["algorithm"] == {"name": "fedproto", "x": [1, 2], "y": "a,b"}


@pytest.mark.parametrize("text", ["algorithm: protonorm:gamma=5", "gamma: 5", "algorithm: {name: protonorm, gamma: 5}"])
def test_a_file_says_it_alike(tmp_path, text):
    path = tmp_path / "one.yaml"
    path.write_text(text)
    assert one(str(path)).algorithm.gamma == 5
    assert read_grid([*SPIRAL, "protonorm", str(path)][: -1 if "algorithm" in text else None]).points
    python = pn.Experiment(algorithm="protonorm:gamma=5", dataset="spiral")
    assert python.algorithm == one(str(path)).algorithm


def test_a_setting_beside_a_name_goes_before_that_in_the_name():
    method = pn.Experiment(algorithm={"name": "protonorm:gamma=5,lam=10", "gamma": 6}, dataset="spiral").algorithm
    assert (method.gamma, method.lam) == (6, 10)


def test_methods_of_a_file_are_compared_and_tuned(tmp_path):
    path = tmp_path / "several.yaml"
    path.write_text("methods: ['protonorm:gamma=5', fedproto]\nseeds: 2\n")
    found = experiments_of([str(path), *SPIRAL])
    assert list(found) == ["protonorm:gamma=5", "fedproto", "local"]
    assert [run.seed for run in found["fedproto"]] == [0, 1]
    path.write_text("algorithm: protonorm:gamma=5\nlam: 0.1..1\n")
    space = read_space([str(path), *SPIRAL])
    assert space.method == "protonorm:gamma=5"
    assert list(space.dimensions) == ["algorithm.lam"]


def test_a_file_of_ones_own_is_a_method_with_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(METHOD)
    keys = {
        one(*words).key for words in (["own.py:Mine:mu=3"], ["own.py:Mine", "mu=3"], ["own.py:Mine", "algorithm.mu=3"])
    }
    assert len(keys) == 1
    found = experiments_of(["own.py:Mine", "fedproto", "mu=3", *SPIRAL])
    assert found["own.py:Mine"][0].algorithm.mu == 3


def test_in_a_comparison_a_setting_is_for_the_methods_that_have_it():
    for name in ("gamma=5", "algorithm.gamma=5"):
        found = experiments_of(["protonorm", "fedproto:gamma=2", "fedavg", "models=plain", name, *SPIRAL[:1]])
        assert found["protonorm"][0].algorithm.gamma == 5
        assert found["fedproto:gamma=2"][0].algorithm.gamma == 2  # its own word is nearer
        assert list(found) == ["protonorm", "fedproto:gamma=2", "fedavg", "local"]
    assert experiments_of(["protonorm"], {"gamma": 5, "dataset": "spiral"})["protonorm"][0].algorithm.gamma == 5
    for words in (["algorithm.gamma=5"], ["gamma=5"]):
        with pytest.raises(ValueError, match="gamma"):
            experiments_of(["fedavg", *words, *SPIRAL])


def test_a_setting_that_no_method_takes_is_refused():
    with pytest.raises(ValueError, match=r"gamma must be given once: .* gamma=6 would change nothing"):
        experiments_of(["protonorm:gamma=5", "gamma=6", *SPIRAL])


def test_in_a_sweep_too():
    named, bare = (read_grid([*SPIRAL, "protonorm", "local", f"{name}=5,10"]) for name in ("algorithm.gamma", "gamma"))
    assert [run.key for _, _, run in named.runs()] == [run.key for _, _, run in bare.runs()]
    assert bare.swept == ["algorithm.gamma"]


def test_what_may_mean_two_things_is_not_guessed():
    """FML has a clip of its own and so has the experiment; FedGen has an alpha, and so has the partition."""
    found = pn.Experiment.of(read_experiment(["fml", "clip=3", "dataset=spiral", "models=mlp"]))
    assert (found.clip, found.algorithm.clip) == (3, 10)
    with pytest.raises(ValueError, match=r"did you mean 'algorithm.alpha' or 'partition.alpha'"):
        one("fedgen", "alpha=0.5")


def test_one_run_has_one_method():
    with pytest.raises(ValueError, match="One run has one method, got protonorm and fedproto:lam=2"):
        read_settings(["protonorm", "fedproto:lam=2"])


@pytest.mark.parametrize(
    ("given", "seeds"),
    [
        (3, [0, 1, 2]),
        (1, [0]),
        ("0,1,2", [0, 1, 2]),
        ([5], [5]),
        ("4,7", [4, 7]),
        (range(2, 4), [2, 3]),
        (np.array([1, 3]), [1, 3]),
        (np.int64(2), [0, 1]),
    ],
    ids=str,
)
def test_seeds(given, seeds):
    assert read_seeds(given) == seeds


@pytest.mark.parametrize("given", [0, -1, 10**9, [], "0,0", [1, 2, 1]], ids=str)
def test_what_are_no_seeds(given):
    with pytest.raises(ValueError, match="seeds must"):
        read_seeds(given)


def test_seeds_mean_the_same_everywhere(tmp_path):
    for words, seeds in ((["seeds=3"], [0, 1, 2]), (["seeds=[5]"], [5]), (["seeds=0,2"], [0, 2]), (["seed=5"], [5])):
        assert [run.seed for run in experiments_of(["fedproto", *SPIRAL, *words])["fedproto"]] == seeds
        assert read_grid([*SPIRAL, "fedproto", *words]).seeds == seeds
    for text, seeds in (("seeds: 3", [0, 1, 2]), ("seeds: [5]", [5])):
        path = tmp_path / "seeds.yaml"
        path.write_text(text)
        assert [run.seed for run in experiments_of(["fedproto", *SPIRAL, str(path)])["fedproto"]] == seeds
        assert read_grid([*SPIRAL, "fedproto", str(path)]).seeds == seeds
    assert [run.seed for run in experiments_of(["fedproto"], {"dataset": "spiral", "seeds": 2})["fedproto"]] == [0, 1]


@pytest.mark.parametrize("seeds", [[5], [0], [0, 1], [2, 4]], ids=str)
def test_commands_say_their_seeds_so_that_they_mean_the_same(seeds):
    assert [run.seed for run in experiments_of(["local", *SPIRAL, seeds_word(seeds)])["local"]] == seeds
    grid = read_grid([*SPIRAL, "protonorm", "fedproto", seeds_word(seeds)])
    (command,) = commands(grid.points)
    words = [word for word in command.replace("\\\n", "").split() if word not in ("protonorm", "compare")]
    assert [run.seed for run in experiments_of(["protonorm", *words])["fedproto"]] == seeds


def test_a_label_names_a_method_in_tables():
    found = experiments_of(["protonorm:gamma=5,label=Ours", "protonorm:gamma=6", *SPIRAL])
    assert list(found) == ["Ours", "protonorm:gamma=6", "local"]
    assert found["Ours"][0].algorithm.gamma == 5
    assert found["Ours"][0] == experiments_of(["protonorm:gamma=5", *SPIRAL])["protonorm:gamma=5"][0]
    objects = experiments_of([{"Mild": pn.ProtoNorm(gamma=5), "By name": "fedproto"}, pn.FedProto(lam=3), *SPIRAL])
    assert list(objects) == ["Mild", "By name", "fedproto", "local"]
    assert objects["Mild"][0] == found["Ours"][0]
    with pytest.raises(ValueError, match="label must be a text that is not the name of a method, got 'fedtgp'"):
        experiments_of([{"fedtgp": pn.ProtoNorm(gamma=5)}, *SPIRAL])
    for taken in ("fedproto", "", "3"):
        with pytest.raises(ValueError, match="label must be a text that is not the name of a method, got"):
            experiments_of([f"protonorm:label={taken}", *SPIRAL])
