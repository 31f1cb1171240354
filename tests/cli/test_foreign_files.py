"""Files that are not ours are never written over, and that is said before anything is run."""

import re

import pytest
from typer.testing import CliRunner

from protonorm.cli.app import app
from protonorm.report.drawing import is_marked, write_figure
from protonorm.report.figures import heat_map
from protonorm.session import running
from tests.cli.test_reproduce import MINE
from tests.records import made

SMALL = ["dataset=spiral", "dataset.points=60", "partition=iid", "clients=3", "rounds=1", "--engine", "serial"]
DRAWN = """

def draw(findings):
    from matplotlib.figure import Figure
    return {"mine": Figure(), "mine-more": Figure()}
"""


@pytest.fixture
def nothing_runs(monkeypatch):
    monkeypatch.setattr(running, "run", lambda *_, **__: pytest.fail("it was run"))


def call(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def foreign_files(tmp_path):
    """Create files of all kinds that another program made."""
    from PIL import Image

    picture = tmp_path / "photo.png"
    Image.new("RGB", (3, 3)).save(picture)
    return [b"", b"mine\n", picture.read_bytes(), b"<!doctype html><title>mine</title>", b"%PDF-1.4\n%%EOF\n"]


@pytest.mark.parametrize("name", ["accuracy.png", "partition.png", "report.html"])
@pytest.mark.usefixtures("nothing_runs")
def test_a_comparison_is_refused_before_it_runs(tmp_path, name):
    folder = tmp_path / "figures"
    folder.mkdir()
    for content in foreign_files(tmp_path):
        (folder / name).write_bytes(content)
        told = call("compare", "local", *SMALL, "--figures", folder)
        assert told.exit_code == 2, told.output
        assert name in told.stderr
        assert "it is left as it is" in told.stderr
        assert (folder / name).read_bytes() == content
    (folder / name).unlink()
    (folder / name).mkdir()
    assert call("compare", "local", *SMALL, "--figures", folder).exit_code == 2


@pytest.mark.usefixtures("nothing_runs")
def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    told = call("compare", "local", *SMALL, "--figures", tmp_path / "file")
    assert told.exit_code == 2
    assert "is not a folder" in told.stderr
    assert call("compare", "local", *SMALL, "--figures", "").exit_code == 2


def test_a_comparison_writes_over_its_own_files(tmp_path):
    for _ in range(2):
        told = call("compare", "local", *SMALL, "--figures", tmp_path / "figures")
        assert told.exit_code == 0, told.output
    assert is_marked(tmp_path / "figures" / "accuracy.png")


@pytest.mark.parametrize("ending", [".png", ".pdf"])
def test_our_figures_are_marked_and_equal(tmp_path, ending):
    run = made(tmp_path / "run")
    one, two = (write_figure(heat_map(run), tmp_path / f"{name}{ending}") for name in "ab")
    assert one.read_bytes() == two.read_bytes()
    assert is_marked(one)
    two.write_bytes(one.read_bytes().replace(b"protonorm", b"painter42"))
    assert not is_marked(two)


@pytest.mark.parametrize("ending", ["md", "tex", "csv", "png", "pdf"])
@pytest.mark.usefixtures("nothing_runs")
def test_a_table_is_refused_before_its_first_run(tmp_path, ending):
    (tmp_path / "mine.py").write_text(MINE + DRAWN)
    folder = tmp_path / "out"
    folder.mkdir()
    for content in foreign_files(tmp_path):
        (folder / f"mine.{ending}").write_bytes(content)
        told = call("reproduce", tmp_path / "mine.py", "--to", folder)
        assert told.exit_code == 2, told.output
        assert re.search(rf"mine\.{ending} (exists and|was not written by protonorm)", " ".join(told.stderr.split()))
        assert (folder / f"mine.{ending}").read_bytes() == content


def test_a_table_is_written_over_its_own_files_and_no_picture_over_another(tmp_path):
    (tmp_path / "mine.py").write_text(MINE + DRAWN)
    words = ["reproduce", tmp_path / "mine.py", "--render-only", "--to", tmp_path / "out"]
    for _ in range(2):
        told = call(*words)
        assert told.exit_code == 0, told.output
    other = tmp_path / "out" / "mine-more.png"  # a name that only drawing tells
    other.write_bytes(b"mine")
    told = call(*words)
    assert told.exit_code == 0
    assert "Nothing was drawn: " in told.stdout
    assert other.read_bytes() == b"mine"


def test_a_figure_with_a_slash_in_its_name_is_not_written(tmp_path):
    (tmp_path / "mine.py").write_text(MINE + DRAWN.replace("mine-more", "../mine"))
    told = call("reproduce", tmp_path / "mine.py", "--render-only", "--to", tmp_path / "out")
    assert "The name of a figure must be a text without slashes, got '../mine'." in " ".join(told.stdout.split())
    assert not list(tmp_path.glob("*.png"))
