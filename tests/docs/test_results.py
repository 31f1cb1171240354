"""The numbers of docs/results.md are those of the records in results/."""

import shutil

import pytest
from tools import results_tables
from tools.results_reproduced import UNSAID

from protonorm.config.experiment import Experiment
from protonorm.runs.archive import remove_runs
from protonorm.runs.layout import exists, find_runs
from protonorm.runs.run import read_run
from protonorm.session.result import experiment_of
from tests.reproduction.studies import Fake, write_record
from tests.support import run, spiral

FOLDERS = sorted(path.name for path in results_tables.RESULTS.iterdir() if path.is_dir())


def test_the_page_has_the_table_of_every_folder_of_records_and_none_is_out_of_date():
    marked = []
    for path in results_tables.PAGES:
        page = path.read_text(encoding="utf-8")
        assert results_tables.rendered(path) == page, "`python -m tools.results_tables` mends it"
        marked += [results_tables.folder_of(match["name"]) for match in results_tables.PLACE.finditer(page)]
    assert sorted(set(marked)) == FOLDERS


def test_records_are_one_small_file_a_study():
    kept = [path for path in results_tables.RESULTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in kept) <= 13_000_000
    assert sorted(path.relative_to(results_tables.RESULTS).as_posix() for path in kept if path.suffix == ".zip") == [
        f"{name}/records.zip" for name in FOLDERS
    ]
    assert len(kept) == len(FOLDERS) + 2  # and what they are, for people and for git


@pytest.mark.parametrize("name", FOLDERS)
def test_records_have_no_networks_but_the_spirals(name):
    """The spiral's have theirs, for its figure is drawn from features."""
    runs = find_runs(results_tables.RESULTS / name)
    assert runs
    for folder in runs:
        assert exists(folder / "server.safetensors") == ("-spiral-" in folder.name)


def test_records_have_the_keys_that_this_version_gives():
    """Else `reproduce` and `compare` would not find what was published; FedMD's public pictures are not here."""
    folders = [
        folder for folder in find_runs(results_tables.RESULTS / "fashion") if not folder.name.startswith("fedmd")
    ]
    assert folders
    assert [experiment_of(read_run(folder)).key for folder in folders] == [folder.name for folder in folders]


def test_a_table_is_of_the_records_alone(tmp_path):
    """Without the runs of a method its row is gone; the other rows, whose gains are corrected for fewer tests, stay."""
    shutil.copytree(results_tables.RESULTS / "fashion", tmp_path / "fashion")
    page = "<!-- fashion -->\nold\n<!-- end -->\n"
    whole = results_tables.written(page, tmp_path)
    assert "| `fedproto` | nearest-global | 63.26" in whole
    assert "old" not in whole
    remove_runs([folder for folder in find_runs(tmp_path / "fashion") if folder.name.startswith("fedproto-")])
    fewer = results_tables.written(whole, tmp_path)
    assert "fedproto" not in fewer
    assert "| `duet` | received | 92.86" in fewer


def test_a_solo_control_has_a_row_and_what_the_exchange_brought_a_column(tmp_path):
    for settings in ({"algorithm": "local"}, {"algorithm": "fedproto"}, {"algorithm": "fedproto", "control": "solo"}):
        run(spiral(rounds=1, **settings), tmp_path)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in results_tables.table(tmp_path).splitlines()]
    head, rows = lines[0], {line[0]: line for line in lines[2:] if line}
    assert head[-2:] == ["gain on its solo control", "verdict"]
    assert {name: bool(rows[name][-2]) for name in rows} == {
        "`fedproto`": True, "`fedproto (solo)`": False, "`local`": False, "majority": False,
    }  # fmt: skip
    assert {len(line) for line in lines if line} == {len(head)}


def test_a_mark_without_records_stays_as_it_is(tmp_path):
    page = "<!-- nothing -->\nold\n<!-- end -->\n"
    assert results_tables.written(page, tmp_path) == page


OWN = (
    """
from protonorm.reproduction.cells import Cell, Column, printed

TITLE = "Mine"
COLUMNS = (Column("a"), Column("b"))
ROWS = ("ProtoNorm", "FedProto")
CELLS = [
    Cell(row, column.place, {"dataset": "fashion", "rounds": 3, "clients": clients, "algorithm": row.lower()})
    for column, clients in zip(COLUMNS, (2, 3))
    for row in ROWS
]
PAPER = printed(COLUMNS, """
    + "'ProtoNorm | 70.00 ± 0.10 | 50.00 ± 0.10')"
    + """
TOLERANCE = {"cpu": 6.0}
"""
)


def test_reproduced_tables_are_of_the_command_above_them(tmp_path):
    """Each mark has the last command before it; missing records are named, and verdicts are there if asked for."""
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    for name, accuracy, clients in (("protonorm", 0.75, 2), ("fedproto", 0.5, 2), ("protonorm", 0.25, 3)):
        settings = {"dataset": "fashion", "rounds": 3, "clients": clients, "algorithm": name, "validation": 0.1}
        write_record(tmp_path / "reproduced", Experiment.of(settings | {"seed": 0}), Fake(accuracy))
    command = f"protonorm reproduce {tmp_path}/mine.py"
    page = "".join(
        f"{command} {options}\n<!-- reproduced -->\nold\n<!-- end -->\n"
        for options in ("--only ProtoNorm --check", "--only FedProto", "--rounds 2")
    )
    _, first, second, third = results_tables.written(page, tmp_path).split("protonorm reproduce")
    assert "\nold\n" not in first + second + third
    assert "| ProtoNorm | 75.00<br>best\\* 75.00<br>70.00 ± 0.10 (+5.00) | 25.00<br>" in first
    assert "FedProto" not in first.replace("ProtoNorm, FedProto", "")
    assert "- *agrees*: mine-only-protonorm, ProtoNorm, a: 75.00" in first
    assert "- *differs*: mine-only-protonorm, ProtoNorm, b: 25.00" in first
    assert "What is missing" not in first
    assert "2 runs, made with protonorm" in first
    assert "| FedProto | 50.00<br>best\\* 50.00 | not run yet |" in second
    assert "What is missing:\n\n- Not run yet: FedProto, b (seed 0)." in second
    assert "*agrees*" not in second
    assert "3 runs" in third


def test_the_glance_holds_the_best_test_round_against_the_printed_number(tmp_path):
    """70 and 50 are printed, three points are near; a row that is not printed has no difference, and none is run twice.

    ProtoNorm's best test rounds are at 72.5 and 25; in the rounds that validation chooses it has 70.5 and 20.
    """
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    for name, clients, test, validated in (
        ("protonorm", 2, (0.6, 0.725, 0.705), (0.5, 0.6, 0.7)),
        ("fedproto", 2, 0.5, None),
        ("protonorm", 3, (0.2, 0.25, 0.1), (0.7, 0.6, 0.5)),
    ):
        settings = {"dataset": "fashion", "rounds": 3, "clients": clients, "algorithm": name, "validation": 0.1}
        write_record(tmp_path / "reproduced", Experiment.of(settings | {"seed": 0}), Fake(test, validated))
    table = f"protonorm reproduce {tmp_path}/mine.py\n<!-- reproduced -->\nold\n<!-- end -->\n"
    page = results_tables.written(f"<!-- glance -->\nold\n<!-- end -->\n{table}{table}", tmp_path)
    lines = page.split("<!-- end -->")[0].splitlines()
    assert [line for line in lines if line.startswith("|")][2:] == [
        f"| Mine, a | cpu, 3 rounds | ProtoNorm | 1 | 70.50 | 72.50 | 70.00 ± 0.10 | +2.50 | {UNSAID} |",
        "|  | cpu, 3 rounds | FedProto | 1 | 50.00 | 50.00 | not printed |  |  |",
        f"| Mine, b | cpu, 3 rounds | ProtoNorm | 1 | 20.00 | 25.00 | 50.00 ± 0.10 | −25.00 | {UNSAID} |",
    ]


def test_what_was_not_run_is_said_alike_whatever_data_are_here(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTONORM_DATA", str(tmp_path / "nothing"))
    (tmp_path / "reproduced").mkdir()
    command = 'protonorm reproduce table3 --only "4-layer CNN: CIFAR-100" --only ProtoNorm'
    page = results_tables.written(f"{command}\n<!-- reproduced -->\nold\n<!-- end -->\n", tmp_path)
    assert "| ProtoNorm | not run yet<br>48.25 ± 0.12 |" in page
    assert "- Not run yet: ProtoNorm, 4-layer CNN: CIFAR-100 (seed 0)." in page
    assert str(tmp_path) not in page
