"""One experiment has one key, whether words of a command line or objects of Python give it."""

import subprocess
import sys

import numpy as np
import pytest

import protonorm as pn
from protonorm.config.parsing import read_settings
from protonorm.core.training import LrSchedule
from protonorm.data.builtin import Fashion, Spiral
from protonorm.data.partitions import IID, Dirichlet
from tests.support import experiments_of

OWN = """
from dataclasses import dataclass

from torch import nn

import protonorm as pn


def small(shape, feature_dim, num_classes):
    return pn.SplitModel(nn.Linear(shape[0], feature_dim), nn.Linear(feature_dim, num_classes))


@dataclass(frozen=True)
class Mine(pn.Local):
    nu: float = 1.0


if __name__ == "__main__":
    mine = Mine(nu=2)
    print(pn.Experiment(dataset="spiral", models=[small], algorithm=mine).key)
"""

ALIKE = {
    "nothing": ([], {}),
    "defaults": (["rounds=20", "clients=20", "lr=0.01"], {"models": "light", "algorithm": pn.ProtoNorm()}),
    "a whole number for a fraction": (["algorithm.gamma=50"], {"algorithm": pn.ProtoNorm(gamma=50.0)}),
    "a fraction for a whole number": (["algorithm.gamma=50.0"], {"algorithm": pn.ProtoNorm(gamma=50)}),
    "numbers with exponents": (["lr=1e-2", "weight_decay=1e-4"], {"weight_decay": 0.0001}),
    "numbers of numpy": (["lr=0.5", "seed=3"], {"lr": np.float64(0.5), "seed": int(np.int64(3))}),
    "settings inside settings": (
        ["algorithm.schedule.eta=0.5"],
        {"algorithm": {"name": "protonorm", "schedule": {"eta": 0.5}}},
    ),
    "a list and a tuple": (["lr=[0.1,0.2]", "epochs=[1, 2]"], {"lr": (0.1, 0.2), "epochs": [1, 2]}),
    "networks with commas": (["models=plain,dense"], {"models": ["plain", "dense"]}),
    "one network": (["models=plain"], {"models": ("plain",)}),
    "a family in a list": (["models=[light]"], {"models": ["light"]}),
    "the networks of a family": (
        ["models=light"],
        {"models": ["plain", "residual", "depthwise", "dense"], "feature_dim": 128},
    ),
    "the one network of a family": (["models=cnn"], {"models": "cnn4"}),
    "a family's networks, wider": (["models=plain,residual,depthwise,dense"], {"models": "light", "feature_dim": 512}),
    "data": (["dataset=spiral", "dataset.points=60"], {"dataset": Spiral(points=60)}),
    "fewer data": (["dataset.samples=100"], {"dataset": Fashion(samples=100)}),
    "a partition": (["partition=iid", "partition.seed=2"], {"partition": IID(seed=2)}),
    "the usual partition": (["partition.alpha=1"], {"partition": Dirichlet(alpha=1.0)}),
    "a schedule": (["lr_schedule=cosine"], {"lr_schedule": LrSchedule("cosine")}),
    "a second network": (["algorithm=fml", "auxiliary=dense"], {"algorithm": pn.FML(), "auxiliary": "dense"}),
    "a network's own starting value": (
        ["algorithm=fednh", "dataset=spiral"],
        {"algorithm": pn.FedNH(), "dataset": "spiral"},
    ),
    "switches": (["shuffle=false", "tested=yes"], {"shuffle": False}),
    "the usual start": (["start=own"], {}),
    "no value": (["clip=null", "early_stopping=3"], {"early_stopping": 3}),
}


def by_words(words):
    return pn.Experiment.of(read_settings(words))


@pytest.mark.parametrize(("words", "settings"), ALIKE.values(), ids=ALIKE)
def test_words_and_objects_give_one_key(words, settings):
    assert by_words(words).key == pn.Experiment(**settings).key


def test_networks_of_a_family_in_another_order_are_another_experiment():
    """Client i takes number i mod n: the order decides who has which network."""
    names = ["residual", "plain", "depthwise", "dense"]
    assert pn.Experiment(models=names, feature_dim=128).key != pn.Experiment().key


def test_networks_that_are_listed_keep_their_width():
    """A list has d = 512 whether or not a family is of the same networks; a command that is written down says so."""
    found = pn.Experiment(models=["plain", "residual", "depthwise", "dense"])
    assert (found.models, found.feature_dim) == ("light", 512)
    assert found.changed == {"feature_dim": 512}
    assert pn.Experiment(**found.changed).key == found.key


def test_a_comparison_and_a_run_give_one_key():
    words = ["dataset=spiral", "rounds=2"]
    found = experiments_of(["protonorm:gamma=50,schedule.eta=0.5", *words, "seeds=0,3"])
    inside = {"name": "protonorm", "gamma": 50, "schedule": {"eta": 0.5}}
    wanted = [pn.Experiment(algorithm=inside, dataset="spiral", seed=seed).key for seed in (0, 3)]
    assert [one.key for one in next(iter(found.values()))] == wanted
    assert [one.key for one in found["local"]] == [
        by_words(["algorithm=local", *words, f"seed={s}"]).key for s in (0, 3)
    ]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file of one's own, that can be imported as own_net."""
    path = tmp_path / "place" / "own_net.py"
    path.parent.mkdir()
    path.write_text(OWN)
    monkeypatch.syspath_prepend(path.parent)
    yield path
    for name in ("own_net", "protonorm_own_own_net"):
        sys.modules.pop(name, None)


def test_own_networks_and_methods_give_one_key(own, monkeypatch):
    """As a word, as a list of words, as an imported function, by a relative path, and from the script itself."""
    import own_net

    words = by_words(["dataset=spiral", f"models={own}:small", f"algorithm={own}:Mine", "algorithm.nu=2"])
    objects = {"dataset": "spiral", "models": own_net.small, "algorithm": own_net.Mine(nu=2)}
    assert pn.Experiment(**objects).key == words.key
    assert pn.Experiment(**objects | {"models": [f"{own}:small"]}).key == words.key
    assert pn.Experiment(**objects | {"algorithm": own_net.Mine(nu=2.0)}).key == words.key
    assert pn.Experiment(**objects | {"algorithm": own_net.Mine(nu=3)}).key != words.key
    monkeypatch.chdir(own.parent)
    sys.modules.pop("protonorm_own_own_net")
    near = by_words(["dataset=spiral", "models=[own_net.py:small]", "algorithm=own_net.py:Mine", "algorithm.nu=2"])
    assert near.key == words.key
    script = subprocess.run([sys.executable, own], capture_output=True, text=True, check=True)
    assert script.stdout.strip() == words.key


def test_what_a_record_says_of_own_code_can_be_typed(own):
    import own_net

    found = pn.Experiment(dataset="spiral", models=own_net.small, algorithm=own_net.Mine())
    assert found.changed == {"algorithm": "own_net.py:Mine", "dataset": "spiral", "models": ["own_net.py:small"]}


def test_data_of_clients_give_one_key_from_any_place(tmp_path, monkeypatch):
    for client in ("berlin", "paris"):
        save(tmp_path / "three" / f"{client}.npz")
    words = by_words([f"dataset=clients:{tmp_path / 'three'}"])
    monkeypatch.chdir(tmp_path)
    assert by_words(["dataset=clients:three"]).key == words.key
    assert pn.Experiment(dataset={"name": "clients", "path": "three"}).key == words.key


def save(path, samples=8):
    path.parent.mkdir(exist_ok=True)
    images = np.arange(samples * 16, dtype=np.uint8).reshape(samples, 4, 4, 1)
    np.savez(path, images=images, labels=np.arange(samples) % 2)
