"""Archive runs: their records, packed and without networks, small enough to be committed. Nothing here needs torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from protonorm.core.scratch import Scratch
from protonorm.files import check_seal, damaged, make_folder, read_lines, replace, sealed, unsealed
from protonorm.runs import layout
from protonorm.runs.packed import ARRAYS, TEXT, pack, packed_path, read_either, read_either_lines
from protonorm.runs.provenance import without_folders
from protonorm.runs.reader import read_run
from protonorm.runs.removing import inner_files, locked, other_files, own_files
from protonorm.runs.run import Run

KEPT = (layout.INFO, layout.POPULATION, layout.PROVENANCE, layout.TIMINGS, layout.FIGURES, layout.FAILURE)  # as is
NETWORKS = (layout.SERVER, layout.CHOSEN, layout.PENDING)  # and what is in the folders clients and prototypes
BESIDE = ".archiving-"  # begins the name of the folder in which an archive is put together
STILL = "nothing of it was archived"


class Archive(NamedTuple):
    """An archived record."""

    folder: Path
    rounds: int
    size: int  # bytes


class Growing(NamedTuple):
    """The files of a record that grow, as far as rounds are committed."""

    metrics: bytes
    evaluations: bytes

    @classmethod
    def of(cls, run: Run) -> Growing:
        """Read them, packed or not."""
        lines = read_either_lines(run.folder / layout.METRICS)[: len(run.rounds)]
        end = max((record.arrays.start + record.arrays.size for record in run.rounds), default=0)
        return cls(b"".join(lines), (read_either(run.folder / layout.EVALUATIONS, ARRAYS) or b"")[:end])


@contextmanager
def at_rest(folder: Path) -> Iterator[None]:
    """Hold a run's folder while it is copied; refuse one at which another process is at work."""
    if layout.is_archived(folder):  # nobody works there
        yield
        return
    lock = locked(folder, STILL)
    try:
        yield
    finally:
        lock.release()


def refuse_place(to: Path, folders: Sequence[Path], root: Path | None = None) -> None:
    """Refuse a folder for archives in which runs are themselves, or which is inside one of them."""
    place = to.resolve()
    if root and place == root.resolve():
        raise ValueError(f"{to} is the folder of all runs; give another one for their archived records by --to.")
    for folder in folders:
        run = folder.resolve()
        if place == run.parent or run in (place, *place.parents):
            raise ValueError(f"{to} is where the runs are; give another folder for their archived records by --to.")


def archive_run(
    run: Run, to: Path, *, with_clients: bool = False, more: Callable[[Path], Sequence[Path]] = lambda _: ()
) -> Archive:
    """Write the record of a run that was read whole to a folder in `to`: all of it, or nothing.

    An older archive of the same run is replaced; all else that is there is refused. `more` lists files in an archive
    that are ours too, such as a report.
    """
    refuse_place(to, [run.folder])
    key = run.info.key
    if key in (".", "..") or Path(key).name != key:
        raise ValueError(f"{run.folder / layout.INFO} has the key {key!r}, which cannot be the name of a folder.")
    if with_clients and run.rounds:
        layout.refuse_without_networks(run.folder)
    target, grown = to / key, Growing.of(run)
    if os.path.lexists(target):
        _refuse_others(target, run, grown, more)
        if not with_clients and (target / layout.SERVER).exists():
            raise ValueError(f"{target} was archived with its clients; give --with-clients again, or remove it first.")
    make_folder(to)
    with Scratch(to, BESIDE) as scratch:
        made, size = scratch.folder / "archive", 0
        for name, content in _contents(run, grown, with_clients):
            make_folder((made / name).parent)
            replace(made / name, content)
            size += len(content)
        _move(made, target, scratch.folder / "before")
    return Archive(target, len(run.rounds), size)


def _contents(run: Run, grown: Growing, with_clients: bool) -> Iterator[tuple[str, bytes]]:
    """Give the files of an archive, by name; each that has a seal is checked."""
    names = [*KEPT, *(NETWORKS if with_clients else ())]
    inside = inner_files(run.folder) if with_clients else ()
    for path in [*(run.folder / name for name in names if (run.folder / name).exists()), *inside]:
        content = path.read_bytes() if path.name != layout.PROVENANCE else _origins(run, path)
        if path.suffix == ".safetensors" and not check_seal(content, path).startswith(f"{run.info.key} "):
            raise damaged(path, "it is that of another run")
        yield str(path.relative_to(run.folder)), content
    for name, grew, most in ((layout.METRICS, grown.metrics, TEXT), (layout.EVALUATIONS, grown.evaluations, ARRAYS)):
        yield packed_path(Path(name)).name, pack(grew, run.folder / name, most)
    yield layout.ARCHIVED, sealed({"rounds": len(run.rounds)}, pretty=True, owner=run.info.key)


def _origins(run: Run, path: Path) -> bytes:
    """Tell where rounds come from without naming the machine's folders; a damaged line stays as it is."""
    lines = []
    for line in read_lines(path):
        with suppress(ValueError, KeyError):
            found = unsealed(line, path, owner=run.info.key)
            line = sealed(found | {"command": without_folders(str(found["command"]))}, owner=run.info.key)
        lines.append(line)
    return b"".join(lines)


def _refuse_others(target: Path, run: Run, grown: Growing, more: Callable[[Path], Sequence[Path]]) -> None:
    """Refuse what is in the place of an archive, unless it is one of the same run that is not longer."""
    if target.is_symlink() or not layout.is_archived(target):
        raise ValueError(f"{target} exists and is not an archived record; it is left as it is.")
    there = read_run(target)
    if there.info.key != run.info.key or len(there.rounds) > len(run.rounds):
        told = f"{len(there.rounds)} rounds of {there.info.key}, and {run.folder} has {len(run.rounds)}"
        raise ValueError(f"{target} holds {told}; it is left as it is.")
    before = Growing.of(there)
    if not (grown.metrics.startswith(before.metrics) and grown.evaluations.startswith(before.evaluations)):
        raise ValueError(f"{target} holds other numbers than {run.folder} in the same rounds; it is left as it is.")
    if others := other_files(target, [*more(target), *own_files(target)]):
        names = ", ".join(str(path.relative_to(target)) for path in others[:5])
        raise ValueError(f"{target} holds what is no part of the record, such as {names}; move it away first.")


def _move(made: Path, target: Path, before: Path) -> None:
    """Move a folder to its place, in which an older one may be."""
    try:
        if target.exists():
            os.rename(target, before)
        os.rename(made, target)
    except BaseException:
        if before.exists() and not target.exists():
            os.rename(before, target)
        raise
