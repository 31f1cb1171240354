"""Remove a run: the files that are ours, and no others. Nothing here needs torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from protonorm.files import CHECKSUM, PRIVATE_FILE, parse_json
from protonorm.runs import layout
from protonorm.runs.packed import packed_path, read_either_lines

PACKED = {name: packed_path(Path(name)).name for name in (layout.METRICS, layout.EVALUATIONS)}  # of an archived run
# What a run is known by goes last: one that is half removed is still a run.
LAST = (layout.METRICS, PACKED[layout.METRICS], layout.INFO)
FIRST = (
    layout.SERVER, layout.CHOSEN, layout.EVALUATIONS, PACKED[layout.EVALUATIONS], layout.TIMINGS, layout.FIGURES,
    layout.PENDING, layout.FAILURE, layout.PROVENANCE, layout.POPULATION, layout.ARCHIVED,
)  # fmt: skip
INSIDE = {layout.CLIENTS: r"\d+\.\d+\.safetensors", layout.PROTOTYPES: r"\d+\.safetensors"}


def is_run(folder: Path) -> bool:
    """Tell whether a folder is a run of ours, also a damaged one: another program may name a file experiment.json."""
    with suppress(ValueError, OSError):
        if CHECKSUM in parse_json((folder / layout.INFO).read_bytes(), folder / layout.INFO):
            return True
    with suppress(ValueError, OSError):
        if any(CHECKSUM in parse_json(line, folder) for line in read_either_lines(folder / layout.METRICS)[:1]):
            return True
    with suppress(ValueError, OSError):
        return layout.committed(folder) > 0
    return False


def refuse_others(folder: Path) -> None:
    """Refuse a folder that is not a run of ours, or a link to one."""
    if folder.is_symlink():
        raise ValueError(f"{folder} is a link; name the run's folder itself. Nothing was removed.")
    if not is_run(folder):
        raise ValueError(f"{folder} is not a run of protonorm; nothing was removed.")


def own_files(folder: Path) -> Iterator[Path]:
    """List the files of a run that we write, in the order in which they may go; the lock is not among them."""
    yield from (path for path in layout.leftovers(folder) if not path.parent.is_symlink() or path.parent == folder)
    yield from inner_files(folder)
    yield from (path for name in (*FIRST, *LAST) if _is_file(path := folder / name))


def inner_files(folder: Path) -> Iterator[Path]:
    """List the states of clients and the prototypes of a run."""
    for part, names in INSIDE.items():
        place = folder / part
        if place.is_dir() and not place.is_symlink():  # a link leads to what is not the run's
            yield from (path for path in sorted(place.iterdir()) if re.fullmatch(names, path.name) and _is_file(path))


def other_files(folder: Path, ours: Sequence[Path]) -> list[Path]:
    """List what else is in a run's folder: files and links, and folders that hold nothing."""
    known = {*ours, folder / layout.LOCK}
    found = []
    for place, folders, files in os.walk(folder):
        here = Path(place)
        links = [here / name for name in folders if (here / name).is_symlink()]
        found += [path for path in [*links, *(here / name for name in files)] if path not in known]
        if not folders and not files and here not in (folder, *(folder / part for part in INSIDE)):
            found.append(here)
    return sorted(found)


def remove_runs(
    folders: Sequence[Path], more: Callable[[Path], Sequence[Path]] = lambda _: ()
) -> dict[Path, list[Path]]:
    """Remove runs, and say of each what else was in its folder, which is kept; refuse all if one is at work.

    `more` lists files beside the record that are ours too, such as a report.
    """
    for folder in folders:
        refuse_others(folder)
    kept, emptied = {}, set()
    with ExitStack() as held:
        for folder in folders:
            held.callback(locked(folder, "nothing was removed").release)
        for folder in folders:
            ours = [*more(folder), *own_files(folder)]
            kept[folder] = other_files(folder, ours)
            emptied |= {place for path in ours for place in path.parents if folder in place.parents}
            for path in ours:
                path.unlink(missing_ok=True)
    for folder in folders:
        (folder / layout.LOCK).unlink(missing_ok=True)
        emptied |= {folder, *(folder / part for part in INSIDE)}
    for place in sorted(emptied, key=lambda one: len(one.parts), reverse=True):
        with suppress(OSError):  # something is in it, or it is not there
            place.rmdir()
    return kept


def locked(folder: Path, still: str) -> FileLock:
    """Take the lock of a run's folder, or say that another process has it, and what is still so."""
    lock = FileLock(folder / layout.LOCK, mode=PRIVATE_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BlockingIOError(f"Another process is at work on {folder}; {still}.") from None
    return lock


def _is_file(path: Path) -> bool:
    return path.is_symlink() or path.is_file()
