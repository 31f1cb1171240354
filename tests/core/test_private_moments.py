"""Privacy of second moments that are released once: sensitivity by brute force, and an attack on adjacent data sets."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from protonorm.algorithms.analytic import AFL, Choir, FedCGS, tag
from protonorm.algorithms.parts.statistics import denoised, gaussian, square, triangle
from protonorm.core import noise
from protonorm.core.noise import STEPS, discrete_gaussian, epsilon_of
from protonorm.core.privacy import CONSTANT, Gaussian, exact_moments, moments_change
from protonorm.core.training import Training
from protonorm.session.build import build
from tests.algorithms.test_analytic import TRUNKS, K, client, own_points, several, task_of
from tests.support import run, spiral


def protected(one, step):
    return replace(one, training=Training(protect=step))


def drawn_widths(monkeypatch):
    """Replace noise by zeros, and record its widths."""
    widths = []
    monkeypatch.setattr(
        "protonorm.core.privacy.discrete_gaussian", lambda *a: widths.append(a[0]) or np.zeros(a[1], int)
    )
    return widths


def released(step, one, method):
    return step.noisy_moments(task_of(method), one)


def exactly(sent, method, trunk):
    """Return what was released before it was scaled: triangle of G and R, 1 for the norm of a sample."""
    size, (rows, columns) = method.size(trunk), torch.triu_indices(method.size(trunk), method.size(trunk))
    scale = torch.ones(size, dtype=torch.float64)
    scale[-1] = CONSTANT
    gram = sent[f"gram.{tag(trunk)}"].double() * scale[rows] * scale[columns]
    return gram, sent[f"moments.{tag(trunk)}"].double() * scale.unsqueeze(1), rows == columns


@pytest.mark.parametrize("method", [AFL(), FedCGS(), Choir(), Choir(public=False, projection=2)], ids=str)
def test_one_sample_less_changes_what_is_released_by_at_most_what_the_noise_covers(monkeypatch, method):
    """Brute force over every sample: Σ (change/width)² ≤ 1/σ² over all numbers, which zCDP needs; it is reached.

    Among the samples are multiples of unit vectors, whose squares are all on the diagonal, and one that is zero.
    """
    sigma, widths = 3.0, drawn_widths(monkeypatch)
    one = client(0, [0, 1, 2, 3, 1, 0, 2], method, TRUNKS[1] if method == Choir() else TRUNKS[0])
    one.train.inputs[0], one.train.inputs[1] = 0, torch.eye(one.train.inputs.shape[1])[2]
    step, changes = Gaussian(noise=sigma), []
    whole = released(step, one, method)
    trunks = [trunk for trunk in TRUNKS if f"gram.{tag(trunk)}" in whole]
    limits = [widths[3 * place : 3 * place + 3] for place in range(len(trunks))]
    for left in range(7):
        kept = torch.arange(7) != left
        part = type(one.train)(one.train.inputs[kept], one.train.labels[kept], torch.arange(6))
        less, total = released(step, replace(one, train=part), method), 0.0
        for trunk, (wide, narrow, moments) in zip(trunks, limits, strict=True):
            (g, r, diagonal), (h, s, _) = exactly(whole, method, trunk), exactly(less, method, trunk)
            width = torch.where(diagonal, wide, narrow) / STEPS**2
            total += float(((g - h) / width).square().sum() + ((r - s) * STEPS / moments).square().sum())
        changes.append(total * sigma**2)
    assert max(changes) <= 1 + 1e-5
    assert max(changes) > 0.999
    assert changes[0] < 0.3  # the zero


def test_the_bound_is_that_of_the_formula():
    """κ = 1/2: (1 + 1/4)² + 1 + 1/4 = 2.8125; with the constant 1 it were 6, and without a constant 2."""
    assert moments_change() ** 2 == pytest.approx(2.8125)


def test_sums_are_exact_integers():
    """u = (0.6, 0.8) of class 1 and (−1, 0) of class 0; κ·STEPS is 32768."""
    gram, moments = exact_moments(torch.tensor([[3.0, 4.0], [-2.0, 0.0]]), torch.tensor([[0, 1], [1, 0]]))
    u, v = math.floor(0.6 * STEPS), math.floor(0.8 * STEPS)
    assert gram.tolist() == [
        [u * u + STEPS**2, u * v, (u - STEPS) * STEPS // 2],
        [u * v, v * v, v * STEPS // 2],
        [(u - STEPS) * STEPS // 2, v * STEPS // 2, STEPS**2 // 2],
    ]
    assert moments.tolist() == [[-STEPS, u], [0, v], [STEPS // 2, STEPS // 2]]


def test_without_noise_the_statistics_are_those_of_the_method(monkeypatch):
    drawn_widths(monkeypatch)
    method, one = AFL(), client(0, [0, 1, 2, 3, 1], AFL())
    sent = released(Gaussian(noise=1.0), one, method)
    x, y = own_points(one)
    name = tag(TRUNKS[0])
    torch.testing.assert_close(sent[f"gram.{name}"], triangle(x.T @ x).float(), rtol=0, atol=1e-3)
    torch.testing.assert_close(sent[f"moments.{name}"], (x.T @ y).float(), rtol=0, atol=1e-3)


def test_the_told_variance_is_that_of_the_released_numbers():
    """3,000 clients without a sample that matters: off-diagonal entries have the variance that the message tells.

    Rows of R have twice that, and the last one HALF² times as much. 5 standard errors, √(2/n).
    """
    method, one = AFL(), client(0, [0], AFL())
    one.train.inputs.zero_()
    step, several = Gaussian(noise=2.0), []
    several = [released(step, one, method) for _ in range(300)]
    name = tag(TRUNKS[0])
    variance = float(several[0][f"noise.{name}"])
    size = method.size(TRUNKS[0])
    grams = torch.stack([square(each[f"gram.{name}"], size) for each in several])
    moments = torch.stack([each[f"moments.{name}"].double() for each in several])
    assert variance == pytest.approx((2 * moments_change()) ** 2 / 2, rel=1e-3)
    for numbers, times in (
        (torch.cat([grams[:, i, i + 1 : -1].flatten() for i in range(4)]), 1),
        (torch.cat([grams[:, i, i] for i in range(5)]), 2),
        (grams[:, :-1, -1].flatten(), 4),
        (moments[:, :-1].flatten(), 2),
        (moments[:, -1, 1:].flatten(), 8),
    ):
        assert float(numbers.square().mean()) == pytest.approx(times * variance, rel=5 * math.sqrt(2 / len(numbers)))


def test_an_attack_on_adjacent_data_sets_stays_within_the_claim_and_exceeds_it_with_half_the_noise():
    """The best test, for a known sample: is it there once, or twice? Claimed: P(yes | twice) ≤ e^ε P(yes | once) + δ.

    The log likelihood ratio of continuous noise is normal with variance μ² = 1/σ² and means ±μ²/2; the attacker says
    yes above ε, which reaches δ exactly. 600 releases of each, 4 standard errors.
    """
    delta, trials, method = 0.1, 600, AFL()
    epsilon = epsilon_of(1.0, delta)
    margin = 4 * math.sqrt((1 + math.exp(2 * epsilon)) / (4 * trials))
    twice = client(0, [1, 1], method)
    twice.train.inputs[1] = twice.train.inputs[0]
    once = client(0, [1], method)
    once.train.inputs[0] = twice.train.inputs[0]
    name, change = tag(TRUNKS[0]), moments_change()

    def vector(one, sigma):
        """Released numbers over the standard deviation of their noise."""
        gram, moments, diagonal = exactly(released(Gaussian(noise=sigma), one, method), method, TRUNKS[0])
        wide = torch.where(diagonal, 1.0, math.sqrt(0.5)) * sigma * change
        return torch.cat([gram / wide, moments.flatten() / (sigma * change)]).double()

    for noise_used, holds in ((1.0, True), (0.5, False)):
        exact = []
        for one in (twice, once):
            gram, moments = exact_moments(own_points(one)[0][:, :-1], own_points(one)[1])
            rows, columns = torch.triu_indices(6, 6)
            width = torch.where(rows == columns, 1.0, math.sqrt(0.5)) * noise_used * change
            parts = gram[rows, columns] / STEPS**2 / width, moments.flatten() / STEPS / (noise_used * change)
            exact.append(torch.cat(parts).double())
        apart, middle = exact[0] - exact[1], (exact[0] + exact[1]) / 2
        yes = [
            sum(float((vector(one, noise_used) - middle) @ apart) > epsilon for _ in range(trials)) / trials
            for one in (twice, once)
        ]
        assert (yes[0] - math.exp(epsilon) * yes[1] <= delta + margin) == holds, (noise_used, yes)
    assert name in "".join(released(Gaussian(noise=1.0), once, method))


def test_decisions_are_those_of_unrounded_numbers(monkeypatch):
    """With a slack that leaves nothing to floats, the same bits decide alike; and close to the boundary both ways."""
    random = np.random.default_rng(0)
    gammas = random.exponential(2, 500)
    words = random.integers(0, 2**64, 500, np.uint64)
    monkeypatch.setattr(noise, "_words", lambda count: words[:count])
    found = noise._happens(gammas, lambda place: Fraction(gammas[place]))
    monkeypatch.setattr(noise, "SLACK", 2.0)
    assert (found == noise._happens(gammas, lambda place: Fraction(gammas[place]))).all()
    assert 0.2 < found.mean() < 0.5
    half = int(math.exp(-1) * 2**64)  # within the rounding of a double, 2¹¹
    assert noise._is_below(half - 2**13, Fraction(1))
    assert not noise._is_below(half + 2**13, Fraction(1))


def test_noise_of_a_width_beyond_its_range_is_refused():
    with pytest.raises(ValueError, match="must be from 1 to 2⁵⁰ steps"):
        discrete_gaussian(2**51, 1)


# ---- what server and clients make of it -----------------------------------------------------------------------------


def test_a_noisy_gram_matrix_is_solved_without_negative_eigenvalues_and_with_more_ridge():
    """Eigenvalues 3 and −1; noise of variance 4 on 2 × 2 gives λ = 2·2·√2."""
    gram = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    cleaned, _, lam = denoised(gram, gram, 0.1, 4.0)
    torch.testing.assert_close(cleaned, torch.full((2, 2), 1.5).double())
    assert lam == pytest.approx(4 * math.sqrt(2))
    assert denoised(gram, gram, 0.1, 0.0) == (gram, gram, 0.1)
    assert denoised(gram, gram, 50.0, 4.0)[2] == 50.0


def test_fedcgs_of_noise_alone_is_finite():
    generator = torch.Generator().manual_seed(0)
    gram = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    head = gaussian(gram + gram.T, torch.randn(6, K, generator=generator), 1e-3, "total", 1.0)
    assert head.isfinite().all()


@pytest.mark.parametrize("method", [AFL(), Choir()], ids=str)
def test_statistics_are_released_once_whatever_changes_later(method):
    step = Gaussian(noise=1.0)
    one = protected(client(0, [0, 1, 2, 0], method), step)
    first = method.local_update(one, method.init_client(one), {})
    assert first.message
    more = protected(client(0, [0, 1, 2, 0, 3, 3], method), step)
    later = method.local_update(replace(more, round=2), first.state, {})
    assert later.message == {}
    assert step.apply(task_of(method), more, later.message) == {}


def test_the_told_variances_are_summed_and_reach_the_solver(monkeypatch):
    seen = []
    monkeypatch.setattr(AFL, "head", lambda self, gram, moments, noise=0.0: seen.append(noise) or moments)
    method, step = AFL(), Gaussian(noise=1.0)
    task, clients = task_of(method), several(method)
    replies = [step.apply(task, one, method.local_update(one, {}, {}).message) for one in clients]
    for reply in replies:
        task.schema.check_up(reply, "It")
    result = method.aggregate(task.server(1), {}, iter(replies))
    task.schema.check_down(result.message)
    variance = float(replies[0][f"noise.{tag(TRUNKS[0])}"])
    assert seen == pytest.approx([2 * variance, variance])  # two clients have the first trunk, one the other


def test_all_classes_are_sent_and_accounted_for_once(tmp_path):
    """One release in two rounds: σ is that of one, and the loss is not told."""
    experiment = spiral(algorithm={"name": "choir", "public": False}, protect="gaussian", rounds=2)
    task, population = build(experiment)
    step = population.training.protect
    assert step.releases(task) == 1
    assert step.told(step.spends(task))["epsilon"] == pytest.approx(8.0)
    result = run(experiment, tmp_path)
    assert [one.metrics for one in result.history] == [{}, {}]
    assert result.history[0].bytes.up > 0
    assert result.history[1].bytes.up == 0


def test_settings_that_do_nothing_for_moments_are_refused():
    for more in ({"bounds": "message"}, {"clip": 2.0}):
        with pytest.raises(ValueError, match=r"protect\.bounds and protect\.clip must be left out for AFL"):
            build(spiral(algorithm="afl", protect={"name": "gaussian", **more}))
