import pytest
import torch

import protonorm as pn
from protonorm.setup import Setup
from tests.algorithms.test_protonorm import server
from tests.support import pictures, run, spiral


def test_models_are_averaged_by_numbers_of_samples():
    """(1·0 + 3·4)/4 = 3."""
    replies = [
        {"model.w": torch.tensor([0.0]), "num_examples": torch.tensor(1)},
        {"model.w": torch.tensor([4.0]), "num_examples": torch.tensor(3)},
    ]
    step = pn.FedAvg().aggregate(server(), {}, iter(replies))
    assert {name: value.tolist() for name, value in step.message.items()} == {"model.w": [3.0]}


def test_one_client_alone_gets_its_own_model_back():
    """The average of one model is that model, bit for bit."""
    method = pn.FedAvg()
    setup = Setup(spiral(algorithm=method, clients=1))
    begun = method.init_server(setup.server(0))
    step = method.local_update(setup.fresh_client(0), method.init_client(setup.fresh_client(0)), begun.message)
    joined = method.aggregate(server(), begun.state, iter([step.message])).message
    assert all(torch.equal(joined[name], step.state[name]) for name in joined)


def test_a_client_starts_from_what_it_received():
    method = pn.FedAvg()
    setup = Setup(spiral(algorithm=method, lr=1e-30))
    message = method.init_server(setup.server(0)).message
    client = setup.fresh_client(0)
    step = method.local_update(client, method.init_client(client), message)
    assert all(torch.allclose(step.state[name], message[name]) for name in message)


def test_batch_norm_statistics_stay_at_home_if_asked():
    data = pictures([0, 1] * 20, 2)
    for buffers, wanted in (("averaged", True), ("local", False)):
        method = pn.FedAvg(buffers=buffers)
        setup = Setup(pn.Experiment(algorithm=method, dataset=data, models="plain", clients=2, feature_dim=4))
        said = method.init_server(setup.server(0)).message
        assert any("running_mean" in name for name in said) is wanted
        assert not any("num_batches_tracked" in name for name in said)


def test_both_the_received_and_the_trained_model_are_evaluated(tmp_path):
    history = run(spiral(algorithm="fedavg"), out=tmp_path).history
    assert set(history[0]["rules"]) == {"received", "logits"}
    assert history[0]["rules"]["received"] is not None  # the server's first model is there to be tested


def test_different_networks_are_refused_with_a_sentence():
    with pytest.raises(ValueError, match="FedAvg averages whole models"):
        pn.Experiment.of({"algorithm": "fedavg", "models": "light"})
