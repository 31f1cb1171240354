"""The CSV of a comparison: a line for each method, rule and seed."""

import csv
import io

import pytest

from protonorm.analysis.comparison import Unread
from protonorm.analysis.row import COLUMNS
from protonorm.analysis.seeds import FIELDS, csv_text, seed_lines
from tests.records import hundred, made


@pytest.fixture
def groups(tmp_path):
    """Two seeds of `one`: validation chooses round 2 and round 1; right answers of two clients are as given."""
    tested = [[[10, 20], [60, 70], [90, 90]], [[30, 50], [0, 0], [20, 20]]]
    validated = [[[1, 1], [9, 9], [2, 2]], [[9, 9], [1, 1], [2, 2]]]
    common = {"clients": 2, "classes": 1, "rounds": 3, "population": hundred(2), "method": {"name": "one"}}
    runs = [
        made(tmp_path / f"one{seed}", seed=seed, tested=tested[seed], validated=validated[seed], **common)
        for seed in (0, 1)
    ]
    return {"one": [*runs, runs[0], Unread("global", "A bit was flipped.")]}


def test_a_line_for_each_rule_and_seed_with_the_numbers_of_its_run(groups):
    """Pooled .65 of (.6, .7) in round 2, .4 of (.3, .5) in round 1, and half of that under `logits`.

    The best test rounds are 3 and 1, the last ones have .9 and .2; the clients' own best .9 and .9, .3 and .5.
    """
    lines = seed_lines(groups)
    assert [(line["rule"], line["headline"], line["seed"], line["round"]) for line in lines[:-1]] == [
        ("global", True, 0, 2),
        ("logits", False, 0, 2),
        ("global", True, 1, 1),
        ("logits", False, 1, 1),
    ]
    numbers = [[line[name] for name in COLUMNS] for line in lines[:-1]]
    assert numbers[0] == pytest.approx([0.65, 0.65, 0.6, 0.9, 0.9, 0.9])
    assert numbers[2] == pytest.approx([0.4, 0.4, 0.3, 0.4, 0.2, 0.4])
    assert numbers[1][0] == pytest.approx(0.325)
    assert [line["run"] for line in lines] == ["one0", "one0", "one1", "one1", None]
    assert {line["chosen_by"] for line in lines[:-1]} == {"validation"}
    assert (lines[0]["majority"], lines[0]["rounds_done"], lines[0]["note"]) == (1.0, 3, None)


def test_a_run_that_cannot_be_read_or_that_stopped_says_so(groups, tmp_path):
    stopped = made(tmp_path / "stopped", done=1, failure=(2, "It diverged."))
    lines = seed_lines({**groups, "two": [stopped]})
    assert {name: value for name, value in lines[4].items() if value is not None} == {
        "method": "one",
        "rule": "global",
        "headline": True,
        "note": "not read: A bit was flipped.",
    }
    head, other = lines[5:]
    assert (head["accuracy"], head["round"], head["seed"], head["note"]) == (None, None, 0, "stopped in round 2")
    assert (other["best"], other["accuracy"], other["round"]) == (0.125, None, None)


def test_the_csv_has_the_same_cells_in_every_line_and_no_formula(groups):
    lines = list(csv.reader(io.StringIO(csv_text({"=1+1": groups["one"]}))))
    assert lines[0] == list(FIELDS)
    assert {len(line) for line in lines} == {len(FIELDS)}
    assert {line[0] for line in lines[1:]} == {"'=1+1"}
    assert lines[1][:7] == ["'=1+1", "global", "True", "0", "2", "validation", "0.65"]
