import pytest

from protonorm.reproduction.estimate import Clock, Work, clock, seconds_a_round, work


def test_time_left_is_learned_from_rounds_so_far():
    """Rounds take twice the guess: 10 rounds of 3 s guessed take 60 s; another kind is corrected alike."""
    timer = Clock()
    a, b = Work("a", 10, 3.0), Work("b", 5, 1.0)
    assert timer.left([a, b]) == 35
    timer.learn(a, 6.0)
    assert timer.left([a, b]) == 70
    timer.learn(b, 1.0)
    assert timer.left([a, b]) == 65


def test_more_pictures_larger_ones_and_second_networks_take_longer():
    cifar = {"dataset": {"name": "cifar100", "samples": 10_000}, "models": "light", "algorithm": "protonorm"}
    usual = seconds_a_round(cifar)
    assert seconds_a_round(cifar | {"dataset": "cifar100"}) == pytest.approx(6 * usual, rel=0.2)
    assert seconds_a_round(cifar | {"algorithm": {"name": "fml"}}) > 1.5 * usual
    assert seconds_a_round(cifar | {"dataset": {"name": "tinyimagenet", "samples": 10_000}}) > 3 * usual
    assert seconds_a_round(cifar | {"models": ["plain"]}) == usual  # as the record has a single network
    assert work(cifar | {"rounds": 9}, done=4).rounds == 5


@pytest.mark.parametrize(("number", "text"), [(40, "40 s"), (600, "10 min"), (6 * 3600, "6 h"), (3 * 86_400, "3 days")])
def test_durations_are_written_for_people(number, text):
    assert clock(number) == text
