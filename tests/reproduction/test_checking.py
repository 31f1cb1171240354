"""What agrees with the paper, what differs from it, and what noise does not let one decide.

Clients of a made-up run are equal, so that intervals of differences go from the lowest to the highest of the seeds.
"""

from dataclasses import replace

import pytest
from experiments.reproduction.accuracy import can_check, check
from experiments.reproduction.cells import Printed
from experiments.reproduction.profiles import PROFILES

from tests.reproduction.studies import Fake, fake_findings, small_study

ONE, TWO = "Group: one", "Group: two"
STUDY = {"tolerance": {"paper": 1.0}, "leads": "ProtoNorm", "slack": {"cpu": 2.0}}


@pytest.fixture
def verdicts(tmp_path_factory):
    def find(given, profile="paper", protocol=None, **more):
        folder = tmp_path_factory.mktemp("runs")
        return check(fake_findings(folder, small_study(**STUDY | more), given, profile, protocol))

    return find


def test_a_number_near_the_printed_one_agrees_and_one_further_away_differs(verdicts):
    """47.41 ± 1: 46.5 is inside, 46.3 is not."""
    (near,) = verdicts({("ProtoNorm", ONE): [0.465]})
    (far,) = verdicts({("ProtoNorm", ONE): [0.463]})
    assert (near.passed, far.passed) == (True, False)
    assert "ProtoNorm, Group: one: 46.30, printed 47.41 ± 0.40, tolerance 1" in far.sentence


def test_a_number_outside_the_tolerance_is_not_decided_if_its_interval_reaches_into_it(verdicts):
    """45 and 47: t(0.975, 1) = 12.71 makes 46 ± 12.71 of it. 44.00, 44.01, 44.02: 4.30·0.01/√3 makes 44.01 ± 0.02."""
    (wide,) = verdicts({("ProtoNorm", ONE): [0.45, 0.47]})
    (narrow,) = verdicts({("ProtoNorm", ONE): [0.44, 0.4401, 0.4402]})
    assert (wide.passed, narrow.passed) == (None, False)
    assert "its 95 % interval, 33.29 to 58.71, reaches into it" in wide.sentence


def test_a_verdict_says_how_the_number_was_chosen(verdicts):
    """Rounds with 30, 46.5 and 48 on the test part, of which validation prefers the second."""
    cells = [replace(cell, settings=cell.settings | {"rounds": 3}) for cell in small_study().cells]
    fake = Fake((0.3, 0.465, 0.48), validated=(0.1, 0.3, 0.2))
    (found,) = verdicts({("ProtoNorm", ONE): [fake]}, protocol="validated", cells=cells)
    assert found.passed
    assert "46.50, best* 48.00, printed 47.41 ± 0.40" in found.sentence


def test_a_verdict_says_how_many_seeds_it_rests_on(verdicts):
    (found,) = verdicts({("ProtoNorm", ONE): [0.465, None, None]})
    assert "46.50 (1 of 3 seeds), printed" in found.sentence


def test_what_is_not_finished_or_not_printed_is_not_checked(verdicts):
    assert not verdicts({("ProtoNorm", ONE): [Fake(0.1, done=0)], ("FedProto", ONE): [0.1]})


def test_a_dash_in_the_paper_promises_nothing(verdicts):
    assert not verdicts({("FedProto", TWO): [0.1]}, paper={("FedProto", TWO): Printed(None)})


def test_divergence_where_the_paper_has_a_number_differs(verdicts):
    (found,) = verdicts({("ProtoNorm", ONE): [Fake(0.5, done=0, diverged=1)]})
    assert not found.passed


@pytest.mark.parametrize(
    ("leads", "other", "wanted", "told"),
    [
        ([0.40, 0.41], [0.415, 0.42], True, "1.25 points behind the best (FedProto), and at most the 2 allowed"),
        ([0.40, 0.41], [0.43, 0.45], False, "3.50 points behind the best (FedProto), and more than the 2 allowed"),
        ([0.40, 0.41], [0.41, 0.45], None, "2.50 points behind the best (FedProto); whether"),
        ([0.40, 0.46], [0.43, 0.41], None, "the highest; whether it may be more than the 2 allowed behind is open"),
        ([0.45, 0.46], [0.43, 0.44], True, "the highest, and at most the 2 allowed behind anybody"),
        ([0.40], [0.30], None, "the highest; whether it may be more than the 2 allowed behind is open"),
        ([0.30], [0.40], None, "10.00 points behind the best (FedProto); whether"),
    ],
)
def test_the_leading_row_is_judged_beyond_noise(verdicts, leads, other, wanted, told):
    """Points ahead by seed: −1.5 and −1; −3 and −4; −1 and −4; −3 and +5; +2 and +2; one seed tells nothing."""
    (found,) = verdicts({("ProtoNorm", ONE): leads, ("FedProto", ONE): other}, "cpu")
    assert found.passed is wanted
    assert f"small, Group: one: ProtoNorm is {told}" in found.sentence
    if wanted is None:
        assert ("one seed has no interval" if len(leads) == 1 else "FedProto: difference −") in found.sentence


def test_a_leading_row_is_judged_by_the_reported_round_and_not_by_the_best_test_round(verdicts):
    """Validation prefers rounds with 40 and 41 on the test part; the best test rounds, with 90, would lead."""
    cells = [replace(cell, settings=cell.settings | {"rounds": 2}) for cell in small_study().cells]
    lucky = [Fake((share, 0.9), validated=(0.9, 0.1)) for share in (0.40, 0.41)]
    given = {("ProtoNorm", ONE): lucky, ("FedProto", ONE): [0.50, 0.51]}
    (found,) = verdicts(given, "cpu", cells=cells)
    assert found.passed is False
    assert "10.00 points behind the best (FedProto)" in found.sentence


def test_a_leading_row_beside_the_table_is_judged(verdicts):
    """Local, beside the table, 3 points behind the best printed row and 2 allowed; then 1 point ahead of it."""
    (behind,) = verdicts({("Local", ONE): [0.40, 0.41], ("FedProto", ONE): [0.43, 0.44]}, "cpu", leads="Local")
    (ahead,) = verdicts({("Local", ONE): [0.40, 0.41], ("FedProto", ONE): [0.39, 0.40]}, "cpu", leads="Local")
    assert behind.passed is False
    assert (
        "Local is 3.00 points behind the best (FedProto), and more than the 2 allowed behind FedProto"
        in behind.sentence
    )
    assert ahead.passed is True


def test_other_rows_beside_the_table_do_not_compete(verdicts):
    given = {("ProtoNorm", ONE): [0.40, 0.41], ("FedProto", ONE): [0.30, 0.31], ("Local", ONE): [0.98, 0.99]}
    (found,) = verdicts(given, "cpu")
    assert found.passed is True


def test_a_leading_row_without_any_right_answer_is_judged(verdicts):
    (found,) = verdicts({("ProtoNorm", ONE): [0.0, 0.0], ("FedProto", ONE): [0.5, 0.5]}, "cpu")
    assert found.passed is False


def test_a_profile_without_tolerance_is_not_checked(verdicts):
    assert not verdicts({("ProtoNorm", ONE): [0.1], ("FedProto", ONE): [0.9]}, "smoke")


@pytest.mark.parametrize(
    ("profile", "seeds", "wanted"),
    [("paper", 1, True), ("cpu", 2, True), ("cpu", 1, False), ("smoke", 3, False)],
)
def test_what_can_be_checked_is_known_before_anything_runs(profile, seeds, wanted):
    """Under `cpu` only who leads is stated, which one seed does not tell."""
    assert can_check(small_study(**STUDY), PROFILES[profile], seeds) == wanted
    assert not can_check(small_study(), PROFILES[profile], seeds)
