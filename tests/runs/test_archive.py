"""Archived records: read like the runs they are of, whole or not at all, and nothing that is shown is lost in them."""

import os
import random
import shutil
import struct
import zipfile

import numpy as np
import pytest
import torch
from filelock import FileLock, Timeout

from protonorm.files import sealed
from protonorm.runs import archive, layout
from protonorm.runs.archive import archive_runs, at_rest, refuse_place, remove_runs
from protonorm.runs.layout import Study, find_run, find_runs, study_in
from protonorm.runs.provenance import provenance
from protonorm.runs.run import read_run, read_whole
from protonorm.runs.schema import PendingRound
from protonorm.runs.states import Checkpoint, FolderStore, stray_states
from protonorm.runs.writer import DeferredWriter, RoundOutcome, RunWriter
from tests.runs.records import commit, outcome, record
from tests.runs.test_reader import rewrite

RECORD = {
    "archived.json", "evaluations.bin", "experiment.json", "figures.safetensors", "metrics.jsonl",
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
    return archive_runs([folder], to, **options)[0].folder


def files(folder):
    return set(study_in(folder.parent).runs[folder.name])


def tree(folder):
    """Read all files of a folder, by name."""
    return {str(path.relative_to(folder)): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def repacked(to, change):
    """Pack a study file anew, with its members changed: by name, the content of each."""
    path = to / "records.zip"
    with zipfile.ZipFile(path) as file:
        members = change({name: file.read(name) for name in file.namelist()})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def told(run):
    """Gather all that a record tells, as plain data: of classes and validation in the reported round."""
    rounds, complete = [], run.chosen.record.round if run.chosen else len(run.rounds)
    for one in run.rounds:
        whole = one.round == complete
        arrays = {
            name: (str(array.dtype), array.tolist())
            for name, array in run.arrays(one).items()
            if whole or name.startswith(("ids", "margins", "test.support.clients", "test.correct.clients"))
        }
        margins = [part.tolist() for part in run.margins(one)]
        shares = [
            find(one, rule, part).tolist()
            for find in ((run.by_client, run.by_class) if whole else (run.by_client,))
            for rule in run.info.rules
            for part in (("test", "validation") if whole else ("test",))
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
    archived(found, tmp_path / "again", with_clients=with_clients)
    assert tree(tmp_path / "again") == tree(to)  # an archive can be archived


def test_it_has_the_record_and_no_networks(folder, to):
    (made,) = archive_runs([folder], to)
    assert made.folder == to / "key"
    assert (made.rounds, made.asked) == (3, 3)
    assert os.listdir(to) == ["records.zip"]
    with zipfile.ZipFile(to / "records.zip") as file:
        assert made.size == sum(member.compress_size for member in file.infolist())
        assert {name.removeprefix("key/") for name in file.namelist()} == RECORD
        for name in RECORD - {"archived.json", "evaluations.bin"}:
            assert file.read(f"key/{name}") == (folder / name).read_bytes()


def test_with_clients_it_has_all_but_the_lock(folder, to):
    (folder / "clients" / ".0.4.safetensors.0123456789abcdef").write_text("half")  # of a process that was killed
    (folder / "notes.txt").write_text("mine")
    found = archived(folder, to, with_clients=True)
    assert files(found) == RECORD | CLIENTS
    for name in CLIENTS:
        assert layout.read_file(found / name) == (folder / name).read_bytes()
    run = read_run(found)
    assert run.snapshots() == [1, 2, 3]
    assert run.prototypes(2).vectors.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert layout.committed(found) == 3
    before = FolderStore(folder / "clients", "key").load(0, 3)
    assert FolderStore(found / "clients", "key").load(0, 3)["w"].tolist() == before["w"].tolist()


def test_without_prototypes_none_are_expected(folder, to):
    assert read_run(archived(folder, to)).snapshots() == []


def test_other_programs_unpack_it_into_folders_that_are_read(folder, to, tmp_path):
    archived(folder, to)
    with zipfile.ZipFile(to / "records.zip") as file:
        file.extractall(tmp_path / "unpacked")
    assert told(read_whole(tmp_path / "unpacked" / "key")) == told(read_whole(folder))
    with (
        pytest.raises(ValueError, match="was archived without its networks"),
        RunWriter(tmp_path / "unpacked/key", "key"),
    ):
        pass


MEASURES = {"test.balanced.clients.nearest-global": [0.25, 0.5], "test.predicted.classes.nearest-global": [3, 1, 0]}


def test_measures_of_clients_stay_in_the_reported_round(tmp_path, to):
    """Of equal rounds the first is reported; in the middle one, counts stay where its record says they are."""
    folder = tmp_path / "run"
    record(folder, 3, 0)
    with RunWriter(folder, "key") as writer:
        run = read_run(folder)
        writer.describe(run.info, run.population)
        for round in (1, 2, 3):
            done = outcome(round)
            more = {name: np.array(value, "f4" if "balanced" in name else int) for name, value in MEASURES.items()}
            writer.commit(Checkpoint(round, {}, {}, [round] * 2), done._replace(arrays=done.arrays | more))
    run, kept = read_run(folder), read_run(archived(folder, to))
    assert kept.rounds == run.rounds
    assert len(layout.read_file(kept.folder / "evaluations.bin")) == (folder / "evaluations.bin").stat().st_size
    assert [MEASURES.keys() <= kept.arrays(one).keys() for one in kept.rounds] == [True, False, False]
    assert kept.measured(kept.rounds[0], "nearest-global", "balanced").tolist() == [0.25, 0.5]
    assert np.isnan(kept.measured(kept.rounds[1], "nearest-global", "balanced")).all()
    for one in run.rounds:
        assert kept.by_client(one, "nearest-global").tolist() == run.by_client(one, "nearest-global").tolist()
        assert np.isnan(kept.by_class(one, "nearest-global")).all() == (one.round > 1)
        assert [part.tolist() for part in kept.margins(one)] == [part.tolist() for part in run.margins(one)]


def test_what_was_not_committed_is_left_out(tmp_path, to):
    folder = made(tmp_path / "run", done=2)
    expected = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "evaluations.bin")}
    for name in expected:
        with (folder / name).open("ab") as file:
            file.write(b'{"round": 3}\n{"rou')
    found = archived(folder, to)
    assert layout.read_file(found / "metrics.jsonl") == expected["metrics.jsonl"]
    assert len(layout.read_file(found / "evaluations.bin")) == len(expected["evaluations.bin"])


def test_a_round_that_waits_for_its_evaluation_is_archived_once_it_has_it(tmp_path, to):
    """In a real federation: two rounds are committed, one is on record."""
    folder = tmp_path / "run"
    record(folder, done=1)
    line = {name: value for name, value in outcome(2).record.items() if name in PendingRound.model_fields}
    with DeferredWriter(folder, "key") as writer:
        writer.resume()
        point = Checkpoint(2, {}, {}, [1, 1])
        writer.commit_trained(point, RoundOutcome(line, {}, {"round": 0.1}, {}))
    assert layout.committed(folder) == 2
    assert layout.committed(archived(folder, to)) == 1
    whole = archived(folder, tmp_path / "whole", with_clients=True)
    assert layout.committed(whole) == 2
    assert len(read_run(whole).rounds) == len(read_run(to / "key").rounds) == 1


def test_no_more_is_unpacked_than_is_asked_for_and_arrays_once(folder, to, monkeypatch):
    archived(folder, to)
    unpacked, usual = [], Study._unpack
    monkeypatch.setattr(Study, "_unpack", lambda self, *words: unpacked.append(words) or usual(self, *words))
    run = read_run(to / "key")
    monkeypatch.setattr(run._arrays, "get", lambda round: None)  # nothing else is remembered
    for one in run.rounds * 2:
        assert run.by_client(one, "nearest-global").tolist() == [0.5, 1.0]
    assert unpacked.count(("key", "evaluations.bin")) == 1
    assert ("key", "population.safetensors") not in unpacked


# Damage


@pytest.mark.parametrize("with_clients", [False, True])
def test_no_flipped_bit_shows_other_numbers(folder, to, with_clients):
    """Every record is read as it was, or not at all and the file is named; times and origins may be lost alone."""
    found = archived(folder, to, with_clients=with_clients)
    path, expected = to / "records.zip", told(read_whole(found))
    content, noticed = path.read_bytes(), 0
    for place in random.Random(0).sample(range(len(content)), 300):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        try:
            assert find_runs(to) == [found]
            assert told(read_whole(found)) == expected
        except ValueError as error:
            assert str(to) in str(error)
            noticed += 1
        except AssertionError:
            assert find_runs(to) != [found]  # the name of its folder has changed, and there it is not read
            with pytest.raises(ValueError, match="damaged|not a run"):
                read_whole(find_runs(to)[0] if find_runs(to) else found)
            noticed += 1
    assert noticed > (100 if with_clients else 200)  # what is left are times and networks, which are not read here


@pytest.mark.parametrize("size", [0, 1, 30, -1, -22, -60])
def test_a_file_that_is_cut_is_refused(folder, to, size):
    archived(folder, to)
    path = to / "records.zip"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"records\.zip is damaged: it is not a whole zip file"):
        find_runs(to)


@pytest.mark.parametrize(
    "name",
    [
        "../x/experiment.json", "/etc/passwd", "key/../x", "key/notes.txt", "experiment.json", "key/clients/x",
        "./metrics.jsonl", "a\\b/metrics.jsonl", "key/", "key/clients/../1.1.safetensors",
    ],
)  # fmt: skip
def test_what_is_no_part_of_a_record_is_refused(folder, to, name):
    archived(folder, to)
    repacked(to, lambda members: members | {name: b"x"})
    with pytest.raises(ValueError, match=r"records\.zip is damaged: it holds .* which is no part of a record"):
        find_runs(to)


def test_a_file_twice_is_refused(folder, to):
    archived(folder, to)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(to / "records.zip", "a") as file:
        file.writestr("key/metrics.jsonl", b"")
    with pytest.raises(ValueError, match=r"it holds 'key/metrics\.jsonl' twice"):
        read_run(to / "key")


@pytest.mark.parametrize("name", sorted(RECORD - {"archived.json"}))
def test_a_file_that_is_lost_or_of_another_archive_is_noticed(folder, to, tmp_path, name):
    other = archived(made(tmp_path / "other", done=2), tmp_path / "second")
    foreign = layout.read_file(other / name) + b"\n"
    for change, said in (
        (lambda members: members | {f"key/{name}": foreign}, f"key/{name} is not the file that was archived"),
        (lambda members: members.pop(f"key/{name}") and members, "not have the files|not a run|damaged"),
    ):
        (to / "records.zip").unlink(missing_ok=True)
        found = archived(folder, to)
        repacked(to, change)
        with pytest.raises(ValueError, match=said):
            told(read_whole(found))


@pytest.mark.parametrize(
    ("held", "owner", "said"),
    [
        ({}, "other", "it was changed"),
        ({}, "", "it was changed"),
        ({"rounds": -1}, "key", "it does not say how many rounds"),
        ({"rounds": True}, "key", "it does not say how many rounds"),
        ({"rounds": "3"}, "key", "it does not say how many rounds"),
        ({"files": {}}, "key", "does not have the files that were archived"),
        ({"files": 3}, "key", "does not have the files that were archived"),
        ({"rounds": 4}, "key", r"metrics\.jsonl is damaged: 3 lines for 4 committed rounds"),
    ],
)
def test_what_another_run_has_archived_is_refused(folder, to, held, owner, said):
    from protonorm.files import unsealed

    def change(members):
        manifest = unsealed(members["key/archived.json"], to, pretty=True, owner="key")
        return members | {"key/archived.json": sealed(manifest | held, pretty=True, owner=owner)}

    archived(folder, to)
    repacked(to, change)
    with pytest.raises(ValueError, match=said):
        read_run(to / "key")


def test_a_bomb_is_refused_before_it_is_unpacked(folder, to, monkeypatch):
    archived(folder, to)
    bomb = bytes(2**16)
    path = repacked(to, lambda members: members | {"key/metrics.jsonl": bomb})
    assert path.stat().st_size < 2**13
    monkeypatch.setitem(layout.MAX_SIZES, ".jsonl", 2**15)
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *words: pytest.fail("it was unpacked"))
    with pytest.raises(ValueError, match=r"key/metrics\.jsonl must have at most 0\.03125 MiB"):
        study_in(to)._unpack("key", "metrics.jsonl")


def test_a_file_that_asks_for_too_much_memory_to_be_unpacked_is_refused(folder, to):
    """The size of the window stands in four bytes behind the settings of each packed file: here it is 4 GiB."""
    archived(folder, to)
    path = to / "records.zip"
    content = bytearray(path.read_bytes())
    (member,) = (one for one in zipfile.ZipFile(path).infolist() if one.filename == "key/metrics.jsonl")
    name, extra = struct.unpack("<HH", content[member.header_offset + 26 : member.header_offset + 30])
    place = member.header_offset + 30 + name + extra + 5
    assert int.from_bytes(content[place : place + 4], "little") == 2**23
    content[place : place + 4] = b"\xff" * 4
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"key/metrics\.jsonl cannot be unpacked \(it needs too much memory\)"):
        read_run(to / "key")


def test_an_archive_of_an_older_version_is_refused_with_a_sentence(folder):
    (folder / "metrics.jsonl").rename(folder / "metrics.jsonl.xz")
    (folder / "server.safetensors").unlink()
    (folder / "archived.json").write_bytes(sealed({"rounds": 3}, pretty=True, owner="key"))
    with pytest.raises(ValueError, match="was archived by an older version of protonorm"):
        read_run(folder)


# What cannot be done with an archive


@pytest.mark.parametrize(("with_clients", "without"), [(False, " without its networks"), (True, "")])
def test_no_run_goes_on_in_it_and_nothing_is_changed(folder, to, with_clients, without):
    found = archived(folder, to, with_clients=with_clients)
    before = tree(to)
    said = f"key was archived{without}, and nothing more is written there: .* Give another folder of runs by --out"
    with pytest.raises(ValueError, match=said), RunWriter(found, "key"):
        pass
    assert not stray_states(read_run(found))
    assert tree(to) == before


def test_states_that_a_kill_has_left_are_not_tidied_up_in_an_archive(folder, to):
    """A finished run that is asked for again removes them, which is nothing for an archive."""
    with RunWriter(folder, "key") as writer:
        writer.store.save(0, 2, {"w": torch.zeros(2)})
    assert stray_states(read_run(folder))
    assert not stray_states(read_run(archived(folder, to, with_clients=True)))


def test_a_run_at_work_is_refused(folder):
    said = "Another process is at work on .*; nothing of it was archived"
    with FileLock(folder / "lock"), pytest.raises(BlockingIOError, match=said), at_rest(folder):
        pass
    with at_rest(folder), pytest.raises(BlockingIOError), RunWriter(folder, "key"):
        pass
    with at_rest(folder), pytest.raises(Timeout):
        FileLock(folder / "lock").acquire(timeout=0)
    FileLock(folder / "lock").acquire(timeout=0).lock.release()


def test_two_processes_do_not_write_one_file(folder, to):
    archived(folder, to)
    before = tree(to)
    with FileLock(to / "lock"), pytest.raises(BlockingIOError, match="at work on .*; nothing was changed"):
        archived(folder, to)
    (to / "lock").unlink(missing_ok=True)
    assert tree(to) == before


@pytest.mark.parametrize("place", ["runs", "runs/key", "runs/key/in", "runs/../runs"])
def test_a_folder_of_runs_is_no_place_for_archives(folder, tmp_path, place):
    before = tree(tmp_path)
    with pytest.raises(ValueError, match="is where the runs are; give another folder"):
        archived(folder, tmp_path / place)
    with pytest.raises(ValueError, match="is the folder of all runs; give another one"):
        refuse_place(tmp_path / place, [], tmp_path / place)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("key", ["../x", "..", "a/b", "/x"])
def test_a_key_that_leads_elsewhere_is_refused(folder, to, key, monkeypatch):
    run = read_run(folder)
    foreign = type(run)(folder, run.info.model_copy(update={"key": key}), run.rounds, None)
    monkeypatch.setattr(archive, "read_whole", lambda _: foreign)
    with pytest.raises(ValueError, match="which cannot be the name of a folder"):
        archive_runs([folder], to)
    assert os.listdir(to) == []


@pytest.mark.parametrize("name", ["figures.safetensors", *sorted(CLIENTS)])
def test_what_is_damaged_or_of_another_run_is_not_archived(folder, to, name, monkeypatch):
    run, path = read_whole(folder), folder / name
    monkeypatch.setattr(archive, "read_whole", lambda _: run)
    content = path.read_bytes()
    other = content.replace(b'"key ', b'"kex ')
    for broken in (content[:-1] + bytes([content[-1] ^ 1]), resealed(other)):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=rf"{name} is damaged: it (was changed|is that of another run)"):
            archive_runs([folder], to, with_clients=True)
    assert os.listdir(to) == []


def resealed(content):
    """Write the right checksum into a tensor file that was changed."""
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
    archived(folder, to, with_clients=with_clients)
    assert told(read_whole(found)) == told(read_whole(folder))
    assert len(read_run(found).rounds) == 3
    assert layout.exists(found / "server.safetensors") == with_clients
    assert os.listdir(to) == ["records.zip"]


def _longer(folder, to):
    archived(made(folder.parent / "longer", rounds=4), to)


def _other_numbers(folder, to):
    path = made(folder.parent / "other") / "metrics.jsonl"
    rewrite(path, lambda line: line["metrics"].update(loss=0.25), pretty=False, line=1)
    archived(path.parent, to)


def _damaged(folder, to):
    archived(folder, to)
    repacked(to, lambda members: members | {"key/metrics.jsonl": b"damaged"})


OTHERS = {
    "a run": (lambda folder, to: made(to / "key"), "key exists and is not an archived record; it is left as it is"),
    "more rounds": (_longer, r"key holds 4 rounds of key, and .* has 3; it is left as it is"),
    "other numbers": (_other_numbers, "holds other numbers than .* in the same rounds; it is left as it is"),
    "damage": (_damaged, r"records\.zip is damaged: key/metrics\.jsonl"),
    "clients": (lambda f, to: archived(f, to, with_clients=True), "archived with its clients; give --with-clients"),
}


@pytest.mark.parametrize(("there", "said"), OTHERS.values(), ids=OTHERS)
def test_what_else_is_in_its_place_is_left_as_it_is(folder, to, there, said):
    there(folder, to)
    before = tree(to)
    with pytest.raises(ValueError, match=said):
        archived(folder, to)
    assert tree(to) == before


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("moment", [1, 4, 9, "replace"])
def test_it_is_there_whole_or_not_at_all(tmp_path, to, monkeypatch, moment, older):
    """Eight files are packed, then the study file is moved to its place: one of these steps fails."""
    folder = made(tmp_path / "run")
    if older:
        archived(made(tmp_path / "older", done=2), to)
    to.mkdir(parents=True, exist_ok=True)
    before, left = tree(to), [moment]

    def failing(usual):
        def step(*words, **more):
            left[0] = left[0] if isinstance(left[0], str) else left[0] - 1
            if left[0] in (0, "replace"):
                raise OSError("full")
            return usual(*words, **more)

        return step

    if moment == "replace":
        monkeypatch.setattr(os, "replace", failing(os.replace))
    else:
        monkeypatch.setattr(zipfile.ZipFile, "writestr", failing(zipfile.ZipFile.writestr))
    if moment == 9:  # behind the last one
        archived(folder, to)
        return
    with pytest.raises(OSError, match="full"):
        archived(folder, to)
    assert tree(to) == before
    monkeypatch.undo()
    assert len(read_run(archived(folder, to)).rounds) == 3


# Finding and removing


def test_packed_runs_are_found_by_name_beside_folders(folder, to):
    found = archived(folder, to)
    beside = made(to / "other")
    assert find_runs(to) == [found, beside]
    assert find_run(to, "ke") == find_run(to, str(found)) == found
    (to / "key").mkdir()
    (to / "key" / "report.html").write_text("a page lies where the folder would be")
    assert find_runs(to) == [found, beside]
    assert len(read_run(found).rounds) == 3


def test_a_folder_counts_before_a_packed_run_of_its_name(folder, to):
    found = archived(folder, to)
    shutil.copytree(made(folder.parent / "other", rounds=5, done=2), to / "key")
    assert len(read_run(found).rounds) == 2
    assert not layout.is_archived(found)


@pytest.mark.parametrize("with_clients", [False, True])
def test_removing_leaves_what_is_not_ours(folder, to, with_clients):
    found = archived(folder, to, with_clients=with_clients)
    before = tree(to)
    (to / "key").mkdir()
    (to / "key" / "notes.txt").write_text("mine")
    assert remove_runs([found]) == {found: [to / "key" / "notes.txt"]}
    assert tree(to) == {"key": False, "key/notes.txt": b"mine"}
    assert before.keys() == {"records.zip"}


def test_an_archive_names_no_folder_of_the_machine(folder, to, monkeypatch):
    """The same start, but for absolute paths in its command; what is damaged stays, and is still noticed."""
    monkeypatch.setattr("sys.argv", ["/home/me/study.py", "--data", "/home/me/secret/x.npz", "near/y.npz"])
    with RunWriter(folder, "key") as writer:
        writer.start(provenance(3, engine="serial", device="cpu", threads=1))
    path = folder / layout.PROVENANCE
    path.write_bytes(path.read_bytes() + b"{}\n")
    kept = archived(folder, to)
    content = layout.read_file(kept / layout.PROVENANCE)
    assert content.endswith(b"}\n{}\n")
    assert b"/home" not in content
    before, after = read_run(folder).starts, read_run(kept).starts
    assert [one.command for one in after][1:] == ["python study.py --data x.npz near/y.npz"]
    assert [one.model_copy(update={"command": ""}) for one in after] == [
        one.model_copy(update={"command": ""}) for one in before
    ]
    assert read_run(kept).lost_provenance
