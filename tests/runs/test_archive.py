"""Archived records: read like the runs they are of, whole or not at all, and nothing is lost in them."""

import lzma
import os
import shutil

import numpy as np
import pytest
import torch
from filelock import FileLock

from protonorm.analysis.reading import read_whole
from protonorm.files import sealed
from protonorm.runs import archive, layout, packed
from protonorm.runs.archive import archive_run, at_rest, refuse_place
from protonorm.runs.checkpoint import Checkpoint
from protonorm.runs.deferred import DeferredWriter, TrainedRound
from protonorm.runs.layout import find_runs
from protonorm.runs.provenance import provenance
from protonorm.runs.reader import read_run
from protonorm.runs.removing import locked, remove_runs
from protonorm.runs.schema import PendingRound
from protonorm.runs.states import stray_states
from protonorm.runs.writer import RunWriter
from tests.runs.records import commit, outcome, record
from tests.runs.test_reader import rewrite

RECORD = {
    "archived.json", "evaluations.bin.xz", "experiment.json", "figures.safetensors", "metrics.jsonl.xz",
    "population.safetensors", "provenance.jsonl", "timings.jsonl",
}  # fmt: skip
CLIENTS = {
    "server.safetensors", "chosen.safetensors", "clients/0.1.safetensors", "clients/0.3.safetensors",
    "clients/1.1.safetensors", "clients/1.3.safetensors",
    *(f"prototypes/{round}.safetensors" for round in (1, 2, 3)),
}  # fmt: skip


def made(folder, rounds=3, done=None, failure=None):
    """Write a record; of equal rounds the first one is chosen."""
    record(folder, rounds, done)
    with RunWriter(folder, "key") as writer:
        writer.start(provenance(0, engine="serial", device="cpu", threads=1))
        if failure:
            writer.fail(*failure)
    return folder


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch):
    """Wait for no disk: no test here kills the machine."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def folder(tmp_path):
    return made(tmp_path / "runs" / "key")


@pytest.fixture
def to(tmp_path):
    return tmp_path / "kept" / "here"


def archived(folder, to, **options):
    return archive_run(read_whole(folder), to, **options).folder


def tree(folder):
    """Read all files of a folder, by name; a folder in it has a slash at its end."""
    return {
        str(path.relative_to(folder)) + "/" * path.is_dir(): None if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
    }


def files(folder):
    return {name for name in tree(folder) if not name.endswith("/")}


def told(run):
    """Gather all that a record tells, as plain data."""
    rounds = []
    for one in run.rounds:
        arrays = {name: (str(array.dtype), array.tolist()) for name, array in run.arrays(one).items()}
        margins = [part.tolist() for part in run.margins(one)]
        shares = [
            find(one, rule, part).tolist()
            for find in (run.by_client, run.by_class)
            for rule in run.info.rules
            for part in ("test", "validation")
        ]
        rounds.append((one, arrays, margins, repr(shares)))  # NaN is no equal of NaN
    return {
        "info": run.info,
        "rounds": rounds,
        "summaries": [run.summary(rule) for rule in run.info.rules],
        "population": [part.tolist() for part in run.population],
        "majority": run.majority,
        "chosen": run.chosen,
        "failure": run.failure,
        "finished": run.finished,
        "seconds": run.seconds,
        "starts": run.starts,
        "lost_provenance": run.lost_provenance,
        "figures": {name: array.tolist() for name, array in run.figures().items()},
    }


@pytest.mark.parametrize("with_clients", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rounds": 5, "done": 2},
        {"rounds": 1},
        {"rounds": 4, "done": 3, "failure": (4, "It diverged.")},
        {"done": 0, "failure": (1, "It diverged at once.")},
    ],
)
def test_all_that_a_record_tells_is_told_by_its_archive(tmp_path, to, settings, with_clients):
    folder = made(tmp_path / "run", **settings)
    found = archived(folder, to, with_clients=with_clients)
    expected = told(read_whole(folder))
    assert told(read_whole(found)) == expected
    assert len(expected["rounds"]) == settings.get("done", settings.get("rounds", 3))
    assert len(expected["starts"]) == 1
    assert told(read_whole(found, 1))["rounds"] == expected["rounds"][:1]
    again = archived(found, tmp_path / "again", with_clients=with_clients)
    assert tree(again) == tree(found)  # an archive can be archived


def test_it_has_the_record_and_no_networks(folder, to):
    made = archive_run(read_whole(folder), to)
    assert made.folder == to / "key"
    assert files(made.folder) == RECORD
    assert made.rounds == 3
    assert made.size == sum(map(len, tree(made.folder).values()))
    for name in RECORD - {"archived.json"}:
        whole = (made.folder / name).read_bytes()
        plain = lzma.decompress(whole) if name.endswith(".xz") else whole
        assert plain == (folder / name.removesuffix(".xz")).read_bytes()
    assert os.listdir(to) == ["key"]  # and nothing beside it


def test_with_clients_it_has_all_but_the_lock(folder, to):
    (folder / "clients" / ".0.4.safetensors.123").write_text("half")  # of a process that was killed
    (folder / "notes.txt").write_text("mine")
    found = archived(folder, to, with_clients=True)
    assert files(found) == RECORD | CLIENTS
    for name in CLIENTS:
        assert (found / name).read_bytes() == (folder / name).read_bytes()
    run = read_run(found)
    assert run.snapshots() == [1, 2, 3]
    assert run.prototypes(2).vectors.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_without_prototypes_none_are_expected(folder, to):
    assert read_run(archived(folder, to)).snapshots() == []


def test_what_was_not_committed_is_left_out(tmp_path, to):
    folder = made(tmp_path / "run", done=2)
    expected = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "evaluations.bin")}
    for name in expected:
        with (folder / name).open("ab") as file:
            file.write(b'{"round": 3}\n{"rou')
    found = archived(folder, to)
    for name, content in expected.items():
        assert lzma.decompress((found / f"{name}.xz").read_bytes()) == content


def test_a_round_that_waits_for_its_evaluation_is_archived_once_it_has_it(tmp_path, to):
    """In a real federation: two rounds are committed, one is on record."""
    folder = tmp_path / "run"
    record(folder, done=1)
    line = {name: value for name, value in outcome(2).record.items() if name in PendingRound.model_fields}
    with DeferredWriter(folder, "key") as writer:
        writer.resume()
        point = Checkpoint(2, {}, {}, [1, 1])
        writer.commit_trained(point, TrainedRound(line, {}, {"round": 0.1}))
    assert layout.committed(folder) == 2
    assert layout.committed(archived(folder, to)) == 1
    whole = archived(folder, tmp_path / "whole", with_clients=True)
    assert layout.committed(whole) == 2
    assert len(read_run(whole).rounds) == len(read_run(to / "key").rounds) == 1


def test_arrays_are_unpacked_once(folder, to, monkeypatch):
    run = read_run(archived(folder, to))
    unpacked = []
    monkeypatch.setattr(
        packed, "unpack", lambda path, most: unpacked.append(path) or lzma.decompress(path.read_bytes())
    )
    monkeypatch.setattr(run._arrays, "get", lambda round: None)  # nothing else is remembered
    for one in run.rounds * 2:
        assert run.by_client(one, "global").tolist() == [0.5, 1.0]
    assert unpacked == [to / "key" / "evaluations.bin.xz"]


# Damage


@pytest.mark.parametrize("name", sorted(RECORD - {"timings.jsonl", "provenance.jsonl"}))
def test_damage_of_every_file_is_noticed(folder, to, name):
    path = archived(folder, to) / name
    content = path.read_bytes()
    for place in np.linspace(0, len(content) - 1, 25).astype(int):
        path.write_bytes(content[:place] + bytes([content[place] ^ 2]) + content[place + 1 :])
        with pytest.raises(ValueError, match=name):
            read_whole(to / "key").figures()
    path.unlink()
    if name != "figures.safetensors":  # which not every run has
        with pytest.raises(ValueError, match=name.removesuffix(".xz")):
            read_whole(to / "key")


@pytest.mark.parametrize("name", ["timings.jsonl", "provenance.jsonl"])
def test_a_damaged_line_of_times_or_origins_is_passed_over(folder, to, name):
    path = archived(folder, to) / name
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))
    run = read_whole(to / "key")
    assert (len(run.seconds), len(run.starts)) == ((2, 1) if name == "timings.jsonl" else (3, 0))


@pytest.mark.parametrize(
    ("held", "owner", "said"),
    [
        ({"rounds": 3}, "other", r"archived\.json is damaged: it was changed"),
        ({"rounds": 3}, "", r"archived\.json is damaged: it was changed"),
        ({"rounds": -1}, "key", r"archived\.json is damaged: it does not say how many rounds"),
        ({"rounds": True}, "key", r"archived\.json is damaged: it does not say how many rounds"),
        ({"rounds": "3"}, "key", r"archived\.json is damaged: it does not say how many rounds"),
        ({}, "key", r"archived\.json is damaged: it does not say how many rounds"),
        ({"rounds": 4}, "key", r"metrics\.jsonl\.xz is damaged: 3 lines for 4 committed rounds"),
    ],
)
def test_what_another_run_has_archived_is_refused(folder, to, held, owner, said):
    (archived(folder, to) / "archived.json").write_bytes(sealed(held, pretty=True, owner=owner))
    with pytest.raises(ValueError, match=said):
        read_run(to / "key")


def test_one_round_is_not_lost_with_the_file_that_counts_it(tmp_path, to):
    found = archived(made(tmp_path / "run", rounds=1), to)
    (found / "archived.json").unlink()
    with pytest.raises(ValueError, match=r"archived\.json is missing, but files of the record are packed"):
        read_run(found)
    before = tree(found)
    with pytest.raises(ValueError, match="was archived without its networks"), RunWriter(found, "key"):
        pass
    assert tree(found) == before


def test_the_plain_form_of_a_file_counts(folder, to):
    found = archived(folder, to)
    for name in ("metrics.jsonl", "evaluations.bin"):
        shutil.copy(folder / name, found)
        (found / f"{name}.xz").write_text("damaged")
    assert told(read_whole(found)) == told(read_whole(folder))


def test_a_packed_copy_beside_a_file_does_not_make_an_archive(folder):
    (folder / "metrics.jsonl.xz").write_bytes(lzma.compress((folder / "metrics.jsonl").read_bytes()))
    with RunWriter(folder, "key") as writer:
        assert writer.resume().round == 3


# What cannot be done with an archive


@pytest.mark.parametrize(("with_clients", "without"), [(False, " without its networks"), (True, "")])
def test_nobody_goes_on_in_it_and_nothing_is_changed(folder, to, with_clients, without):
    found = archived(folder, to, with_clients=with_clients)
    before = tree(found)
    said = f"key was archived{without}, and nothing more is written there: .* Give another folder of runs by --out"
    with pytest.raises(ValueError, match=said), RunWriter(found, "key"):
        pass
    assert not stray_states(read_run(found))
    assert tree(found) == before


def test_states_that_a_kill_has_left_are_not_tidied_up_in_an_archive(folder, to):
    """A finished run that is asked for again removes them, which is nothing for an archive."""
    with RunWriter(folder, "key") as writer:
        writer.store.save(0, 2, {"w": torch.zeros(2)})
    assert stray_states(read_run(folder))
    assert not stray_states(read_run(archived(folder, to, with_clients=True)))


def test_a_run_at_work_is_refused(folder, monkeypatch):
    said = "Another process is at work on .*; nothing of it was archived"
    with FileLock(folder / "lock"), pytest.raises(BlockingIOError, match=said), at_rest(folder):
        pass
    with at_rest(folder), pytest.raises(BlockingIOError), RunWriter(folder, "key"):
        pass
    taken = []
    monkeypatch.setattr(archive, "locked", lambda *words: taken.append(locked(*words)) or taken[0])
    with at_rest(folder):
        assert taken[0].is_locked
    assert not taken[0].is_locked


def test_no_lock_is_left_in_an_archive(folder, to):
    found = archived(folder, to)
    with at_rest(found):
        pass
    assert files(found) == RECORD


@pytest.mark.parametrize("place", ["runs", "runs/key", "runs/key/in", "runs/../runs"])
def test_a_folder_of_runs_is_no_place_for_archives(folder, tmp_path, place):
    before = tree(tmp_path)
    with pytest.raises(ValueError, match="is where the runs are; give another folder"):
        archived(folder, tmp_path / place)
    with pytest.raises(ValueError, match="is the folder of all runs; give another one"):
        refuse_place(tmp_path / place, [], tmp_path / place)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("key", ["../x", "..", "a/b", "/x"])
def test_a_key_that_leads_elsewhere_is_refused(folder, to, tmp_path, key):
    run = read_run(folder)
    foreign = run.info.model_copy(update={"key": key})
    with pytest.raises(ValueError, match="which cannot be the name of a folder"):
        archive_run(type(run)(folder, foreign, run.rounds, None), to)
    assert os.listdir(tmp_path) == ["runs"]


@pytest.mark.parametrize("name", ["figures.safetensors", *sorted(CLIENTS)])
def test_what_is_damaged_or_of_another_run_is_not_archived(folder, to, name):
    run, path = read_whole(folder), folder / name
    content = path.read_bytes()
    other = content.replace(b'"key ', b'"kex ')
    for broken in (content[:-1] + bytes([content[-1] ^ 1]), resealed(other)):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=rf"{name} is damaged: it (was changed|is that of another run)"):
            archive_run(run, to, with_clients=True)
    assert os.listdir(to) == []


def resealed(content):
    """Put the right checksum into a tensor file that was changed."""
    from protonorm.files import BLANK, DIGITS, HEADER, seal

    end = content.index(b'"}', HEADER)
    start = content.rindex(b'"', HEADER, end) + 1
    stamp = content[start : end - DIGITS - 1].decode()
    return seal(content[: end - DIGITS] + BLANK.encode() + content[end:], stamp)


def test_clients_that_were_left_out_cannot_be_archived(folder, to, tmp_path):
    found = archived(folder, to)
    with pytest.raises(ValueError, match="was archived without its networks: there are no trained clients in it"):
        archived(found, tmp_path / "again", with_clients=True)


# What is there already


@pytest.mark.parametrize("with_clients", [False, True])
def test_an_older_archive_of_the_same_run_is_replaced(tmp_path, to, with_clients):
    folder = made(tmp_path / "run", done=2)
    found = archived(folder, to)
    assert archived(folder, to) == found  # also an equal one
    with RunWriter(folder, "key") as writer:
        writer.describe(read_run(folder).info, read_run(folder).population)
        writer.resume()
        commit(writer, 3, [3, 3])
    (found / "report.html").write_text("ours")
    archived(folder, to, with_clients=with_clients, more=lambda place: [place / "report.html"])
    assert told(read_whole(found)) == told(read_whole(folder))
    assert len(read_run(found).rounds) == 3
    assert not (found / "report.html").exists()
    assert (found / "server.safetensors").exists() == with_clients
    assert os.listdir(to) == ["key"]


def _longer(folder, target):
    made(folder.parent / "longer", rounds=4)
    archived(folder.parent / "longer", target.parent)


def _other_numbers(folder, target):
    made(folder.parent / "other")
    path = folder.parent / "other" / "metrics.jsonl"
    rewrite(path, lambda line: line["metrics"].update(loss=0.25), pretty=False, line=1)
    archived(folder.parent / "other", target.parent)


def _other_arrays(folder, target):
    archived(folder, target.parent)
    (target / "evaluations.bin.xz").write_bytes(lzma.compress(b"other"))


def _damaged(folder, target):
    archived(folder, target.parent)
    (target / "metrics.jsonl.xz").write_bytes(b"damaged")


def _link(folder, target):
    archived(folder, target.parent / "aside")
    target.symlink_to(target.parent / "aside" / "key")


def _notes(folder, target):
    archived(folder, target.parent)
    (target / "notes.txt").write_text("mine")


OTHERS = {
    "a run": (lambda folder, target: made(target), "key exists and is not an archived record; it is left as it is"),
    "an empty folder": (lambda folder, target: target.mkdir(parents=True), "exists and is not an archived record"),
    "a link": (_link, "exists and is not an archived record"),
    "more rounds": (_longer, r"key holds 4 rounds of key, and .* has 3; it is left as it is"),
    "other numbers": (_other_numbers, "holds other numbers than .* in the same rounds; it is left as it is"),
    "other arrays": (_other_arrays, "holds other numbers than .* in the same rounds; it is left as it is"),
    "damage": (_damaged, r"key/metrics\.jsonl\.xz is damaged"),
    "clients": (
        lambda f, t: archived(f, t.parent, with_clients=True),
        "archived with its clients; give --with-clients",
    ),
    "files of others": (_notes, r"holds what is no part of the record, such as notes\.txt; move it away first"),
}


@pytest.mark.parametrize(("there", "said"), OTHERS.values(), ids=OTHERS)
def test_what_else_is_in_its_place_is_left_as_it_is(folder, to, there, said):
    there(folder, to / "key")
    before = tree(to)
    with pytest.raises(ValueError, match=said):
        archived(folder, to)
    assert tree(to) == before


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("moment", range(9))
def test_it_is_there_whole_or_not_at_all(tmp_path, to, monkeypatch, moment, older):
    """Eight files are written, then the folder is moved: one of these steps fails."""
    folder = made(tmp_path / "run")
    if older:
        archived(made(tmp_path / "older", done=2), to)
    before, left = tree(to), [moment]

    def failing(usual):
        def step(source, target):
            left[0] -= 1
            if left[0] == -1 and "before" not in str(target):
                raise OSError("full")
            return usual(source, target)

        return step

    monkeypatch.setattr(archive, "replace", failing(archive.replace))
    monkeypatch.setattr(archive.os, "rename", failing(os.rename) if moment < 8 else full_for("archive"))
    with pytest.raises(OSError, match="full"):
        archived(folder, to)
    assert tree(to) == before
    monkeypatch.undo()
    assert len(read_run(archived(folder, to)).rounds) == 3


def full_for(name):
    """Let the folder of this name not be moved."""
    usual = os.rename

    def rename(source, target):
        if source.name == name:
            raise OSError("full")
        usual(source, target)

    return rename


def test_what_a_killed_process_leaves_is_no_run_and_goes(folder, to):
    left = to / ".archiving-0a1b2c3d"
    shutil.copytree(archived(folder, to / "aside"), left / "archive")
    shutil.rmtree(to / "aside")
    (left / "lock").touch()
    assert find_runs(to) == []
    archived(folder, to)
    assert os.listdir(to) == ["key"]


# Finding and removing


def test_archives_are_found_also_without_what_they_are(folder, to):
    found = archived(folder, to)
    assert find_runs(to) == [found]
    (found / "experiment.json").unlink()
    assert find_runs(to) == [found]


@pytest.mark.parametrize("lost", [None, "experiment.json", "archived.json", "metrics.jsonl.xz"])
@pytest.mark.parametrize("with_clients", [False, True])
def test_removing_leaves_nothing_but_what_is_not_ours(folder, to, lost, with_clients):
    found = archived(folder, to, with_clients=with_clients)
    if lost:
        (found / lost).unlink()
    assert remove_runs([found]) == {found: []}
    assert not found.exists()


def test_an_archive_names_no_folder_of_the_machine(folder, to, monkeypatch):
    """The same start, but for absolute paths in its command; what is damaged stays, and is still noticed."""
    monkeypatch.setattr("sys.argv", ["/home/me/study.py", "--data", "/home/me/secret/x.npz", "near/y.npz"])
    with RunWriter(folder, "key") as writer:
        writer.start(provenance(3, engine="serial", device="cpu", threads=1))
    path = folder / layout.PROVENANCE
    path.write_bytes(path.read_bytes() + b"{}\n")
    kept = archived(folder, to)
    assert (kept / layout.PROVENANCE).read_bytes().endswith(b"}\n{}\n")
    assert b"/home" not in (kept / layout.PROVENANCE).read_bytes()
    before, after = read_run(folder).starts, read_run(kept).starts
    assert [one.command for one in after][1:] == ["python study.py --data x.npz near/y.npz"]
    assert [one.model_copy(update={"command": ""}) for one in after] == [
        one.model_copy(update={"command": ""}) for one in before
    ]
    assert read_run(kept).lost_provenance
