"""Which round a table reports, what is held out for it, and what every form of a table says of that."""

import csv
import io
from dataclasses import replace

import pytest
from experiments.reproduction.accuracy import accuracy_tables
from experiments.reproduction.cells import Cell
from experiments.reproduction.findings import expected_outcomes
from experiments.reproduction.profiles import PROFILES, PROTOCOLS
from experiments.reproduction.running import reproduction
from experiments.reproduction.writing import write

from tests.reproduction.studies import TINY, Fake, fake_findings, small_study, task, write_record

ONE, TWO = "Group: one", "Group: two"
LUCKY = Fake(
    (0.5, 0.8, 0.6), validated=(0.4, 0.5, 0.7)
)  # the best test round is the second, that of validation the third
CELLS = [replace(cell, settings=cell.settings | {"rounds": 3}) for cell in small_study().cells]


def findings(tmp_path, protocol, given=LUCKY, profile="paper", **more):
    """Write the record of one cell, or of some."""
    given = given if isinstance(given, dict) else {("ProtoNorm", ONE): [given]}
    return fake_findings(tmp_path / protocol, small_study(**{"cells": CELLS} | more), given, profile, protocol)


def first_entry(found):
    (row, entries) = accuracy_tables(found)[0].rows[0]
    assert row == "ProtoNorm"
    return entries[0]


def test_validated_reports_the_round_chosen_on_validation_and_the_best_test_round_beside_it(tmp_path):
    """60 and not 80, which stands beside; 60 − 47.41 = 12.59."""
    entry = first_entry(findings(tmp_path, "validated"))
    assert (entry.text, entry.best, entry.below) == ("60.00", "80.00", "47.41 ± 0.40 (+12.59)")
    assert entry.lines == ["best* 80.00", "47.41 ± 0.40 (+12.59)"]


def test_paper_reports_the_best_test_round_and_nothing_beside_it(tmp_path):
    entry = first_entry(findings(tmp_path, "paper"))
    assert (entry.text, entry.best, entry.below) == ("80.00", "", "47.41 ± 0.40 (+32.59)")


def test_other_rules_are_reported_in_the_round_of_the_headline_rule(tmp_path):
    rows = dict(accuracy_tables(findings(tmp_path, "validated"))[1].rows)
    assert (rows["ProtoNorm, logits"][0].text, rows["ProtoNorm, logits"][0].best) == ("60.00", "80.00")


def test_the_highest_is_sought_among_reported_numbers(tmp_path):
    """Reported 60 and 61 against 70 and 71, although the best test rounds are 80 and 70."""
    lucky = [LUCKY, Fake((0.5, 0.8, 0.61), validated=(0.4, 0.5, 0.7))]
    given = {("ProtoNorm", ONE): lucky, ("FedProto", ONE): [0.70, 0.71]}
    rows = dict(accuracy_tables(findings(tmp_path, "validated", given))[0].rows)
    assert [rows[name][0].bold for name in ("ProtoNorm", "FedProto")] == [False, True]
    rows = dict(accuracy_tables(findings(tmp_path, "paper", given))[0].rows)
    assert [rows[name][0].bold for name in ("ProtoNorm", "FedProto")] == [True, False]


def test_what_stands_behind_the_spread_is_the_protocols(tmp_path):
    """46 and 48: the deviation is √2; half of the t-interval is t(0.975, 1)·√2/√2 = 12.7062."""
    given = {("ProtoNorm", ONE): [0.46, 0.48]}
    paper, validated = (findings(tmp_path, name, given) for name in ("paper", "validated"))
    assert [first_entry(one).text for one in (paper, validated)] == ["47.00 ± 1.41", "47.00 ± 12.71"]
    told = [accuracy_tables(one)[0].explanation for one in (paper, validated)]
    assert "Mean over 2 seeds (0, 1); ± is the standard deviation over them." in told[0]
    assert "± is half of the 95 % interval of the mean (Student's t) over them." in told[1]


@pytest.mark.parametrize(("protocol", "share"), [("paper", 0.0), ("validated", 0.1)])
def test_every_cell_holds_out_what_the_protocol_says(protocol, share):
    for profile in PROFILES.values():
        found = expected_outcomes(small_study(), profile, PROTOCOLS[protocol], [0])
        assert {one.experiment.validation for one in found} == {share}


def test_runs_of_one_protocol_are_not_taken_for_those_of_the_other(tmp_path):
    keys = [set(task(tmp_path, protocol=name).pending()) for name in PROTOCOLS]
    assert keys[0].isdisjoint(keys[1])


@pytest.mark.parametrize(
    ("protocol", "by", "round", "accuracy", "told"),
    [
        ("paper", "test", "2", "80.0000", "in the best test round"),
        ("validated", "validation", "3", "60.0000", "in the round with the best mean validation accuracy"),
    ],
)
def test_every_form_says_which_protocol_and_how_the_round_was_chosen(tmp_path, protocol, by, round, accuracy, told):
    write(findings(tmp_path, protocol), tmp_path / "out")
    texts = {path.suffix: path.read_text(encoding="utf-8") for path in (tmp_path / "out").glob("small.*")}
    for ending in (".md", ".tex"):
        assert f"Protocol {protocol}." in texts[ending]
        assert told in texts[ending]
        assert "One seed (0): there is no ±." in texts[ending].replace(r"$\pm$", "±")
        assert PROTOCOLS[protocol].sentence.split(",")[0] in texts[ending]
        assert ("best* 80.00" in texts[ending].replace("\\", "")) == (protocol == "validated" and ending == ".md")
    assert f"protocol `{protocol}`" in texts[".md"]
    assert (r"{\scriptsize \quad best{*}} & \raggedleft {\scriptsize 80.00}" in texts[".tex"]) == (
        protocol == "validated"
    )
    line = next(csv.DictReader(io.StringIO(texts[".csv"])))
    assert [line[name] for name in ("protocol", "chosen_by", "round", "accuracy")] == [protocol, by, round, accuracy]
    assert (line["best"], line["best_round"], line["seeds"]) == ("80.0000", "2", "1")


def test_a_round_that_could_not_be_chosen_as_the_protocol_says_is_named(tmp_path):
    given = {("ProtoNorm", ONE): [Fake(0.5, validated=())], ("FedProto", ONE): [0.5]}
    told = accuracy_tables(findings(tmp_path, "validated", given))[0].explanation
    assert "but of ProtoNorm, Group: one (seed 0) in the best test round, as there is no validation part" in told
    assert "FedProto, Group: one" not in told


def test_rounds_beyond_those_asked_for_do_not_count(tmp_path):
    """Nine rounds are there, with 80 in the last; three are asked for, with 30 in the best."""
    asked = task(tmp_path, small_study(cells=CELLS[:1]))
    (one,) = asked.pending().values()
    longer = one.experiment.model_copy(update={"rounds": 9})
    write_record(asked.root, longer, Fake((0.1, 0.3, 0.2, *[0.4] * 5, 0.8)))
    found = asked.findings(asked.studies[0])
    assert [one.state for one in found.outcomes] == ["finished"]
    assert first_entry(found).text == "30.00"


def test_fewer_rounds_than_asked_for_are_a_beginning(tmp_path):
    asked = task(tmp_path, small_study(cells=CELLS[:1]))
    (one,) = asked.pending().values()
    write_record(asked.root, one.experiment.model_copy(update={"rounds": 2}), Fake(0.5))
    assert [one.progress for one in asked.pending().values()] == ["2 of 3 rounds"]
    assert first_entry(asked.findings(asked.studies[0])).text == "2 of 3 rounds"


def test_a_run_without_rounds_is_drawn_only_where_none_are_asked_for(tmp_path):
    """Who holds what is recorded under the key of a run that trains later."""
    asked = task(tmp_path, small_study(cells=CELLS[:1]))
    (one,) = asked.pending().values()
    write_record(asked.root, one.experiment.model_copy(update={"rounds": 0}), Fake(0.5))
    assert asked.findings(asked.studies[0]).run("ProtoNorm", ONE) is None
    cell = replace(CELLS[0], settings=CELLS[0].settings | {"rounds": 0})
    untrained = task(tmp_path, small_study(cells=[cell]))
    assert untrained.findings(untrained.studies[0]).run("ProtoNorm", ONE) is not None


@pytest.mark.parametrize("order", [(5, 2), (2, 5)])
def test_cells_that_share_a_run_are_run_with_the_most_rounds(tmp_path, order):
    cells = [
        Cell("ProtoNorm", column, TINY | {"rounds": rounds}) for column, rounds in zip((ONE, TWO), order, strict=True)
    ]
    (waiting,) = task(tmp_path, small_study(cells=cells)).pending().values()
    assert waiting.experiment.rounds == 5


def test_an_unknown_protocol_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'validated'"):
        reproduction(["all"], "cpu", "validate", None, None, [], None, None, "")
