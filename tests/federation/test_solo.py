"""The solo control: each client federates with itself alone, and everything else is equal."""

import pytest
import torch

import protonorm as pn
from protonorm.algorithms import ALGORITHMS
from tests.support import contents, run, run_folder, spiral


@pytest.mark.parametrize("method", sorted(ALGORITHMS))
def test_a_solo_run_of_every_method_is_the_same_on_every_engine(tmp_path, method):
    experiment = spiral(algorithm=method, control="solo")
    result = run(experiment, tmp_path / "serial")
    run(experiment, tmp_path / "processes", engine="processes", workers=2)
    assert contents(run_folder(experiment, tmp_path / "serial")) == contents(
        run_folder(experiment, tmp_path / "processes")
    )
    assert all(record.bytes.up == record.bytes.down == 0 for record in result.history)


@pytest.mark.parametrize("method", ["protonorm", "fedtgp", "fedavg", "fedgen", "fedkd"])
def test_alone_a_client_is_what_it_would_be_in_a_federation_of_one(tmp_path, method):
    """Of six clients in a solo run, client 0 equals the only client of a federation with the same samples."""
    solo = run(spiral(algorithm=method, control="solo"), tmp_path)
    population = solo.population
    share = [population.parts[0].train.tolist() + population.parts[0].test.tolist()]
    whole = population.dataset
    keep = sorted(share[0])
    data = pn.Dataset("one", whole.inputs[keep], whole.labels[keep], whole.classes)

    class One:
        seed = 1

        def assign(self, labels, clients):
            import numpy as np

            return [np.arange(len(labels))]

        def description(self):
            return {"name": "one"}

    alone = spiral(algorithm=method, dataset=data, partition=One(), clients=1, models="mlp", feature_dim=2)
    single = run(alone, tmp_path)
    mine = {tuple(row) for row in single.population.site(0).client(1).train.batch(torch.arange(3))[0].tolist()}
    theirs = {tuple(row) for row in population.site(0).client(1).train.batch(torch.arange(3))[0].tolist()}
    assert mine == theirs  # the same samples in the same order
    if method != "protonorm":  # its γ depends on the data set's name
        first, second = solo.trained("last")[0].state, single.trained("last")[0].state
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_fedavg_alone_is_local_begun_from_the_servers_first_model(tmp_path):
    solo = run(spiral(algorithm="fedavg", control="solo"), tmp_path)
    local = run(spiral(algorithm={"name": "local", "initial": "server"}), tmp_path)
    for id in range(6):
        mine, other = solo.trained("last")[id].state, local.trained("last")[id].state
        for name, value in mine.items():
            torch.testing.assert_close(value, other[name], rtol=1e-6, atol=1e-6)
    assert local.history[-1].rules["logits"] == solo.history[-1].rules["logits"]
    plain = run(spiral(algorithm="local"), tmp_path)
    assert not torch.equal(
        plain.trained("last")[0].state["model.head.weight"], local.trained("last")[0].state["model.head.weight"]
    )


def test_one_model_for_all_needs_one_kind_of_network():
    with pytest.raises(ValueError, match="all clients need the same network"):
        pn.Experiment(algorithm=pn.Local(initial="server"), models="light")
    assert pn.Experiment(algorithm=pn.Local(initial="server"), models="plain").models == ("plain",)


def test_a_solo_run_resumes(tmp_path):
    experiment = spiral(algorithm="fedtgp", control="solo", rounds=4)
    run(experiment, tmp_path / "whole")

    def stop(round):
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(experiment, tmp_path / "broken", watch=stop)
    run(experiment, tmp_path / "broken")
    assert contents(run_folder(experiment, tmp_path / "broken")) == contents(run_folder(experiment, tmp_path / "whole"))
