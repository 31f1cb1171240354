"""A client's own data and network: the same client as in a simulation, and refusals of what does not fit."""

import re
import stat

import numpy as np
import pytest

from protonorm.core import Order
from protonorm.core.training import Training
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.site import make_site, open_store
from protonorm.federation.client import evaluate_step, first_state, train_step
from protonorm.federation.rounds import Policy, begin
from protonorm.session.build import build
from tests.contract.playing import same
from tests.deployment.sites import NAMES, agreement_of, simulated, write_clients

TRAINING = Training(validation=0.1, lr=0.05, batch_size=4)
CLASSES = ["class 0", "class 1", "class 2"]


def agreed(**change):
    return Agreement.of(
        {"algorithm": "fedproto", "classes": CLASSES, "feature_dim": 8, "rounds": 3, "seed": 0} | change
    )


@pytest.mark.parametrize("algorithm", ["protonorm", "fedkd", "fedavg"])
def test_it_is_the_client_of_the_simulation(tmp_path, algorithm):
    """From nothing but its own file and the agreement; networks are own ones, shared, or own with a shared second."""
    folder = write_clients(tmp_path / "own")
    experiment = simulated(folder, algorithm=algorithm, models="plain" if algorithm == "fedavg" else "light")
    task, population = build(experiment)
    terms = agreement_of(task)
    said = begin(task, Policy(3, 3)).message
    for id, name in enumerate(NAMES):
        model = population.recipe(id).name
        site = make_site(terms, id, f"npz:{folder / name}.npz", model, TRAINING, name=name)
        there, here = population.site(id), site.site(id)
        first = first_state(task, there)
        assert same(first, first_state(terms.task, here))
        state, reply = train_step(task, there, Order(id, 1, 0), first, said)
        state_here, reply_here = train_step(terms.task, here, Order(id, 1, 0), first, said)
        assert same(state, state_here)
        assert same(reply.message, reply_here.message)
        order, parts = Order(id, 1, 1), ("validation", "test")
        counts = evaluate_step(task, there, order, state, said, parts).counts
        assert same(counts, evaluate_step(terms.task, here, order, state, said, parts).counts)
        assert (population.facts().train[id] == site.facts().train[0]).all()
        assert (population.facts().test[id] == site.facts().test[0]).all()


def test_classes_are_numbered_by_the_agreement(tmp_path):
    """The data know dog = 0 and ant = 1; by the agreement ant is 0 and dog 2."""
    rows = "\n".join(f"{x},{x * x},{('dog', 'ant')[x % 2]}" for x in range(20))
    (tmp_path / "own.csv").write_text(f"x,y,label\n{rows}\n")
    site = make_site(agreed(classes=["ant", "bee", "dog"]), 0, f"table:{tmp_path}/own.csv")
    facts = site.facts()
    assert (facts.train + facts.validation + facts.test).tolist() == [[10, 0, 10]]
    client = site.client(1)
    assert (client.num_classes, client.feature_dim, client.batch_size) == (3, 8, 32)


def test_a_split_of_its_own_is_kept(tmp_path):
    """Pictures 0 to 5 train and 6 to 9 test."""
    images = np.arange(10, dtype=np.uint8)[:, None, None, None].repeat(16, 1).repeat(16, 2)
    split = np.array([0] * 6 + [1] * 4, np.uint8)
    np.savez(tmp_path / "own.npz", images=images, labels=np.arange(10) % 3, split=split, classes=np.array(CLASSES))
    site = make_site(agreed(), 0, f"npz:{tmp_path}/own.npz", training=Training())
    assert sorted(site.parts[0].train) == list(range(6))
    assert sorted(site.parts[0].test) == list(range(6, 10))


@pytest.mark.parametrize(
    ("terms", "options", "said"),
    [
        ({"classes": ["class 0", "class 1", "other"]}, {}, "a class that the agreement does not have: class 2."),
        ({}, {"model": "light"}, "as a client has one"),
        ({}, {"model": "nosuch"}, "Unknown network"),
        ({}, {"training": Training(device="tpu")}, "device must be cpu, cuda or cuda:1, got 'tpu'"),
        (
            {"shared_network": "plain", "input": {"shape": [16, 16, 3], "type": "uint8"}},
            {},
            "must have samples of shape (16, 16, 3) and type uint8 by the agreement, got (16, 16, 1)",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(tmp_path, terms, options, said):
    folder = write_clients(tmp_path)
    with pytest.raises(ValueError, match=re.escape(said)):
        make_site(agreed(**terms), 0, f"npz:{folder}/berlin.npz", **options)


def test_the_agreement_s_network_is_everybody_s(tmp_path):
    folder = write_clients(tmp_path)
    terms = agreed(algorithm="fedavg", shared_network="plain", input={"shape": [16, 16, 1], "type": "uint8"})
    assert make_site(terms, 0, f"npz:{folder}/berlin.npz").networks[0].name == "plain"
    with pytest.raises(ValueError, match="All clients have the network"):
        make_site(terms, 0, f"npz:{folder}/berlin.npz", "dense")


def test_a_network_of_another_width_is_refused(tmp_path):
    folder = write_clients(tmp_path / "own")
    (tmp_path / "mine.py").write_text(
        "import protonorm as pn\nfrom torch import nn\n"
        "def net(shape, feature_dim, num_classes):\n"
        "    features = nn.Sequential(nn.Flatten(), nn.Linear(256, 5))\n"
        "    return pn.SplitModel(features, nn.Linear(5, num_classes))\n"
    )
    with pytest.raises(ValueError, match=re.escape("gives features (2, 5)")):
        make_site(agreed(), 0, f"npz:{folder}/berlin.npz", f"{tmp_path}/mine.py:net")


def test_states_rest_in_a_private_folder_of_the_agreement(tmp_path):
    one, two = open_store(tmp_path / "states", agreed()), open_store(tmp_path / "states", agreed(rounds=9))
    assert one.folder != two.folder
    assert stat.S_IMODE(one.folder.stat().st_mode) == 0o700
    assert one.key == agreed().digest
