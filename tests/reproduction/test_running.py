"""What is run, what is not run again, what is left out and named. Most runs are written, not trained."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from experiments.reproduction.cells import Cell

from protonorm.errors import Diverged, TooFewReplies
from protonorm.files import sealed
from protonorm.runs.run import read_run
from protonorm.runs.states import stray_states
from protonorm.runs.writer import RunWriter
from protonorm.session import running
from protonorm.session.result import Result
from tests.reproduction.studies import TINY, Fake, small_study, task, write_record
from tests.support import killed_after_last_round


@pytest.fixture
def runs(monkeypatch):
    """Write records in place of training, and list the keys; `errors` are raised instead, one for each run."""
    keys, errors = [], []

    def fake(experiment, *, out, watch, **_):
        keys.append(experiment.key)
        if errors and (error := errors.pop(0)):
            raise error
        return Result(experiment, read_run(write_record(out, experiment, Fake(0.5))))

    monkeypatch.setattr(running, "run", fake)
    return SimpleNamespace(keys=keys, errors=errors)


def states(found):
    return [one.state for one in found.findings(found.studies[0]).outcomes]


def page_of(tmp_path, name="small.md"):
    return (tmp_path / "out" / name).read_text(encoding="utf-8")


def test_finished_cells_are_not_run_again_and_the_first_seed_comes_first(tmp_path, runs):
    told, followed = [], []

    def follow(experiment):
        followed.append(experiment.key)
        return nullcontext(lambda _: None)

    task(tmp_path, seeds=(0, 1)).run(None, None, told.append, follow)
    assert len(runs.keys) == 12
    assert followed == runs.keys
    assert [("seed0" in key) for key in runs.keys] == [True] * 6 + [False] * 6
    assert told[0].startswith("1 of 12 runs: ProtoNorm, Group: one, seed 0; about")
    again = task(tmp_path, seeds=(0, 1))
    again.run()
    assert len(runs.keys) == 12
    assert set(states(again)) == {"finished"}


def test_the_table_is_written_after_each_run_also_when_interrupted(tmp_path, runs):
    runs.errors[:] = [None, KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        task(tmp_path).run()
    assert "not run yet" in page_of(tmp_path)
    assert runs.keys[0] in page_of(tmp_path)
    assert (tmp_path / "out" / "small.tex").exists()
    runs.keys.clear()
    task(tmp_path).run()
    assert len(runs.keys) == 5


def test_cells_shared_between_tables_are_run_once(tmp_path, runs):
    both = task(tmp_path)
    both.studies = [small_study(), small_study(name="twin")]
    both.run()
    assert len(runs.keys) == 6
    assert (tmp_path / "out" / "twin.csv").exists()


def test_cells_without_data_are_named_and_skipped(tmp_path, runs):
    cells = [Cell("ProtoNorm", "Group: one", {"dataset": "cifar10"}), Cell("Local", "Group: one", TINY)]
    found = task(tmp_path, small_study(cells=cells))
    found.run()
    assert len(runs.keys) == 1
    assert "CIFAR-10 is not prepared: There is no cifar10.npz" in page_of(tmp_path)
    assert "no data" in page_of(tmp_path)


@pytest.mark.parametrize(
    "error", [ValueError("Bad luck."), BlockingIOError("Another process is at it."), TooFewReplies("Nobody replied.")]
)
def test_a_cell_that_cannot_be_run_does_not_stop_the_others(tmp_path, runs, error):
    runs.errors.append(error)
    found, told = task(tmp_path, only=["one"]), []
    found.run(notify=told.append)
    assert len(runs.keys) == 3
    assert f"Skipped: {error}" in told
    assert states(found) == ["refused", "finished", "finished"]
    text = page_of(tmp_path, "small-only-one.md")
    assert "| ProtoNorm | not run<br>" in text
    assert f"Not run: {str(error).rstrip('.')}: ProtoNorm, Group: one." in text
    assert "no data" not in text


def test_a_cell_that_diverged_is_a_dash_and_is_not_run_again(tmp_path, runs):
    study = small_study(cells=small_study().cells[:1])
    first = task(tmp_path, study)
    (waiting,) = first.pending().values()
    write_record(first.root, waiting.experiment, Fake(0.5, done=0, diverged=1))
    first.run()
    assert not runs.keys
    assert "| ProtoNorm | -<br>47.41" in page_of(tmp_path)
    assert "Diverged in round 1: ProtoNorm, Group: one (seed 0)." in page_of(tmp_path)


def test_a_run_that_diverges_does_not_stop_the_others(tmp_path, runs):
    runs.errors.append(Diverged("The loss is not finite."))
    told = []
    task(tmp_path, only=["one"]).run(notify=told.append)
    assert "The loss is not finite." in told
    assert len(runs.keys) == 3


def test_only_some_cells_can_be_asked_for(tmp_path):
    part = task(tmp_path, only=["protonorm", "two"])
    found = part.findings(part.studies[0])
    assert [one.cell.place for one in found.outcomes] == [("ProtoNorm", "Group: two")]


def test_outputs_name_command_profile_version_and_keys(tmp_path, runs):
    task(tmp_path, only=["ProtoNorm", "one"]).run()
    name = "small-only-protonorm-and-one"
    for ending in ("md", "tex", "csv"):
        assert runs.keys[0] in page_of(tmp_path, f"{name}.{ending}")
    for ending in ("md", "tex"):
        text = page_of(tmp_path, f"{name}.{ending}")
        assert "protonorm reproduce small" in text
        assert "profile" in text
        assert "protonorm 0" in text
        assert "A part: 1 of 6 cells, those with 'ProtoNorm' and 'one'." in text
    assert not (tmp_path / "out" / "small.md").exists()


def remove(path):
    path.unlink()


def break_off(path):
    path.write_text("{")


def strip(path):
    path.write_bytes(sealed({}, pretty=path.suffix == ".json"))


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("experiment.json", break_off),
        ("experiment.json", strip),
        ("metrics.jsonl", strip),
        ("metrics.jsonl", flip),
        ("failure.json", strip),
        ("evaluations.bin", flip),
        ("evaluations.bin", remove),
        ("population.safetensors", flip),
        ("population.safetensors", remove),
    ],
)
def test_a_damaged_run_is_named_and_the_others_go_on(tmp_path, runs, file, damage):
    first = task(tmp_path, only=["one"])
    first.run()
    damage(tmp_path / "runs" / runs.keys[0] / file)
    runs.keys.clear()
    again = task(tmp_path)
    again.run()
    assert len(runs.keys) == 3
    assert sorted(states(again)) == ["damaged", *["finished"] * 5]
    assert "| ProtoNorm | damaged<br>" in page_of(tmp_path)
    (told,) = [
        line for line in page_of(tmp_path).replace("\\", "").splitlines() if "away to run the cell again" in line
    ]
    assert file in told or "format" in told
    assert told.endswith("away to run the cell again: ProtoNorm, Group: one.")
    assert "damaged" in page_of(tmp_path, "small.csv")


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (ValueError("a.safetensors is damaged: it was cut."), "a.safetensors is damaged: it was cut."),
        (KeyError("prototypes"), "KeyError: 'prototypes'."),
    ],
)
def test_a_figure_or_table_that_cannot_be_made_is_left_out_and_named(tmp_path, error, what):
    def fail(_):
        raise error

    found = task(tmp_path, small_study(cells=[], columns=(), draw=fail, tables=fail))
    (written,) = found.write()
    assert written.remarks == [f"The table was not made: {what}", f"Nothing was drawn: {what}"]
    assert f"Nothing was drawn: {what}" in page_of(tmp_path).replace("\\", "")
    assert [path.name for path in written.paths] == ["small.md"]


def test_an_error_of_the_last_writing_does_not_hide_the_first(tmp_path, runs):
    (tmp_path / "out").write_text("in the way")
    runs.errors.append(KeyboardInterrupt())
    told = []
    with pytest.raises(KeyboardInterrupt):
        task(tmp_path).run(notify=told.append)
    assert "could not be written" in told[-1]


def test_a_setting_that_is_refused_is_said_with_its_cell_before_anything_is_run(tmp_path):
    found = task(tmp_path, small_study(cells=[Cell("ProtoNorm", "Group: one", TINY | {"round": 3})]))
    with pytest.raises(ValueError, match="small, ProtoNorm, Group: one: .*'round'"):
        found.prepare()
    assert not (tmp_path / "out").exists()


def test_a_folder_of_runs_that_cannot_be_written_to_is_refused_unless_nothing_is_run(tmp_path):
    (tmp_path / "runs").write_text("in the way")
    found = task(tmp_path)
    with pytest.raises(ValueError, match="runs: it is, or is inside, a file"):
        found.prepare()
    found.prepare(run=False)


def test_cells_are_trained_and_a_refused_one_is_named(tmp_path):
    """Without fakes: one cell trains, one cannot be assigned its samples, one leaves the finite numbers."""
    wild = TINY | {"algorithm": {"name": "protonorm", "gamma": 1e30}, "rounds": 3, "lr": 1e9}
    cells = [
        Cell("ProtoNorm", "Group: one", TINY | {"partition": {"name": "dirichlet", "least": 10**6}}),
        Cell("ProtoNorm", "Group: two", wild),
        Cell("FedProto", "Group: one", TINY | {"algorithm": "fedproto"}),
    ]
    found, rounds = task(tmp_path, small_study(cells=cells)), []
    found.run("serial", None, lambda _: None, lambda _: nullcontext(rounds.append))
    assert states(found) == ["refused", "diverged", "finished"]
    assert [round.number for round in rounds][-1] == 1
    assert "| ProtoNorm | not run<br>47.41 ± 0.40 | - |" in page_of(tmp_path)


def test_what_a_kill_left_of_a_cell_that_is_done_is_removed(tmp_path):
    cell = Cell("FedProto", "Group: one", TINY | {"algorithm": "fedproto", "rounds": 2})
    found = task(tmp_path, small_study(cells=[cell]))
    (outcome,) = found.findings(found.studies[0]).outcomes
    folder = killed_after_last_round(outcome.experiment, found.root)
    found.run("serial")
    assert not stray_states(read_run(folder))


def test_a_done_cell_in_a_folder_that_another_process_holds_is_shown(tmp_path):
    cell = Cell("FedProto", "Group: one", TINY | {"algorithm": "fedproto", "rounds": 2})
    found = task(tmp_path, small_study(cells=[cell]))
    (outcome,) = found.findings(found.studies[0]).outcomes
    folder = killed_after_last_round(outcome.experiment, found.root)
    with RunWriter(folder, outcome.key):
        found.run("serial")
        assert stray_states(read_run(folder))  # they may be somebody's
    assert states(found) == ["finished"]
