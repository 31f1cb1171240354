import pytest
import torch

import protonorm as pn
from protonorm.setup import Setup
from tests.algorithms.test_protonorm import everything, first_batch_loss, reply, server
from tests.support import spiral


def test_two_clients_with_1_and_99_samples_meet_at_the_midpoint():
    """Unweighted (Eq. 7): (0, 0) and (1, 2) give (0.5, 1), whatever the numbers of samples."""
    replies = [reply([0], [[0.0, 0.0]]), reply([0], [[1.0, 2.0]])]
    assert pn.FedProto().aggregate(server(), {}, iter(replies)).message["prototypes"].tolist() == [[0.5, 1.0]]


def test_weighting_by_samples():
    """n = 1 and 99: 0.01·(0, 0) + 0.99·(1, 2) = (0.99, 1.98)."""
    replies = [
        reply([0], [[0.0, 0.0]]) | {"counts": torch.tensor([1])},
        reply([0], [[1.0, 2.0]]) | {"counts": torch.tensor([99])},
    ]
    found = pn.FedProto(weighting="samples").aggregate(server(), {}, iter(replies)).message["prototypes"]
    assert found.flatten().tolist() == pytest.approx([0.99, 1.98])


def test_counts_are_sent_only_if_weighted():
    for weighting, names in (("clients", {"classes", "prototypes"}), ("samples", {"classes", "prototypes", "counts"})):
        method = pn.FedProto(weighting=weighting)
        client = Setup(spiral(algorithm=method)).fresh_client(0)
        said = method.local_update(client, method.init_client(client), {}).message
        assert set(said) == names
        if "counts" in said:
            assert int(said["counts"].sum()) == len(client.train)


def test_the_target_is_gamma_times_the_prototype_and_what_is_published_is_not():
    loss, ce, z, _ = first_batch_loss(pn.FedProto(lam=2.0, gamma=1.3), everything())
    assert loss == pytest.approx(ce + 2.0 * float(((z - 1.3 * 0.5) ** 2).mean()), rel=1e-5)
    step = pn.FedProto(gamma=1.3).aggregate(server(), {}, iter([reply([0], [[1.0, 2.0]])]))
    assert step.message["prototypes"].tolist() == [[1.0, 2.0]]


def test_prototypes_measured_during_training_are_running_means_of_its_batches():
    """With one batch of everything, the running mean is that of the untrained network in training mode."""
    method = pn.FedProto(measured="during")
    client = Setup(spiral(algorithm=method, batch_size=4096)).fresh_client(0)
    state = method.init_client(client)
    client.load(state).train()
    x, y = client.train.batch(torch.arange(len(client.train)))
    z = client.model.features(x).detach()
    said = method.local_update(client, state, {}).message
    for label, mean in zip(said["classes"], said["prototypes"], strict=True):
        torch.testing.assert_close(mean, z[y == label].mean(0))
