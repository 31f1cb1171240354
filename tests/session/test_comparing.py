"""A comparison from Python: the command's rows, frames and page."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import protonorm as pn
from protonorm.cli.app import app
from protonorm.config import methods
from protonorm.data.builtin import Spiral
from protonorm.runs import run as records
from protonorm.runs import writer
from protonorm.runs.layout import METRICS
from protonorm.session import comparing, running
from protonorm.trackers import tracker
from tests.support import experiments_of

SETTINGS = {
    "dataset": {"name": "spiral", "points": 60},
    "partition": {"name": "dirichlet", "alpha": 0.3, "least": 4},
    "clients": 6,
    "rounds": 2,
    "batch_size": 8,
}
WORDS = ["dataset=spiral", "dataset.points=60", "partition.alpha=0.3", "partition.least=4"]
WORDS += ["clients=6", "rounds=2", "batch_size=8"]


def compare(*methods, out, **more):
    return pn.compare(*methods, out=out, engine="serial", **SETTINGS | more)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return compare("protonorm:gamma=5", "fedproto", seeds=[0, 1], out=tmp_path_factory.mktemp("runs"))


def test_it_does_what_the_command_does(found):
    """The command finds all runs done, and prints the same rows as JSON."""
    root = found.results["local"][0].run.folder.parent
    words = ["compare", "protonorm:gamma=5", "fedproto", *WORDS, "seeds=0,1", "--out", str(root), "--json"]
    before = {path: path.stat().st_mtime_ns for path in root.glob(f"*/{METRICS}")}
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.output
    told = json.loads(answer.stdout)
    assert told["rows"] == json.loads(json.dumps([asdict(row) for row in found.rows]))
    assert {path: path.stat().st_mtime_ns for path in root.glob(f"*/{METRICS}")} == before
    assert len(before) == 3 * 2


def test_words_of_the_command_are_taken_too(found):
    root = found.results["local"][0].run.folder.parent
    again = pn.compare("protonorm:gamma=5", "fedproto", *WORDS, "seeds=0,1", out=root, engine="serial")
    assert again.key == found.key
    assert again.rows == found.rows


def test_methods_are_names_or_objects(found):
    root = found.results["local"][0].run.folder.parent
    again = compare(pn.ProtoNorm(gamma=5), pn.FedProto, pn.Local(), seeds=[0, 1], out=root)
    assert list(again.found) == ["protonorm", "fedproto", "local"]
    assert again.key == found.key


def test_objects_of_one_class_are_numbered(tmp_path):
    again = compare(pn.ProtoNorm(gamma=5), pn.ProtoNorm(gamma=6), rounds=0, out=tmp_path)
    assert list(again.found) == ["protonorm", "protonorm no. 2", "local"]


def test_frames(found):
    methods = found.frame()
    heads = methods[methods["headline"]].set_index("method")
    assert list(heads.index) == ["protonorm:gamma=5", "fedproto", "local", "majority"]
    assert list(heads["seeds"])[:3] == [2, 2, 2]
    shares = [one.run.chosen.record.rules["nearest-global"].pooled for one in found.results["fedproto"]]
    assert heads["accuracy"]["fedproto"] == pytest.approx(sum(shares) / 2)
    clients = found.frame(by="client")
    assert len(clients) == 3 * 2 * 6
    local = clients[clients["method"] == "local"].set_index(["seed", "client"])["accuracy"]
    ours = clients[clients["method"] == "fedproto"].set_index(["seed", "client"])
    assert ours["alone"].tolist() == local.tolist()
    assert (ours["gain"] - (ours["accuracy"] - local)).abs().max() < 1e-12
    assert clients[clients["method"] == "local"]["gain"].isna().all()
    assert len(found.frame(by="class")) == 3 * 2 * 6
    with pytest.raises(ValueError, match=r"^by must be method, round, .*, got \['client'\]\.$"):
        found.frame(by=["client"])
    assert len(found.frame(by="round")) == sum(2 * 2 * len(one[0].run.info.rules) for one in found.results.values())


def test_a_rule_that_only_some_methods_have(found):
    frame = found.frame(by="client", rule="nearest-global")
    assert set(frame[frame["method"] == "fedproto"]["rule"]) == {"nearest-global"}
    assert set(frame[frame["method"] == "local"]["rule"]) == {found.results["local"][0].run.info.headline}
    with pytest.raises(ValueError, match="no rule 'nearest'"):
        found.frame(by="client", rule="nearest")


def test_the_page_the_csv_and_the_texts(found, tmp_path):
    page = found.page(tmp_path / "page.html")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert found.csv().splitlines()[0].startswith("method,rule")
    assert "\\begin{tabular}" in found.latex()
    assert "| method |" in found.markdown()
    lines = repr(found).splitlines()
    assert lines[0] == "Comparison(spiral, dirichlet (alpha 0.3), 6 clients, 2 rounds, accuracy in per cent)"
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["protonorm", "fedproto", "local", "majority"]
    table = found._repr_html_()
    assert "over seeds" in table
    assert table.count("<tr>") == 1 + len(found.rows)


def test_controls(tmp_path):
    both = compare("fedproto", solo=True, out=tmp_path)
    assert list(both.found) == ["fedproto", "fedproto (solo)", "local"]
    assert both.results["fedproto (solo)"][0].experiment.control == "solo"
    with pytest.raises(ValueError, match="control must be left out"):
        compare("fedproto", solo=True, control="solo", out=tmp_path)


def test_a_run_that_diverges_is_told_of_and_has_a_row(tmp_path):
    with pytest.warns(UserWarning, match="client .* round 2"):
        found = compare("protonorm:gamma=1e18", lr=0.05, out=tmp_path)
    assert "stopped in round 2" in next(row for row in found.rows if row.headline).note


def test_a_damaged_run_is_told_of_and_has_a_row(tmp_path):
    first = compare("fedproto", out=tmp_path)
    path = first.results["fedproto"][0].run.folder / METRICS
    path.write_bytes(path.read_bytes().replace(b"pooled", b"poofed"))
    with pytest.warns(UserWarning, match="is damaged"):
        found = compare("fedproto", out=tmp_path)
    assert next(row for row in found.rows if row.method == "fedproto").note.startswith("not read: ")
    assert "fedproto" not in found.runs


@pytest.mark.parametrize(
    ("methods", "settings", "said"),
    [
        ([], {}, "There is no method to compare"),
        (["protonorm"], {"algorithm": "local"}, "Give methods by themselves"),
        (["protonorm"], {"seeds": []}, "seeds must have at least one seed"),
        (["prtonorm"], {}, "Unknown algorithm 'prtonorm'; did you mean 'protonorm'"),
        (["protonorm"], {"rouds": 3}, "rouds"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(tmp_path, methods, settings, said):
    with pytest.raises(ValueError, match=said):
        pn.compare(*methods, out=tmp_path / "runs", **settings)
    assert not (tmp_path / "runs").exists()


def test_methods_of_one_name_that_differ_are_both_run():
    def named(*methods):
        return {name: some[0].algorithm for name, some in experiments_of(methods, {"dataset": "spiral"}).items()}

    found = named(pn.FedProto(lam=5.0), "fedproto")
    assert {name: getattr(one, "lam", None) for name, one in found.items()} == {
        "fedproto": 5.0,
        "fedproto no. 2": pn.FedProto().lam,
        "local": None,
    }
    assert list(named("fedproto", pn.FedProto())) == ["fedproto", "local"]
    assert list(named(pn.FedProto(), "fedproto", pn.FedProto)) == ["fedproto", "local"]
    assert list(named("fedproto", "fedproto:lam=1", "fedproto")) == ["fedproto", "fedproto:lam=1", "local"]


@pytest.mark.parametrize("seeds", [range(2), (0, 1), np.arange(2), [0, 1], "0,1"], ids=str)
def test_seeds_in_python(seeds):
    found = experiments_of(["fedproto"], {"dataset": "spiral", "seeds": seeds})
    assert [one.seed for one in found["fedproto"]] == [0, 1]


def test_no_seeds_are_refused():
    with pytest.raises(ValueError, match="seeds must have at least one seed"):
        experiments_of(["fedproto"], {"dataset": "spiral", "seeds": ()})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine": "serail"}, "serail"),
        ({"workers": 0}, "workers must be a whole number of at least 1, got 0"),
        ({"workers": "2"}, "'2'"),
    ],
)
def test_a_wrong_engine_is_no_damage_of_runs_that_are_done(tmp_path, options, said):
    small = {"dataset": {"name": "spiral", "points": 40}, "clients": 2, "rounds": 1, "out": tmp_path}
    pn.compare("fedproto", engine="serial", **small)
    with pytest.raises(ValueError, match=said):
        pn.compare("fedproto", **small | options)
    with pytest.raises(ValueError, match="experiment must be pn.Experiment"):
        pn.run({"rounds": 1})


@pytest.fixture
def counted(monkeypatch):
    """Count how often each record is read, data are loaded and words are parsed."""
    seen = Counter()

    def count(module, name, of):
        real = getattr(module, name)

        def counting(*given, **more):
            seen[of(*given)] += 1
            return real(*given, **more)

        monkeypatch.setattr(module, name, counting)

    for module in (records, running, tracker, writer):
        count(module, "read_run", lambda folder, *_: Path(folder).name)
    count(Spiral, "load", lambda *_: "data")
    count(methods, "read_pairs", lambda *_: "words")
    return seen


def test_records_are_read_once_and_data_loaded_once(tmp_path, counted):
    """Six runs: three methods, two seeds; again all are finished, and no data are needed."""
    for times in (1, 0):
        counted.clear()
        found = compare("protonorm:gamma=5", "fedproto", seeds=[0, 1], out=tmp_path)
        assert counted.pop("data", 0) == times
        counted.pop("words", None)
        assert counted == {one.key: 1 for some in found.plan.asked.values() for one in some}
        assert len(counted) == 6


def test_finished_runs_are_read_once_even_if_the_words_are_new(tmp_path, counted):
    compare("fedproto", out=tmp_path)
    counted.clear()
    found = compare(pn.FedProto(), out=tmp_path)  # an object: nothing is known of it by its words
    assert not found.plan.known
    del counted["words"]
    assert counted == {one.key: 1 for some in found.plan.asked.values() for one in some}


def test_words_are_parsed_once(tmp_path, counted):
    compare("fedproto", *WORDS, "seed=0", solo=True, out=tmp_path)
    assert counted["words"] == 1


def test_words_stand_for_other_runs_once_the_package_has_changed(tmp_path, monkeypatch):
    first = compare("fedproto", out=tmp_path)
    assert compare("fedproto", out=tmp_path).plan.known == first.plan.asked
    monkeypatch.setattr(comparing, "code_version", lambda: "another")
    assert not compare("fedproto", out=tmp_path).plan.known


def test_words_stand_for_other_runs_with_other_data(tmp_path, monkeypatch):
    first = compare("fedproto", out=tmp_path)
    assert compare("fedproto", out=tmp_path).plan.known == first.plan.asked
    monkeypatch.setenv("PROTONORM_DATA", str(tmp_path / "elsewhere"))
    assert not compare("fedproto", out=tmp_path).plan.known


def test_a_run_that_was_removed_is_run_again(tmp_path):
    first = compare("fedproto", out=tmp_path)
    before = first.rows
    shutil.rmtree(first.runs["fedproto"][0].folder)
    again = compare("fedproto", out=tmp_path)
    assert again.plan.known
    assert again.rows == before


def test_a_run_that_is_no_longer_finished_goes_on(tmp_path):
    """The words stand for a run that was removed and begun again, and stopped after its first round."""

    def stop(round):
        raise KeyboardInterrupt

    first = compare("fedproto", out=tmp_path)
    shutil.rmtree(first.runs["fedproto"][0].folder)
    with pytest.raises(KeyboardInterrupt):
        pn.run(experiments_of(["fedproto"], SETTINGS)["fedproto"][0], out=tmp_path, engine="serial", watch=stop)
    again = compare("fedproto", out=tmp_path)
    assert again.plan.known
    assert again.rows == first.rows


def test_changed_data_are_seen(tmp_path):
    """The same words with another file of data stand for other runs."""
    pictures = np.random.default_rng(0).integers(0, 255, (60, 16, 16, 1), np.uint8)
    labels, path = np.arange(60) % 3, tmp_path / "own.npz"
    keys = []
    for shift in (0, 1):
        np.savez(path, images=pictures + np.uint8(shift), labels=labels, classes=np.array(["a", "b", "c"]))
        os.utime(path, ns=(shift, shift))
        words = [f"dataset=npz:{path}", "models=plain", "feature_dim=4", "clients=2", "partition=iid", "rounds=1"]
        for _ in range(2):
            keys.append(pn.compare("local", *words, out=tmp_path / "runs").plan.asked["local"][0].key)
    assert keys[0] == keys[1] != keys[2] == keys[3]


def test_figures_are_drawn_again_when_something_has_changed(tmp_path):
    found, folder = compare("fedproto", out=tmp_path / "runs"), tmp_path / "figures"
    places = found.draw(folder)

    def times():
        return [path.stat().st_mtime_ns for path in places]

    before = times()
    assert found.draw(folder) == places
    assert times() == before
    places[0].unlink()
    found.draw(folder)
    assert all(new != old for new, old in zip(times(), before, strict=True))
    after = times()
    more = compare("fedproto", out=tmp_path / "runs", rounds=3)  # the same runs, one round longer
    more.draw(folder)
    assert all(new != old for new, old in zip(times(), after, strict=True))


def test_a_finished_comparison_needs_neither_torch_nor_matplotlib(tmp_path):
    words = ["compare", "fedproto", *WORDS, "--engine", "serial", "--out", str(tmp_path)]
    program = (
        "import sys; from protonorm.cli.app import app\n"
        f"app({words!r}, standalone_mode=False)\n"
        "print([name for name in ('torch', 'matplotlib', 'pandas', 'scipy.stats') if name in sys.modules])"
    )
    answers = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True) for _ in range(2)]
    told = [answer.stdout.strip().rpartition("\n") for answer in answers]
    assert "torch" in told[0][2]
    assert told[1][2] == "[]", answers[1].stderr
    assert told[0][0] == told[1][0]


def test_a_damaged_note_of_what_words_stand_for_is_not_believed(tmp_path):
    """One changed digit, the number of rounds, would show fewer rounds than asked for."""
    first = compare("fedproto", out=tmp_path)
    (place,) = (tmp_path / "comparisons" / "known").iterdir()
    noted = place.read_bytes()
    assert b", 2]" in noted
    place.write_bytes(noted.replace(b", 2]", b", 1]"))
    again = compare("fedproto", out=tmp_path)
    assert not again.plan.known
    assert again.rows == first.rows
