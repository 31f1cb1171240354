import pytest

from protonorm.reproduction.cells import Printed
from protonorm.reproduction.checking import can_check, check
from protonorm.reproduction.profiles import PROFILES
from tests.reproduction.studies import Fake, fake_findings, small_study

ONE, TWO = "Group: one", "Group: two"
STUDY = {"tolerance": {"paper": 1.0}, "leads": "ProtoNorm", "slack": {"cpu": 2.0}}


@pytest.fixture
def verdicts(tmp_path_factory):
    def find(given, profile="paper", **more):
        folder = tmp_path_factory.mktemp("runs")
        return check(fake_findings(folder, small_study(**STUDY | more), given, profile))

    return find


def test_a_number_near_the_printed_one_agrees_and_one_further_away_differs(verdicts):
    """47.41 ± 1: 46.5 is inside, 46.3 is not."""
    (near,) = verdicts({("ProtoNorm", ONE): [0.465]})
    (far,) = verdicts({("ProtoNorm", ONE): [0.463]})
    assert (near.passed, far.passed) == (True, False)
    assert "ProtoNorm, Group: one: 46.30, printed 47.41 ± 0.40, tolerance 1" in far.sentence


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


def test_the_leading_row_may_be_a_little_behind(verdicts):
    near = verdicts({("ProtoNorm", ONE): [0.40], ("FedProto", ONE): [0.415]}, "cpu")
    far = verdicts({("ProtoNorm", ONE): [0.40], ("FedProto", ONE): [0.43]}, "cpu")
    assert [one.passed for one in (*near, *far)] == [True, False]


def test_a_leading_row_beside_the_table_is_judged(verdicts):
    """Local, beside the table, 3 points behind the best printed row and 2 allowed; then 1 point ahead of it."""
    (behind,) = verdicts({("Local", ONE): [0.40], ("FedProto", ONE): [0.43]}, "cpu", leads="Local")
    (ahead,) = verdicts({("Local", ONE): [0.40], ("FedProto", ONE): [0.39]}, "cpu", leads="Local")
    assert not behind.passed
    assert "Local is 3.00 points behind the best (FedProto), 2 allowed" in behind.sentence
    assert ahead.passed


def test_other_rows_beside_the_table_do_not_compete(verdicts):
    (found,) = verdicts({("ProtoNorm", ONE): [0.40], ("FedProto", ONE): [0.30], ("Local", ONE): [0.99]}, "cpu")
    assert found.passed


def test_a_leading_row_without_any_right_answer_is_judged(verdicts):
    (found,) = verdicts({("ProtoNorm", ONE): [0.0], ("FedProto", ONE): [0.5]}, "cpu")
    assert not found.passed


def test_a_profile_without_tolerance_is_not_checked(verdicts):
    assert not verdicts({("ProtoNorm", ONE): [0.1], ("FedProto", ONE): [0.9]}, "smoke")


@pytest.mark.parametrize(("profile", "wanted"), [("paper", True), ("cpu", True), ("smoke", False)])
def test_what_can_be_checked_is_known_before_anything_runs(profile, wanted):
    assert can_check(small_study(**STUDY), PROFILES[profile]) == wanted
    assert not can_check(small_study(), PROFILES[profile])
