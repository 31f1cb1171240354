from typing import get_args

import numpy as np
import pytest

from protonorm.analysis.comparison import Row, rows
from protonorm.analysis.contrasts import Contrast, measure
from protonorm.analysis.statistics import Verdict
from protonorm.analysis.tables import (
    VERDICTS,
    how_chosen,
    meaning_of_verdicts,
    p_values,
    what_spread_is,
    who_gains_lines,
    why_bold,
)
from tests.records import hundred, made


def row(method, **parts):
    return Row(method, "logits", True, {}, **parts)


@pytest.fixture
def groups(tmp_path):
    """A method, its control and Local with six seeds; two clients with so many right answers of 100."""
    right = {"one": (60, 50), "one (solo)": (55, 55), "local": (50, 51)}
    return {
        name: [
            made(
                tmp_path / f"{name}{seed}", method={"name": name.split()[0]}, seed=seed, clients=2, classes=1, rounds=1,
                population=hundred(2), tested=[row], validated=[row], control="solo" if "solo" in name else "none",
            )
            for seed in range(6)
        ]
        for name, row in right.items()
    }  # fmt: skip


def test_how_rounds_were_chosen():
    assert how_chosen([row("a", chosen_by="validation"), row("b", chosen_by="validation")]) == (
        "in the round with the best mean validation accuracy under the method's headline rule"
    )
    assert "no validation part: optimistic" in how_chosen([row("a", chosen_by="test")])
    mixed = how_chosen([row("a", chosen_by="validation"), row("b", chosen_by="last, test"), row("c")])
    assert mixed.startswith("of a in the round with the best mean validation")
    assert "; of b in the last round" in mixed
    assert "; of b in the best test round" in mixed
    assert how_chosen([row("c")]) == ""


@pytest.mark.parametrize(
    ("seeds", "wanted"),
    [
        ([(0,), (1,)], "One seed: there is no interval, and nothing says whether a difference is chance."),
        ([(0, 1, 2), ()], "± is half of the 95 % interval of the mean over 3 seeds (Student's t)."),
        (
            [(0, 1, 2), (0, 1, 2, 3), (3, 4, 5)],
            "± is half of the 95 % interval of the mean over seeds (Student's t): 3 of 0 and 2, 4 of 1.",
        ),
        ([(0, 1), (2, 3)], "A range holds the values of the two seeds."),
        (
            [(0, 1), (0, 1, 2), (3, 4)],
            "A range holds the values of the two seeds of 0 and 2. "
            "± is half of the 95 % interval of the mean over 3 seeds (Student's t).",
        ),
        (
            [(0, 1, 2), (0,)],
            "± is half of the 95 % interval of the mean over 3 seeds (Student's t). 1 has one seed, and no interval.",
        ),
        (
            [(0, 0), (3,), (4,)],
            "1 and 2 have one seed, and no interval. Among the 2 runs of 0 some share a seed: "
            "they have no interval, not being independent.",
        ),
        ([()], ""),
        (
            [(0, 1, 2), (2, 2)],
            "± is half of the 95 % interval of the mean over 3 seeds (Student's t). "
            "Among the 2 runs of 1 some share a seed: they have no interval, not being independent.",
        ),
    ],
)
def test_what_the_spread_is(seeds, wanted):
    assert what_spread_is([row(str(place), seeds=one) for place, one in enumerate(seeds)]) == wanted


@pytest.mark.parametrize(
    ("alike", "wanted"),
    [
        ({}, "Bold: the accuracy of a can be told apart from that of every other method."),
        ({"b": "why"}, "No accuracy is bold: that of a cannot be told apart from that of b (why)."),
        ({"b": "why", "c": "why", "d": "why"}, "cannot be told apart from that of b, c and d (why)."),
        ({"b": "why", "c": "else"}, "cannot be told apart from that of b (why) and c (else)."),
    ],
)
def test_a_number_is_bold_only_with_a_reason(alike, wanted):
    assert why_bold([row("b"), row("a", leads=True, alike=alike)]).endswith(wanted)


@pytest.mark.parametrize(
    ("seeds", "end"), [(range(4), "With fewer than 5 seeds that is a hint."), (range(5), "method.")]
)
def test_a_bold_number_of_few_seeds_is_a_hint(seeds, end):
    assert why_bold([row("b"), row("a", leads=True, seeds=tuple(seeds))]).endswith(end)


def test_rules_are_not_ranked_against_each_other():
    """`a` and `b` are judged by their logits, `c` and `d` by prototypes, and `e` by a rule of its own."""
    others = [
        Row("c", "nearest-global", True, {}),
        Row("d", "nearest-global", True, {}, leads=True, alike={"c": "why"}),
    ]
    told = why_bold([row("a"), row("b", leads=True), *others, Row("e", "received", True, {})])
    assert told == (
        "Bold: the accuracy of b can be told apart from that of every other method under the rule logits. "
        "No accuracy under the rule nearest-global is bold: that of d cannot be told apart from that of c (why). "
        "Accuracies under different rules are not ranked."
    )
    assert why_bold([row("a"), Row("c", "nearest-global", True, {})]) == (
        "No accuracy is bold: each method is judged under a rule of its own. "
        "Accuracies under different rules are not ranked."
    )


def test_only_the_verdicts_that_there_are_are_explained():
    worse, alone = measure([np.array([-0.2, -0.1])] * 5), measure([np.array([-0.2, -0.1])])
    assert meaning_of_verdicts([worse, alone, worse]) == "Verdicts: worse: the whole interval lies below zero."
    assert meaning_of_verdicts([alone]) == ""
    assert set(VERDICTS) == set(get_args(Verdict))


def test_nothing_is_said_of_bold_numbers_where_there_is_one_method():
    assert why_bold([row("a")]) == ""


def test_who_gains_against_local_and_against_the_control(groups):
    """Clients 60 − 50 and 50 − 51 against Local, 60 − 55 and 50 − 55 against the control, in each of six seeds."""
    first, second, _ = who_gains_lines(rows(groups))
    assert first == (
        "one against local: over 6 seeds clients gain in 6 of 12 cases, lose in 6; the worst loses 1.0 points."
    )
    assert second == (
        "one against its solo control: over 6 seeds clients gain in 6 of 12 cases, lose in 6; "
        "the worst loses 5.0 points."
    )
    assert who_gains_lines([row("a", local=Contrast("local", None, "train (0.5; 0.75)"))]) == [
        "a has no gain against local: they differ in train (0.5; 0.75)."
    ]


def test_p_values_from_six_seeds_on(groups):
    """Mean gains .045 against Local in all seeds: 1/32; 0 against the control: 1; of the control against Local .045."""
    assert p_values(rows(groups)) == (
        "Sign-flip test over seeds, p corrected by Holm: one against local p = 0.031, "
        "one against its solo control p = 1.000, one (solo) against local p = 0.031."
    )
    assert p_values(rows({name: runs[:5] for name, runs in groups.items()})) == ""
