import numpy as np
import pytest

from protonorm.analysis.contrasts import against_local, against_solo, not_distinguishable
from protonorm.runs.run import Population
from tests.records import hundred, made


@pytest.fixture
def method(tmp_path):
    """Make the runs of a method, one for each row of right answers (S, M) of 100."""

    def make(name, right, *, seeds=None, **settings):
        given = {"method": {"name": name}, "population": hundred(len(right[0])), "classes": 1} | settings
        return [
            made(
                tmp_path / f"{len(list(tmp_path.iterdir()))}-{name}",
                clients=len(row), rounds=1, seed=seed, tested=[row], validated=[row], **given,
            )
            for seed, row in zip(seeds or range(len(right)), np.asarray(right), strict=True)
        ]  # fmt: skip

    return make


def test_methods_against_local_by_hand(method):
    """Gains (.1, .2) and (.1, .3) of the first, and their negatives of the second: run means ±.15 and ±.2."""
    groups = {
        "up": method("up", [[60, 70], [60, 80]]),
        "local": method("local", [[50, 50], [50, 50]]),
        "down": method("down", [[40, 30], [40, 20]]),
    }
    found = against_local(groups)
    assert list(found) == ["up", "down"]
    assert [one.reference for one in found.values()] == ["local", "local"]
    assert [one.transfer.mean for one in found.values()] == pytest.approx([0.175, -0.175])
    assert [one.transfer.negative for one in found.values()] == [0.0, 1.0]
    assert [one.transfer.verdict for one in found.values()] == ["better", "worse"]
    assert against_solo(groups) == {}


def test_there_is_no_gain_without_local_or_without_a_match(method):
    ours = method("up", [[60, 70]])
    assert against_local({"up": ours}) == {}
    found = against_local({"up": ours, "local": method("local", [[50, 50]], seeds=[1])})["up"]
    assert (found.transfer, found.mismatch) == (None, "seeds (0; 1)")


def test_of_several_locals_the_one_with_the_same_clients_is_taken(method):
    groups = {
        "up": method("up", [[60, 70]]),
        "local (spiral)": method("local", [[10, 10]], dataset={"name": "spiral"}),
        "local (fashion)": method("local", [[50, 50]]),
    }
    found = against_local(groups)["up"]
    assert found.reference == "local (fashion)"
    assert found.transfer.mean == pytest.approx(0.15)


def test_a_method_against_its_own_control(method):
    """Method minus control is .1; control minus Local is .05. Another γ is another method."""
    protonorm = {"name": "protonorm", "gamma": 5.0}
    groups = {
        "protonorm": method("", [[60, 70]], method=protonorm, control="none"),
        "protonorm (solo)": method("", [[50, 60]], method=protonorm, control="solo"),
        "other": method("", [[60, 70]], method=protonorm | {"gamma": 7.0}, control="none"),
        "local": method("local", [[45, 55]]),
    }
    found = against_solo(groups)
    assert list(found) == ["protonorm"]
    assert found["protonorm"].reference == "protonorm (solo)"
    assert found["protonorm"].transfer.mean == pytest.approx(0.1)
    assert against_local(groups)["protonorm (solo)"].transfer.mean == pytest.approx(0.05)


def test_a_control_with_other_settings_gives_no_gain(method):
    one = method("protonorm", [[60, 70]], lr=0.1)
    control = method("protonorm", [[60, 70]], lr=0.2, control="solo")
    found = against_solo({"protonorm": one, "solo": control})["protonorm"]
    assert (found.transfer, found.mismatch) == (None, "lr (0.1; 0.2)")


def test_methods_are_corrected_together_and_controls_by_themselves(method):
    """Each has 1/32 of six seeds; two methods make it 2/32, and the control has one of its own."""
    right = [[60, 70]] * 6
    groups = {
        "a": method("a", right),
        "b": method("b", right),
        "a (solo)": method("a", right, control="solo"),
        "local": method("local", [[50, 50]] * 6),
    }
    found = {name: one.transfer.p_holm for name, one in against_local(groups).items()}
    assert found == {"a": 2 / 32, "b": 2 / 32, "a (solo)": 1 / 32}


def test_runs_that_share_a_seed_have_no_interval(method):
    ours, theirs = (method(name, [[60, 70], [60, 80]], seeds=[3, 3]) for name in ("up", "local"))
    found = against_local({"up": ours, "local": theirs})["up"].transfer
    assert (found.interval, found.no_interval) == (None, "runs share a seed")


def test_one_of_three_runs_that_repeats_a_seed_tells_nothing_apart(method):
    """Every case of `top` is .3 above, but two of the three runs are not independent."""
    groups = {
        "top": method("top", [[60, 70]] * 3, seeds=[0, 1, 1]),
        "low": method("low", [[30, 40]] * 3, seeds=[0, 1, 1]),
    }
    assert not_distinguishable("top", groups) == {"low": "runs share a seed"}


def test_each_side_is_judged_by_its_own_headline_rule(method):
    """The method by its prototypes, (60, 70) right, Local by its logits, (50, 50); other rules have half of that."""
    groups = {
        "up": method("up", [[60, 70]]),
        "local": method("local", [[50, 50]], rules=["logits"]),
    }
    found = against_local(groups)["up"]
    assert found.transfer.mean == pytest.approx(0.15)
    other = against_local(
        {"up": method("up", [[60, 70]], rules=["logits", "nearest-global"]), "local": method("local", [[50, 50]])}
    )
    assert other["up"].transfer.mean == pytest.approx(0.15)


def test_what_a_method_cannot_be_told_apart_from(method):
    """Differences to `far` are .3 and more in all cases, to `near` ±.1; one seed tells nothing."""
    groups = {
        "top": method("top", [[60, 70], [65, 75]]),
        "far": method("far", [[30, 40], [30, 40]]),
        "near": method("near", [[50, 80], [75, 65]]),
        "other": method("other", [[30, 40], [30, 40]], networks=("mlp",)),
    }
    found = not_distinguishable("top", groups)
    assert list(found) == ["near", "other"]
    assert found["near"] == "difference −10.00 to +10.00 points"
    assert found["other"] == "they differ in the clients' networks"
    one = not_distinguishable("top", {name: runs[:1] for name, runs in groups.items()})
    assert (one["far"], one["near"]) == ("one seed has no interval",) * 2


def test_pooled_accuracies_are_told_apart_by_samples(method):
    """Ten clients of 1,000 samples gain .1, five of one sample lose it: better pooled, worse in the mean of clients.

    Pooled: (10 · 100 − 5)/10,005 = +.0995, and near that in every draw with a large client; mean: (10 · .1 − 5)/15.
    """
    counts = np.array([[1000]] * 10 + [[1]] * 5)
    both = {
        name: method(name, [row, row], population=Population(counts, counts, counts))
        for name, row in (("top", [600] * 10 + [0] * 5), ("local", [500] * 10 + [1] * 5))
    }
    assert not_distinguishable("top", both) == {}
    found = against_local(both)["top"].transfer
    assert (found.mean, found.verdict) == (pytest.approx(-4 / 15), "worse")
