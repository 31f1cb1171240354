"""The numbers of docs/results.md are those of the records in results/."""

import shutil

import pytest
from tools import results_tables

from protonorm.runs.layout import find_runs

FOLDERS = sorted(path.name for path in results_tables.RESULTS.iterdir() if path.is_dir())


def test_the_page_has_the_table_of_every_folder_of_records_and_none_is_out_of_date():
    marked = []
    for path in results_tables.PAGES:
        page = path.read_text(encoding="utf-8")
        assert results_tables.written(page) == page, "`python -m tools.results_tables` mends it"
        marked += [match["name"] for match in results_tables.PLACE.finditer(page)]
    assert sorted(marked) == FOLDERS


@pytest.mark.parametrize("name", FOLDERS)
def test_records_are_small_and_without_networks(name):
    runs = find_runs(results_tables.RESULTS / name)
    assert runs
    for folder in runs:
        assert sum(path.stat().st_size for path in folder.rglob("*")) < 500_000
        assert not (folder / "server.safetensors").exists()


def test_a_table_is_of_the_records_alone(tmp_path):
    """Without the runs of a method its row is gone; the other rows, whose gains are corrected for fewer tests, stay."""
    shutil.copytree(results_tables.RESULTS / "fashion", tmp_path / "fashion")
    page = "<!-- fashion -->\nold\n<!-- end -->\n"
    whole = results_tables.written(page, tmp_path)
    assert "| `fedproto` | global | 63.26" in whole
    assert "old" not in whole
    for folder in (tmp_path / "fashion").glob("fedproto-*"):
        shutil.rmtree(folder)
    fewer = results_tables.written(whole, tmp_path)
    assert "fedproto" not in fewer
    assert "| `duet` | received | 92.86" in fewer


def test_a_mark_without_records_stays_as_it_is(tmp_path):
    page = "<!-- nothing -->\nold\n<!-- end -->\n"
    assert results_tables.written(page, tmp_path) == page
