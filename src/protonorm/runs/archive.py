"""Archiving of runs into packed study files, small enough to commit, and removal of runs. Does not import torch."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from zipfile import ZIP_LZMA, ZipFile, ZipInfo

from protonorm.files import (
    CHECKSUM,
    check_seal,
    checksum,
    damaged,
    make_folder,
    parse_json,
    replacing,
    sealed,
    unsealed,
)
from protonorm.runs import layout
from protonorm.runs.arrays import encode_arrays
from protonorm.runs.layout import INNER, RECORDS, is_packed, locked, read_file, read_lines, study_in
from protonorm.runs.provenance import without_folders
from protonorm.runs.run import Run, read_run, read_whole

COPIED = (layout.INFO, layout.POPULATION, layout.TIMINGS, layout.FIGURES, layout.FAILURE)  # unchanged
NETWORKS = (layout.SERVER, layout.CHOSEN, layout.PENDING)  # in addition to the inner folders
EVERY_ROUND = re.compile(r"ids|margins(\.classes)?|test\.(support|correct)\.clients(\..+)?")  # arrays of every round
Extras = Callable[[Path], Sequence[Path]]  # lists further files written by protonorm, such as a report


class Archive(NamedTuple):
    """Archived record of a run."""

    folder: Path  # path by which it is read
    rounds: int
    asked: int  # requested number of rounds
    size: int  # bytes


def archive_runs(folders: Sequence[Path], to: Path, *, with_clients: bool = False) -> list[Archive]:
    """Pack records into a folder's study file, atomically; longer records replace those of the same run."""
    refuse_place(to, folders)
    for folder in folders:
        with at_rest(folder):
            pass  # raise for an active run before anything is written
    make_folder(to)
    archived: dict[str, tuple[int, int]] = {}
    with _rewriting(to) as add:
        for folder in folders:
            with at_rest(folder):
                run = read_whole(folder)
                _refuse_to_replace(to / run.info.key, run, with_clients)
                add(run.info.key, _contents(run, with_clients))
                archived[run.info.key] = len(run.rounds), run.info.experiment.rounds
    study = study_in(to)
    return [Archive(to / key, *rounds, study.size(key)) for key, rounds in archived.items() if study]


@contextmanager
def _rewriting(to: Path, without: Sequence[str] = ()) -> Iterator[Callable[[str, dict[str, bytes]], None]]:
    """Rewrite the study file of a folder: the added runs first, then its other runs except those in `without`."""
    with locked(to, "nothing was changed", temporary=True):
        study, added = study_in(to), set(without)
        with replacing(to / RECORDS) as file, ZipFile(file, "w", ZIP_LZMA) as packed:

            def add(key: str, contents: dict[str, bytes]) -> None:
                for name, content in contents.items():
                    packed.writestr(ZipInfo(f"{key}/{name}"), content, ZIP_LZMA)  # no timestamp, for equal bytes
                added.add(key)

            yield add
            if study:
                for key in [key for key in study.runs if key not in added]:
                    add(key, {name: study.read(key, name) for name in study.runs[key]})


def at_rest(folder: Path) -> AbstractContextManager[object]:
    """Lock a run's folder while it is copied, unless it is archived and thus read-only."""
    return nullcontext() if layout.is_archived(folder) else locked(folder, "nothing of it was archived")


def refuse_place(to: Path, folders: Sequence[Path], root: Path | None = None) -> None:
    """Raise a ValueError if the folder for archives contains the runs, or is inside a run."""
    target = to.resolve()
    if root and target == root.resolve():
        raise ValueError(f"{to} is the folder of all runs; give another one for their archived records by --to.")
    if any(target == run.parent or run in (target, *target.parents) for run in map(Path.resolve, folders)):
        raise ValueError(f"{to} is where the runs are; give another folder for their archived records by --to.")


def _contents(run: Run, with_clients: bool) -> dict[str, bytes]:
    """Return the files of an archive by name, after checking their seals."""
    key, folder = run.info.key, run.folder
    if not layout.is_plain_name(key):
        raise ValueError(f"{folder / layout.INFO} has the key {key!r}, which cannot be the name of a folder.")
    if with_clients and run.rounds:
        layout.refuse_without_networks(folder)
    names = [*COPIED, *((*NETWORKS, *inner_names(folder)) if with_clients else ())]
    files = {name: content for name in names if (content := read_file(folder / name)) is not None}
    for name, content in files.items():
        if name.endswith(".safetensors") and not check_seal(content, folder / name).startswith(f"{key} "):
            raise damaged(folder / name, "it is that of another run")
    files[layout.PROVENANCE] = _origins(run)
    files[layout.METRICS] = b"".join(read_lines(folder / layout.METRICS)[: len(run.rounds)])
    files[layout.EVALUATIONS] = b"".join(_blocks(run, with_clients))
    manifest = {"rounds": len(run.rounds), "files": {name: checksum(content) for name, content in files.items()}}
    return files | {layout.ARCHIVED: sealed(manifest, pretty=True, owner=key)}


def _blocks(run: Run, with_clients: bool) -> Iterator[bytes]:
    """Yield the encoded arrays of each round at their recorded size: all arrays of the reported round, or the last.

    Without networks, of other rounds only the clients' test accuracies and margins are kept; the rest becomes padding.
    """
    complete = run.chosen.record.round if run.chosen else len(run.rounds)
    for record in run.rounds:
        if with_clients or record.round == complete:
            yield run.block(record)
            continue
        displayed = {name: array for name, array in run.arrays(record).items() if EVERY_ROUND.fullmatch(name)}
        yield encode_arrays(displayed, layout.stamp(run.info.key, "evaluation", record.round), record.arrays.size)


def _origins(run: Run) -> bytes:
    """Return the provenance without the machine's folders; damaged lines are kept unchanged."""
    lines, path = [], run.folder / layout.PROVENANCE
    for line in read_lines(path):
        with suppress(ValueError, KeyError):
            origin = unsealed(line, path, owner=run.info.key)
            line = sealed(origin | {"command": without_folders(str(origin["command"]))}, owner=run.info.key)
        lines.append(line)
    return b"".join(lines)


def _refuse_to_replace(target: Path, run: Run, with_clients: bool) -> None:
    """Raise a ValueError unless the target is free, or an archive of the same run with no more rounds."""
    if (target / layout.INFO).exists() or (target / layout.METRICS).exists():
        raise ValueError(f"{target} exists and is not an archived record; it is left as it is.")
    if not is_packed(target):
        return
    existing = read_run(target)
    if len(existing.rounds) > len(run.rounds):
        raise ValueError(
            f"{target} holds {len(existing.rounds)} rounds of {existing.info.key}, and {run.folder} has "
            f"{len(run.rounds)}; it is left as it is."
        )
    old, new = (read_lines(folder / layout.METRICS) for folder in (target, run.folder))
    if new[: len(existing.rounds)] != old:
        raise ValueError(f"{target} holds other numbers than {run.folder} in the same rounds; it is left as it is.")
    if not with_clients and layout.exists(target / layout.SERVER):
        raise ValueError(f"{target} was archived with its clients; give --with-clients again, or remove it first.")


# Removal: only files that protonorm writes


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run, even a damaged one; other programs may also write an experiment.json."""
    with suppress(OSError):
        if is_packed(folder):
            return True
        for content in (read_file(folder / layout.INFO) or b"", *read_lines(folder / layout.METRICS)[:1]):
            with suppress(ValueError):
                if CHECKSUM in parse_json(content, folder):
                    return True
    with suppress(ValueError, OSError):
        return layout.committed(folder) > 0
    return False


def refuse_others(folder: Path) -> None:
    """Raise a ValueError if a folder is not a run, or is a symbolic link."""
    if folder.is_symlink():
        raise ValueError(f"{folder} is a link; name the run's folder itself. Nothing was removed.")
    if not is_run(folder):
        raise ValueError(f"{folder} is not a run of protonorm; nothing was removed.")


def own_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a run that protonorm writes, except the lock, in a safe order of removal."""
    yield from (path for path in layout.leftovers(folder) if not path.parent.is_symlink() or path.parent == folder)
    yield from (folder / name for name in inner_names(folder) if not is_packed(folder))
    yield from (path for name in layout.RECORD_FILES if _is_file(path := folder / name))


def inner_names(folder: Path) -> Iterator[str]:
    """Yield the client states and prototypes of a run, in its folder or packed."""
    if is_packed(folder) and (study := study_in(folder.parent)):
        yield from (name for name in study.runs[folder.name] if "/" in name)
    for part, names in INNER.items():
        inner = folder / part
        if inner.is_dir() and not inner.is_symlink():  # a link points outside the run
            files = (path for path in sorted(inner.iterdir()) if re.fullmatch(names, path.name) and _is_file(path))
            yield from (f"{part}/{path.name}" for path in files)


def other_files(folder: Path, ours: Sequence[Path]) -> list[Path]:
    """List other contents of a run's folder: files, links and empty folders."""
    known = {*ours, folder / layout.LOCK}
    inner = {folder / part for part in INNER}

    def is_other(path: Path) -> bool:
        if path.is_dir() and not path.is_symlink():
            return path not in inner and not any(path.iterdir())
        return path not in known

    return sorted(filter(is_other, (Path(at, name) for at, *names in os.walk(folder) for name in chain(*names))))


def remove_runs(folders: Sequence[Path], more: Extras = lambda _: ()) -> dict[Path, list[Path]]:
    """Remove runs and return the other files kept in each folder; remove nothing if any run is active."""
    for folder in folders:
        refuse_others(folder)
    others, candidates = {}, set()
    packed = [folder for folder in folders if is_packed(folder)]
    with ExitStack() as locks:
        for folder in folders:
            if folder not in packed:
                locks.enter_context(locked(folder, "nothing was removed"))
        for root in dict.fromkeys(folder.parent for folder in packed):
            with _rewriting(root, [folder.name for folder in packed if folder.parent == root]):
                pass
            if (study := study_in(root)) and not study.runs:
                study.path.unlink()
        for folder in folders:
            ours = [*more(folder), *own_files(folder)]
            others[folder] = other_files(folder, ours)
            candidates |= {parent for path in ours for parent in path.parents if folder in parent.parents}
            for path in ours:
                path.unlink(missing_ok=True)
    for folder in folders:
        (folder / layout.LOCK).unlink(missing_ok=True)
        candidates |= {folder, *(folder / part for part in INNER)}
    for parent in sorted(candidates, key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):  # not empty, or missing
            parent.rmdir()
    return others


def _is_file(path: Path) -> bool:
    return path.is_symlink() or path.is_file()
