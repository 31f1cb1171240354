"""What is run, what is not run again, what is left out and named."""

import pytest

from protonorm import session
from protonorm.reproduction.cells import Cell
from tests.reproduction.studies import TINY, small_study, task


@pytest.fixture(autouse=True)
def _serial(monkeypatch):
    monkeypatch.setattr(session, "cores", lambda: 1)


def count_runs(monkeypatch):
    keys = []
    real = session._run
    monkeypatch.setattr(
        session, "_run", lambda experiment, *rest: (keys.append(experiment.key), real(experiment, *rest))
    )
    return keys


def test_finished_cells_are_not_run_again_and_the_first_seed_comes_first(tmp_path, monkeypatch):
    keys = count_runs(monkeypatch)
    told = []
    task(tmp_path, seeds=(0, 1)).run(None, None, told.append)
    assert len(keys) == 12
    assert [("seed0" in key) for key in keys] == [True] * 6 + [False] * 6
    assert told[0].startswith("1 of 12 runs: ProtoNorm, Group: one, seed 0; about")
    again = task(tmp_path, seeds=(0, 1))
    again.run(None, None, told.append)
    assert len(keys) == 12
    assert all(one.state == "finished" for one in again.findings(small_study()).outcomes)


def test_the_table_is_written_after_each_run_also_when_interrupted(tmp_path, monkeypatch):
    real = session._run
    runs = []

    def one_only(experiment, *rest):
        if runs:
            raise KeyboardInterrupt
        runs.append(experiment.key)
        real(experiment, *rest)

    monkeypatch.setattr(session, "_run", one_only)
    with pytest.raises(KeyboardInterrupt):
        task(tmp_path).run(None, None, lambda _: None)
    text = (tmp_path / "out" / "small.md").read_text()
    assert "not run yet" in text
    assert runs[0] in text
    assert (tmp_path / "out" / "small.tex").exists()
    monkeypatch.setattr(session, "_run", real)
    keys = count_runs(monkeypatch)
    task(tmp_path).run(None, None, lambda _: None)
    assert len(keys) == 5


def test_cells_shared_between_tables_are_run_once(tmp_path, monkeypatch):
    keys = count_runs(monkeypatch)
    both = task(tmp_path)
    twin = small_study(name="twin")
    both = type(both)(**{**vars(both), "studies": [small_study(), twin]})
    both.run(None, None, lambda _: None)
    assert len(keys) == 6
    assert (tmp_path / "out" / "twin.csv").exists()


def test_cells_without_data_are_named_and_skipped(tmp_path, monkeypatch):
    keys = count_runs(monkeypatch)
    cells = [Cell("ProtoNorm", "Group: one", {"dataset": "cifar10"}), Cell("Local", "Group: one", TINY)]
    found = task(tmp_path, small_study(cells=cells))
    found.run(None, None, lambda _: None)
    assert len(keys) == 1
    found.write()
    text = (tmp_path / "out" / "small.md").read_text()
    assert "CIFAR-10 is not prepared: There is no cifar10.npz" in text
    assert "no data" in text


def test_a_cell_that_is_refused_does_not_stop_the_others(tmp_path, monkeypatch):
    keys = count_runs(monkeypatch)
    bad = TINY | {"partition": {"name": "dirichlet", "least": 10**6}}
    cells = [Cell("ProtoNorm", "Group: one", bad), Cell("FedProto", "Group: one", TINY)]
    found = task(tmp_path, small_study(cells=cells))
    told = []
    found.run(None, None, told.append)
    assert len(keys) == 2
    assert any(line.startswith("Skipped: ") for line in told)
    assert [one.state for one in found.findings(found.studies[0]).outcomes] == ["refused", "finished"]
    text = (tmp_path / "out" / "small.md").read_text()
    assert "| ProtoNorm | not run<br>" in text
    assert "Not run: " in text
    assert "no data" not in text


def test_a_cell_that_diverged_is_a_dash_and_is_not_run_again(tmp_path, monkeypatch):
    wild = TINY | {"algorithm": {"name": "protonorm", "gamma": 1e30}, "rounds": 3, "lr": 1e9}
    study = small_study(cells=[Cell("ProtoNorm", "Group: one", wild)])
    task(tmp_path, study).run(None, None, lambda _: None)
    keys = count_runs(monkeypatch)
    again = task(tmp_path, study)
    again.run(None, None, lambda _: None)
    assert not keys
    again.write()
    text = (tmp_path / "out" / "small.md").read_text()
    assert "| ProtoNorm | -<br>47.41" in text
    assert "Diverged in round" in text


def test_only_some_cells_can_be_asked_for(tmp_path):
    part = task(tmp_path, only=["protonorm", "two"])
    found = part.findings(part.studies[0])
    assert [one.place for one in found.outcomes] == [("ProtoNorm", "Group: two")]


def test_outputs_name_command_profile_version_and_keys(tmp_path):
    found = task(tmp_path, only=["ProtoNorm", "one"])
    found.run(None, None, lambda _: None)
    (key,) = [one.key for one in found.findings(found.studies[0]).outcomes]
    for ending in ("md", "tex", "csv"):
        assert key in (tmp_path / "out" / f"small-only-protonorm-and-one.{ending}").read_text()
    for ending in ("md", "tex"):
        text = (tmp_path / "out" / f"small-only-protonorm-and-one.{ending}").read_text()
        assert "protonorm reproduce small" in text
        assert "profile" in text
        assert "protonorm 0" in text
        assert "A part: 1 of 6 cells, those with 'ProtoNorm' and 'one'." in text
    assert not (tmp_path / "out" / "small.md").exists()


def test_a_run_that_is_locked_reads_not_run(tmp_path, monkeypatch):
    def locked(*_):
        raise BlockingIOError("Another process is at it.")

    monkeypatch.setattr(session, "_run", locked)
    found = task(tmp_path, only=["ProtoNorm", "one"])
    found.run(None, None, lambda _: None)
    text = next((tmp_path / "out").glob("*.md")).read_text()
    assert "| ProtoNorm | not run<br>" in text
    assert "Not run: Another process is at it: ProtoNorm, Group: one." in text


@pytest.mark.parametrize(
    ("file", "content"),
    [("experiment.json", "{"), ("experiment.json", "{}"), ("metrics.jsonl", "{}\n"), ("failure.json", "{}")],
)
def test_a_damaged_run_is_named_and_the_others_go_on(tmp_path, monkeypatch, file, content):
    first = task(tmp_path, only=["one"])
    first.run(None, None, lambda _: None)
    key = first.findings(first.studies[0]).outcomes[0].key
    (tmp_path / "runs" / key / file).write_text(content)
    keys = count_runs(monkeypatch)
    again = task(tmp_path)
    again.run(None, None, lambda _: None)
    assert len(keys) == 3
    states = [one.state for one in again.findings(again.studies[0]).outcomes]
    assert sorted(states) == ["damaged", *["finished"] * 5]
    text = (tmp_path / "out" / "small.md").read_text()
    assert "| ProtoNorm | damaged<br>" in text
    assert "is damaged (" in text
    assert "move it away to run the cell again: ProtoNorm, Group: one." in text
    assert "is damaged" in (tmp_path / "out" / "small.csv").read_text()


def test_a_figure_that_cannot_be_drawn_is_left_out_and_named(tmp_path):
    def draw(findings):
        raise KeyError("prototypes")

    found = task(tmp_path, small_study(cells=[], columns=(), draw=draw))
    found.write()
    assert "Nothing was drawn, because something could not be read: it lacks 'prototypes'." in (
        tmp_path / "out" / "small.md"
    ).read_text().replace("\\", "")


def test_an_error_of_the_last_writing_does_not_hide_the_first(tmp_path, monkeypatch):
    def interrupted(*_):
        (tmp_path / "out").write_text("in the way")
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "_run", interrupted)
    told = []
    with pytest.raises(KeyboardInterrupt):
        task(tmp_path).run(None, None, told.append)
    assert "could not be written" in told[-1]


def test_a_setting_that_is_refused_is_said_with_its_cell(tmp_path):
    found = task(tmp_path, small_study(cells=[Cell("ProtoNorm", "Group: one", TINY | {"round": 3})]))
    with pytest.raises(ValueError, match="small, ProtoNorm, Group: one: .*'round'"):
        found.prepare()
    assert not (tmp_path / "out").exists()
