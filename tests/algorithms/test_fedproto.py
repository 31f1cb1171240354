import pytest
import torch

import protonorm as pn
from tests.algorithms.tasks import all_classes, federation, first_batch_loss, server, task_of
from tests.algorithms.tasks import vectors as reply


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
        one = federation(pn.FedProto(weighting=weighting))
        client, state, _ = one.started()
        said = one.method.local_update(client, state, {}).message
        assert set(said) == names
        one.task.schema.check_up(said, "It")
        if "counts" in said:
            assert int(said["counts"].sum()) == len(client.train)


def test_the_target_is_gamma_times_the_prototype_and_what_is_published_is_not():
    loss, ce, z, _ = first_batch_loss(pn.FedProto(lam=2.0, gamma=1.3), all_classes())
    assert loss == pytest.approx(ce + 2.0 * float(((z - 1.3 * 0.5) ** 2).mean()), rel=1e-5)
    step = pn.FedProto(gamma=1.3).aggregate(server(), {}, iter([reply([0], [[1.0, 2.0]])]))
    assert step.message["prototypes"].tolist() == [[1.0, 2.0]]


def test_prototypes_measured_during_training_are_running_means_of_its_batches():
    """With one batch of everything, the running mean is that of the untrained network in training mode."""
    method = pn.FedProto(measured="during")
    client, state, _ = federation(method, batch_size=4096).started()
    client.load(state).train()
    x, y = client.train.batch(torch.arange(len(client.train)))
    z = client.model.features(x).detach()
    said = method.local_update(client, state, {}).message
    for label, mean in zip(said["classes"], said["prototypes"], strict=True):
        torch.testing.assert_close(mean, z[y == label].mean(0))


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ([0], "holds counts from 0 to 0; expected whole numbers from 1 to 2147483647"),
        ([1, 1], r"holds counts of shape \(2,\)"),
        ([1.5], "holds counts as torch.float32"),
        (None, "lacks counts"),
    ],
)
def test_counts_that_make_no_sense_are_refused(counts, sentence):
    said = reply([0], [[1.0, 2.0]]) | ({} if counts is None else {"counts": torch.tensor(counts)})
    with pytest.raises(ValueError, match=f"It {sentence}"):
        task_of(pn.FedProto(weighting="samples")).schema.check_up(said, "It")
