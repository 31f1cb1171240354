import math

import pytest
import torch
from torch.nn.functional import normalize, one_hot

import protonorm as pn
from protonorm.algorithms.fedavg import FedUV, uniformity_loss, variance_loss
from tests.algorithms.tasks import federation, first_batch_loss, server
from tests.support import Given, count_floats, pictures, run


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_one_sample_of_each_class_told_for_certain_has_all_the_variance_asked_for(classes):
    """A column of the identity: mean 1/K, Σ(x − 1/K)² = 1 − 1/K, divided by K − 1 gives 1/K; so v = 1/√K, L_V = 0."""
    assert torch.eye(classes).std(dim=0).tolist() == pytest.approx([classes**-0.5] * classes)
    assert float(variance_loss(torch.eye(classes))) == pytest.approx(0.0, abs=1e-6)


def test_a_balanced_certain_batch_lacks_variance_only_by_the_factor_of_b_minus_one():
    """K = 4, B = 8: Σ(x − 1/4)² = 8·(1/4)(3/4) = 3/2 a column, std = √(3/14); L_V = 1/2 − √(3/14) ≈ 0.037."""
    p = one_hot(torch.arange(8) % 4).float()
    assert float(variance_loss(p)) == pytest.approx(0.5 - math.sqrt(3 / 14), rel=1e-5)


def test_more_variance_than_asked_for_is_not_rewarded():
    """K = 3, rows (1, 0, 0) and (0, 1, 0): std = 1/√2, 1/√2, 0 and v = 1/√3, so that L_V = (0 + 0 + 1/√3)/3."""
    assert float(variance_loss(torch.eye(3)[:2])) == pytest.approx(3**-0.5 / 3)


def test_equal_predictions_miss_all_the_variance():
    """All std are 0: L_V = 1/√K = 1/2, and its gradient is zero, not NaN."""
    p = torch.full((6, 4), 0.25, requires_grad=True)
    value = variance_loss(p)
    value.backward()
    assert value.item() == 0.5
    assert p.grad.tolist() == [[0.0] * 4] * 6


def test_two_points_are_always_equally_uniform():
    """σ is their own squared distance: L_U = 1/e wherever they are, so no gradient if it flows through σ."""
    z = torch.tensor([[0.0, 0.0], [2.0, 0.0]], requires_grad=True)
    value = uniformity_loss(z)
    value.backward()
    assert value.item() == pytest.approx(1 / math.e)
    torch.testing.assert_close(z.grad, torch.zeros(2, 2), atol=1e-7, rtol=0)


def test_a_detached_bandwidth_pushes_two_points_apart():
    """σ = 4 held fixed: ∂/∂z_1 exp(−‖z_1 − z_2‖²/4) = −(2/4)(z_1 − z_2)/e = (1/e, 0) for z_1 − z_2 = (−2, 0)."""
    z = torch.tensor([[0.0, 0.0], [2.0, 0.0]], requires_grad=True)
    uniformity_loss(z, detached=True).backward()
    torch.testing.assert_close(z.grad, torch.tensor([[1 / math.e, 0.0], [-1 / math.e, 0.0]]))


def test_three_points():
    """At 0, 1 and 3 the squared distances are 1, 9, 4; σ = 4: L_U = (e^(−1/4) + e^(−9/4) + e^(−1))/3."""
    wanted = (math.exp(-1 / 4) + math.exp(-9 / 4) + math.exp(-1)) / 3
    assert float(uniformity_loss(torch.tensor([[0.0], [1.0], [3.0]]))) == pytest.approx(wanted)


def test_equal_points_count_as_pairs_but_not_for_the_median():
    """At 0, 0, 0, 1: squares 0, 0, 0, 1, 1, 1, whose median would be 0; σ = 1: L_U = (3 + 3/e)/6."""
    z = torch.tensor([[0.0], [0.0], [0.0], [1.0]])
    assert float(uniformity_loss(z)) == pytest.approx((3 + 3 / math.e) / 6)


@pytest.mark.parametrize("rows", [2, 5])
@pytest.mark.parametrize("value", [0.0, 3.7, 1e-30])
def test_constant_features_give_one_and_no_gradient(rows, value):
    z = torch.full((rows, 3), value, requires_grad=True)
    found = uniformity_loss(z)
    found.backward()
    assert found.item() == 1.0
    assert z.grad.abs().sum() == 0


def test_features_nearer_than_can_be_divided_by_give_finite_gradients():
    z = torch.tensor([[0.0], [1e-20], [2e-20]], requires_grad=True)
    uniformity_loss(z).backward()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("detached", [True, False])
def test_features_of_fewer_bits_are_compared_in_float32(detached):
    """There are no distances of bfloat16 on a CPU. At 0, 1 and 3, as above; gradients come back in bfloat16."""
    z = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.bfloat16, requires_grad=True)
    value = uniformity_loss(z, detached)
    value.backward()
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx((math.exp(-1 / 4) + math.exp(-9 / 4) + math.exp(-1)) / 3)
    assert z.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("features", ["raw", "unit"])
def test_a_client_trains_in_bfloat16(features):
    """With networks under autocast; the loss is that of float32, to the two or three digits of bfloat16."""
    losses = []
    for precision in ("float32", "bfloat16"):
        method = FedUV(features=features)
        client, state, down = federation(method, precision=precision, batch_size=4096, lr=1e-12).started()
        losses.append(method.local_update(client, state, down).metrics["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=0.03)


def test_one_row_adds_nothing():
    assert float(variance_loss(torch.ones(1, 3))) == 0.0
    assert float(uniformity_loss(torch.ones(1, 3))) == 0.0


@pytest.mark.parametrize("features", ["raw", "unit"])
def test_the_loss_is_cross_entropy_plus_both_terms(features):
    """With both terms computed column by column and pair by pair."""
    method = FedUV(mu=3.0, lam=0.7, features=features)
    loss, ce, z, _ = first_batch_loss(method, {})
    p = federation(method).client().model.head(z).detach().softmax(1)
    variance = sum(max(0.0, 6**-0.5 - float(p[:, k].std())) for k in range(6)) / 6
    points = z if features == "raw" else normalize(z)
    squares = [float((a - b).square().sum()) for i, a in enumerate(points) for b in points[i + 1 :]]
    sigma = sorted(squares)[(len(squares) - 1) // 2]
    uniformity = sum(math.exp(-one / sigma) for one in squares) / len(squares)
    assert loss == pytest.approx(ce + 3.0 * variance + 0.7 * uniformity, rel=1e-4)


def test_without_both_terms_it_is_fedavg():
    client, said, _ = federation(pn.FedAvg()).started()
    steps = []
    for method in (FedUV(mu=0, lam=0), pn.FedAvg()):
        torch.manual_seed(0)
        steps.append(method.local_update(client, said, said))
    assert all(torch.equal(steps[0].message[name], value) for name, value in steps[1].message.items())


def test_models_are_averaged_by_numbers_of_samples():
    """(1·0 + 3·4)/4 = 3."""
    replies = [
        {"model.w": torch.tensor([0.0]), "num_examples": torch.tensor(1)},
        {"model.w": torch.tensor([4.0]), "num_examples": torch.tensor(3)},
    ]
    step = FedUV().aggregate(server(), {"model.w": torch.zeros(1)}, iter(replies))
    assert {name: value.tolist() for name, value in step.message.items()} == {"model.w": [3.0]}


def test_the_payload_is_the_whole_model_both_ways():
    """mlp 2 → 16 → 8 → 4 → 2 → 6: 48 + 136 + 36 + 10 weights and biases, and 12 of the head."""
    client, state, down = federation(FedUV()).started()
    up = FedUV().local_update(client, state, down).message
    assert count_floats(down) == count_floats(up) == 48 + 136 + 36 + 10 + 12


@pytest.mark.parametrize("buffers", ["averaged", "local"])
def test_pictures(tmp_path, buffers):
    """Also a client with one sample, whose batch is that sample twice."""
    data = pictures([0, 1, 2] * 20 + [0, 0], 3)
    shares = Given([list(range(30)), list(range(30, 60)), [60, 61]])
    experiment = pn.Experiment(
        algorithm=FedUV(buffers=buffers),
        dataset=data,
        models="plain",
        feature_dim=8,
        clients=3,
        rounds=3,
        batch_size=8,
        partition=shares,
        train=0.5,
    )
    last = run(experiment, out=tmp_path).history[-1]
    assert math.isfinite(last.loss)
    assert last.rules["received"] is not None
