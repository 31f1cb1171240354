import math

import pytest
import torch

from protonorm.algorithms.fedsaf import FedSAF, rotate_to
from protonorm.algorithms.parts.prototypes import class_means
from protonorm.geometry.losses import structural_loss
from tests.algorithms.tasks import federation, first_batch_loss, server, task_of
from tests.algorithms.tasks import vectors as reply
from tests.support import pictures, run, spiral

TRIANGLE = [[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(0.75)]]
LINE = [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]


def test_both_structures_of_a_batch():
    """Three classes with a sample each at the corners of a triangle, prototypes on a line: 1 − 1/√2 for classes and,
    being the same points, for the samples.

    With ‖G_X‖ = √½, ‖G_Y‖ = 2 and G_X·X = ½X for centred X, the gradient −2(G_Y/(‖G_X‖·‖G_Y‖) − √½·G_X/‖G_X‖²)X is
    √2·(X − G_Y·X). G_Y·X has the rows x_1 − x_3, 0, x_3 − x_1: √2·(x_3, x_2, x_1), x being (∓½, −√3/6) and (0, √3/3).
    """
    z, known = torch.tensor(TRIANGLE, requires_grad=True), torch.ones(3, dtype=torch.bool)
    found = FedSAF().structure(z, torch.arange(3), torch.tensor(LINE), known)
    assert [one.item() for one in found] == pytest.approx([1 - math.sqrt(0.5)] * 2, abs=1e-6)
    wanted = torch.tensor([[0.0, 0.8165], [0.7071, -0.4082], [-0.7071, -0.4082]])
    for one in found:
        torch.testing.assert_close(torch.autograd.grad(one, z)[0], wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("compared", ["cka", "distances"])
def test_structures_are_compared_in_float32_also_where_networks_are_not(compared):
    z, method = torch.arange(12.0).reshape(6, 2).sin(), FedSAF(compared=compared)
    batch = z, torch.tensor([0, 1, 2, 2, 1, 0]), torch.tensor(TRIANGLE), torch.ones(3, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        found = method.structure(*batch)
    torch.testing.assert_close(found, method.structure(*batch), atol=1e-5, rtol=0)


def test_classes_are_compared_by_their_means_and_samples_one_by_one():
    """Two samples (±1, 1) about class 0's mean (0, 1), one of class 1 and one of class 2 in a row: the means lie as the
    prototypes do, the samples do not."""
    z, y = torch.tensor([[-1.0, 1.0], [1.0, 1.0], [0.0, 2.0], [0.0, 3.0]]), torch.tensor([0, 0, 1, 2])
    classes, samples = FedSAF(compared="distances").structure(z, y, torch.tensor(LINE), torch.ones(3, dtype=torch.bool))
    assert classes.item() == pytest.approx(0.0, abs=1e-6)
    wanted = structural_loss(z, torch.tensor(LINE)[y], torch.ones(4, dtype=torch.bool), "distances").item()
    assert samples.item() == pytest.approx(wanted, abs=1e-6)
    assert wanted > 0.05


def test_what_is_not_known_has_no_say_among_classes_and_stays_among_samples():
    known = torch.tensor([True, True, True, False])
    prototypes = torch.cat([torch.tensor(LINE), torch.zeros(1, 2)])
    z = torch.tensor([*TRIANGLE, [3.0, 3.0]], requires_grad=True)
    classes, samples = FedSAF().structure(z, torch.arange(4), prototypes, known)
    assert classes.item() == pytest.approx(1 - math.sqrt(0.5), abs=1e-6)
    again = z.detach().clone().requires_grad_()
    kept = torch.cat([prototypes[:3], z[3:].detach()])  # it does not move with the sample
    wanted = structural_loss(again, kept, torch.ones(4, dtype=torch.bool), "cka")
    assert samples.item() == pytest.approx(wanted.item(), abs=1e-6)
    samples.backward()
    wanted.backward()
    torch.testing.assert_close(z.grad, again.grad)


def test_the_clients_loss_has_three_parts():
    message = {"classes": torch.arange(6), "prototypes": torch.arange(12.0).reshape(6, 2).sin()}
    method = FedSAF(lam=2.0, gamma=0.5)
    loss, ce, z, y = first_batch_loss(method, message)
    classes, samples = method.structure(z, y, message["prototypes"], torch.ones(6, dtype=torch.bool))
    assert loss == pytest.approx(ce + 2 * float(classes) + 0.5 * float(samples), rel=1e-5)
    assert min(float(classes), float(samples)) > 0.01


def test_without_any_prototype_the_loss_is_cross_entropy():
    loss, ce, *_ = first_batch_loss(FedSAF(), {})
    assert loss == pytest.approx(ce, rel=1e-5)


def test_prototypes_are_averaged_as_by_fedproto():
    replies = [reply([0, 1], [[1.0, 0.0], [0.0, 1.0]]), reply([0], [[3.0, 2.0]])]
    step = FedSAF().aggregate(server(), reply([2], [[9.0, 9.0]]), iter(replies))
    assert step.message["prototypes"].tolist() == [[2.0, 1.0], [0.0, 1.0], [9.0, 9.0]]


def test_a_turned_client_lies_on_the_average():
    """The average has (1, 0), (−1, 0), (0, 1), (0, −1), mean 0; a client has them turned by a quarter and moved by
    (5, 5): after centring and turning back they are the average's."""
    last = reply([0, 1, 2, 3], [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    sent = reply([0, 1, 2, 3], [[5.0, 6.0], [5.0, 4.0], [4.0, 5.0], [6.0, 5.0]])
    found = rotate_to(last, sent, server(classes=5))
    torch.testing.assert_close(found["prototypes"], last["prototypes"], atol=1e-5, rtol=0)


def test_both_are_centred_over_all_classes_of_the_average():
    """Average (3, 0), (0, 0), (0, 3), mean (1, 1): centred (2, −1), (−1, −1). Sent (6, 9), (6, 3), the third filled
    with (0, 3): mean (4, 5), centred (2, 4), (2, −2), twice those turned by a quarter. Back: 2(2, −1) + (1, 1) and
    2(−1, −1) + (1, 1)."""
    last = reply([0, 1, 2], [[3.0, 0.0], [0.0, 0.0], [0.0, 3.0]])
    found = rotate_to(last, reply([0, 1], [[6.0, 9.0], [6.0, 3.0]]), server(classes=4))["prototypes"]
    torch.testing.assert_close(found, torch.tensor([[5.0, -1.0], [-1.0, -1.0]]), atol=1e-5, rtol=0)


def test_a_single_class_is_moved_and_what_the_average_lacks_stays_as_it_was_sent():
    """Average (1, 0), (−1, 0), mean 0. Sent (3, 3), class 0 filled with (1, 0): mean (2, 1.5), and (1, 1.5) is left."""
    last = reply([0, 1], [[1.0, 0.0], [-1.0, 0.0]])
    sent = reply([1, 4], [[3.0, 3.0], [7.0, 8.0]])
    assert rotate_to(last, sent, server(classes=5))["prototypes"].tolist() == [[1.0, 1.5], [7.0, 8.0]]
    new = reply([3, 4], [[3.0, 3.0], [7.0, 8.0]])
    assert torch.equal(rotate_to(last, new, server(classes=5))["prototypes"], new["prototypes"])


def test_with_rotation_the_average_moves_by_beta():
    """Sent: the average's own structure, twice as wide: turned it is (2, 0), (−2, 0); β = ¼: ¾·1 + ¼·2 = 1.25.

    Class 2 is new and taken as it is; class 3 was not sent and stays."""
    last = reply([0, 1, 3], [[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    sent = reply([0, 1, 2], [[0.0, 2.0], [0.0, -2.0], [4.0, 5.0]])
    step = FedSAF(rotation=True, beta=0.25).aggregate(server(classes=4), last, iter([sent]))
    assert step.message["classes"].tolist() == [0, 1, 2, 3]
    wanted = torch.tensor([[1.25, 0.0], [-1.25, 0.0], [4.0, 5.0], [0.0, 0.0]])
    torch.testing.assert_close(step.message["prototypes"], wanted, atol=1e-5, rtol=0)
    nobody = FedSAF(rotation=True).aggregate(server(classes=4), last, iter([]))
    torch.testing.assert_close(nobody.message, last)


def test_the_first_round_is_a_plain_mean_with_rotation_too():
    step = FedSAF(rotation=True).aggregate(server(), {}, iter([reply([0], [[3.0, 2.0]])]))
    assert step.message["prototypes"].tolist() == [[3.0, 2.0]]


def test_prototypes_are_those_of_the_trained_model_or_of_its_training():
    client, state, message = federation(FedSAF()).started()
    step = FedSAF().local_update(client, state, message)
    after = class_means(client, client.load(step.state))["prototypes"]
    assert torch.equal(step.message["prototypes"], after)
    during = FedSAF(measured="during").local_update(client, state, message)
    assert not torch.equal(during.message["prototypes"], after)


def test_prototypes_measured_during_training_are_running_means_of_its_batches():
    """With one batch of everything, the running mean is that of the untrained network in training mode."""
    method = FedSAF(measured="during")
    client, state, message = federation(method, batch_size=4096).started()
    client.load(state).train()
    x, y = client.train.batch(torch.arange(len(client.train)))
    z = client.model.features(x).detach()
    said = method.local_update(client, state, message).message
    for label, mean in zip(said["classes"], said["prototypes"], strict=True):
        torch.testing.assert_close(mean, z[y == label].mean(0))


def test_the_server_may_say_some_classes_or_nothing():
    schema = task_of(FedSAF()).schema
    schema.check_down({})
    schema.check_down(reply([1], [[0.0, 1.0]]))
    with pytest.raises(ValueError, match="lacks classes"):
        schema.check_down({"prototypes": torch.zeros(1, 2)})


def test_different_networks_on_pictures(tmp_path):
    settings = {"dataset": pictures([0, 1, 2] * 24, 3), "models": "light", "feature_dim": 4}
    last = run(spiral(algorithm=FedSAF(), **settings, clients=4, rounds=2), out=tmp_path).history[-1]
    assert last.rules["logits"] is not None
