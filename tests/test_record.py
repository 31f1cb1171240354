import json

import pytest
import torch

from protonorm.record import Checkpoint, Record


def line(round):
    return {"round": round}


def commit(record, round, trained, message=None):
    for id, last in enumerate(trained):
        if last == round:
            record.states.save(id, round, {"w": torch.full((2,), float(round))})
    point = Checkpoint(round, {"s": torch.tensor(round)}, message or {"m": torch.tensor(-round)}, trained)
    record.commit(point, line(round), {"round": 0.1}, {})


@pytest.fixture
def record(tmp_path):
    with Record(tmp_path / "run", "key", 100) as record:
        yield record


def test_a_new_folder_has_nothing_to_resume(record):
    assert record.resume() is None


def test_resume_gives_what_was_committed_last(record):
    record.resume()
    commit(record, 1, [1, 1])
    commit(record, 2, [2, 1])
    found = record.resume()
    assert (found.round, found.trained) == (2, [2, 1])
    assert (found.state["s"], found.message["m"]) == (2, -2)
    assert record.states.load(0, 2)["w"][0] == 2
    assert record.states.load(1, 1)["w"][0] == 1


def test_what_came_after_the_last_commit_is_taken_back(record):
    record.resume()
    commit(record, 1, [1])
    record.states.save(0, 2, {"w": torch.zeros(1)})  # killed before the server's rename
    path = record.folder / "metrics.jsonl"
    path.write_text(path.read_text() + '{"round": 2}\n{"rou')
    (record.folder / "clients" / ".0.2.safetensors.99").write_bytes(b"half")
    assert record.resume().round == 1
    assert (record.folder / "metrics.jsonl").read_text() == '{"round": 1}\n'
    assert [path.name for path in (record.folder / "clients").iterdir()] == ["0.1.safetensors"]


def test_the_generation_before_stays_until_the_commit(record):
    record.resume()
    commit(record, 1, [1])
    record.states.save(0, 2, {"w": torch.zeros(1)})
    assert record.states.load(0, 1)["w"][0] == 1


def test_a_second_process_is_refused(record):
    with pytest.raises(BlockingIOError, match="Another process"), Record(record.folder, "key", 100):
        pass


def test_another_experiment_in_the_folder_is_refused_and_left(record):
    record.describe({"experiment": {"a": 1}})
    before = (record.folder / "experiment.json").read_bytes()
    record.describe({"experiment": {"a": 1}})
    with pytest.raises(ValueError, match="another experiment"):
        record.describe({"experiment": {"a": 2}})
    assert (record.folder / "experiment.json").read_bytes() == before
    assert json.loads(before)["versions"]["torch"] == torch.__version__


def test_a_missing_or_swapped_client_file_is_refused(record):
    record.resume()
    commit(record, 1, [1, 1])
    clients = record.folder / "clients"
    (clients / "0.1.safetensors").replace(clients / "1.1.safetensors")
    with pytest.raises(ValueError, match="not the right file"):
        record.states.load(1, 1)
    with pytest.raises(ValueError, match="missing"):
        record.states.load(0, 1)


def test_lost_metrics_are_noticed(record):
    record.resume()
    commit(record, 1, [1])
    (record.folder / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="0 lines for 1 committed"):
        record.resume()


def test_prototypes_are_kept_at_fifty_evenly_spaced_rounds(record):
    record.resume()
    for round in range(1, 101):
        commit(record, round, [round], {"prototypes": torch.ones(1, 1), "classes": torch.arange(1)})
    kept = sorted(int(path.stem) for path in (record.folder / "prototypes").iterdir())
    assert len(kept) == 50
    assert (kept[0], kept[-1]) == (1, 100)
