import pytest
from experiments.reproduction.running import Estimate, Work, duration, seconds_a_round, work_left


def test_time_left_is_learned_from_rounds_so_far():
    """Rounds take twice the guess: 10 rounds of 3 s guessed take 60 s; another kind is corrected alike."""
    estimate = Estimate()
    a, b = Work("a", 10, 3.0), Work("b", 5, 1.0)
    assert estimate.left([a, b]) == 35
    estimate.learn(a, 6.0)
    assert estimate.left([a, b]) == 70
    estimate.learn(b, 1.0)
    assert estimate.left([a, b]) == 65


def test_more_pictures_larger_ones_and_second_networks_take_longer():
    cifar = {"dataset": {"name": "cifar100", "samples": 10_000}, "models": "light", "algorithm": "protonorm"}
    usual = seconds_a_round(cifar)
    assert seconds_a_round(cifar | {"dataset": "cifar100"}) == pytest.approx(6 * usual, rel=0.2)
    assert seconds_a_round(cifar | {"algorithm": {"name": "fml"}}) > 1.5 * usual
    assert seconds_a_round(cifar | {"dataset": {"name": "tinyimagenet", "samples": 10_000}}) > 3 * usual
    assert seconds_a_round(cifar | {"models": ["plain"]}) == usual  # as the record has a single network
    assert work_left(cifar | {"rounds": 9}, done=4).rounds == 5


def test_the_users_own_objects_are_guessed_too():
    assert seconds_a_round({"dataset": object(), "algorithm": object()}) > 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(40, "40 s"), (600, "10 min"), (6 * 3600, "6 h"), (3 * 86_400, "3 days")]
)
def test_durations_are_written_for_people(seconds, text):
    assert duration(seconds) == text
