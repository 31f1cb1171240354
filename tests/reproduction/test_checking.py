from protonorm.reproduction.cells import Printed
from protonorm.reproduction.checking import check
from tests.reproduction.studies import fake_findings, fake_run, small_study

ONE, TWO = "Group: one", "Group: two"
STUDY = {"tolerance": {"paper": 1.0}, "leads": "ProtoNorm", "slack": {"cpu": 2.0}}


def verdicts(accuracies, profile="paper", **more):
    return check(fake_findings(small_study(**STUDY | more), accuracies, profile))


def test_a_number_near_the_printed_one_agrees_and_one_further_away_differs():
    """47.41 ± 1: 46.5 is inside, 46.3 is not."""
    (near,) = verdicts({("ProtoNorm", ONE): [0.465]})
    (far,) = verdicts({("ProtoNorm", ONE): [0.463]})
    assert (near.passed, far.passed) == (True, False)
    assert "ProtoNorm, Group: one: 46.30, printed 47.41 ± 0.40, tolerance 1" in far.sentence


def test_what_is_not_finished_or_not_printed_is_not_checked():
    assert not verdicts({("ProtoNorm", ONE): [fake_run(0.1, rounds=9)], ("FedProto", ONE): [0.1]})


def test_a_dash_in_the_paper_promises_nothing():
    assert not verdicts({("FedProto", TWO): [0.1]}, paper={("FedProto", TWO): Printed(None)})


def test_divergence_where_the_paper_has_a_number_differs():
    run = fake_run(0.5, rounds=9, done=4, failure={"round": 5, "reason": "x"})
    (found,) = verdicts({("ProtoNorm", ONE): [run]})
    assert not found.passed


def test_the_leading_row_may_be_a_little_behind():
    near = verdicts({("ProtoNorm", ONE): [0.40], ("FedProto", ONE): [0.415]}, "cpu")
    far = verdicts({("ProtoNorm", ONE): [0.40], ("FedProto", ONE): [0.43]}, "cpu")
    assert [one.passed for one in (*near, *far)] == [True, False]


def test_a_profile_without_tolerance_is_not_checked():
    assert not verdicts({("ProtoNorm", ONE): [0.1], ("FedProto", ONE): [0.9]}, "smoke")
