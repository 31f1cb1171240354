"""A run's folder: whole after every kill, and every flipped bit is noticed."""

import os
import stat

import numpy as np
import pytest
import torch

from protonorm import tensors
from protonorm.runs import layout
from protonorm.runs.run import read_run
from protonorm.runs.states import Checkpoint
from protonorm.runs.writer import RunWriter
from tests.runs.records import COUNTS, commit, describe, info, outcome, record, resumed


@pytest.fixture
def writer(tmp_path):
    with RunWriter(tmp_path / "run", "key") as writer:
        describe(writer, rounds=100)
        yield writer


def test_a_new_folder_has_nothing_to_resume(writer):
    assert writer.resume() is None


def test_resume_gives_what_was_committed_last(writer):
    resumed(writer)
    commit(writer, 1, [1, 1])
    commit(writer, 2, [2, 1])
    found = writer.resume()
    assert (found.round, found.trained) == (2, [2, 1])
    assert (found.state["s"], found.message["m"]) == (2, -2)
    assert writer.store.load(0, 2)["w"][0] == 2
    assert writer.store.load(1, 1)["w"][0] == 1


def test_what_came_after_the_last_commit_is_taken_back(writer):
    resumed(writer)
    commit(writer, 1, [1, 1])
    whole = {name: (writer.folder / name).read_bytes() for name in (layout.METRICS, layout.EVALUATIONS, layout.TIMINGS)}
    writer.store.save(0, 2, {"w": torch.zeros(1)})  # killed before the server's rename
    for name in whole:
        with (writer.folder / name).open("ab") as file:
            file.write(b'{"round": 2}\n{"rou')
    (writer.folder / "clients" / ".0.2.safetensors.0123456789abcdef").write_bytes(b"half")
    assert writer.resume().round == 1
    assert {name: (writer.folder / name).read_bytes() for name in whole} == whole
    assert sorted(path.name for path in (writer.folder / "clients").iterdir()) == ["0.1.safetensors", "1.1.safetensors"]


def test_the_state_before_stays_until_the_commit(writer):
    resumed(writer)
    commit(writer, 1, [1, 1])
    writer.store.save(0, 2, {"w": torch.zeros(1)})
    assert writer.store.load(0, 1)["w"][0] == 1
    writer.store.keep_only(0, 2)
    assert not (writer.folder / "clients" / "0.1.safetensors").exists()
    assert writer.store.load(0, 2)["w"][0] == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_in_the_middle_of_a_commit_loses_neither_round(tmp_path, monkeypatch, when):
    """It may come before the rename that makes a round final, or after it, when nobody has noted it yet."""
    with RunWriter(tmp_path / "run", "key") as first:
        describe(first)
        resumed(first)
        commit(first, 1, [1, 1])
    real = tensors.save

    def interrupted(path, *what):
        if path.name == layout.SERVER and when == "before":
            raise KeyboardInterrupt
        real(path, *what)
        if path.name == layout.SERVER:
            raise KeyboardInterrupt

    with RunWriter(tmp_path / "run", "key") as second:
        second.resume()
        monkeypatch.setattr(tensors, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            commit(second, 2, [2, 1])
    monkeypatch.undo()
    with RunWriter(tmp_path / "run", "key") as third:
        found = third.resume()
        assert (found.round, found.trained) == ((1, [1, 1]) if when == "before" else (2, [2, 1]))
        assert [third.store.load(id, last)["w"][0] for id, last in enumerate(found.trained)] == found.trained


def test_a_second_process_is_refused(writer):
    with pytest.raises(BlockingIOError, match="Another process"), RunWriter(writer.folder, "key"):
        pass


def test_another_experiment_in_the_folder_is_refused_and_left(writer):
    before = (writer.folder / layout.INFO).read_bytes()
    describe(writer, rounds=100)
    describe(writer, rounds=99)  # fewer rounds are there already
    with pytest.raises(ValueError, match="another experiment"):
        writer.describe(info(100, seed=5), COUNTS)
    retried = info(100)
    writer.describe(
        retried.model_copy(update={"experiment": retried.experiment.model_copy(update={"retries": 9})}), COUNTS
    )
    assert (writer.folder / layout.INFO).read_bytes() == before
    describe(writer, rounds=120)
    assert read_run(writer.folder).info.experiment.rounds == 120


def test_other_names_are_refused_before_anything_is_rewritten(writer):
    before = (writer.folder / layout.INFO).read_bytes()
    for other in ({"classes": ["cat", "dog", "fox"]}, {"client_names": ["north", "south"]}):
        with pytest.raises(ValueError, match="other names of"):
            writer.describe(info(120).model_copy(update=other), COUNTS)
    assert (writer.folder / layout.INFO).read_bytes() == before


def test_a_missing_or_swapped_client_file_is_refused(writer):
    resumed(writer)
    commit(writer, 1, [1, 1])
    clients = writer.folder / "clients"
    (clients / "0.1.safetensors").replace(clients / "1.1.safetensors")
    fresh = RunWriter(writer.folder, "key").store
    with pytest.raises(ValueError, match="not the right file"):
        fresh.load(1, 1)
    with pytest.raises(ValueError, match="missing"):
        fresh.load(0, 1)


def test_lost_metrics_are_noticed(writer):
    resumed(writer)
    commit(writer, 1, [1, 1])
    (writer.folder / layout.METRICS).write_text("")
    with pytest.raises(ValueError, match="0 lines for 1 committed"):
        writer.resume()


def test_prototypes_are_kept_at_fifty_evenly_spaced_rounds_at_most(writer):
    """Of 100 rounds the first and every fourth: 1, 4, 8, …, 100. Of 40 all."""
    resumed(writer)
    for round in range(1, 101):
        commit(writer, round, [round, round], {"prototypes": torch.ones(1, 1), "classes": torch.arange(1)})
        if round == 40:
            assert len(list((writer.folder / "prototypes").iterdir())) == 40
    kept = sorted(int(path.stem) for path in (writer.folder / "prototypes").iterdir())
    assert kept == [1, *range(4, 101, 4)]


def test_the_best_round_and_the_last_are_kept_and_nothing_else(writer):
    """Validation 0.5, 0.8, 0.6, 0.8: the best is round 2, the first of equals. Client 1 did not train in round 2."""
    resumed(writer)
    for round, trained, validation in ((1, [1, 1], 0.5), (2, [2, 1], 0.8), (3, [3, 3], 0.6), (4, [4, 4], 0.8)):
        commit(writer, round, trained, validation=validation)
        assert writer.chosen == min(round, 2)
    held = {path.name for path in (writer.folder / "clients").iterdir()}
    assert held == {"0.2.safetensors", "0.4.safetensors", "1.1.safetensors", "1.4.safetensors"}
    chosen = tensors.load(writer.folder / layout.CHOSEN, layout.stamp("key", "server", 2))
    assert (chosen["state.s"], chosen["trained"].tolist()) == (2, [2, 1])
    writer.resume()
    assert {path.name for path in (writer.folder / "clients").iterdir()} == held


def test_a_kill_between_two_best_rounds_loses_neither(writer):
    """The best round is the last committed one: the server's file is its checkpoint, until another round comes."""
    resumed(writer)
    commit(writer, 1, [1, 1], validation=0.5)
    commit(writer, 2, [2, 2], validation=0.7)
    assert not (writer.folder / layout.CHOSEN).exists() or writer.chosen == 2
    found = writer.resume()
    assert (found.round, writer.chosen) == (2, 2)
    commit(writer, 3, [3, 3], validation=0.1)
    assert tensors.load(writer.folder / layout.CHOSEN, layout.stamp("key", "server", 2))["state.s"] == 2


def test_states_of_a_round_that_was_the_best_go_once_a_better_one_is_the_last(tmp_path):
    """Validation 0.7, 0.5, 0.9: round 1 is the best until round 3; a worker that had a client before left its state."""
    with RunWriter(tmp_path / "run", "key") as writer:
        resumed(writer)
        for round, validation in ((1, 0.7), (2, 0.5), (3, 0.9)):
            commit(writer, round, [round, round], validation=validation)
        (writer.folder / "clients" / "0.1.safetensors").write_bytes(b"left behind")
    held = {path.name for path in (writer.folder / "clients").iterdir()}
    assert held == {"0.3.safetensors", "1.3.safetensors"}


def test_a_process_drops_states_that_an_earlier_one_left(tmp_path):
    """Rounds 1 and 3 are on disk, 1 being the best; then round 4 is the last and 3 goes, then 5 is the best of all."""
    from protonorm.runs.states import FolderStore

    def held():
        return sorted(path.name for path in tmp_path.glob("*.safetensors"))

    for round in (1, 3):
        FolderStore(tmp_path, "key").save(7, round, {"w": torch.ones(1)})
    store = FolderStore(tmp_path, "key")
    for round, chosen, left in ((4, 1, [1, 4]), (5, 5, [5])):
        store.save(7, round, {"w": torch.ones(1)})
        store.keep_only(7, round, chosen)
        assert held() == [f"7.{one}.safetensors" for one in left]


def test_the_cache_is_bounded_and_the_disk_is_read_for_the_rest(tmp_path):
    """Room for two states of 400 bytes: of three clients, the longest unused one is read from its file again."""
    from protonorm.runs.states import FolderStore

    store = FolderStore(tmp_path, "key", cache=800)
    states = {id: {"w": torch.full((100,), float(id))} for id in range(3)}
    for id, state in states.items():
        store.save(id, 1, state)
    assert store.load(2, 1) is states[2]
    assert store.load(0, 1) is not states[0]
    assert torch.equal(store.load(0, 1)["w"], states[0]["w"])
    with pytest.raises(ValueError, match="missing"):
        store.load(0, 2)


def read_everything(folder):
    """Read all that a record holds, as tables, pages and resumed runs do."""
    run = read_run(folder)
    assert run.population is not None
    for one in run.rounds:
        run.arrays(one)
    for round in run.snapshots():
        run.prototypes(round)
    run.figures()
    with RunWriter(folder, "key") as writer:
        point = writer.resume()
        for id, trained in enumerate(point.trained):
            writer.store.load(id, trained)
    return run


FILES = [
    layout.INFO, layout.POPULATION, layout.METRICS, layout.EVALUATIONS, layout.SERVER, layout.FIGURES, layout.CHOSEN,
    "clients/0.3.safetensors", "prototypes/2.safetensors",
]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_in_any_file_is_noticed_and_the_file_named(tmp_path, name):
    folder = record(tmp_path / "run")
    read_everything(folder)
    path = folder / name
    whole = path.read_bytes()
    for place in [*np.random.default_rng(0).integers(0, len(whole), 25).tolist(), 0, len(whole) - 1]:
        content = bytearray(whole)
        content[place] ^= 1 << (place % 8)
        path.write_bytes(content)
        with pytest.raises(ValueError, match=path.name):
            read_everything(folder)
    path.write_bytes(whole)
    read_everything(folder)


def test_damaged_times_are_left_out_and_stop_nobody(tmp_path):
    folder = record(tmp_path / "run")
    path = folder / layout.TIMINGS
    path.write_bytes(path.read_bytes().replace(b"0.1", b"0.2", 1))
    assert list(read_everything(folder).seconds) == [2, 3]


def test_only_files_of_ours_are_taken_for_leftovers(writer):
    resumed(writer)
    commit(writer, 1, [1, 1])
    mine = [
        ".notes.txt",
        ".keep.me.1",
        ".server.safetensors.123",
        ".metrics.jsonl.backup",
        "clients/.0.1.safetensors.old",
        "clients/mine.safetensors",
    ]
    ours = [
        ".server.safetensors.0123456789abcdef",
        ".experiment.json.0123456789abcdef",
        "clients/.0.2.safetensors.0123456789abcdef",
        "prototypes/.1.safetensors.0123456789abcdef",
    ]
    for name in mine + ours:
        (writer.folder / name).write_text("x")
    writer.resume()
    assert all((writer.folder / name).exists() for name in mine)
    assert not any((writer.folder / name).exists() for name in ours)


@pytest.mark.parametrize("name", [layout.SERVER, layout.INFO])
def test_a_run_whose_main_file_is_missing_is_not_begun_anew(tmp_path, name):
    folder = record(tmp_path / "run")
    (folder / name).unlink()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}
    said = f"{name} is missing, but metrics.jsonl has 3 rounds on record"
    with RunWriter(folder, "key") as writer, pytest.raises(ValueError, match=said):
        describe(writer) if name == layout.INFO else writer.resume()
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.mark.parametrize("name", [layout.EVALUATIONS, layout.POPULATION])
def test_damaged_arrays_are_noticed_before_a_run_goes_on(tmp_path, name):
    folder = record(tmp_path / "run", done=2)
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    with RunWriter(folder, "key") as writer, pytest.raises(ValueError, match=name):
        writer.resume()


def test_other_versions_are_said(tmp_path):
    folder = record(tmp_path / "run", done=2)
    with RunWriter(folder, "key") as writer:
        changed = info().model_copy(update={"versions": info().versions | {"torch": "9.9"}})
        with pytest.warns(UserWarning, match=r"other versions than it began with: torch 9.9 \(was 2"):
            writer.describe(changed, COUNTS)


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_record_is_for_its_owner_only(tmp_path):
    before = os.umask(0o022)
    try:
        folder = record(tmp_path / "deep" / "down" / "run")
    finally:
        os.umask(before)
    for path in [folder, folder.parent, folder.parent.parent, *folder.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_figures_are_found_whatever_round_they_are_of(tmp_path):
    with RunWriter(tmp_path / "run", "key") as writer:
        describe(writer)
        resumed(writer)
        commit(writer, 1, [1, 1])
        commit(writer, 2, [2, 2], figures={"x": torch.ones(2)})
    assert read_run(tmp_path / "run").figures()["x"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("test.calibration.clients.nearest-global", np.array([1.000001, 0.5], np.float32)),
        ("test.correct.clients.nearest-global", np.array([1, 3])),  # of two samples
        ("test.log_loss.clients.nearest-global", np.array([0.5], np.float32)),  # of two clients
    ],
)
def test_a_round_that_could_not_be_read_again_is_not_written(writer, name, value):
    resumed(writer)
    commit(writer, 1, [1, 1])
    before = {path.name: path.read_bytes() for path in writer.folder.iterdir() if path.suffix in (".jsonl", ".bin")}
    bad = outcome(2)
    said = rf"Round 2 is not written, for it could not be read again: .*evaluations\.bin is damaged: {name} of round 2"
    with pytest.raises(ValueError, match=said):
        writer.commit(Checkpoint(2, {}, {}, [2, 2]), bad._replace(arrays=bad.arrays | {name: value}))
    assert {name: (writer.folder / name).read_bytes() for name in before} == before
    assert len(read_run(writer.folder).rounds) == 1
    commit(writer, 2, [2, 2])
    assert len(read_run(writer.folder).rounds) == 2
