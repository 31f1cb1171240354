"""Robust rules of combination, by hand."""

import math

import pytest
import torch

import protonorm as pn
from protonorm.core.combine import Contribution, combine
from protonorm.core.robust import COMBINE, Standing, check_rule, fold_of, median_of_others
from protonorm.deployment.agreement import ROBUST_RULE, Agreement
from protonorm.session.build import build
from tests.deployment.sites import agreement_of
from tests.support import contents, run, spiral

ROBUST = ["median", "trimmed:0.2", "geometric_median", "bounded", "cosine", "trust"]


def rows(*clients, weights=None):
    """Contributions of clients with rows (K, d); a row of None is one that the client does not have."""
    for place, client in enumerate(clients):
        width = len(next(row for row in client if row is not None))
        values = torch.tensor([row or [0.0] * width for row in client])
        there = torch.tensor([float(row is not None) for row in client]).double()
        yield Contribution({"p": values}, there * (weights[place] if weights else 1))


def combined(rule, *clients, weights=None):
    return combine(rows(*clients, weights=weights), fold_of(rule)()).means["p"].tolist()


def test_the_median_is_of_each_number_over_the_clients_that_have_the_row():
    """Row 0 of three clients: medians of (1, 2, 90) and (5, −70, 6); row 1 of two: half way; row 2 of nobody."""
    one, two, three = [[1.0, 5.0], None, None], [[2.0, -70.0], [1.0, 0.0], None], [[90.0, 6.0], [3.0, 8.0], None]
    assert combined("median", one, two, three) == [[2.0, 5.0], [2.0, 4.0], [0.0, 0.0]]


def test_trimming_leaves_out_a_share_at_both_ends_but_at_least_one_client_of_three():
    """0.2 of five is one: (2 + 3 + 4)/3; of three, one: the middle; of two, none: their mean."""
    several = [[[value]] for value in (1e9, 2.0, 4.0, 3.0, -1e9)]
    assert combined("trimmed:0.2", *several) == [[3.0]]
    assert combined("trimmed:0.2", [[1.0]], [[50.0]], [[2.0]]) == [[2.0]]
    assert combined("trimmed:0.2", [[1.0]], [[50.0]]) == [[25.5]]
    assert combined("trimmed:0.4", *several, [[5.0]]) == [[3.5]]  # three of six at both ends would leave nobody: two


def test_the_geometric_median_of_a_triangle_sees_all_sides_at_120_degrees():
    """The Fermat point of (−1, 0), (1, 0), (0, y) with y > 1/√3 is (0, 1/√3)."""
    point = combined("geometric_median", [[-1.0, 0.0]], [[1.0, 0.0]], [[0.0, 3.0]])[0]
    assert point == pytest.approx([0.0, 1 / math.sqrt(3)], abs=1e-5)
    assert combined("geometric_median", [[1.0, 1.0]], [[1.0, 1.0]], [[9e5, 0.0]])[0] == pytest.approx([1.0, 1.0])


def test_a_vector_is_shortened_to_the_median_length_of_the_others():
    """Lengths 5, 10, 15, 3000: the last is shortened to 10, and the third to 10; sum (3, 4) + (6, 8) + (0, 10) · 2."""
    found = combined("bounded", [[3.0, 4.0]], [[6.0, 8.0]], [[0.0, 15.0]], [[0.0, 3000.0]])
    assert found[0] == pytest.approx([9 / 4, 32 / 4])
    assert combined("bounded", [[3.0, 4.0]]) == [[3.0, 4.0]]  # nobody to compare with


def test_opposed_vectors_do_not_count():
    """The median direction of (1, 0), (0.8, 0.6), (−1, 0) is (0.8, 0): weights 1, 0.8 and 0, (1 + 0.64, 0.48)/1.8."""
    found = combined("cosine", [[1.0, 0.0]], [[0.8, 0.6]], [[-1.0, 0.0]])
    assert found[0] == pytest.approx([1.64 / 1.8, 0.48 / 1.8])
    assert combined("cosine", [[1.0, 0.0]], [[-1.0, 0.0]]) == [[0.0, 0.0]]  # all are: their mean


def test_the_cosine_of_two_clients_at_right_angles_is_none():
    assert combined("cosine", [[2.0, 0.0]], [[0.0, 2.0]]) == [[1.0, 1.0]]


def test_a_claimed_number_of_samples_counts_at_most_as_the_median_of_the_others():
    """Of weights 10, 20 and 10⁹ the last counts as 15, and 20 as all of itself: (10·1 + 20·1 + 15·7)/45 = 3."""
    assert combined("bounded", [[1.0]], [[1.0]], [[1.0]], weights=[10, 20, 1e9]) == [[1.0]]
    sevens = [Contribution({"p": torch.tensor([v])}, torch.tensor(w)) for v, w in ((2.0, 10), (2.0, 20), (-2.0, 10**9))]
    assert combine(sevens, fold_of("bounded")()).means["p"].tolist() == pytest.approx([2 * (10 + 20 - 15) / 45])


def test_medians_of_others_by_hand():
    """Of 1, 2, 7, 100 without each: 7, 7, 2, 2; the absent one has a limit like a fifth would."""
    values = torch.tensor([[7.0], [1.0], [5.0], [100.0], [2.0]])
    there = torch.tensor([[True], [True], [False], [True], [True]])
    found = median_of_others(values, there).flatten()
    assert found[[0, 1, 3, 4]].tolist() == [2.0, 7.0, 2.0, 7.0]
    assert median_of_others(values[:1], there[:1]).tolist() == [[math.inf]]


@pytest.mark.parametrize("rule", ROBUST)
def test_equal_contributions_combine_to_themselves_and_order_does_not_matter(rule):
    values = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    equal = [values[0].tolist()] * 4
    assert torch.tensor(combined(rule, *equal)).allclose(values[0])
    one, two = (torch.tensor(combined(rule, *values[order].tolist())) for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]))
    assert one.allclose(two, atol=1e-6)


@pytest.mark.parametrize("rule", ROBUST)
def test_one_client_in_five_cannot_move_the_combination_far(rule):
    """Four within 0.1 of (1, 1, 1, 1); the mean of all would be 2·10⁵ away."""
    noise = torch.rand(4, 1, 4, generator=torch.Generator().manual_seed(0)) * 0.1
    liar = torch.full((1, 1, 4), -1e6)
    found = torch.tensor(combined(rule, *torch.cat([1 + noise, liar]).tolist()))
    assert float((found - 1).abs().max()) < (0.45 if rule == "bounded" else 0.15)


@pytest.mark.parametrize("rule", ROBUST)
def test_totals_are_bounded_in_length_and_whole_numbers_stay_whole(rule):
    parts = [
        Contribution({"p": torch.ones(2)}, torch.tensor(1), {"n": torch.tensor(n), "s": torch.tensor([s, 0.0])})
        for n, s in ((3, 1.0), (4, 2.0), (10**9, 1e9))
    ]
    totals = combine(parts, fold_of(rule)()).totals  # the last at most as the median of the others: 3.5 and 1.5
    assert (totals["n"].item(), totals["n"].dtype) == (10, torch.int64)
    assert totals["s"].tolist() == [4.5, 0.0]


@pytest.mark.parametrize("rule", ROBUST)
def test_without_contributions_there_is_nothing_and_other_names_are_refused(rule):
    assert combine([], fold_of(rule)()).means == {}
    with pytest.raises(ValueError, match="differ in b, w"):
        combine((Contribution({name: torch.ones(1)}, torch.tensor(1)) for name in "wb"), fold_of(rule)())


def test_values_whose_numbers_have_weights_of_their_own():
    """A narrow client has the first number of each row: medians of (1, 2, 9) and of (6, 8)."""
    parts = [
        Contribution({"w": torch.tensor([v])}, {"w": torch.tensor([w])})
        for v, w in (([1.0, 0.0], [1.0, 0.0]), ([2.0, 6.0], [1.0, 1.0]), ([9.0, 8.0], [1.0, 1.0]))
    ]
    sums = combine(parts, fold_of("median")())
    assert sums.means["w"].tolist() == [[2.0, 7.0]]
    assert sums.weight_of("w").tolist() == [[3.0, 2.0]]


def test_standings_compare_lengths_and_directions_with_the_others():
    """The third is 100 times as long as the median of (5, 10), the fourth is opposed; the others are alike."""
    fold = fold_of("bounded")()
    for one in rows([[3.0, 4.0]], [[3.0, 4.0]], [[300.0, 400.0]], [[-3.0, -4.0]], [[3.0, 4.0]]):
        fold.add(one)
    standings = fold.standings()
    assert [one.length for one in standings] == pytest.approx([1, 1, 100, 1, 1])
    assert [one.cosine for one in standings] == pytest.approx([1, 1, 1, -1, 1])
    assert [one.usual for one in standings] == pytest.approx([1] * 5)
    assert [bool(one.alarm) for one in standings] == [False, False, True, True, False]
    assert "100 times as large" in standings[2].alarm
    assert "point away" in standings[3].alarm
    assert not Standing(1.0, 0.5, 0.7).alarm
    assert Standing(1.0, 0.1, 0.7).alarm
    assert not Standing(1.0, -0.1, 0.0).alarm  # as in a first round


def test_trust_by_hand():
    """Three at right angles or alike: s = 1 of the first two, and 0 of the third to both.

    t of the first two is a = (1 + a)/(1 + a + b), that of the third b = 1/(1 + 2a), its fixed point.
    """
    fold = fold_of("trust")()
    for one in rows([[1.0, 0.0]], [[2.0, 0.0]], [[0.0, 1.0]]):
        fold.add(one)
    (a, other, b), cosine = fold.agreement()
    assert float(a) == pytest.approx(float(other)) == pytest.approx(float((1 + a) / (1 + a + b)), abs=1e-3)
    assert float(b) == pytest.approx(float(1 / (1 + 2 * a)), abs=1e-3)
    assert cosine.tolist() == pytest.approx([float(a / (a + b)), float(a / (a + b)), 0.0], abs=1e-3)


def test_who_lies_elsewhere_is_not_believed_where_two_alone_have_a_class():
    """The first three agree on row 0, and the fourth is opposed; of row 1 the first and the fourth alone speak."""
    honest, liar = [[1.0, 0.0], None], [[-1.0, 0.0], [0.0, -1.0]]
    clients = [[1.0, 0.0], [0.0, 1.0]], honest, honest, liar
    assert torch.tensor(combined("trust", *clients)).allclose(torch.eye(2), atol=1e-6)
    assert combined("cosine", *clients)[1] == [0.0, 0.0]


def test_who_shares_a_class_with_a_liar_alone_is_not_named():
    """Three agree on row 0; the fourth, opposed there, is so too on row 1, which the fifth alone has besides."""
    fold = fold_of("trust")()
    for one in rows(*[[[1.0, 0.0], None]] * 3, [[-1.0, 0.0], [0.0, -1.0]], [None, [0.0, 1.0]]):
        fold.add(one)
    assert [bool(one.alarm) for one in fold.standings()] == [False, False, False, True, False]


def test_a_majority_of_liars_in_one_class_does_not_win_it():
    """Two liars are opposed to four on row 0; on row 1 they are two against one of these."""
    liar = [[-1.0, 0.0], [0.0, -1.0]]
    clients = [[1.0, 0.0], [0.0, 1.0]], *[[[1.0, 0.0], None]] * 3, liar, liar
    assert torch.tensor(combined("trust", *clients)).allclose(torch.eye(2), atol=1e-6)
    assert combined("cosine", *clients)[1] == [0.0, -1.0]


def test_nobody_is_long_beside_zeros():
    fold = fold_of("trust")()
    for one in rows([[3.0, 4.0]], [[3.0, 4.0]], [[0.0, 0.0]], [[3.0, 4.0]]):
        fold.add(one)
    assert [bool(one.alarm) for one in fold.standings()] == [False, False, True, False]
    pair = fold_of("trust")()
    for one in rows([[3.0, 4.0]], [[0.0, 0.0]]):
        pair.add(one)
    assert [one.length for one in pair.standings()] == [1.0, 1.0]


def test_clients_that_share_no_class_are_believed_alike():
    one, two = [[1.0, 0.0], None], [None, [0.0, 3.0]]
    assert combined("trust", one, two) == [[1.0, 0.0], [0.0, 3.0]]


def test_totals_of_a_client_that_points_away_do_not_count():
    """Three alike with (1, 2), one opposed: the sum of three."""
    parts = [Contribution({}, torch.tensor(1), {"gram": sign * torch.tensor([1.0, 2.0])}) for sign in (1, 1, -1, 1)]
    assert combine(parts, fold_of("trust")()).totals["gram"].tolist() == [3.0, 6.0]
    fold = fold_of("cosine")()
    for part in parts:
        fold.add(part)
    assert [bool(one.alarm) for one in fold.standings()] == [False, False, True, False]


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("medium", "Unknown combination 'medium'; did you mean 'median'"),
        ("median:0.2", "combine=median must stand without a number"),
        ("trimmed:0.5", "above 0 and below 0.5, got 'trimmed:0.5'"),
        ("trimmed:x", "above 0 and below 0.5"),
        ("trimmed:nan", "above 0 and below 0.5"),
    ],
)
def test_rules_that_do_not_exist_are_refused_in_a_sentence(rule, sentence):
    with pytest.raises(ValueError, match=sentence):
        pn.Experiment(combine=rule)


def test_the_table_and_the_names():
    assert [check_rule(rule) for rule in ROBUST] == ROBUST
    assert check_rule("trimmed") == "trimmed:0.2"
    assert {rule.partition(":")[0] for rule in ROBUST} == COMBINE.keys() - {"mean", "secure_sum"}


@pytest.mark.parametrize(
    ("method", "reason"),
    [("local", "receives no messages"), ("targets", "receives no messages"), ("fedtgp", "trains on the messages")],
)
def test_methods_that_do_not_combine_refuse_another_rule(method, reason):
    with pytest.raises(ValueError, match=f"combine must be mean for .* {reason}"):
        build(spiral(algorithm=method, combine="median"))
    terms = {"algorithm": method, "classes": ["a", "b"], "feature_dim": 4, "rounds": 2, "seed": 0}
    with pytest.raises(ValueError, match="combine must be mean"):
        Agreement.of(terms | {"combine": "median"})
    assert Agreement.of(terms).combine == "mean"


def test_real_federations_have_a_robust_rule_unless_they_say_otherwise():
    terms = {"algorithm": "protonorm", "classes": ["a", "b"], "feature_dim": 4, "rounds": 2, "seed": 0}
    assert Agreement.of(terms).combine == Agreement.of(terms).task.combine == ROBUST_RULE
    assert Agreement.of(terms | {"combine": "mean"}).task.combine == "mean"
    assert agreement_of(Agreement.of(terms).task) == Agreement.of(terms)


def test_engines_agree_and_keys_without_the_setting_are_as_before(tmp_path):
    robust = spiral(combine="geometric_median")
    assert robust.key != spiral().key == spiral(combine="mean").key
    assert robust.changed["combine"] == "geometric_median"
    one, two = (run(robust, tmp_path / engine, engine=engine) for engine in ("serial", "processes"))
    assert contents(one.run.folder) == contents(two.run.folder)
    plain, other = build(spiral())[0], build(robust)[0]
    assert "combine" not in plain.describe()
    assert plain.digest != other.digest
