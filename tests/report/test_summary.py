"""The numbers at the top of the page: which round they are of, how sure they are, and no winner that is not one."""

import shutil

import pytest

from protonorm.report.page.groups import by_method
from protonorm.report.page.write import content
from protonorm.runs.run import read_run
from tests.report.pages import data, page, runs_of, words
from tests.support import run, spiral
from tests.trackers.test_tracker import Notebook

VALIDATED = "in the round with the best mean validation accuracy under the method's headline rule"
OPTIMISTIC = "in the best test round, as there is no validation part: optimistic"


def told(runs):
    return content(by_method(runs))


@pytest.fixture
def lucky(tmp_path):
    """Validation chooses round 1 with 40 of 100 right; round 2 has 90, and the last 50."""
    return runs_of(tmp_path, "one", [[[40, 40], [90, 90], [50, 50]]], validated=[[[9, 9], [1, 1], [1, 1]]])


def test_the_headline_is_the_round_that_validation_chose_and_the_best_lies_beside_it(lucky, tmp_path):
    found = told(lucky)
    cards = {card["name"]: (card["value"], card["note"]) for card in found["cards"]}
    assert cards["reported round"] == ("40.00 %", "round 1 (by validation)")
    assert cards["best test round*"] == ("90.00 %", "optimistic")
    assert cards["last round"][0] == "50.00 %"
    assert found["lead"].startswith("one reaches 40.00 % under the rule nearest-global.")
    assert VALIDATED in found["lead"]
    assert found["rows"][0]["round"] == "1"
    (standing,) = found["standings"]
    assert (standing["accuracy"], standing["round"], standing["by"]) == ("40.00 %", 1, "validation")
    assert (standing["best"], standing["best_round"]) == ("90.00 %", 2)
    line = data(page(lucky, tmp_path))["charts"]["accuracy"][0]["lines"][0]
    assert line["reported"] == [[1, 40]]
    assert "Reported round: 1." in words(page(lucky, tmp_path))
    assert data(page(lucky, tmp_path))["runs"][0]["reported"] == 1


def test_without_validation_every_table_says_so(tmp_path):
    runs = runs_of(tmp_path, "one", [[[60, 60]]], validated=False, beside={"nearest-global": {"f1": 0.5}})
    runs += runs_of(tmp_path, "local", [[[50, 50]]], validated=False)
    text = page(runs, tmp_path)
    for name in ("Comparison", "Beside accuracy", "Gains in numbers", "How far the runs are"):
        (card,) = [part for part in text.split('<div class="card') if f">{name}</h" in part]
        assert f"Accuracies are reported {OPTIMISTIC}." in words(card.split("</section>")[0]), name
    assert "There is no validation part: the best test round is reported, which is optimistic." in words(text)
    assert VALIDATED not in words(text)


def test_a_validated_page_never_speaks_of_a_missing_part(lucky, tmp_path):
    assert "no validation part" not in words(page(lucky, tmp_path))


def test_rounds_that_were_chosen_in_different_ways_are_told_apart(tmp_path):
    runs = runs_of(tmp_path, "one", [[[60, 60]]])
    runs += runs_of(tmp_path, "two", [[[50, 50]]], validated=False)
    found = told(runs)
    assert any(one.startswith("For two") and "no validation part" in one for one in found["notices"])
    wanted = f"Accuracies are reported of one {VALIDATED}; of two {OPTIMISTIC}."
    assert found["captions"]["chosen"] == wanted


def test_one_seed_has_no_interval_and_no_winner(tmp_path):
    runs = runs_of(tmp_path, "one", [[[90, 90]]]) + runs_of(tmp_path, "two", [[[10, 10]]])
    found = told(runs)
    assert found["lead"].startswith(
        "No method stands out under the rule nearest-global: one, with 90.00 %, cannot be told apart from two (one "
        "seed has no interval)."
    )
    assert "One seed: there is no interval" in found["lead"]
    assert not [card for card in found["cards"] if card["first"] or card["spread"]]
    assert not [mark for row in found["rows"] for _, mark in row["cells"] if mark]
    assert found["captions"]["bold"].startswith("No accuracy is bold: that of one cannot be told apart from that of")
    read = words(page(runs, tmp_path))
    assert "highest" not in read
    assert "told apart from the others" not in read
    assert "Lines are of one seed: there are no bands." in read


def test_a_method_that_stands_out_is_bold_in_one_column_and_its_interval_is_students(tmp_path):
    """Accuracies .8, .85 and .9: s = .05, s/√3 = .0289, t(.975, 2) = 4.3027: half of the interval is 12.42 points.

    Every client of every seed is 50 points better, so that every draw of the bootstrap is.
    """
    right = [[[80, 80]], [[85, 85]], [[90, 90]]]
    runs = runs_of(tmp_path, "one", right) + runs_of(tmp_path, "two", [[[n - 50 for n in row]] for [row] in right])
    found = told(runs)
    assert found["lead"].startswith(
        "one reaches 85.00 ± 12.42 % under the rule nearest-global, and can be told apart from every other method "
        "judged by it. With fewer than 5 seeds that is a hint."
    )
    assert "(3 seeds), bands the 95 % interval of the mean, or the range of two seeds" in found["captions"]["curves"]
    assert "told apart from the others under this rule" in words(page(runs, tmp_path))
    assert [(card["name"], card["value"], card["spread"]) for card in found["cards"] if card["first"]] == [
        ("one", "85.00 %", "± 12.42")
    ]
    marks = [[mark for _, mark in row["cells"]] for row in found["rows"]]
    assert marks[0] == [True] + [False] * 5
    assert not any(any(row) for row in marks[1:])
    assert "<strong>85.00 ± 12.42</strong>" in page(runs, tmp_path)
    assert "mean over 3 seeds (Student's t)" in found["lead"]


def test_no_winner_is_named_across_rules(tmp_path):
    """`one` has 90 under `nearest-global`, Local 50 under `logits`: another rule may be all the difference."""
    runs = runs_of(tmp_path, "one", [[[90, 90]], [[91, 91]]])
    runs += runs_of(tmp_path, "local", [[[50, 50]], [[51, 51]]], rules=["logits"])
    found = told(runs)
    assert found["lead"].startswith(
        "one reaches 90.00–91.00 % under the rule nearest-global. Local reaches 50.00–51.00 % under the rule logits. "
        "Accuracies under different rules are not ranked. Guessing"
    )
    assert not [card for card in found["cards"] if card["first"]]
    assert found["captions"]["bold"].startswith("No accuracy is bold: each method is judged under a rule of its own.")


def test_seeds_of_each_method_are_told_where_they_differ(tmp_path):
    runs = runs_of(tmp_path, "one", [[[80, 80]], [[90, 90]]]) + runs_of(tmp_path, "two", [[[30, 30]]])
    found = told(runs)
    assert "(seeds: 2 of one and 1 of two), bands" in found["captions"]["curves"]
    assert "A range holds the values of the two seeds. two has one seed, and no interval." in found["lead"]


def test_a_dash_is_explained_where_there_is_one(tmp_path):
    some = {"nearest-global": {"f1": 0.5, "balanced": 0.2, "log_loss": 1.0, "calibration": 0.1}}
    whole = runs_of(tmp_path, "a", [[[50, 60]]], beside=some, rules=["nearest-global"])
    lacking = runs_of(tmp_path, "b", [[[50, 60]]], beside={"nearest-global": {"f1": 0.5}}, rules=["nearest-global"])
    assert "A dash: the rule has no probabilities." not in words(page(whole, tmp_path))
    assert "A dash: the rule has no probabilities." in words(page(lacking, tmp_path))


def test_measures_beside_accuracy_are_in_a_table_with_their_intervals(tmp_path):
    """Of two seeds the range is shown: log losses of 1 and 2; F1 is equal.

    `logits` has probabilities, and `nearest-global` has not. A tenth of the way from 50 to 60 is 51.
    """
    runs = []
    for seed, loss in enumerate((1.0, 2.0)):
        beside = {"nearest-global": {"f1": 0.5, "balanced": 0.25}, "logits": {"log_loss": loss, "calibration": 0.125}}
        runs.append(runs_of(tmp_path, f"m{loss}", [[[50, 60]]] * 2, beside=beside)[seed])
    found = content({"one": runs})["measures"]
    assert found["titles"] == ["p10", "balanced", "macro-F1", "log loss", "calibration error"]
    assert found["rows"][0]["cells"] == ["51.00–51.00", "25.00–25.00", "50.00–50.00", "–", "–"]
    assert found["rows"][1]["cells"][3:] == ["1.000–2.000", "12.50–12.50"]
    assert [row["continued"] for row in found["rows"]] == [False, True]
    single = content({"one": runs[:1]})["measures"]
    assert single["rows"][1]["cells"][3] == "1.000"
    alike = runs_of(tmp_path, "other", [[[50, 60]]], beside=beside)  # not independent of the first
    assert content({"one": [runs[0], *alike]})["measures"]["rows"][1]["cells"][3] == "1.500"


def test_rounds_of_many_seeds_are_told_as_a_range(tmp_path):
    """Each seed's validation is best in another round."""
    right = [[[50, 50]] * 4] * 4
    validated = [[[90, 90] if place == best else [10, 10] for place in range(4)] for best in range(4)]
    found = told(runs_of(tmp_path, "one", right, validated=validated))
    assert found["rows"][0]["round"] == "1 to 4"


def test_where_seeds_end_early_the_sentence_is_of_all_of_them(tmp_path):
    """Seeds end in rounds 3 and 1 with 90 and 10 of 100 right: what is reached at the end is 50, not 90."""
    runs = runs_of(tmp_path, "one", [[[50, 50], [50, 50], [90, 90]], [[10, 10]]])
    runs += runs_of(tmp_path, "two", [[[60, 60]] * 3, [[60, 60]] * 3])
    found = content({"one": runs[:2], "two": runs[2:]})["charts"]["accuracy"][0]
    assert found["conclusion"].startswith("After 3 rounds: one 50.00 % (rounds 1 to 3) and two 60.00 %; guessing")


def test_a_level_of_guessing_that_is_not_everybodys_is_not_told(tmp_path):
    runs = runs_of(tmp_path, "one", [[[50, 50]]])
    assert "Guessing each client’s majority class gives" in told(runs)["lead"]
    runs += runs_of(tmp_path, "two", [[[60, 60]]], partition={"name": "dirichlet", "alpha": 9.0})
    assert "Guessing" not in told(runs)["lead"]


def test_costs_of_several_seeds_are_said_to_be_the_first_ones(tmp_path):
    cards = {card["name"]: card["note"] for card in told(runs_of(tmp_path, "one", [[[50, 50]], [[60, 60]]]))["cards"]}
    assert cards["sent in all"] == "the first seed"
    assert cards["time of all rounds"].startswith("the first seed")
    alone = {card["name"]: card["note"] for card in told(runs_of(tmp_path, "two", [[[50, 50]]]))["cards"]}
    assert "first seed" not in alone["sent in all"] + alone["time of all rounds"]


def test_a_run_beside_its_copy_counts_once(tmp_path):
    runs = runs_of(tmp_path, "one", [[[60, 60]]]) + runs_of(tmp_path, "local", [[[50, 50]]])
    copy = shutil.copytree(runs[0].folder, tmp_path / "copy")
    found = content(by_method([*runs, read_run(copy)]))
    assert [panel["mean"] for panel in found["gains"]["panels"]] == [10]
    assert "Lines are of one seed" in found["captions"]["curves"]
    assert all("±" not in cell for row in found["measures"]["rows"] for cell in row["cells"])


def test_a_run_without_test_numbers_says_why(tmp_path):
    result = run(spiral(rounds=1, tested=False), tmp_path / "runs")
    read = words(page([result.run], tmp_path))
    assert "The test parts are not evaluated (tested=false)." in read
    assert "No round has been evaluated yet." not in read


def test_a_view_of_fewer_rounds_is_consistent(tmp_path):
    """52 rounds are there and 10 are asked for: snapshots that were thinned out on purpose are not missing."""
    run(spiral(rounds=52, clients=2, algorithm="fedproto"), tmp_path / "runs")
    seen = Notebook()
    result = run(spiral(rounds=10, clients=2, algorithm="fedproto"), tmp_path / "runs", tracker=seen)
    assert [entry[0] for entry in seen.told] == ["begin", *range(1, 11), "end"]
    read = words(page([result.run], tmp_path))
    assert "rounds=10" in read
    assert "rounds=52" not in read
    assert "missing" not in read
