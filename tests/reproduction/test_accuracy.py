"""Tables of accuracies: numbers, bold, difference, and what is missing.

Clients of a made-up run are equal, so that intervals of differences go from the lowest to the highest of the seeds.
"""

from dataclasses import replace

import pytest
from experiments.reproduction.accuracy import accuracy_tables
from experiments.reproduction.cells import Cell
from experiments.reproduction.findings import cell_value
from experiments.reproduction.writing import remarks

from tests.reproduction.studies import TINY, Fake, fake_findings, small_study

ONE, TWO = "Group: one", "Group: two"
FULL = {
    ("ProtoNorm", ONE): [0.46, 0.48],
    ("FedProto", ONE): [0.30, 0.31],
    ("ProtoNorm", TWO): [0.10, 0.11],
    ("FedProto", TWO): [0.20, 0.22],
    ("Local", ONE): [0.99],
}
LONG = [
    Cell(row, column, TINY | {"algorithm": row.lower(), "rounds": 9, "lr": lr})
    for row in ("ProtoNorm", "FedProto")
    for column, lr in ((ONE, 0.01), (TWO, 0.02))
]


def at(findings, row, column):
    """Condense one cell under its headline rule."""
    return cell_value(findings.at(row, column), findings.protocol)


@pytest.fixture
def entries(tmp_path):
    """Make the first table of a study by row."""

    def make(given=FULL, profile="paper", protocol="paper", **study):
        found = accuracy_tables(fake_findings(tmp_path, small_study(**study), given, profile, protocol))[0]
        return {row: list(cells) for row, cells in found.rows}

    return make


def test_seeds_become_mean_and_deviation_beside_the_printed_number(entries):
    """(46 + 48)/2 = 47, deviation √2, and 47 − 47.41 = −0.41."""
    found = entries()["ProtoNorm"][0]
    assert found.text == "47.00 ± 1.41"
    assert found.below == "47.41 ± 0.40 (−0.41)"


def test_the_best_of_each_column_is_bold_and_rows_that_are_not_printed_do_not_compete(entries):
    found = entries()
    assert [entry.bold for entry in found["ProtoNorm"]] == [True, False]
    assert [entry.bold for entry in found["FedProto"]] == [False, True]
    assert "Local" not in found


def test_the_best_can_be_sought_along_rows(entries):
    """FedProto has 30 and 31 in the first column, 20 and 22 in the second: 9 or 10 points apart with either seed."""
    assert [entry.bold for entry in entries(best="row")["FedProto"]] == [True, False]


def explanation(tmp_path, given, **study):
    """Make what the first table says of itself."""
    return accuracy_tables(fake_findings(tmp_path, small_study(**study), given))[0].explanation


def test_the_highest_is_not_bold_within_noise_and_the_table_says_so(entries, tmp_path):
    """48 − 47 and 46 − 47: the highest mean is ahead with one seed and behind with the other."""
    given = FULL | {("ProtoNorm", ONE): [0.46, 0.49], ("FedProto", ONE): [0.47, 0.47]}
    found = entries(given)
    assert [entry.bold for entry in found["ProtoNorm"]] == [False, False]
    assert [entry.bold for entry in found["FedProto"]] == [False, True]
    told = "Group: one: ProtoNorm, not distinguishable from FedProto (difference −1.00 to +2.00 points)"
    said = explanation(tmp_path / "again", given)
    assert f"The highest, but not bold: {told}." in said
    assert "distinguishable from all others there; with fewer than 5 seeds a hint." in said


def test_with_one_seed_nothing_is_bold_and_the_table_says_so(entries, tmp_path):
    given = {place: numbers[:1] for place, numbers in FULL.items()}
    assert not any(entry.bold for cells in entries(given).values() for entry in cells)
    told = explanation(tmp_path / "again", given)
    assert "One seed has no interval: nothing is bold" in told
    assert "One seed (0): there is no ±." in told


def test_numbers_of_other_seeds_are_not_compared(entries):
    given = FULL | {("FedProto", ONE): [0.30, 0.31, 0.32]}
    assert not any(entry.bold for entry in entries(given)["ProtoNorm"])


def test_the_table_says_which_seeds_and_what_the_spread_is(tmp_path):
    assert "Mean over 2 seeds (0, 1); ± is the standard deviation over them." in explanation(tmp_path, FULL)


def test_the_table_says_by_which_rule_each_row_is_judged(tmp_path):
    """Also of one that is not run yet."""
    rows = ("ProtoNorm", "FedAvg", "Targets", "FedProto")
    cells = [Cell(row, ONE, TINY | {"algorithm": row.lower()}) for row in rows]
    told = explanation(tmp_path, {("FedProto", ONE): [0.5]}, cells=cells, rows=rows)
    assert (
        "Judged by nearest global prototype: ProtoNorm and FedProto; logits of the model as received: FedAvg; nearest "
        "local prototype, or fixed target: Targets."
    ) in told
    assert "Judged by nearest global prototype: ProtoNorm and FedProto. " in explanation(tmp_path, FULL)


def test_the_second_table_explains_the_rules_that_it_shows(tmp_path):
    told = accuracy_tables(fake_findings(tmp_path, small_study(), FULL))[1].explanation
    for rule in ("local (nearest local", "logits (the model's own", "joint (sum of all"):
        assert rule in told
    assert "global (" not in told


def test_a_lone_number_is_not_the_best_of_anything(entries):
    assert not any(entry.bold for entry in entries({("ProtoNorm", ONE): [0.5]})["ProtoNorm"])


def test_smoke_has_no_printed_numbers(entries):
    assert not any(entry.below for cells in entries(profile="smoke").values() for entry in cells)


def test_what_is_not_there_is_named_and_never_a_number(tmp_path):
    bare = Cell("FedProto", TWO, {"dataset": "cifar10"})
    findings = fake_findings(
        tmp_path,
        small_study(cells=[*LONG[:3], bare], beside=()),
        {("ProtoNorm", ONE): [Fake(0.5, done=4, diverged=5)], ("FedProto", ONE): [Fake(0.5, done=4)]},
    )
    found = {row: list(cells) for row, cells in accuracy_tables(findings)[0].rows}
    assert [entry.text for entry in found["ProtoNorm"]] == ["-", "not run yet"]
    assert [entry.text for entry in found["FedProto"]] == ["4 of 9 rounds", "no data"]
    assert not any(entry.bold for cells in found.values() for entry in cells)
    told = "\n".join(remarks(findings))
    assert "Diverged in round 5: ProtoNorm, Group: one (seed 0)" in told
    assert "CIFAR-10 is not prepared: There is no cifar10.npz" in told
    assert "Begun: 4 of 9 rounds: FedProto, Group: one (seed 0)" in told
    assert "Not run yet: ProtoNorm, Group: two (seed 0)" in told


def test_only_what_is_asked_for_is_in_the_table(tmp_path):
    findings = fake_findings(tmp_path, small_study(), FULL)
    some = replace(findings, outcomes=tuple(one for one in findings.outcomes if one.cell.column == TWO))
    found = accuracy_tables(some)[0]
    assert (list(found.columns), list(found.groups)) == (["two"], ["Group"])


def test_one_seed_that_diverged_makes_the_cell_a_dash(tmp_path):
    given = {("ProtoNorm", ONE): [0.4, Fake(0.5, done=4, diverged=5)]}
    found = at(fake_findings(tmp_path, small_study(cells=LONG), given), "ProtoNorm", ONE)
    assert (found.mean, found.text) == (None, "-")
    assert "round 5 with seed 1" in found.note


def test_a_cell_of_some_seeds_says_how_many(tmp_path):
    """Of three seeds one, then two, are finished: (40 + 42)/2 = 41, deviation √2; a begun one does not count."""
    given = {("ProtoNorm", ONE): [0.4, None, None], ("FedProto", ONE): [0.4, Fake(0.9, done=4), 0.42]}
    findings = fake_findings(tmp_path, small_study(cells=LONG), given)
    assert at(findings, "ProtoNorm", ONE).text == "40.00 (1 of 3 seeds)"
    assert at(findings, "FedProto", ONE).text == "41.00 ± 1.41 (2 of 3 seeds)"
    first, second = accuracy_tables(findings)
    assert first.rows[0][1][0].text == "40.00 (1 of 3 seeds)"
    assert dict(second.rows)["FedProto, nearest-local"][0].text == "41.00 ± 1.41 (2 of 3 seeds)"


def test_the_second_table_has_the_other_rules_and_local(tmp_path):
    _, second = accuracy_tables(fake_findings(tmp_path, small_study(), FULL))
    rows = [row for row, _ in second.rows]
    others = [
        f"{method}, {rule}" for method in ("ProtoNorm", "FedProto") for rule in ("nearest-local", "logits", "joint")
    ]
    assert rows == [*others, "Local"]
