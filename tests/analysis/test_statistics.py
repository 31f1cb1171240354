import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from protonorm.analysis import statistics
from protonorm.analysis.statistics import (
    Interval,
    bootstrap_interval,
    bootstrap_means,
    holm,
    mean_interval,
    sign_flip,
    verdict,
)


def noise(seed, *shape, mean=0.01, spread=0.03):
    return np.random.default_rng(seed).normal(mean, spread, shape)


def test_the_interval_of_a_mean_by_hand():
    """1, 2, 3 have the mean 2 and the deviation 1; t(0.975, 2 d.f.) = 4.302653, and 4.302653 / √3 = 2.484138."""
    found = mean_interval([1.0, 2.0, 3.0])
    assert found == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)
    assert found.half == pytest.approx(2.484138, abs=1e-6)


@pytest.mark.parametrize("runs", [2, 5, 40])
def test_the_interval_of_a_mean_is_scipys(runs):
    values = noise(runs, runs)
    assert mean_interval(values.tolist()) == pytest.approx(
        stats.t.interval(0.95, runs - 1, loc=values.mean(), scale=stats.sem(values))
    )


def test_a_single_run_has_no_interval():
    assert mean_interval([0.5]) is None
    assert mean_interval([]) is None


def test_runs_are_drawn_with_replacement():
    """Of two runs without differences between clients, both draws are the first in ¼, one of each in ½ of the cases."""
    gains = [np.full(3, 0.01), np.full(5, 0.03)]
    means, counts = np.unique(bootstrap_means(gains).round(9), return_counts=True)
    assert means.tolist() == [0.01, 0.02, 0.03]
    assert counts / counts.sum() == pytest.approx([0.25, 0.5, 0.25], abs=0.03)
    assert bootstrap_interval(gains) == pytest.approx((0.01, 0.03))


def test_the_bootstrap_over_runs_is_scipys():
    """Where all clients of a run gain the same, only runs matter."""
    means = noise(1, 12)
    found = bootstrap_interval([np.full(4, one) for one in means])
    wanted = stats.bootstrap((means,), np.mean, n_resamples=20_000, method="percentile", rng=5).confidence_interval
    assert found == pytest.approx(tuple(wanted), abs=0.07 * (wanted.high - wanted.low))


def test_the_bootstrap_over_clients_is_scipys():
    """Where two runs are equal, only clients matter: 2·M are drawn of M, as scipy does of the same values twice."""
    gains = noise(2, 15)
    found = bootstrap_interval([gains, gains])
    twice = (np.tile(gains, 2),)
    wanted = stats.bootstrap(twice, np.mean, n_resamples=20_000, method="percentile", rng=5).confidence_interval
    assert found == pytest.approx(tuple(wanted), abs=0.07 * (wanted.high - wanted.low))


def test_both_levels_add_to_the_variance():
    """Var = (variance between the means of S runs)/S + (mean over runs of variance/M within)/S; run means are kept."""
    gains = list(noise(3, 4, 10) + noise(4, 4, 1))
    between, within = np.var([one.mean() for one in gains]) / 4, np.mean([one.var() / 10 for one in gains]) / 4
    found = bootstrap_means(gains)
    assert len(found) == 2000
    assert found.var() == pytest.approx(between + within, rel=0.1)
    assert found.mean() == pytest.approx(np.mean(gains), abs=4 * ((between + within) / 2000) ** 0.5)
    assert between > 0.2 * within
    assert within > 0.05 * between


def test_runs_may_have_different_numbers_of_clients():
    """No draw reaches beyond a run's own clients, as many are drawn as it has, and each run counts as one.

    A run of −1 and 1 beside one of forty zeros: variances 1/2 and 0 of their means, ½ · (1/2 + 0)/2 of the mean of two.
    """
    assert np.ptp(bootstrap_means([np.full(2, 0.5), np.full(7, 0.5)])) == pytest.approx(0)
    assert bootstrap_means([np.array([-1.0, 1.0]), np.zeros(40)]).var() == pytest.approx(1 / 8, rel=0.1)
    assert bootstrap_means([np.full(2, 0.0), np.full(50, 1.0)]).mean() == pytest.approx(0.5, abs=0.03)


def test_weights_make_it_a_pooled_difference():
    """Gains 0 and 1 with 1 and 3 samples: drawn twice, 0 in ¼, 3/4 in ½, 1 in ¼ of the cases; the mean is 0.625."""
    gains, weights = np.array([0.0, 1.0]), np.array([1.0, 3.0])
    assert bootstrap_means([gains, gains], [weights, weights]).mean() == pytest.approx(0.625, abs=0.02)
    assert bootstrap_means([gains, gains]).mean() == pytest.approx(0.5, abs=0.02)


def test_the_bootstrap_is_repeatable_and_does_not_depend_on_memory(monkeypatch):
    gains = list(noise(6, 3, 9))
    whole = bootstrap_interval(gains)
    assert bootstrap_interval(gains) == whole
    monkeypatch.setattr(statistics, "CHUNK", 100)
    assert len(bootstrap_means(gains)) == 2000
    assert bootstrap_interval(gains) == pytest.approx(whole, abs=0.1 * (whole.high - whole.low))


def test_the_bootstrap_needs_two_runs_and_two_clients():
    assert bootstrap_interval([noise(1, 20)]) is None
    assert bootstrap_interval([noise(1, 20), noise(2, 1)]) is None
    assert bootstrap_interval([]) is None


def test_six_equal_gains():
    """Of 2⁶ flips only two have a sum as far from zero: 2/64. Five could give no less than 2/32: no test."""
    assert sign_flip([0.3] * 6) == 1 / 32
    assert sign_flip([-0.1] * 6) == 1 / 32
    assert sign_flip([0.3] * 5) is None
    assert sign_flip([0.0] * 6) == 1


def test_one_run_against_seven_by_hand():
    """|Σ| of (1, …, 1, −1) is 6 of 8; sums of 8 signs reach it with at most one of the other kind: 2·(1 + 8)/2⁸."""
    assert sign_flip([0.1] * 7 + [-0.1]) == 18 / 256


@pytest.mark.parametrize("runs", [6, 9, 13])
def test_the_sign_flip_test_is_scipys(runs):
    gains = noise(runs, runs)
    wanted = stats.permutation_test((gains,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip(gains.tolist()) == pytest.approx(wanted.pvalue)


def test_flips_of_many_runs_are_drawn():
    """25 equal gains: no draw is as extreme, (0 + 1)/(10,000 + 1). Of 20 they are counted still: 2/2²⁰."""
    assert sign_flip([0.1] * 25) == 1 / 10_001
    assert sign_flip([0.1] * 20) == 2 / 2**20
    gains = noise(7, 24, mean=0.008)
    wanted = stats.permutation_test((gains,), np.mean, permutation_type="samples", n_resamples=50_000, rng=3).pvalue
    assert sign_flip(gains.tolist()) == pytest.approx(wanted, rel=0.1)
    assert 0.05 < wanted < 0.5


def test_holm_by_hand():
    """Sorted .01, .03, .04 are multiplied by 3, 2, 1: .03, .06, .04; none may be below the one before."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.6]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_lies_between_no_correction_and_bonferronis(p_values):
    found = holm(p_values)
    assert all(p <= one <= min(1, len(p_values) * p) for p, one in zip(p_values, found, strict=True))
    assert np.all(np.diff(np.array(found)[np.argsort(p_values, kind="stable")]) >= 0)


@pytest.mark.parametrize(
    ("low", "high", "margin", "wanted"),
    [
        (0.001, 0.02, 0, "better"),
        (0.0, 0.02, 0, "not distinguishable"),
        (-0.02, -0.001, 0, "worse"),
        (-0.02, 0.0, 0, "not distinguishable"),
        (0.0, 0.0, 0, "practically equal"),
        (0.006, 0.02, 0.005, "better"),
        (0.005, 0.02, 0.005, "not distinguishable"),
        (-0.02, -0.006, 0.005, "worse"),
        (-0.005, 0.005, 0.005, "practically equal"),
        (0.001, 0.004, 0.005, "practically equal"),
        (-0.006, 0.005, 0.005, "not distinguishable"),
    ],
)
def test_verdicts(low, high, margin, wanted):
    assert verdict(Interval(low, high), margin) == wanted


def test_the_simulation_on_the_page_runs_and_two_seeds_are_too_few(capsys):
    """With twenty repetitions: with two seeds the bootstrap holds the true mean less often than Student's t."""
    page = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")
    scripts = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (script,) = [one for one in scripts if "1000" in one]
    exec(script.replace("1000", "20"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    shares = [float(one) for one in re.findall(r"[\d.]+", lines[0].partition("[")[2])]
    assert shares[0] < shares[1]
