"""The command `archive`: from what it keeps, all commands that read say what they said of the runs."""

import hashlib
import os
import shutil

import numpy as np
import pytest
from filelock import FileLock
from typer.testing import CliRunner

import protonorm as pn
from protonorm.cli.app import app
from protonorm.runs.layout import find_runs, study_in
from protonorm.runs.run import read_run
from tests.cli.commands import imported
from tests.records import made
from tests.support import pictures, run

pytestmark = pytest.mark.filterwarnings("default")  # a warning is a line on the error stream, as for people

SETTINGS = {"dataset": "spiral", "dataset.points": 20, "partition": "iid", "clients": 2, "rounds": 2, "batch_size": 8}
WORDS = [f"{name}={value}" for name, value in SETTINGS.items()]
MINE = """
from protonorm.reproduction.cells import Cell, Column

TITLE = "Mine"
COLUMNS = (Column("spiral"),)
ROWS = ("ProtoNorm", "Local")
SETTINGS = {
    "dataset": {"name": "spiral", "points": 20}, "partition": "iid", "clients": 2, "rounds": 2, "batch_size": 8,
}
CELLS = [Cell(row, "spiral", SETTINGS | {"algorithm": row.lower()}) for row in ROWS]
"""


def call(*words, code=0):
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == code, done.output
    return done


def tree(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Runs of ProtoNorm and Local, and their archives: `kept` without their clients, `whole` with them."""
    folder = tmp_path_factory.mktemp("place")
    call("compare", "protonorm", *WORDS, "--engine", "serial", "--out", folder / "runs", "--csv")
    call("archive", "dataset=spiral", "--out", folder / "runs", "--to", folder / "kept")
    call("archive", "dataset=spiral", "--out", folder / "runs", "--to", folder / "whole", "--with-clients")
    return folder


@pytest.fixture
def copy(place, tmp_path):
    """The same in a folder of one's own."""
    shutil.copytree(place, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def root(tmp_path):
    """Two runs that never were; one is not finished."""
    made(tmp_path / "runs" / "one", rounds=3)
    made(tmp_path / "runs" / "two", rounds=3, done=2, seed=1)
    return tmp_path / "runs"


# Reading


@pytest.mark.parametrize("kept", ["kept", "whole"])
@pytest.mark.parametrize(
    "words",
    [
        ["show"],
        ["show", "--csv"],
        ["show", "algorithm=protonorm", "--json"],
        ["show", "protonorm"],
        ["show", "protonorm", "--json"],
        ["compare", "protonorm", *WORDS, "--csv"],
        ["compare", "protonorm", *WORDS, "--markdown", "-"],
    ],
    ids=" ".join,
)
def test_commands_say_the_same_of_archives(copy, words, kept):
    before = tree(copy / kept)
    told = [call(*words, "--out", copy / name) for name in ("runs", kept)]
    assert told[0].stdout == told[1].stdout.replace(str(copy / kept), str(copy / "runs"))
    assert told[0].stderr == told[1].stderr
    assert len(told[0].stdout) > 100
    after = tree(copy / kept)
    assert {name: after[name] for name in before} == before  # a comparison has its figures beside them


def test_a_finished_run_is_not_done_again(copy):
    key = next(path.name for path in find_runs(copy / "kept") if path.name.startswith("protonorm"))
    before = tree(copy / "kept")
    told = [call("run", *WORDS, "--out", copy / name, "--json").stdout for name in ("runs", "kept", "whole")]
    assert told[1].replace(str(copy / "kept"), str(copy / "runs")) == told[0]
    assert told[2].replace(str(copy / "whole"), str(copy / "runs")) == told[0]
    assert key in told[0]
    assert tree(copy / "kept") == before


def test_tables_are_rendered_from_archives(copy):
    (copy / "mine.py").write_text(MINE)
    for name in ("runs", "kept"):
        words = ["--seeds", "0", "--render-only", "--out", copy / name, "--to", copy / "to" / name]
        call("reproduce", copy / "mine.py", *words)
    assert tree(copy / "to" / "kept") == tree(copy / "to" / "runs")
    assert "finished" in (copy / "to" / "kept" / "mine.csv").read_text()
    assert "What is missing" not in (copy / "to" / "kept" / "mine.md").read_text()


@pytest.mark.parametrize("kept", ["kept", "whole"])
def test_a_report_has_the_fingerprint_of_the_metrics(copy, kept):
    """With the prototypes that were kept it is the same page; without them it has no sphere, and misses none."""
    pages = []
    for name in ("runs", kept):
        call("report", "protonorm", "--out", copy / name, "--to", copy / "page.html")
        pages.append((copy / "page.html").read_text(encoding="utf-8"))
    (metrics,) = (copy / "runs").glob("protonorm*/metrics.jsonl")
    mark = hashlib.sha256(metrics.read_bytes()).hexdigest()[:16]
    assert [page.count(f"<code>{mark}</code>") for page in pages] == [1, 1]
    assert (pages[0] == pages[1]) == (kept == "whole")
    assert "Prototypes that the sphere does not show" not in pages[1]


# Trained clients


def test_clients_of_an_archive_with_them_predict_the_same(place):
    clients = [pn.load_run("protonorm", out=place / name).clients[1] for name in ("runs", "whole")]
    points = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    answers = [client.answers(points) for client in clients]
    assert answers[0].classes.tolist() == answers[1].classes.tolist()
    assert answers[0].probability.tolist() == answers[1].probability.tolist()


@pytest.mark.parametrize("checkpoint", ["chosen", "last"])
def test_an_archive_without_clients_says_where_they_are(place, tmp_path, checkpoint):
    said = "was archived without its networks: there are no trained clients in it. They are in the folder in which"
    words = ["protonorm", "--client", "0", "--out", place / "kept", "--checkpoint", checkpoint]
    assert said in call("export", words[0], tmp_path / "client", *words[1:], code=2).stderr
    assert said in call("predict", words[0], tmp_path, *words[1:], code=2).stderr
    with pytest.raises(ValueError, match="was archived without its networks"):
        list(pn.load_run("protonorm", out=place / "kept").trained(checkpoint))
    assert not (tmp_path / "client").exists()


def test_pictures_are_predicted_from_an_archive_with_clients(tmp_path):
    """It may be exported, too."""
    from PIL import Image

    mine = pictures(np.arange(24) % 2, classes=2)
    settings = {"models": "plain", "feature_dim": 4, "rounds": 1, "clients": 2, "batch_size": 8}
    folder = run(pn.Experiment(dataset=mine, partition="iid", **settings), tmp_path / "runs").run.folder
    call("archive", folder, "--to", tmp_path / "kept", "--with-clients")
    Image.fromarray(mine.inputs[0][:, :, 0]).save(tmp_path / "one.png")
    kept = tmp_path / "kept" / folder.name
    words = [tmp_path / "one.png", "--client", "0", "--json"]
    assert call("predict", kept, *words).stdout == call("predict", folder, *words).stdout
    call("export", kept, tmp_path / "client", "--client", "1")
    assert pn.load_client(tmp_path / "client").id == 1


# Going on


@pytest.mark.parametrize(("kept", "how"), [("kept", " without its networks"), ("whole", "")])
@pytest.mark.parametrize("more", [["rounds=3"], ["tracker=tensorboard"]])
def test_a_run_does_not_go_on_in_its_archive(copy, kept, how, more):
    before = tree(copy / kept)
    done = call("run", *WORDS, *more, "--engine", "serial", "--out", copy / kept, code=2)
    assert f"was archived{how}, and nothing more is written there: the run cannot go on in it." in done.stderr
    assert "Give another folder of runs by --out, or by PROTONORM_RUNS" in done.stderr
    assert tree(copy / kept) == before


def test_a_comparison_tells_of_what_cannot_go_on(copy):
    done = call("compare", "protonorm", *WORDS, "rounds=3", "--out", copy / "kept", code=2)
    assert done.stderr.count("the run cannot go on in it") == 2
    assert "No run of this comparison can be read" in done.stderr


# Archiving


def test_it_says_what_it_kept(root, tmp_path):
    """Thousands of bytes are rounded up."""
    done = call("archive", "one", "two", "--out", root, "--to", tmp_path / "kept")
    assert os.listdir(tmp_path / "kept") == ["records.zip"]
    sizes = [study_in(tmp_path / "kept").size(key) for key in ("one", "two")]
    kilobytes = [-(-size // 1000) for size in (*sizes, sum(sizes))]
    assert done.stdout.splitlines() == [
        f"one: 3 of 3 rounds, {kilobytes[0]} kB",
        f"two: 2 of 3 rounds, {kilobytes[1]} kB",
        f"Archived 2 runs in {tmp_path / 'kept'}: {kilobytes[2]} kB.",
    ]
    assert max(sizes) < 5000


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["one"], ["one"]),
        (["tw"], ["two"]),
        (["seed=1"], ["two"]),
        (["state=finished"], ["one"]),
        (["one", "two", "seed=0,1"], ["one", "two"]),
        (["one", "one"], ["one"]),
    ],
)
def test_runs_by_name_and_by_filter(root, tmp_path, words, kept):
    call("archive", *words, "--out", root, "--to", tmp_path / "kept")
    assert [folder.name for folder in find_runs(tmp_path / "kept")] == kept


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["three"], "There is no run 'three'"),
        (["seed=7"], "No run has seed=7; there are: 0, 1."),
        (["seed=1", "state=finished"], "There is no run with seed=1 state=finished in"),
        (["one", "--to", ""], "expected the path of a file or folder"),
        ([], "Missing argument"),
    ],
)
def test_what_is_not_there_is_refused(root, tmp_path, words, told):
    assert told in call("archive", *words, *(["--to", tmp_path / "kept"] if "--to" not in words else []), code=2).stderr
    assert not (tmp_path / "kept").exists()


def test_a_place_must_be_given_and_not_be_that_of_the_runs(root):
    before = tree(root)
    assert "Missing option '--to'" in call("archive", "one", "--out", root, code=2).stderr
    assert "is the folder of all runs; give another one" in call("archive", "one", "--to", root, code=2).stderr
    assert "is where the runs are" in call("archive", "one", "--to", root / "one", code=2).stderr
    assert tree(root) == before


def test_a_run_at_work_is_refused_and_no_other_is_archived(root, tmp_path):
    with FileLock(root / "two" / "lock"):
        done = call("archive", "one", "two", "--to", tmp_path / "kept", code=2)
    assert f"Another process is at work on {root / 'two'}; nothing of it was archived." in done.stderr
    assert not (tmp_path / "kept").exists()
    call("archive", "one", "two", "--to", tmp_path / "kept")


@pytest.mark.parametrize("name", ["evaluations.bin", "metrics.jsonl", "population.safetensors", "server.safetensors"])
def test_a_damaged_run_is_refused(root, tmp_path, name):
    content = (root / "one" / name).read_bytes()
    (root / "one" / name).write_bytes(content[:60] + bytes([content[60] ^ 1]) + content[61:])
    words = ["--with-clients"] if name == "server.safetensors" else []
    done = call("archive", "one", "--to", tmp_path / "kept", *words, code=2)
    assert f"{root / 'one' / name} is damaged" in done.stderr
    assert not list(tmp_path.glob("kept/*"))


def test_a_report_lies_beside_the_packed_runs_and_goes_with_its_run(root, tmp_path):
    kept = tmp_path / "kept"
    call("archive", "two", "--to", kept)
    call("report", "two", "--out", kept)
    assert (kept / "two" / "report.html").exists()
    call("archive", "one", "two", "--to", kept)
    assert "Removed 1 run." in call("remove", "two", "--yes", "--out", kept).stdout
    assert os.listdir(kept) == ["records.zip"]
    assert find_runs(kept) == [kept / "one"]


def test_runs_are_added_to_those_that_are_there(root, tmp_path):
    kept = tmp_path / "kept"
    call("archive", "one", "--to", kept)
    call("archive", "two", "--to", kept)
    assert [folder.name for folder in find_runs(kept)] == ["one", "two"]
    assert call("show", "--out", kept, "--csv").stdout == call("show", "--out", root, "--csv").stdout


def test_archives_are_removed_like_runs(root, tmp_path):
    call("archive", "one", "two", "--to", tmp_path / "kept")
    assert "Removed 1 run." in call("remove", "state=unfinished", "--yes", "--out", tmp_path / "kept").stdout
    assert find_runs(tmp_path / "kept") == [tmp_path / "kept" / "one"]
    assert len(read_run(tmp_path / "kept" / "one").rounds) == 3
    assert len(read_run(root / "two").rounds) == 2


def test_neither_archiving_nor_reading_needs_torch(root, tmp_path):
    kept = tmp_path / "kept"
    for words in (["archive", "one", "--to", str(kept)], ["show", "one", "--out", str(kept)]):
        assert "torch" not in imported(*words)
    assert "torch" not in imported("archive", "one", "--to", str(kept))  # in place of the one before
