from dataclasses import replace

import numpy as np
import pytest

from protonorm.analysis.contrasts import Contrast, Pairs, corrected, gains_of, measure, who_gains
from protonorm.runs.run import Population
from tests.records import hundred, made

ORACLE = np.array([0.02, -0.01, -0.05, 0.0])


def run(folder, right, validated=None, **settings):
    """A run of clients with 100 test samples each and so many right answers in each round, (R, M)."""
    right = np.asarray(right)
    settings = {"population": hundred(right.shape[1]), "classes": 1} | settings
    return made(
        folder,
        clients=right.shape[1],
        rounds=len(right),
        tested=right,
        validated=right if validated is None else np.asarray(validated),
        **settings,
    )


def test_one_gains_two_lose_by_hand():
    """Losses .01 and .05 have the mean .03 and, over all four, .06/4; a tenth of four is one case, the lowest."""
    found = measure([ORACLE])
    assert (found.gaining, found.losing, found.cases, found.seeds) == (1, 2, 4, 1)
    assert (found.benefit, found.negative) == (0.25, 0.5)
    assert found.loss == pytest.approx(0.03)
    assert found.burden == pytest.approx(0.015)
    assert found.tail == found.worst == -0.05
    assert found.mean == pytest.approx(-0.01)


def test_changes_within_the_margin_do_not_count():
    """δ = .01: only −.05 is a loss; .02 is a gain."""
    found = measure([ORACLE], 0.01)
    assert (found.gaining, found.losing) == (1, 1)
    assert (found.loss, found.burden) == (0.05, 0.0125)


def test_where_nobody_loses():
    found = measure([np.array([0.0, 0.1])])
    assert (found.losing, found.negative, found.loss, found.burden) == (0, 0.0, None, 0.0)
    assert who_gains(found) == "1 of 2 clients gains, 0 lose, 1 stays equal."


def test_the_worst_tenth_is_rounded_up():
    """A tenth of eleven cases is two: −.3 and −.1; of ten it is one."""
    gains = np.array([0.2] * 9 + [-0.1, -0.3])
    assert measure([gains]).tail == pytest.approx(-0.2)
    assert measure([gains[1:]]).tail == pytest.approx(-0.3)


def test_runs_count_alike_in_the_mean_and_cases_in_the_shares():
    """Run means .1, .3 and .8: mean .4, median .3; of the 2 + 2 + 4 cases, whose mean is .5 and median .6, 7 gain."""
    found = measure([np.array([0.0, 0.2]), np.array([0.2, 0.4]), np.array([0.8, 0.8, 0.8, 0.8])])
    assert (found.mean, found.median) == pytest.approx((0.4, 0.3))
    assert found.benefit == 7 / 8
    assert found.seeds == 3


def test_an_interval_comes_with_a_verdict_and_its_absence_with_a_reason():
    """All gains are positive in both runs: no draw has a mean of zero."""
    two = [np.array([0.1, 0.2]), np.array([0.1, 0.3])]
    found = measure(two)
    assert 0.1 <= found.interval.low < found.mean < found.interval.high <= 0.3
    assert (found.verdict, found.no_interval) == ("better", "")
    for gains, repeated, why in (
        (two[:1], False, "one seed"),
        ([two[0], np.array([0.1])], False, "fewer than two clients"),
        (two, True, "runs share a seed"),
    ):
        found = measure(gains, repeated=repeated)
        assert (found.interval, found.verdict, found.no_interval) == (None, None, why)


def test_the_t_interval_is_that_of_the_run_means():
    """Run means .1 and .2: half is 12.7062 · (.1/√2)/√2 = .635310."""
    found = measure([np.array([0.1, 0.1]), np.array([0.1, 0.3])])
    assert found.t_interval == pytest.approx((0.15 - 0.63531, 0.15 + 0.63531), abs=1e-5)
    assert measure([ORACLE]).t_interval is None
    assert measure([ORACLE, ORACLE], repeated=True).t_interval is None


def test_the_margin_decides_verdicts():
    two = [np.array([0.01, 0.02]), np.array([0.01, 0.02])]
    assert [measure(two, margin).verdict for margin in (0, 0.015, 0.03)] == [
        "better",
        "not distinguishable",
        "practically equal",
    ]


def test_p_values_are_those_of_run_means_and_are_corrected_together():
    """Six equal gains have p = 1/32; with p = 1 beside it, twice that. A method without a test is left out."""
    sure, none = [np.full(2, 0.1)] * 6, [np.array([-0.1, 0.1])] * 6
    transfers = {"sure": measure(sure), "few": measure(sure[:2]), "unlike": None, "none": measure(none)}
    contrasts = {name: Contrast("local", transfer) for name, transfer in transfers.items()}
    found = [one.transfer for one in corrected(contrasts | {"alone": None}).values()]
    assert [one.p if one else one for one in found] == [1 / 32, None, None, 1]
    assert [one.p_holm if one else one for one in found] == [2 / 32, None, None, 1]
    assert measure(sure, repeated=True).p is None


def test_who_gains_in_a_sentence():
    gains = np.array([0.02] * 18 + [-0.001, -0.013])
    assert who_gains(measure([gains])) == "18 of 20 clients gain, 2 lose; the worst loses 1.3 points."
    assert who_gains(measure([ORACLE])) == "1 of 4 clients gains, 2 lose, 1 stays equal; the worst loses 5.0 points."
    several = "over 2 seeds clients gain in 19 of 24 cases, lose in 4, stay equal in 1; the worst loses 5.0 points."
    assert who_gains(measure([gains, ORACLE])) == several


def test_gains_are_those_of_the_reported_rounds(tmp_path):
    """Validation is best in round 2 of one and round 1 of the other: (60, 40) − (50, 45) of 100."""
    ours = run(tmp_path / "a", [[90, 90], [60, 40]], [[10, 10], [20, 20]])
    theirs = run(tmp_path / "b", [[50, 45], [99, 99]], [[20, 20], [10, 10]])
    found = gains_of(Pairs([(ours, theirs)]))
    assert found.gains[0].tolist() == [0.1, -0.05]
    assert (found.seeds, found.samples[0].tolist(), found.missing) == ([0], [100, 100], "")
    other = replace(theirs, info=theirs.info.model_copy(update={"headline": "logits"}))
    halved = gains_of(Pairs([(ours, other)]))
    assert halved.gains[0].tolist() == [0.35, 0.18]  # half of 45 is 22 right answers


def test_a_client_without_test_samples_is_no_case(tmp_path):
    whole = hundred(3)
    test = whole.test.copy()
    test[1] = 0
    parts = Population(whole.train, whole.validation, test)
    runs = [run(tmp_path / name, [[right, 0, 50]], population=parts) for name, right in (("a", 60), ("b", 50))]
    found = gains_of(Pairs([tuple(runs)]))
    assert found.gains[0].tolist() == [0.1, 0.0]
    assert found.samples[0].tolist() == [100, 100]


def test_weights_are_the_samples_of_the_round_whatever_else_is_on_record(tmp_path):
    """A server's record of a real federation does not say how many samples clients hold."""
    parts = Population(*(np.array([[30], [10]]) for _ in range(3)))
    pair = tuple(run(tmp_path / name, [[20, 5]], population=parts) for name in "ab")
    for one in pair:
        one.__dict__["population"] = Population(*(np.zeros((2, 1), int) for _ in range(3)))
    assert gains_of(Pairs([pair])).samples[0].tolist() == [30, 10]


def test_no_gain_without_a_round_or_with_other_clients(tmp_path):
    whole = run(tmp_path / "a", [[60, 50]])
    nothing = run(tmp_path / "b", [[60, 50]], done=0)
    unchecked = made(tmp_path / "c", clients=2, classes=1, rounds=2, population=hundred(2, 0))
    part = made(tmp_path / "d", clients=2, classes=1, rounds=2, population=hundred(2, 0), evaluated=[1])
    everybody = made(tmp_path / "e", clients=2, classes=1, rounds=2, population=hundred(2, 0), evaluated=[0, 1])
    for pair, wanted in (
        ((whole, nothing), "a round to report, which seed 0 does not have on both sides"),
        ((nothing, whole), "a round to report"),
        ((whole, unchecked), r"how their rounds were chosen (by validation; by test)"),
        ((everybody, part), "the clients that were evaluated with seed 0"),
    ):
        found = gains_of(Pairs([pair]))
        assert found.missing.startswith(wanted)
        assert not found.gains
