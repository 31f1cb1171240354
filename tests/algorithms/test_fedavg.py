import numpy as np
import pytest
import torch

import protonorm as pn
from tests.algorithms.tasks import federation, server
from tests.support import Given, pictures, run, spiral


def test_models_are_averaged_by_numbers_of_samples():
    """(1·0 + 3·4)/4 = 3."""
    replies = [
        {"model.w": torch.tensor([0.0]), "num_examples": torch.tensor(1)},
        {"model.w": torch.tensor([4.0]), "num_examples": torch.tensor(3)},
    ]
    step = pn.FedAvg().aggregate(server(), {}, iter(replies))
    assert {name: value.tolist() for name, value in step.message.items()} == {"model.w": [3.0]}


@pytest.mark.parametrize("method", [pn.FedAvg(), pn.FedUV()], ids=["fedavg", "feduv"])
def test_a_client_counts_by_the_samples_that_it_trained_on(method):
    """Of 8 and 24 samples, 3/4 are for training, 6 and 18, of which ⌈0.6⌉ = 1 and ⌈1.8⌉ = 2 validate: 5 and 16."""
    shares = Given([list(range(8)), list(range(8, 32))])
    data = pn.Dataset("line", np.arange(64, dtype=np.float32).reshape(32, 2), np.arange(32) % 2, ("even", "odd"))
    one = federation(method, dataset=data, partition=shares, clients=2, models="mlp", feature_dim=2)
    counts = [int(method.local_update(*one.started(id)).message["num_examples"]) for id in range(2)]
    assert counts == [5, 16]


def test_one_client_alone_gets_its_own_model_back():
    """The average of one model is that model, bit for bit."""
    method = pn.FedAvg()
    client, state, message = federation(method, clients=1).started()
    step = method.local_update(client, state, message)
    joined = method.aggregate(server(), message, iter([step.message])).message
    assert all(torch.equal(joined[name], step.state[name]) for name in joined)


def test_a_client_starts_from_what_it_received():
    method = pn.FedAvg()
    client, state, message = federation(method, lr=1e-30).started()
    step = method.local_update(client, state, message)
    assert all(torch.allclose(step.state[name], message[name]) for name in message)


def test_batch_norm_statistics_stay_at_home_if_asked():
    data = pictures([0, 1] * 20, 2)
    for buffers, wanted in (("averaged", True), ("local", False)):
        one = federation(pn.FedAvg(buffers=buffers), dataset=data, models="plain", clients=2, feature_dim=4)
        said = one.method.init_server(one.server()).message
        one.task.schema.check_down(said)
        assert any("running_mean" in name for name in said) is wanted
        assert not any("num_batches_tracked" in name for name in said)


def test_both_the_received_and_the_trained_model_are_evaluated(tmp_path):
    history = run(spiral(algorithm="fedavg"), out=tmp_path).history
    assert set(history[0].rules) == {"joint", "logits", "received"}
    assert history[0].rules["received"] is not None


def test_different_networks_are_refused_with_a_sentence():
    with pytest.raises(ValueError, match="FedAvg averages whole models"):
        pn.Experiment.of({"algorithm": "fedavg", "models": "light"})
