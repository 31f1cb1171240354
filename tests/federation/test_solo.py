"""The solo control: each client federates with itself alone, and everything else is equal."""

import pytest
import torch

import protonorm as pn
from protonorm.algorithms import ALGORITHMS
from protonorm.core import Reply
from protonorm.core.task import ByClient
from protonorm.federation.server import Servers
from protonorm.runs.states import Checkpoint
from tests.algorithms.tasks import task_of
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
    data, parts = solo.population.dataset, solo.population.parts
    for id, client in enumerate(solo.trained("last")):  # each with what its own server said
        test = parts[id].test
        right = (client.predict(data.inputs[test], "received") == data.labels[test]).mean()
        assert right == solo.run.by_client(solo.history[-1], "received")[id]
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


def test_whoever_does_not_reply_keeps_the_server_of_its_own():
    """Three clients with servers of their own, of which client 1 alone replies with the prototype (5, 7) of class 2.

    Its server has that from now on; the others' states and messages stay as they were."""
    before = [{"classes": torch.tensor([id]), "prototypes": torch.full((1, 2), float(id))} for id in range(3)]
    point = Checkpoint(4, ByClient(enumerate(before)), ByClient(enumerate(before)), [4, 4, 4])
    servers = Servers(task_of(pn.FedProto()), point)
    said = {"classes": torch.tensor([2]), "prototypes": torch.tensor([[5.0, 7.0]])}
    servers.add(Reply(1, said, {}, 0.0))
    step = servers.conclude()
    for found in (step.state, step.message):
        assert sorted(found) == [0, 1, 2]
        assert found[0] is before[0]
        assert found[2] is before[2]
        assert found[1]["classes"].tolist() == [1, 2]
        assert found[1]["prototypes"].tolist() == [[1.0, 1.0], [5.0, 7.0]]
    assert [one["prototypes"].tolist() for one in point.message.values()] == [[[float(id)] * 2] for id in range(3)]
