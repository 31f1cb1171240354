import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from typer.testing import CliRunner

import protonorm as pn
from protonorm.cli.app import app
from protonorm.report.page import write_page
from protonorm.report.page.charts import directions, shown_share, traffic
from protonorm.report.page.groups import by_method
from protonorm.report.page.summary import notices
from protonorm.runs.run import read_run
from tests.report.pages import data, made, page, record, words
from tests.support import run, spiral


class Elements(HTMLParser):
    """All elements of a page, with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def test_the_page_of_one_run_says_all_there_is(tmp_path):
    found = run(spiral(rounds=3), out=tmp_path).run
    text = page([found], tmp_path)
    read = words(text)
    assert "ProtoNorm on spiral" in read
    for part in ("Every rule", "Make it again", "Where each number came from", "On the unit sphere", "Margins"):
        assert part in read
    assert f"reported round {100 * found.chosen.record.rules['nearest-global'].pooled:.2f} %" in read
    assert f"best test round* {100 * found.summary().best.pooled:.2f} % optimistic" in read
    assert found.info.key in read
    held = data(text)
    names = [line["name"] for line in held["charts"]["accuracy"][0]["lines"]]
    assert names == ["nearest-global", "nearest-local", "logits", "joint"]
    np.testing.assert_allclose(
        held["charts"]["accuracy"][0]["lines"][2]["y"],
        [100 * record.rules["logits"].pooled for record in found.rounds],
        rtol=1e-3,
    )
    for name, counts in found.population._asdict().items():
        assert held["populations"][0][name] == counts.tolist()
    for name, part in (("clients", found.by_client), ("classes", found.by_class)):
        last = held["runs"][0]["rules"]["logits"][name][-1]
        wanted = 100 * part(found.rounds[-1], "logits")
        np.testing.assert_allclose([np.nan if one is None else one for one in last], wanted, atol=0.005)


def test_bytes_are_told_by_round_and_in_all(tmp_path):
    """Three rounds of 100 bytes up and 200 down."""
    held = data(page([made(tmp_path / "run")], tmp_path))
    assert held["traffic"]["rows"][0] | {"up": 300, "down": 600, "round_up": 100} == held["traffic"]["rows"][0]
    up, down = (chart["lines"][0]["y"] for chart in held["charts"]["bytes"])
    assert (up, down) == ([0.1] * 3, [0.2] * 3)


def test_bytes_of_several_seeds_are_those_of_one_in_the_mean(tmp_path):
    runs = [made(tmp_path / f"run{seed}", seed=seed, done=3 - seed) for seed in range(2)]
    (row,) = traffic(by_method(runs))["rows"]
    assert (row["up"], row["down"], row["round_up"]) == (250, 500, 100)


def test_distances_are_shown_as_recorded_and_margins_relative_to_the_mean_distance(tmp_path):
    """Distances are 1 to 3 with the mean 2, all margins 1."""
    charts = data(page([made(tmp_path / "run")], tmp_path))["charts"]["prototypes"]
    found = [[chart["lines"][0][part][-1] for part in ("low", "y", "high")] for chart in charts]
    assert found == [[1, 2, 3], [0.5, 0.5, 0.5]]


def test_equal_records_give_equal_files(tmp_path):
    found = made(tmp_path / "a")
    assert page([found], tmp_path / "x") == page([found], tmp_path / "y")


def test_a_comparison_has_a_chart_for_each_rule_and_the_mean_and_spread_over_seeds(tmp_path):
    """Under `local`, logits of the seeds are what the record says; mean and range of the two by numpy."""
    runs = [
        run(spiral(algorithm=name, seed=seed, rounds=2), out=tmp_path).run
        for name in ("protonorm", "local")
        for seed in (0, 1)
    ]
    text = page(runs, tmp_path)
    charts = {chart["id"]: chart for chart in data(text)["charts"]["accuracy"]}
    assert list(charts) == ["accuracy-nearest-global", "accuracy-nearest-local", "accuracy-logits", "accuracy-joint"]
    line = charts["accuracy-logits"]["lines"][1]
    both = [[100 * one.rules["logits"].pooled for one in found.rounds] for found in runs[2:]]
    np.testing.assert_allclose(line["y"], np.mean(both, 0), rtol=1e-3)
    np.testing.assert_allclose([line["low"], line["high"]], [np.min(both, 0), np.max(both, 0)], atol=0.02)
    assert "A range holds the values of the two seeds." in words(text)
    assert "bands the 95 % interval of the mean, or the range of two seeds, as in tables" in words(text)
    assert "A point is the global prototype of a class after the round shown, at unit length" in words(text)
    assert [one["name"] for one in data(text)["spheres"]] == ["ProtoNorm, seed 0", "ProtoNorm, seed 1"]


def test_what_comes_from_outside_stays_text(tmp_path):
    evil = "</script><img src=x onerror=alert(1)>"
    found = made(tmp_path / "run", names=[evil, "b & c", "d'\""], method={"name": f"own:{evil}", "note": evil})
    text = page([found], tmp_path)
    elements = Elements(text).found
    assert "img" not in [tag for tag, _ in elements]
    assert [tag for tag, _ in elements].count("script") == 2
    assert not [name for _, attributes in elements for name in attributes if name.startswith("on") or name == "style"]
    assert data(text)["populations"][0]["classes"] == [evil, "b & c", "d'\""]


def test_nothing_is_loaded_and_only_the_pages_own_style_and_script_take_effect(tmp_path):
    text = page([made(tmp_path / "run")], tmp_path)
    elements = Elements(text).found
    assert not [
        one
        for one in elements
        if {"src", "srcset", "action", "data"} & set(one[1]) or one[0] in ("link", "img", "iframe")
    ]
    assert all(attributes["href"].startswith("#") for tag, attributes in elements if "href" in attributes)
    assert not re.findall(r"url\(|@import|\bfetch\(|XMLHttpRequest|\beval\(|innerHTML|import\(", text)
    assert set(re.findall(r"https?://[^\"' ]+", text)) <= {"http://www.w3.org/2000/svg"}  # a name space, not an address
    (policy,) = [found["content"] for _, found in elements if found.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        inner = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[1]
        assert base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode() in policy


def test_controls_have_labels_and_regions_have_names(tmp_path):
    text = page([made(tmp_path / "a"), made(tmp_path / "b", method={"name": "fedproto"})], tmp_path)
    elements = Elements(text).found
    tags = [tag for tag, _ in elements]
    for landmark in ("header", "nav", "main", "footer"):
        assert tags.count(landmark) == 1
    assert tags.count("h1") == 1
    assert {"href": "#main", "class": "skip"} in [found for tag, found in elements if tag == "a"]
    inside = re.findall(r"<label[^>]*>.*?</label>", text, re.DOTALL)
    assert len(re.findall(r"<(?:select|input)\b", text)) == len(re.findall(r"<(?:select|input)\b", "".join(inside)))
    assert all(
        "aria-label" in found or "aria-labelledby" in found for _, found in elements if found.get("role") == "region"
    )
    identifiers = [found["id"] for _, found in elements if "id" in found]
    assert len(identifiers) == len(set(identifiers))


def test_an_unfinished_run_says_how_far_it_is(tmp_path):
    read = words(page([made(tmp_path / "run", rounds=9, done=2)], tmp_path))
    assert "2 of 9 rounds are done; the same command goes on." in read
    assert "unfinished" in read


def test_a_reader_is_warned_of_a_run_that_is_not_finished(tmp_path):
    done, half = made(tmp_path / "done", rounds=9), made(tmp_path / "half", rounds=9, done=2, seed=1)
    warnings = [text for text in notices(by_method([done, half])) if "rounds are done" in text]
    assert [text.partition(",")[2] for text in warnings] == [
        " seed 1: 2 of 9 rounds are done; the same command goes on."
    ]


def test_a_run_without_any_round_has_a_page(tmp_path):
    text = page([made(tmp_path / "run", done=0)], tmp_path)
    assert "No round is done yet." in words(text)
    assert "No round has been evaluated yet." in words(text)
    assert data(text)["charts"]["prototypes"] == []


def test_a_run_that_diverged_says_so_and_shows_what_it_has(tmp_path):
    with pytest.raises(pn.Diverged):
        run(spiral(algorithm={"name": "protonorm", "gamma": 1e18}, rounds=4), out=tmp_path)
    (folder,) = tmp_path.glob("*/failure.json")
    text = page([read_run(folder.parent)], tmp_path)
    assert "Stopped in round 2" in words(text)
    assert data(text)["runs"][0]["rounds"] == [1]


def test_rounds_in_which_nobody_was_evaluated_are_left_out_of_the_curves(tmp_path):
    """Every second round of five, and the last."""
    text = page([made(tmp_path / "run", rounds=5, evaluate_every=2)], tmp_path)
    held = data(text)
    assert [line["x"] for line in held["charts"]["accuracy"][0]["lines"]] == [[2, 4, 5]] * 2
    assert held["runs"][0]["rounds"] == [2, 4, 5]
    assert len(held["charts"]["bytes"][0]["lines"][0]["x"]) == 5
    early = page([made(tmp_path / "early", rounds=5, done=1, evaluate_every=2)], tmp_path)
    assert "No round has been evaluated yet." in words(early)


def test_a_rule_that_does_not_exist_yet_has_no_accuracies(tmp_path):
    """Under `nearest-global` from the second round on: client 0 has 6 samples, half and 3/4 (4.5) of them are right."""
    (found,) = data(page([made(tmp_path / "run")], tmp_path))["runs"]
    assert found["rounds"] == [1, 2, 3]
    assert found["rules"]["nearest-global"]["clients"][0] is None
    assert [one[0] for one in found["rules"]["nearest-global"]["clients"][1:]] == [50, 66.67]
    assert found["reported"] == 3


def test_clients_that_were_not_evaluated_have_no_accuracy_and_the_page_says_so(tmp_path):
    """Of four clients, 1 and 3; they have 2 + 3 + 4 = 9 and 15 samples, 3/8 of which are 3 and 6 when rounded."""
    text = page([made(tmp_path / "run", evaluated=[1, 3])], tmp_path)
    assert data(text)["runs"][0]["rules"]["logits"]["clients"][-1] == [None, 33.33, None, 40]
    assert "In every round only a part of the clients was evaluated; accuracies are theirs." in words(text)


def test_lost_clients_are_told_of(tmp_path):
    late = "it had not replied after 5 seconds"
    text = page([made(tmp_path / "run", lost={2: {0: late, 3: late}, 3: {1: late}})], tmp_path)
    wanted = f"ProtoNorm, seed 0: 3 replies did not arrive, in rounds 2 and 3. The first was that of client 0: {late}."
    assert wanted in words(text)
    assert "did not arrive" not in words(page([made(tmp_path / "whole")], tmp_path))


def test_a_method_that_reports_no_loss_has_a_page(tmp_path):
    assert "75.00 %" in words(page([made(tmp_path / "run", metrics={})], tmp_path))


def test_guessing_the_majority_class_is_told_for_each_client_and_class(tmp_path):
    """Client 0 guesses its class 2 (of 1, 2, 3 samples): 3 of 6 right; client 1 (of 2, 3, 4): 4 of 9.

    Nobody guesses classes 0 and 1; class 2 always.
    """
    (found,) = data(page([made(tmp_path / "run", clients=2)], tmp_path))["populations"]
    assert found["majority"] == {"clients": [50, 44.44], "classes": [0, 0, 100]}


def test_a_method_without_prototypes_has_no_sphere(tmp_path):
    text = page([run(spiral(algorithm="local", rounds=1), out=tmp_path).run], tmp_path)
    assert "On the unit sphere" not in words(text)
    assert 'href="#prototypes"' not in text
    assert data(text)["spheres"] == []


def test_two_dimensions_are_shown_as_they_are(tmp_path):
    found = made(tmp_path / "run", width=2)
    shown = data(page([found], tmp_path))["spheres"][0]
    assert shown["flat"] is True
    assert [view["share"] for view in shown["views"]] == [1, 1, 1]
    assert all(point[2] == 0 for view in shown["views"] for point in view["points"])


def test_two_classes_lie_on_a_circle_with_their_true_angle():
    """Two unit vectors span a plane: it holds them whole, so that lengths and the angle are those of the picture."""
    units = np.eye(4)[:2] @ np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]
    shown = units @ directions(units)
    np.testing.assert_allclose(np.linalg.norm(shown, axis=1), 1)
    np.testing.assert_allclose(shown[0] @ shown[1], 0, atol=1e-12)
    assert shown_share(units, directions(units)) == pytest.approx(1)


def test_the_projection_lengthens_nothing_and_says_what_it_shows():
    """Orthonormal e1 … e6, centred, vary equally in five directions: three of them are 3/5 of the variance."""
    basis = directions(np.eye(6))
    np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-12)
    assert shown_share(np.eye(6), basis) == pytest.approx(3 / 5)


def test_coinciding_prototypes_do_not_break_the_sphere():
    basis = directions(np.tile([1.0, 0, 0, 0], (3, 1)))
    np.testing.assert_allclose(np.abs(basis[0]), [1, 0, 0])


def test_a_large_run_gives_a_page_of_sensible_size(tmp_path):
    runs = [
        made(tmp_path / name, classes=100, clients=20, rounds=300, width=512, method={"name": name})
        for name in ("protonorm", "fedproto", "fedtgp")
    ]
    assert len(page(runs, tmp_path)) < 3_000_000


def test_runs_that_differ_in_more_than_the_method_are_named_and_warned_of(tmp_path):
    one, two = made(tmp_path / "a"), made(tmp_path / "b", clients=5, method={**one_method(), "gamma": 7.0})
    groups = by_method([one, two, one])
    assert list(groups) == ["protonorm:gamma=100 (clients=4)", "protonorm:gamma=7 (clients=5)"]
    read = words(page([one, two], tmp_path))
    assert "These runs differ in more than the method: clients." in read
    assert len(data(page([one, two], tmp_path))["populations"]) == 2


def test_a_second_network_belongs_to_the_method(tmp_path):
    """Methods without one are still comparable with those that have one; two networks give two methods."""
    plain, dense = (made(tmp_path / name, method={"name": "fml"}, auxiliary=name) for name in ("plain", "dense"))
    assert list(by_method([plain, dense])) == ["fml:auxiliary=plain", "fml:auxiliary=dense"]
    other = made(tmp_path / "other", auxiliary=None)
    assert list(by_method([plain, other])) == ["fml", "protonorm"]
    assert "differ in more than the method" not in words(page([plain, other], tmp_path))


def one_method():
    return {"name": "protonorm", "lam": 1.0}


def test_no_runs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one run"):
        write_page([], tmp_path / "page.html")


def test_report_writes_where_it_says(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTONORM_RUNS", str(tmp_path))
    for name, method in (("protonorm-x-seed0-1", "protonorm"), ("local-x-seed0-2", "local")):
        record(tmp_path / name, method={"name": method})
    call = CliRunner().invoke
    one = call(app, ["report", "protonorm"])
    assert one.exit_code == 0, one.output
    assert (tmp_path / "protonorm-x-seed0-1" / "report.html").exists()
    both = call(app, ["report", "protonorm", "local", "--out", str(tmp_path)])
    (there,) = (tmp_path / "reports").iterdir()
    assert there.name.startswith("local-x-protonorm-x-")
    assert there.name in both.output.replace("\n", "")
    assert call(app, ["report", "local", "--to", str(tmp_path / "here.html")]).exit_code == 0
    assert (tmp_path / "here.html").exists()
    refused = call(app, ["report", "nothing"])
    assert refused.exit_code == 2
    assert "There is no run 'nothing'" in refused.stderr


def test_a_report_needs_neither_torch_nor_matplotlib(tmp_path):
    record(tmp_path / "run")
    code = (
        "import sys; from pathlib import Path; from protonorm.runs.run import read_run\n"
        "from protonorm.report.page import write_page; write_page([read_run(Path(sys.argv[1]))], sys.argv[2])\n"
        "heavy = {'torch', 'scipy', 'matplotlib', 'pandas'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run"), str(tmp_path / "page.html")], check=True)


def test_compare_writes_the_page_beside_its_figures(tmp_path):
    small = ["dataset=spiral", "dataset.points=60", "partition.least=4", "clients=3", "rounds=1"]
    words_ = ["compare", "local", *small, "--engine", "serial", "--figures", str(tmp_path / "here"), "--json"]
    result = CliRunner().invoke(app, words_)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["report"] == str(tmp_path / "here" / "report.html")
    assert (tmp_path / "here" / "report.html").exists()


def test_clients_have_their_names_on_the_page(tmp_path):
    """Names of folders, as text; where there are none, numbers."""
    names = ["berlin", "<b>rome</b>"]
    common = {"clients": 2, "rounds": 2, "client_names": names, "lost": {1: {1: "It was late."}}}
    runs = [made(tmp_path / "a", **common), made(tmp_path / "l", method={"name": "local"}, **common)]
    text = page(runs, tmp_path)
    assert data(text)["populations"][0]["clients"] == names
    assert data(text)["gains"]["panels"][0]["clients"] == {"0": "berlin", "1": "<b>rome</b>"}
    assert "The first was that of <b>rome</b>: It was late." in words(text)
    assert "<b>rome" not in text
    numbered = page([made(tmp_path / "n", clients=2, rounds=2)], tmp_path)
    assert data(numbered)["populations"][0]["clients"] == ["client 0", "client 1"]


def test_of_very_many_clients_the_page_shows_some_and_says_so(tmp_path):
    """Of 450 clients 200, evenly chosen; samples by class are those of all: client i has twice i + k + 1 of class k."""
    text = page([made(tmp_path / "run", clients=450, classes=2)], tmp_path)
    (population,), (run,) = data(text)["populations"], data(text)["runs"]
    assert population["whole"] == 450
    assert len(population["clients"]) == len(population["networks"]) == len(population["train"]) == 200
    assert (population["clients"][0], population["clients"][-1]) == ("client 0", "client 449")
    assert population["train"][-1] == [450, 451]
    assert population["held"] == [2 * sum(range(1, 451)), 2 * sum(range(2, 452))]
    assert {len(one) for one in run["rules"]["logits"]["clients"]} == {200}
    assert len(population["majority"]["clients"]) == 200
    assert "450 clients" in population["name"]


def test_simulated_seconds_are_summed_over_rounds(tmp_path):
    """A synchronous round in which each of the clients takes two simulated seconds takes two."""
    runs = [run(spiral(rounds=3, system={"delay": "constant:2"}), out=tmp_path).run]
    text = page(runs, tmp_path)
    (chart,) = [chart for chart in data(text)["charts"]["seconds"] if chart["id"] == "simulated"]
    assert (chart["lines"][0]["x"], chart["lines"][0]["y"]) == ([1, 2, 3], [2, 4, 6])
    assert "Simulated time of all rounds: ProtoNorm 6" in words(text)
