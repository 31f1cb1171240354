import numpy as np
import pytest
from matplotlib.figure import Figure

from protonorm.runs.run import Population
from protonorm.search.grid import Point
from protonorm.search.scores import Score, sweep_map, winners
from protonorm.search.sweeping import Standing
from tests.records import hundred, made


def point(method, **chosen):
    return Point(method, chosen, {}, {}, {})


def score(tmp_path, one, *seeds):
    """Return a point's score: for each seed the right answers of two clients in two rounds, validation and test."""
    runs = {}
    for seed, found in enumerate(seeds):
        if found is None:
            runs[seed] = Standing("diverged")
            continue
        validated, tested = found
        folder = tmp_path / f"{one.method}-{sorted(one.chosen.items())}-{seed}".replace("/", "")
        run = made(folder, clients=2, classes=1, rounds=2, population=hundred(2), tested=tested, validated=validated)
        runs[seed] = Standing("done", run)
    return Score(one, runs)


def test_a_score_is_the_mean_over_seeds_of_the_best_validation_round(tmp_path):
    """Means of the clients by round: .5, .6 and .8, .7. Round 2 and round 1 are chosen: .6 and .8, mean .7.

    Test answers there: 10 + 30 and 50 + 90 of 200, so .2 and .7, mean .45. With t = 12.706 for two seeds, half of the
    interval of the validation accuracy is 12.706 · .1.
    """
    a = ([[40, 60], [50, 70]], [[90, 90], [10, 30]])
    b = ([[80, 80], [70, 70]], [[50, 90], [99, 99]])
    found = score(tmp_path, point("a", lr=1), a, b)
    assert found.values == {0: 0.6, 1: 0.8}
    assert found.validation.mean == pytest.approx(0.7)
    assert found.validation.interval.half == pytest.approx(1.2706, rel=1e-4)
    assert found.test.mean == pytest.approx(0.45)
    assert found.rounds == [2, 1]
    assert found.note == ""


def test_every_client_counts_the_same_in_validation(tmp_path):
    """30 of 100 right and 270 of 300: the mean of .3 and .9 is .6, all together would be .75."""
    counts = np.array([[100], [300]])
    options = {"clients": 2, "classes": 1, "rounds": 1, "rules": ["nearest-global"]}
    run = made(
        tmp_path / "run", population=Population(*[counts] * 3), tested=[[30, 270]], validated=[[30, 270]], **options
    )
    found = Score(point("a"), {0: Standing("done", run)})
    assert found.values == {0: 0.6}
    assert found.test.mean == 0.75


def test_test_accuracy_decides_nothing(tmp_path):
    good = score(tmp_path, point("a", lr=1), ([[60, 60]] * 2, [[10, 10]] * 2))
    lucky = score(tmp_path, point("a", lr=2), ([[50, 50]] * 2, [[99, 99]] * 2))
    assert winners(sorted([good, lucky], key=lambda one: -one.validation.mean)) == [good]


def test_a_point_that_lacks_a_seed_is_not_chosen(tmp_path):
    whole = score(tmp_path, point("a", lr=1), ([[20, 20]] * 2, [[20, 20]] * 2), ([[20, 20]] * 2, [[20, 20]] * 2))
    broken = score(tmp_path, point("a", lr=2), ([[90, 90]] * 2, [[90, 90]] * 2), None)
    assert not broken.eligible
    assert broken.note == "1 diverged"
    assert winners([broken, whole]) == [whole]
    assert winners([broken]) == []


def test_each_method_has_its_own_winner_on_each_problem(tmp_path):
    right = [[50, 50]] * 2, [[50, 50]] * 2
    points = [point("a", clients=3, lr=1), point("a", clients=3, lr=2), point("b", clients=3), point("a", clients=5)]
    scores = [score(tmp_path, one, right) for one in points]
    assert [one.point for one in winners(scores)] == [points[0], points[2], points[3]]  # of equals the first


def squares(figure: Figure):
    """Read a map: for each panel its title, its labels and its numbers."""
    return {
        axes.get_title(): (
            [text.get_text() for text in axes.get_xticklabels()],
            [text.get_text() for text in axes.get_yticklabels()],
            axes.images[0].get_array().filled(-1).round(2).tolist(),
        )
        for axes in figure.axes
        if axes.images and axes.get_title()
    }


def test_the_map_shows_what_was_reached_where(tmp_path):
    """Right answers are 10·γ + lr of 100; Local has no γ, and one point lacks a seed."""
    scores = []
    for gamma, lr in [(2, 4), (1, 4), (1, 3), (2, 3)]:
        right = [[10 * gamma + lr] * 2] * 2
        seeds = [(right, right)] if (gamma, lr) != (2, 3) else [None]
        scores.append(score(tmp_path, point("a", gamma=gamma, lr=lr), *seeds))
    scores += [score(tmp_path, point("local", lr=lr), ([[lr, lr]] * 2, [[0, 0]] * 2)) for lr in (3, 4)]
    found = squares(sweep_map(scores, ["gamma", "lr"]))
    assert found == {
        "a": (["3", "4"], ["1", "2"], [[13, 14], [-1, 24]]),
        "local": (["3", "4"], [""], [[3, 4]]),
    }


def test_a_third_setting_makes_panels(tmp_path):
    right = [[50, 50]] * 2, [[50, 50]] * 2
    scores = [score(tmp_path, point("a", x=x, y=1, z=z), right) for x in (1, 2) for z in (8, 9)]
    assert list(squares(sweep_map(scores, ["x", "y", "z"]))) == ["a, z=8", "a, z=9"]
