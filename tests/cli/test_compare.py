"""Comparisons: the solo control beside each method, both gains, and the first rounds of longer runs."""

import csv
import io
import json

import pytest
import torch
from typer.testing import CliRunner

from protonorm.cli.app import app
from protonorm.config.methods import read_comparison
from protonorm.inference.loading import load_from_run
from protonorm.runs.run import read_run
from protonorm.session import running

SPIRAL = ["dataset=spiral", "dataset.points=60", "partition.alpha=0.5", "partition.least=4", "clients=3", "rounds=2"]
ALIKE = ["dataset=fashion", "dataset.samples=240", "models=plain", "feature_dim=16", "clients=3", "partition.alpha=1"]
METHODS = ["protonorm", "fml", "fedavg", "local", "local:initial=server"]


@pytest.fixture
def call():
    runner = CliRunner()
    return lambda *words: runner.invoke(app, ["compare", *words, "--engine", "serial"])


def test_solo_adds_a_control_to_each_method_but_local():
    words = ["fedavg", "fedproto:lam=2", *SPIRAL, "seeds=0,1"]
    found = read_comparison(words, solo=True).experiments
    assert list(found) == ["fedavg", "fedavg (solo)", "fedproto:lam=2", "fedproto:lam=2 (solo)", "local"]
    for name, experiments in found.items():
        assert [one.seed for one in experiments] == [0, 1]
        assert {one.control for one in experiments} == {"solo" if "(solo)" in name else "none"}
    assert {one.algorithm.lam for one in found["fedproto:lam=2 (solo)"]} == {2}


def test_one_architecture_with_its_solo_controls(call):
    """FedAvg alone is Local begun from the server's first model; the table has the gains on both references."""
    words = [*METHODS, "--solo", *ALIKE, "rounds=2", "seeds=0,1"]
    done = call(*words, "--json")
    assert done.exit_code == 0, done.output
    runs = json.loads(done.stdout)["runs"]
    assert list(runs) == ["protonorm", "protonorm (solo)", "fml", "fml (solo)", "fedavg", "fedavg (solo)", *METHODS[3:]]
    for control, local in zip(runs["fedavg (solo)"], runs["local:initial=server"], strict=True):
        mine, other = (read_run_of(one) for one in (control, local))
        for client in range(3):
            solo, alone = (load_from_run(one, client, checkpoint="last").state for one in (mine, other))
            assert solo.keys() == alone.keys()
            for name, value in solo.items():
                torch.testing.assert_close(value, alone[name], rtol=1e-6, atol=1e-6)
        for before, after in zip(mine.rounds, other.rounds, strict=True):
            assert before.rules["logits"] == after.rules["logits"]
    heads = {row["method"]: row for row in json.loads(done.stdout)["rows"] if row["headline"]}
    for method in ("protonorm", "fml", "fedavg"):
        assert heads[method]["local"]["reference"] == "local"
        assert heads[method]["solo"]["reference"] == f"{method} (solo)"
        gains = [heads[name]["cells"]["mean"]["mean"] for name in (method, "local", f"{method} (solo)")]
        assert heads[method]["local"]["transfer"]["mean"] == pytest.approx(gains[0] - gains[1], abs=1e-5)
        assert heads[method]["solo"]["transfer"]["mean"] == pytest.approx(gains[0] - gains[2], abs=1e-5)
    assert heads["fedavg (solo)"]["solo"] is None
    shown = call(*words).output
    assert "Gains, client by client, in points" in shown
    lines = [line.split() for line in shown.splitlines()]
    for method in ("ProtoNorm", "FML", "FedAvg"):
        place = next(i for i, line in enumerate(lines) if line[:2] == [method, "local"])
        assert lines[place + 1][0] == "solo"
    assert [method, "(solo)", "local"] in [line[:3] for line in lines]


def read_run_of(plain):
    from pathlib import Path

    return read_run(Path(plain["folder"]))


def test_a_control_of_a_control_is_refused(call):
    done = call("fedproto", "--solo", "control=solo", *SPIRAL)
    assert done.exit_code == 2
    assert "control must be left out with --solo" in done.stderr


def test_without_solo_nothing_is_added(call):
    found = json.loads(call("fedproto", *SPIRAL, "--json").stdout)
    assert list(found["runs"]) == ["fedproto", "local"]
    assert all(row["solo"] is None for row in found["rows"])


def test_the_csv_has_a_line_for_each_seed_whose_mean_is_the_table(call):
    words = ["fedproto", *SPIRAL, "seeds=0,1"]
    done = call(*words, "--csv")
    assert done.exit_code == 0, done.output
    lines = list(csv.DictReader(io.StringIO(done.stdout)))
    found = json.loads(call(*words, "--json").stdout)["rows"]
    methods = [row for row in found if row["rule"] != "-"]
    assert len(lines) == 2 * len(methods)
    for row in methods:
        mine = [line for line in lines if (line["method"], line["rule"]) == (row["method"], row["rule"])]
        assert [line["seed"] for line in mine] == ["0", "1"]
        mean = sum(float(line["accuracy"]) for line in mine) / 2
        assert mean == pytest.approx(row["cells"]["accuracy"]["mean"], abs=1e-6)


def test_tables_are_written_or_printed_and_only_ours_are_written_over(call, tmp_path):
    paper, readme = tmp_path / "new" / "table.tex", tmp_path / "table.md"
    words = ["fedproto", *SPIRAL]
    for _ in range(2):  # the second time over its own files
        done = call(*words, "--latex", str(paper), "--markdown", str(readme))
        assert done.exit_code == 0, done.output
        assert f"Table: {paper}\nTable: {readme}\n" in done.stdout
    printed = call(*words, "--latex", "-").stdout
    assert printed == paper.read_text(encoding="utf-8").replace("{table:table}", "{table:comparison}")
    assert printed.startswith("% Written by protonorm compare\n")
    assert call(*words, "--markdown", "-").stdout == readme.read_text(encoding="utf-8")
    assert json.loads(call(*words, "--json", "--latex", str(paper)).stdout)["tables"] == [str(paper)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--latex", "table.txt"], "table.txt must end in .tex, as a table in LaTeX"),
        (["--markdown", "table.tex"], "table.tex must end in .md, as a table in Markdown"),
        (["--latex", "mine.tex"], "mine.tex exists and is not a table of protonorm; it is left as it is"),
        (["--latex", "folder.tex"], "folder.tex exists and is not a table of protonorm"),
        (["--latex", "-", "--csv"], "can be printed, not several"),
        (["--json", "--csv"], "can be printed, not several"),
        (["--latex", "-", "--markdown", "-"], "can be printed, not several"),
    ],
)
def test_tables_are_refused_before_anything_runs(call, tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "run", lambda *_, **__: pytest.fail("it was run"))
    (tmp_path / "mine.tex").write_text("\\section{Mine}")
    (tmp_path / "folder.tex").mkdir()
    done = call("fedproto", *SPIRAL, *words)
    assert done.exit_code == 2
    assert told in done.stderr
    assert (tmp_path / "mine.tex").read_text() == "\\section{Mine}"


def test_runs_that_have_more_rounds_are_compared_by_their_first(call):
    """Four rounds are recorded, two are asked for: the table is that of two rounds."""
    two = json.loads(call("fedproto", *SPIRAL, "--json").stdout)
    four = json.loads(call("fedproto", *SPIRAL, "rounds=4", "--json").stdout)
    again = json.loads(call("fedproto", *SPIRAL, "--json").stdout)
    assert [run["rounds"] for found in (two, four, again) for run in found["runs"]["fedproto"]] == [2, 4, 2]
    assert again["rows"] == two["rows"]
    assert again["runs"]["fedproto"][0]["folder"] == four["runs"]["fedproto"][0]["folder"]


BUG = """
from dataclasses import dataclass

import protonorm as pn


@dataclass(frozen=True)
class Bug(pn.Local):
    def local_update(self, client, state, message):
        raise ValueError("a bug of mine")
"""


def test_an_error_in_an_own_file_is_told_with_its_line_each_time(call, tmp_path):
    """The second time the run is begun already, but nothing in its folder is damaged."""
    (tmp_path / "mine.py").write_text(BUG)
    for _ in range(2):
        found = call(f"{tmp_path}/mine.py:Bug", *SPIRAL)
        assert found.exit_code == 1
        assert "line 10, in local_update: a bug of mine" in found.stderr


def test_where_no_run_comes_to_its_end_the_table_is_shown_and_the_code_says_so(call):
    found = call("fedproto", *SPIRAL, "lr=1.0e+30", "--json")
    assert found.exit_code == 1
    assert "No run of this comparison came to its end." in found.stderr
    assert json.loads(found.stdout)["rows"]
