"""Several data sets, or several ways to assign them to clients, in one report."""

from protonorm.analysis.comparison import Unread, rows
from protonorm.report.page import write
from protonorm.report.page.groups import by_method
from protonorm.report.page.write import content
from tests.records import guessing
from tests.report.pages import data, made, page, words


def two_data_sets(folder):
    spiral = {"name": "spiral", "points": 100, "noise": 0.1}
    return [
        made(folder / "a", population=guessing(0.2), dataset=spiral, models="mlp", lr=0.5),
        made(folder / "b", population=guessing(0.6), method={"name": "fedproto"}),
        made(folder / "c", population=guessing(0.6), method={"name": "protonorm", "lam": 1.0, "gamma": 7.0}),
    ]


def test_every_method_is_named_with_its_data_in_few_words(tmp_path):
    assert list(by_method(two_data_sets(tmp_path))) == [
        "protonorm (spiral)",
        "fedproto (fashion)",
        "protonorm (fashion)",
    ]


def test_no_winner_is_declared_across_data_sets(tmp_path):
    found = content(by_method(two_data_sets(tmp_path)))
    assert found["title"] == "ProtoNorm and FedProto on spiral and fashion"
    assert not [card for card in found["cards"] if card["first"]]
    assert not [mark for row in found["rows"] for _, mark in row["cells"] if mark]
    assert not [
        chart for chart in found["charts"]["accuracy"] if "majority" in chart["conclusion"] or chart["reference"]
    ]
    assert "apart from that of ProtoNorm (spiral)" not in found["lead"]
    assert found["captions"]["bold"] == ""
    assert found["headline"] == "spiral, iid, 4 clients, 3 rounds; fashion, iid, 4 clients, 3 rounds"


def test_each_method_is_held_against_its_own_majority(tmp_path):
    """The reported round has 3/4; guessing gets 20 % and 60 %."""
    lead = content(by_method(two_data_sets(tmp_path)))["lead"]
    assert (
        "ProtoNorm (spiral) reaches 75.00 % under the rule nearest-global. Guessing each client’s majority class "
        "gives 20" in lead
    )
    assert "ProtoNorm (fashion), with 75.00 %, cannot be told apart from FedProto (fashion) (one seed" in lead
    assert "gives 60.00 %." in lead


def test_one_partition_has_one_majority_and_a_line(tmp_path):
    text = page([made(tmp_path / "a"), made(tmp_path / "b", method={"name": "fedproto"})], tmp_path)
    assert [one["name"] for one in data(text)["charts"]["accuracy"][0]["reference"]] == ["majority"]
    assert "guessing the majority class gives" in words(text)


def test_no_run_is_lost_when_two_groups_would_have_one_name(tmp_path):
    runs = [made(tmp_path / name, method={"name": f"protonorm_own_{name}:Mine"}) for name in "ab"]
    assert list(by_method(runs)) == ["Mine", "Mine no. 2"]


def test_rows_that_are_known_are_shown_and_not_computed_again(tmp_path, monkeypatch):
    """A method of which no run can be read is not on the page; that a seed of another is missing stands beside it."""
    runs = {"one": [made(tmp_path / "a")], "two": [made(tmp_path / "b", method={"name": "fedproto"})]}
    found = {
        "gone": [Unread("nearest-global", "It is damaged.")],
        **runs,
        "two": [*runs["two"], Unread("nearest-global", "Lost.")],
    }
    table, alone = rows(found), content(runs)
    monkeypatch.setattr(write, "rows", None)
    given = content(runs, table)
    assert [row["method"] for row in given["rows"]] == [row["method"] for row in alone["rows"]]
    assert [row["cells"] for row in given["rows"]] == [row["cells"] for row in alone["rows"]]
    assert [card["slot"] for card in given["cards"]] == [0, 1, None]
    assert next(row["note"] for row in given["rows"] if row["method"] == "two") == "1 of 2 seeds, not read: Lost"
