"""Accounting of privacy against published numbers, noise against its claim, and an attack on adjacent data sets."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import protonorm as pn
from protonorm.core import Samples, SplitModel, seeded
from protonorm.core.noise import (
    STEPS,
    delta_of,
    discrete_gaussian,
    epsilon_of,
    epsilon_of_zcdp,
    noise_for,
    quantised,
    sigma_of,
)
from protonorm.core.privacy import Gaussian, is_fixed
from protonorm.session.build import build
from tests.support import run, spiral

DELTA = 1e-5
# noise multiplier, rounds; ε of dp-accounting 0.6.0 (PLD) and autodp's exact Gaussian; ε of opendp 0.16.0 (zCDP)
PUBLISHED = [(18.1, 20, 0.914479, 0.9994), (2.85, 20, 7.442997, 8.0056), (11.0, 300, 7.473905, 8.0385)]


@pytest.mark.parametrize(("sigma", "rounds", "exact", "zcdp"), PUBLISHED)
def test_the_accountant_agrees_with_published_numbers(sigma, rounds, exact, zcdp):
    assert epsilon_of(math.sqrt(rounds) / sigma, DELTA) == pytest.approx(exact, abs=1e-6)
    assert epsilon_of_zcdp(rounds / (2 * sigma**2), DELTA) == pytest.approx(zcdp, abs=1e-4)
    assert sigma_of(exact, DELTA, rounds) == pytest.approx(sigma, rel=1e-5)
    assert noise_for(epsilon_of_zcdp(rounds / (2 * sigma**2), DELTA), DELTA, rounds) == pytest.approx(sigma, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 8.0])
@pytest.mark.parametrize("rounds", [1, 20, 300])
def test_the_accountant_agrees_with_dp_accounting(epsilon, rounds):
    """As an oracle, protonorm[oracle]: exact for continuous noise; for discrete noise ours is no smaller."""
    gaussian = pytest.importorskip("dp_accounting.gaussian_mechanism", reason="needs pip install protonorm[oracle]")
    sigma = sigma_of(epsilon, DELTA, rounds)
    assert gaussian.get_epsilon_gaussian(sigma / math.sqrt(rounds), DELTA) == pytest.approx(epsilon, rel=1e-6)
    assert gaussian.get_sigma_gaussian(epsilon, DELTA) * math.sqrt(rounds) == pytest.approx(sigma, rel=1e-6)
    assert epsilon_of_zcdp(rounds / (2 * sigma**2), DELTA) >= epsilon


def test_releases_of_different_noise_compose_as_one_of_the_summed_inverse_variances():
    """3 releases of σ = 3 are one of σ = √3; at ε = 0, δ is the total variation 2Φ(μ/2) − 1, 0.3829 at μ = 1."""
    assert epsilon_of(math.sqrt(3 / 9), DELTA) == pytest.approx(epsilon_of(1 / math.sqrt(3), DELTA))
    assert delta_of(0.0, 1.0) == pytest.approx(0.382924922548)
    assert delta_of(700.0, 1.0) == 0.0  # far beyond the range of floats
    assert epsilon_of_zcdp(0.5, DELTA) > epsilon_of(1.0, DELTA)  # the bound is no smaller than the exact value


def test_noise_has_the_claimed_scale_and_shape():
    """Variance of 20,000 numbers within 5 standard errors (√(2/n)); frequencies of a narrow one within 5 as well."""
    numbers = torch.tensor(discrete_gaussian(3 * 2**20, 20_000)).double() / (3 * 2**20)
    assert float(numbers.square().mean()) == pytest.approx(1, abs=5 * math.sqrt(2 / 20_000))
    assert abs(float(numbers.mean())) < 5 / math.sqrt(20_000)
    narrow = torch.tensor(discrete_gaussian(1, 20_000))
    weights = {value: math.exp(-(value**2) / 2) for value in range(-8, 9)}
    for value in (-2, -1, 0, 1, 2):
        share = weights[value] / sum(weights.values())
        found = float((narrow == value).double().mean())
        assert found == pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / 20_000))


def test_noise_does_not_depend_on_any_seed():
    found = []
    for _ in range(2):
        with seeded(0, 1, 0):
            found.append(discrete_gaussian(2**20, 20).tolist())
    assert found[0] != found[1]


def test_rounded_vectors_keep_within_the_norm_exactly():
    """Vectors at and beyond the bound, and not finite; shorter ones are rounded towards zero."""
    x = torch.randn(500, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    x[0], x[1], x[2] = math.nan, math.inf, 1e300
    found = quantised(x, 0.7)
    assert int(found.square().sum(1).max()) <= STEPS**2
    assert quantised(torch.tensor([[0.25, -0.3]]).double(), 0.5).tolist() == [[2**15, -math.floor(0.6 * 2**16)]]
    assert quantised(torch.tensor([[3.0, 4.0]]).double(), 1.0).tolist() == [[math.floor(0.6 * 2**16), 52428]]


def client(x, y, classes=2):
    """Client whose features are its samples."""
    part = Samples(x, y, torch.arange(len(y)))
    model = SplitModel(nn.Identity(), nn.Linear(x.shape[1], classes))
    return pn.Client(0, 1, 1, model, None, part, part, part, num_classes=classes, feature_dim=x.shape[1])


TASK = pn.Task(pn.FedProto(), ("a", "b"), 3, rounds=4, seed=0)


def test_one_sample_less_changes_the_sums_by_at_most_the_bound():
    """Brute force: each of 40 samples is left out; most are clipped, so the bound is almost reached."""
    generator = torch.Generator().manual_seed(1)
    x, y = 2 * torch.randn(40, 3, generator=generator), torch.randint(2, (40,), generator=generator)
    step = Gaussian(clip=1.0)
    whole, changes = step._class_sums(client(x, y)), []
    for left in range(40):
        kept = torch.arange(40) != left
        changes.append(float((whole - step._class_sums(client(x[kept], y[kept]))).double().norm()))
    assert max(changes) <= STEPS
    assert max(changes) > 0.999 * STEPS


def test_all_rows_are_sent_and_an_absent_class_is_noise_alone():
    one = client(torch.ones(5000, 3), torch.zeros(5000, dtype=torch.int64))
    sent = Gaussian(noise=1.0).apply(TASK, one, {})
    assert sent["classes"].tolist() == [0, 1]
    assert sent["prototypes"].shape == (2, 3)
    assert sent["prototypes"][0].tolist() == pytest.approx([3**-0.5] * 3, abs=0.01)  # the direction, of length C
    assert 0 < float(sent["prototypes"][1].norm()) < 0.01


def test_a_whole_message_is_clipped_and_gets_noise_for_twice_its_norm(monkeypatch):
    """(3, 0, 0) and (0, 4, 0) have norm 5: clipped to 2 they are (1.2, 0, 0) and (0, 1.6, 0); the longest is scaled."""
    widths = []
    monkeypatch.setattr(
        "protonorm.core.privacy.discrete_gaussian", lambda *a: widths.append(a) or np.zeros(a[1], np.int64)
    )
    message = {"classes": torch.tensor([1, 0]), "prototypes": torch.tensor([[3.0, 0, 0], [0, 4.0, 0]])}
    one = client(torch.ones(1, 3), torch.zeros(1, dtype=torch.int64))
    sent = Gaussian(noise=3.0, clip=2.0, bounds="message").apply(TASK, one, message)
    assert widths == [(3 * 2 * STEPS, 6)]
    assert sent["prototypes"].flatten().tolist() == pytest.approx([0, 2, 0, 1.5, 0, 0], abs=1e-3)


def test_an_attack_on_adjacent_data_sets_stays_within_the_claim_and_exceeds_it_with_half_the_noise():
    """Claimed: P(with) ≤ e^ε P(without) + δ for every test; here δ = 0.1, and ε is exact for the claimed σ = 1.

    Each of 8,000 classes is a trial: it has one sample, of norm C, or two. The likelihood ratio of its noisy sum t is
    exp((2t − 3)/(2σ²)), so that the attacker who takes t > σ²ε + 3/2 for two samples reaches δ. 4 standard errors.
    """
    delta, trials = 0.1, 8_000
    epsilon = epsilon_of(1.0, delta)
    y, margin = torch.arange(trials), 4 * math.sqrt((1 + math.exp(2 * epsilon)) / (4 * trials))
    two, one = (client(torch.ones(n * trials, 1), y.repeat(n), trials) for n in (2, 1))
    for noise, holds in ((1.0, True), (0.5, False)):
        taken = [
            float(
                (Gaussian(noise=noise).noisy_sums(TASK, data, {}) > STEPS * (noise**2 * epsilon + 1.5)).double().mean()
            )
            for data in (two, one)
        ]
        assert (taken[0] - math.exp(epsilon) * taken[1] <= delta + margin) == holds, (noise, taken)


def test_networks_that_are_trained_or_keep_statistics_are_not_fixed():
    fixed = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).requires_grad_(False)
    assert is_fixed(fixed)
    assert not is_fixed(nn.Linear(2, 2))
    assert not is_fixed(nn.Sequential(nn.BatchNorm1d(2, affine=False)))


def test_a_claim_is_refused_where_it_would_not_hold():
    with pytest.raises(ValueError, match="needs features that are not trained.*or protect.bounds=message"):
        build(spiral(protect="gaussian"))
    for method, sent in (("fedavg", "model"), ("lgfedavg", "head"), ("local", "nothing"), ("feddistill", "logits")):
        models = "mlp_small" if method == "fedavg" else None
        with pytest.raises(
            ValueError,
            match=f"send prototypes or second moments alone.* send {sent}",
        ):
            build(spiral(algorithm=method, protect="gaussian", models=models))
    protect = {"name": "gaussian", "bounds": "message", "noise": 5.0, "epsilon": 2.0}
    with pytest.raises(ValueError, match=r"must cover all 3 messages of a client\. Another message would bring"):
        build(spiral(protect=protect | {"epsilon": 0.5}))
    assert build(spiral(protect=protect))


def test_without_a_number_the_noise_is_the_least_for_all_rounds():
    step = Gaussian(epsilon=3.0)
    assert epsilon_of_zcdp(4 * step.spends(TASK), DELTA) == pytest.approx(3.0)
    assert step.refusal(4 * step.spends(TASK)) == ""
    assert "its owner allows 3." in step.refusal(5 * step.spends(TASK))


def test_a_protected_simulation_tells_no_loss(tmp_path):
    protect = {"name": "gaussian", "bounds": "message", "noise": 5.0}
    result = run(spiral(algorithm="fedproto", rounds=2, protect=protect), tmp_path)
    assert [one.metrics for one in result.history] == [{}, {}]
    assert [one.floats.up for one in result.history] == [6 * 6 * 2] * 2  # all rows of all clients
