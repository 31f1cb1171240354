"""Who gains and who loses, on the page: the panel, the sentence, and the table."""

import numpy as np
import pytest

from protonorm.report.page.groups import by_method
from protonorm.report.page.write import content
from protonorm.runs.run import Population
from tests.report.pages import data, page, runs_of, words


def gains(runs):
    return content(by_method(runs))["gains"]


def sizes(*train):
    """Build a split: clients have so many samples of one class to train on, and 100 to validate and to test on each."""
    rest = np.full((len(train), 1), 100)
    return Population(np.array(train)[:, None], rest, rest)


@pytest.fixture
def two(tmp_path):
    """Against Local with 50 of 100 right everywhere: one seed, four clients, gains 10, 20, −5 and 0 points."""
    more = {"networks": ("plain", "dense"), "population": sizes(10, 20, 30, 40)}
    runs = runs_of(tmp_path, "one", [[[60, 70, 45, 50]]], **more)
    return runs + runs_of(tmp_path, "local", [[[50, 50, 50, 50]]], **more)


def test_a_point_for_each_client_with_its_size_network_and_gain(two):
    """Columns: client, seed, samples to train on, network, accuracy, in the reference, gain."""
    (panel,) = gains(two)["panels"]
    assert panel["title"] == "one against Local"
    assert panel["cases"] == [
        [0, 0, 10, 0, 60, 50, 10],
        [1, 0, 20, 1, 70, 50, 20],
        [2, 0, 30, 0, 45, 50, -5],
        [3, 0, 40, 1, 50, 50, 0],
    ]
    assert gains(two)["networks"] == ["plain", "dense"]
    assert (panel["mean"], panel["interval"]) == (6.25, None)


def test_the_sentence_says_who_gains_and_that_one_seed_has_no_interval(two, tmp_path):
    """One of four loses; a tenth of four is one case.

    By network the mean gains are (10 − 5)/2 and (20 + 0)/2, by size (10 + 20)/2 and (−5 + 0)/2.
    """
    read = words(page(two, tmp_path))
    assert "2 of 4 clients gain, 1 loses, 1 stays equal; the worst loses 5.0 points." in read
    assert "Mean gain +6.25 points, without an interval (one seed). Negative transfer in 25 %;" in read
    assert "the worst tenth’s mean gain is −5.00." in read
    assert "Mean gain by network: plain +2.50 and dense +10.00." in read
    assert "Clients with at most 25 samples to train on: +15.00; larger ones: −2.50." in read
    assert "There is no interval, and so no verdict." in read
    assert "one Local +6.25 one seed no interval 1 of 4, 25 % −5.00 −5.00 −5.00" in read


def test_several_seeds_have_an_interval_and_a_verdict(tmp_path):
    """Every client of every seed gains 10 points, so that every draw of the bootstrap has this mean."""
    runs = runs_of(tmp_path, "one", [[[60, 60]], [[70, 70]]]) + runs_of(tmp_path, "local", [[[50, 50]], [[60, 60]]])
    found = gains(runs)
    (panel,) = found["panels"]
    assert panel["sentence"] == "Over 2 seeds clients gain in 4 of 4 cases, lose in 0."
    assert panel["judged"].startswith("Mean gain +10.00 points, 95 % interval +10.00 to +10.00: better. Negative")
    assert [case[:2] for case in panel["cases"]] == [[0, 0], [1, 0], [0, 1], [1, 1]]
    assert found["rows"][0]["cells"][:3] == ["+10.00", "+10.00 to +10.00", "better"]
    assert "With fewer than 5 seeds these intervals may be too narrow." in found["explained"]
    assert not found["tested"]


def test_six_seeds_are_tested(tmp_path):
    """Six equal gains have p = 2/2^6 = 1/32, and one method needs no correction."""
    runs = runs_of(tmp_path, "one", [[[60, 60]]] * 6) + runs_of(tmp_path, "local", [[[50, 50]]] * 6)
    assert gains(runs)["tested"]
    assert gains(runs)["rows"][0]["cells"][-1] == "0.031"
    assert "p (Holm)" in words(page(runs, tmp_path))


def test_the_exchange_is_told_apart_from_the_loss(tmp_path):
    """Method 70, alone with the same loss 60, Local 50: 20 points against Local, of which the exchange brought 10."""
    runs = runs_of(tmp_path, "one", [[[70, 70]]], control="none")
    runs += runs_of(tmp_path, "one", [[[60, 60]]], control="solo")
    runs += runs_of(tmp_path, "local", [[[50, 50]]], control="none")
    found = gains(runs)
    told = [(one["kind"], one["title"], one["mean"]) for one in found["panels"]]
    assert told == [
        ("local", "one against Local", 20),
        ("local", "one (solo) against Local", 10),
        ("solo", "one against one (solo)", 10),
    ]
    assert [kind for kind, _ in found["kinds"]] == ["local", "solo"]
    read = words(page(runs, tmp_path))
    assert "Against its own solo control: what the exchange brought" in read
    assert "differ in more than the method" not in read


def test_gains_are_those_of_the_reported_rounds(tmp_path):
    """Validation chooses round 1 of both, with 60 and 50 right; the best test rounds have 90 and 20."""
    ours = runs_of(tmp_path, "one", [[[60, 60], [90, 90]]], validated=[[[9, 9], [1, 1]]])
    local = runs_of(tmp_path, "local", [[[50, 50], [20, 20]]], validated=[[[9, 9], [1, 1]]])
    assert [case[4:] for case in gains(ours + local)["panels"][0]["cases"]] == [[60, 50, 10]] * 2


def test_what_cannot_be_compared_is_said_and_without_local_there_is_no_panel(tmp_path):
    ours = runs_of(tmp_path, "one", [[[60, 60]]])
    local = runs_of(tmp_path, "local", [[[50, 50]]], population=sizes(7, 7))
    found = gains(ours + local)
    assert found["panels"] == []
    assert found["mismatches"] == ["one has no gain against Local: they differ in who holds which samples."]
    assert found["rows"][0]["cells"] == ["–"] * 8
    assert 'id="gains"' not in page(ours, tmp_path)


def test_names_of_networks_and_methods_are_text(tmp_path):
    evil = "</script><img src=x onerror=alert(1)>"
    runs = runs_of(tmp_path, "own:x", [[[60, 60]]], networks=(evil,))
    runs += runs_of(tmp_path, "local", [[[50, 50]]], networks=(evil,))
    text = page({evil: runs[:1], "local": runs[1:]}, tmp_path)
    assert "<img" not in text
    assert data(text)["gains"]["networks"] == [evil]


def test_many_cases_are_thinned_and_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("protonorm.report.page.clients.CASES", 3)
    runs = runs_of(tmp_path, "one", [[[60] * 9]]) + runs_of(tmp_path, "local", [[[50] * 9]])
    (panel,) = gains(runs)["panels"]
    assert [case[0] for case in panel["cases"]] == [0, 4, 8]
    assert "The chart shows 3 of 9 cases." in panel["judged"]
    assert panel["sentence"].startswith("9 of 9 clients gain")


def test_clients_without_test_samples_are_no_cases(tmp_path):
    hundred = np.array([[100], [100]])
    population = Population(hundred, hundred, np.array([[100], [0]]))
    tables = [[[60, 0]]], [[[50, 0]]]
    runs = [
        one
        for name, table in zip(("one", "local"), tables, strict=True)
        for one in runs_of(tmp_path, name, table, population=population)
    ]
    assert [case[0] for case in gains(runs)["panels"][0]["cases"]] == [0]


def test_samples_that_nobody_counted_are_a_dash_and_no_zero(tmp_path):
    nobody = Population(*[np.zeros((4, 1), np.int64)] * 3)
    runs = runs_of(tmp_path, "one", [[[60, 70, 45, 50]]]) + runs_of(tmp_path, "local", [[[50, 50, 50, 50]]])
    for run in runs:
        run.__dict__["population"] = nobody
    (panel,) = gains(runs)["panels"]
    assert [case[2] for case in panel["cases"]] == [None] * 4
    assert "samples to train on" not in panel["parts"]
