import csv
import io

import pytest

from protonorm.analysis.comparison import COLUMNS, MAJORITY, best, csv_text, rows
from protonorm.analysis.summaries import headline, plain_run, standing
from protonorm.runs.reader import RoundSummary, Summary
from tests.records import guessing, made


def table(**runs):
    return {(row.method, row.rule): row for row in rows(runs)}


def test_a_method_has_a_row_for_each_rule_its_headline_first(tmp_path):
    """Of 3 rounds, n has n/4 under `global` and half of that under `logits`."""
    found = rows({"protonorm": [made(tmp_path / "run")]})
    assert [(row.method, row.rule, row.headline) for row in found] == [
        ("protonorm", "global", True),
        ("protonorm", "logits", False),
        ("majority", MAJORITY, True),
    ]
    assert [str(found[0].cells[name]) for name in ("best", "last", "mean", "worst")] == ["75.00"] * 4
    assert str(found[1].cells["best"]) == "37.50"


def test_columns_are_parts_of_a_runs_summary():
    summary = Summary(RoundSummary(3, 0.1, 0.2, 0.3), RoundSummary(9, 0.4, 0.5, 0.6), 0.7)
    found = {name: number(summary) for name, (_, number) in COLUMNS.items()}
    assert found == {"best": 0.1, "last": 0.4, "mean": 0.2, "worst": 0.3, "own_best": 0.7}


def test_seeds_are_averaged_with_their_standard_deviation(tmp_path):
    """Runs of 3 and of 1 rounds end with 3/8 and 1/4: mean 5/16, deviation (1/8)/√2."""
    runs = [made(tmp_path / "a"), made(tmp_path / "b", rounds=1, seed=1)]
    cell = table(protonorm=runs)["protonorm", "logits"].cells["best"]
    assert cell.mean == pytest.approx(5 / 16)
    assert cell.std == pytest.approx(1 / 8 / 2**0.5)
    assert str(cell) == "31.25 ± 8.84"


def test_a_row_says_that_a_run_stopped_and_how_many_seeds_it_stands_for(tmp_path):
    """A run of one round has nothing under `global`, a rule from the second round on."""
    whole, stopped = made(tmp_path / "a"), made(tmp_path / "b", done=1, seed=1, failure=(2, "It diverged."))
    later = made(tmp_path / "c", seed=2, failure=(4, "It diverged."))
    found = table(protonorm=[whole, stopped], other=[stopped], both=[later, stopped])
    assert found["protonorm", "global"].note == "stopped in round 2, 1 of 2 seeds"
    assert found["protonorm", "logits"].note == "stopped in round 2"
    assert found["other", "global"].note == "stopped in round 2"
    assert found["both", "logits"].note == "stopped in round 2 and 4"
    assert found["other", "global"].cells["best"] is None


def test_the_best_row_is_a_headline_row_and_never_the_majority(tmp_path):
    runs = {
        "early": [made(tmp_path / "a", rounds=9, done=2)],
        "late": [made(tmp_path / "b", rounds=9, done=4)],
        "none": [made(tmp_path / "c", done=0)],
    }
    found = rows(runs)
    assert best(found, "last").method == "late"
    assert best([row for row in found if row.method == "none"], "last") is None


def test_the_majority_is_averaged_over_the_seeds_of_one_partition_only(tmp_path):
    """0.2 and 0.4 have the mean 0.3 and the deviation 0.2/√2; the same population counts once."""

    def one(name, level, alpha, seed):
        partition = {"name": "dirichlet", "alpha": alpha, "seed": seed}
        return made(tmp_path / name, population=guessing(level), partition=partition, rounds=1)

    runs = {
        "mild": [one("a", 0.2, 1.0, 1), one("b", 0.4, 1.0, 2), one("c", 0.4, 1.0, 2)],
        "strong": [one("d", 0.8, 0.1, 1)],
    }
    found = {row.method: row.cells["best"] for row in rows(runs) if row.is_majority}
    assert list(found) == ["majority (alpha=1)", "majority (alpha=0.1)"]
    assert found["majority (alpha=1)"].mean == pytest.approx(0.3)
    assert found["majority (alpha=1)"].std == pytest.approx(0.02**0.5)
    assert (found["majority (alpha=0.1)"].mean, found["majority (alpha=0.1)"].std) == (0.8, None)


def test_csv_has_a_column_for_every_number_and_empty_cells_where_there_is_none(tmp_path):
    runs = {"a": [made(tmp_path / "a"), made(tmp_path / "b", seed=1)], "none": [made(tmp_path / "c", done=0)]}
    text = csv_text(rows(runs))
    head, first, *_, none, _, _ = csv.reader(io.StringIO(text))
    assert head == ["method", "rule", "headline", *(f"{name}{end}" for name in COLUMNS for end in ("", "_std")), "note"]
    assert first[:5] == ["a", "global", "True", "0.75", "0.0"]
    assert none[:5] == ["none", "global", "True", "", ""]


def test_a_run_in_a_sentence(tmp_path):
    runs = [
        made(tmp_path / "a"),
        made(tmp_path / "b", done=1),
        made(tmp_path / "c", done=1, failure=(2, "It diverged.")),
    ]
    assert [standing(run) for run in runs] == [
        "3 of 3 rounds are done.",
        "1 of 3 rounds are done; the same command goes on.",
        "Stopped in round 2: It diverged.",
    ]
    partition = {"name": "dirichlet", "alpha": 0.1, "least": 2}
    found = headline({"x": [made(tmp_path / "d", partition=partition)]})
    assert found == "fashion, dirichlet (alpha 0.1), 4 clients, 3 rounds"
    assert headline({"x": runs}) == "fashion, iid, 4 clients, 3 rounds"


def test_a_run_in_plain_data(tmp_path):
    found = plain_run(made(tmp_path / "run", population=guessing(0.6), done=1, failure=(2, "It diverged.")))
    assert found["key"] == "run"
    assert (found["rounds"], found["finished"], found["headline"]) == (1, False, "global")
    assert found["experiment"]["algorithm"] == {"name": "protonorm", "lam": 1.0, "gamma": 100.0}
    best = {"round": 1, "pooled": 0.125, "mean": 0.125, "worst": 0.125}
    assert found["summary"] == {"global": None, "logits": {"best": best, "last": best, "own_best": 0.1}}  # 2 of 20
    assert found["majority"] == {"pooled": 0.6, "mean": 0.6, "worst": 0.6}
    assert found["failure"] == {"round": 2, "reason": "It diverged."}
