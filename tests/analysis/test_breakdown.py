"""One run by client, by class and by rule; the numbers are those that the records were made with."""

import math

import numpy as np
import pytest

from protonorm.analysis.breakdown import class_rows, client_rows, matching_local, plain_run, rows_by, rule_rows
from protonorm.runs.run import Population
from tests.records import hundred, made

LOCAL = {"name": "local"}


def pair(tmp_path, **more):
    """Two clients with 100 test samples each; the second round has the best validation accuracy."""
    usual = {"clients": 2, "classes": 1, "rounds": 2, "population": hundred(2, 10), "validated": [[5, 5], [6, 6]]}
    together = made(tmp_path / "together", tested=[[10, 20], [80, 40]], **usual | more)
    alone = made(tmp_path / "alone", tested=[[90, 90], [70, 60]], method=LOCAL, **usual | more)
    return together, alone


def test_by_client_with_what_it_has_and_how_it_does_alone(tmp_path):
    """In round 2 the clients have 80 and 40 of 100 right, alone 70 and 60: gains of 10 and −20 points."""
    together, alone = pair(tmp_path, client_names=["berlin", "paris"], networks=("plain", {"name": "net.py:small"}))
    rows = client_rows(together, alone)
    assert [row["client"] for row in rows] == ["berlin", "paris"]
    assert [row["network"] for row in rows] == ["plain", "net.py:small"]
    assert [row["accuracy"] for row in rows] == [0.8, 0.4]
    assert [row["alone"] for row in rows] == [0.7, 0.6]
    assert [row["gain"] for row in rows] == pytest.approx([0.1, -0.2])
    assert {(row["method"], row["seed"], row["round"], row["rule"]) for row in rows} == {
        ("protonorm", 0, 2, "nearest-global")
    }
    assert {(row["train"], row["validation"], row["test"], row["classes"]) for row in rows} == {(100, 10, 100, 1)}


def test_by_client_under_another_rule(tmp_path):
    """Under `logits` clients have half as many right: 40 and 20."""
    rows = client_rows(pair(tmp_path)[0], rule="logits")
    assert [(row["client"], row["accuracy"]) for row in rows] == [("0", 0.4), ("1", 0.2)]
    assert "alone" not in rows[0]


def test_measures_beside_accuracy_are_there(tmp_path):
    row = client_rows(pair(tmp_path)[0])[0]
    assert {"balanced", "f1", "log_loss", "calibration"} <= row.keys()
    assert math.isnan(row["log_loss"])  # these records have none


def test_by_class(tmp_path):
    """Cats have 3 samples of one client to train on and 4 + 4 to test on, dogs 1 + 2 and 8; in round 3 of 3, 3/4 are
    right."""
    population = Population(np.array([[0, 1], [3, 2]]), np.zeros((2, 2), int), np.array([[4, 0], [4, 8]]))
    run = made(tmp_path / "run", clients=2, classes=2, rounds=3, population=population, names=["cat", "dog"])
    rows = class_rows(run)
    assert [row["class"] for row in rows] == ["cat", "dog"]
    assert [row["clients"] for row in rows] == [1, 2]  # that train on it
    assert [(row["train"], row["test"]) for row in rows] == [(3, 8), (3, 8)]
    assert [row["accuracy"] for row in rows] == [
        0.75,
        0.75,
    ]  # the best test round is the last: 3/4 under `nearest-global`


def test_by_client_and_class_has_every_class_of_which_a_client_has_a_sample(tmp_path):
    """Client 0 trains on dogs, validates on fish and tests on cats; client 1 has cats alone."""
    train, validation = np.array([[0, 1, 0], [3, 0, 0]]), np.array([[0, 0, 2], [0, 0, 0]])
    test = np.array([[4, 0, 0], [4, 0, 0]])
    names = ["cat", "dog", "fish"]
    population = Population(train, validation, test)
    run = made(tmp_path / "run", clients=2, classes=3, rounds=1, population=population, names=names)
    rows = rows_by(run, "client,class", "logits", cells=lambda: (test // 2, test))
    assert [(row["client"], row["class"], row["accuracy"]) for row in rows if row["test"]] == [
        ("0", "cat", 0.5),
        ("1", "cat", 0.5),
    ]
    assert [(row["train"], row["validation"], row["test"]) for row in rows[:3]] == [(0, 0, 4), (1, 0, 0), (0, 2, 0)]


def test_by_rule(tmp_path):
    """Of 200 samples 120 are right under `nearest-global` in round 2, half of them under `logits`."""
    rows = rule_rows(pair(tmp_path)[0])
    assert [(row["rule"], row["headline"], row["pooled"]) for row in rows] == [
        ("nearest-global", True, 0.6),
        ("logits", False, 0.3),
    ]
    assert [(row["best"], row["last"]) for row in rows] == [(0.6, 0.6), (0.3, 0.3)]


def test_the_reported_the_best_and_the_last_round_are_three(tmp_path):
    """Validation is best in round 1, test in round 2, and there is a third: 60, 160 and 120 right answers of 200 under
    `nearest-global`; under `logits`, which has half, 30, 80 and 60. The worse client has 20, 70 and 50 of 100."""
    right = {"tested": [[20, 40], [90, 70], [50, 70]], "validated": [[9, 9], [1, 1], [2, 2]]}
    run = made(tmp_path / "run", classes=1, clients=2, rounds=3, population=hundred(2), **right)
    rows = rule_rows(run)
    assert [(row["pooled"], row["best"], row["last"]) for row in rows] == [(0.3, 0.8, 0.6), (0.15, 0.4, 0.3)]
    found = plain_run(run)["summary"]["nearest-global"]
    assert found["best"] == {"round": 2, "pooled": 0.8, "mean": 0.8, "worst": 0.7}
    assert found["last"] == {"round": 3, "pooled": 0.6, "mean": 0.6, "worst": 0.5}


def test_by_round_has_all_rounds_and_rules(tmp_path):
    rows = rows_by(pair(tmp_path)[0], "round")
    assert [(row["round"], row["rule"], row["pooled"]) for row in rows] == [
        (1, "nearest-global", 0.15),
        (1, "logits", 0.075),
        (2, "nearest-global", 0.6),
        (2, "logits", 0.3),
    ]


def test_a_run_without_rounds_has_sizes_and_no_accuracies(tmp_path):
    run = made(tmp_path / "run", done=0)
    row = client_rows(run)[0]
    assert row["round"] is None
    assert row["train"] == 1 + 2 + 3
    assert math.isnan(row["accuracy"])
    assert rule_rows(run)[0]["pooled"] is None
    assert math.isnan(class_rows(run)[0]["accuracy"])


def test_a_control_is_told_apart(tmp_path):
    assert client_rows(made(tmp_path / "run", control="solo"))[0]["method"] == "protonorm (solo)"


@pytest.mark.parametrize(
    ("other", "said"),
    [({"seed": 1}, "seeds"), ({"train": 0.5}, "train"), ({"validated": None}, "how their rounds were chosen")],
)
def test_other_clients_are_refused(tmp_path, other, said):
    together, _ = pair(tmp_path)
    usual = {"clients": 2, "classes": 1, "rounds": 2, "population": hundred(2, 10), "validated": [[5, 5], [6, 6]]}
    alone = made(tmp_path / "other", tested=[[9, 9], [7, 6]], method=LOCAL, **usual | other)
    with pytest.raises(ValueError, match=f"cannot be put side by side client by client: they differ in .*{said}"):
        client_rows(together, alone)


def test_beside_a_run_stands_a_local_whose_round_was_chosen_in_the_same_way(tmp_path):
    """Without validation accuracies the best test round is reported, which is optimistic."""
    run, local = pair(tmp_path)
    optimistic = made(
        tmp_path / "other", clients=2, classes=1, rounds=2, population=hundred(2, 10), tested=[[90, 90], [70, 60]],
        method=LOCAL,
    )  # fmt: skip
    assert (local.chosen.by, optimistic.chosen.by) == ("validation", "test")
    assert matching_local(run, [optimistic, local]) is local
    assert matching_local(run, [optimistic]) is None


def test_an_unknown_rule_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no rule 'nearest' in this run; known: nearest-global, logits"):
        client_rows(made(tmp_path / "run"), rule="nearest")
