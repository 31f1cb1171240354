"""Files of a run's folder, packed study files, and committed rounds. Does not import torch.

Every file contains its own checksum, as does every line and every block of arrays. An archived record has no lock, and
no networks and prototypes unless requested. Archived runs of a root folder are packed into one zip file: KEY/NAME in
ROOT/records.zip is ROOT/KEY/NAME. The functions of this module read both forms; a folder takes precedence over a packed
run of the same name.
"""

import json
import lzma
import os
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_LZMA, BadZipFile, ZipFile, ZipInfo

from filelock import FileLock, Timeout

from protonorm.files import HEADER, PRIVATE_FILE, TEMPORARY, check_stamp, checksum, damaged, parse_json, unsealed

INFO = "experiment.json"  # settings, rules, networks, classes, versions
POPULATION = "population.safetensors"  # samples of each client and class: train, validation and test, each (M, K)
METRICS = "metrics.jsonl"  # one line per round, without time or host: equal for equal experiments
EVALUATIONS = "evaluations.bin"  # arrays of each round: evaluated clients, counts by client and by class, margins
TIMINGS = "timings.jsonl"  # seconds per round
SERVER = "server.safetensors"  # server state and last message; renaming it into place commits a round
CHOSEN = "chosen.safetensors"  # the same after the best round so far by validation, if that is not the last one
CLIENTS = "clients"  # ID.ROUND.safetensors: client state after the last round it trained in, and as of the best round
PROTOTYPES = "prototypes"  # ROUND.safetensors: classes (K',) and prototypes (K', d) at up to 50 evenly spaced rounds
# … and on request ROUND.clients.safetensors: clients, classes (n,) and prototypes (n, d) of the round's clients
FIGURES = "figures.safetensors"  # arrays for the figures, such as the first alignment's distances
PENDING = "pending.json"  # in a deployed federation, record of a committed round that is not evaluated yet
FAILURE = "failure.json"  # reason and round of a failure, if any
PROVENANCE = "provenance.jsonl"  # command, commit, versions and machine, for each start or resumption of the run
ARCHIVED = "archived.json"  # of an archived record: number of rounds, and a checksum of each file
LOCK = "lock"  # held by the process that writes the run
RECORDS = "records.zip"  # archived runs of a root folder
BUSY = "wait for it, or stop it"  # advice if another process is at work on a folder

# The files that identify a run come last, so that a partly removed run is still recognised.
RECORD_FILES = (
    SERVER, CHOSEN, EVALUATIONS, TIMINGS, FIGURES, PENDING, FAILURE, PROVENANCE, POPULATION, ARCHIVED, METRICS, INFO,
)  # fmt: skip
INNER = {
    CLIENTS: r"\d+\.\d+\.safetensors",
    PROTOTYPES: r"\d+(\.clients)?\.safetensors",
}  # file names in the inner folders
MEMBER = re.compile("|".join([*map(re.escape, RECORD_FILES), *(f"{part}/{name}" for part, name in INNER.items())]))

SNAPSHOTS = 50  # maximum number of rounds whose prototypes are kept
MAX_SIZES = {".json": 2**24, ".jsonl": 2**29}  # maximum bytes of an unpacked file: 16 MiB, 512 MiB
MAX_ARRAYS = 2**31  # 2 GiB
MAX_HEADER = 100_000_000  # bytes, as in safetensors itself
WINDOW = 2**26  # maximum LZMA dictionary size in bytes
BROKEN = (  # raised on damaged zip files
    BadZipFile, lzma.LZMAError, zlib.error, struct.error, ValueError, OSError, EOFError, OverflowError, RuntimeError,
    MemoryError,
)  # fmt: skip


class Study:
    """Zip file of packed runs, read in memory; members that are not files of a record raise a ValueError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: dict[str, dict[str, ZipInfo]] = {}  # by key and name
        try:
            self._zip = ZipFile(path)  # closed by garbage collection
            members = self._zip.infolist()
        except BROKEN as error:
            raise damaged(path, f"it is not a whole zip file ({error})") from None
        for member in members:
            key, _, name = member.filename.partition("/")
            if not is_plain_name(key) or not MEMBER.fullmatch(name):
                raise damaged(path, f"it holds {member.filename[:80]!r}, which is no part of a record")
            if self.runs.setdefault(key, {}).setdefault(name, member) is not member:
                raise damaged(path, f"it holds {member.filename!r} twice")
        self._manifest = cache(self._read_manifest)

    def read(self, key: str, name: str) -> bytes:
        """Return the content of a packed file; raise a ValueError if its archived checksum differs."""
        content = self._unpack(key, name)
        if name != ARCHIVED and checksum(content) != self._manifest(key).get(name):
            raise damaged(self.path, f"{key}/{name} is not the file that was archived")
        return content

    def size(self, key: str) -> int:
        """Return the compressed size of a run in bytes."""
        return sum(member.compress_size for member in self.runs[key].values())

    def _read_manifest(self, key: str) -> dict[str, str]:
        if ARCHIVED not in self.runs[key]:
            raise damaged(self.path, f"{key}/{ARCHIVED} is missing")
        files = unsealed(self._unpack(key, ARCHIVED), self.path, pretty=True, owner=key).get("files")
        if not isinstance(files, dict) or files.keys() != self.runs[key].keys() - {ARCHIVED}:
            raise damaged(self.path, f"{key} does not have the files that were archived")
        return files

    def _unpack(self, key: str, name: str) -> bytes:
        member = self.runs[key][name]
        limit = MAX_SIZES.get(Path(name).suffix, MAX_ARRAYS)
        if member.file_size > limit:
            raise ValueError(f"{self.path}: {key}/{name} must have at most {limit / 2**20:g} MiB when it is unpacked.")
        try:
            if member.compress_type == ZIP_LZMA:
                with self.path.open("rb") as file:
                    file.seek(member.header_offset + 26)  # then version, size, lc/lp/pb byte, and the dictionary's size
                    file.seek(sum(struct.unpack("<HH", file.read(4))) + 5, os.SEEK_CUR)
                    if int.from_bytes(file.read(4), "little") > WINDOW:
                        raise ValueError("it needs too much memory")
            with self._zip.open(member) as file:
                return file.read()
        except BROKEN as error:
            raise damaged(self.path, f"{key}/{name} cannot be unpacked ({error})") from None


@lru_cache(maxsize=16)
def _open(path: Path, _identity: tuple[int, ...]) -> Study:
    return Study(path)


def study_in(root: Path) -> Study | None:
    """Return the study file of a root folder; None if there is none."""
    path = root / RECORDS
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _open(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))


def is_packed(folder: Path) -> bool:
    """Return whether a run exists only in a study file, without its own folder."""
    return _study_of(folder) is not None


def _study_of(folder: Path) -> Study | None:
    if (folder / INFO).exists() or (folder / METRICS).exists():
        return None
    study = study_in(folder.parent)
    return study if study and folder.name in study.runs else None


def _packed(path: Path) -> tuple[Study, str, str] | None:
    """Return study, key and name of a packed file; None if it is not packed."""
    folder = path.parent.parent if path.parent.name in INNER else path.parent
    name = path.relative_to(folder).as_posix()
    study = _study_of(folder)
    return (study, folder.name, name) if study and name in study.runs[folder.name] else None


def exists(path: Path) -> bool:
    """Return whether a file of a run exists, in its folder or packed."""
    return path.exists() or _packed(path) is not None


def read_file(path: Path) -> bytes | None:
    """Return the content of a file of a run, in its folder or packed; None if it does not exist."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return packed[0].read(*packed[1:]) if (packed := _packed(path)) else None


def read_lines(path: Path) -> list[bytes]:
    """Read the complete lines of a file of a run, not what follows the last line break; a missing file has none."""
    return [line + b"\n" for line in (read_file(path) or b"").split(b"\n")[:-1]]


def read_tensor_file(path: Path, stamp: str) -> bytes:
    """Read the bytes of a tensor file of a run; raise a ValueError if it is missing, damaged or stamped otherwise."""
    content = read_file(path)
    if content is None:
        raise ValueError(f"{path} is missing.")
    return check_stamp(content, path, stamp)


def is_plain_name(name: str) -> bool:
    """Return whether a name is a valid folder name without path separators."""
    return name not in ("", ".", "..") and not re.search(r"[/\\\0]", name)


def stamp(key: str, owner: str, round: int) -> str:
    """Return the stamp of a tensor file: key of the run, owner, round.

    The server's stamp has its own checksum, because the number of committed rounds is read from it without the rest
    of the file.
    """
    text = f"{key} {owner} {round}"
    return f"{text} {checksum(text.encode())[:8]}" if owner == "server" else text


def snapshot_rounds(done: int, *, last: bool = True, keep: str = "some") -> set[int]:
    """Return the rounds whose prototypes are kept after `done` rounds: the first, some between, and the last.

    Those between are the multiples of a power of two, or by `keep` all or `every:N`; older records lack the `last`.
    They depend on finished rounds only, so that a resumed run keeps the same rounds as an uninterrupted one.
    """
    stride: int = 2 ** (done // SNAPSHOTS).bit_length()  # the smallest with fewer than SNAPSHOTS multiples
    if keep != "some":
        stride = interval(keep)
    return set(range(stride, done + 1, stride)) | ({1} if done else set()) | ({done} if done and last else set())


def interval(keep: str) -> int:
    """Return the rounds from one that is kept to the next, of `all` or `every:N`; 0 of `none`."""
    return {"all": 1, "none": 0}[keep] if keep in ("all", "none") else int(keep.partition(":")[2])


def leftovers(folder: Path) -> Iterator[Path]:
    """Yield the temporary files left by a killed process, matching only names that protonorm writes."""
    names = "|".join(map(re.escape, (INFO, POPULATION, SERVER, CHOSEN, FIGURES, PENDING, FAILURE)))
    for part, name in {".": names, **INNER}.items():
        for path in (folder / part).glob(".*"):
            if re.fullmatch(rf"\.({name}){TEMPORARY}", path.name) and path.is_file():
                yield path


def committed(folder: Path) -> int:
    """Return the number of committed rounds, from the stamp of the server's file or from archived.json."""
    path = folder / SERVER
    if not exists(path):
        return archived_rounds(folder)
    try:
        with path.open("rb") if path.exists() else BytesIO(read_file(path) or b"") as file:
            size = min(int.from_bytes(file.read(HEADER), "little"), MAX_HEADER)
            stamped = json.loads(file.read(size))["__metadata__"]["stamp"].rpartition(" ")[0]
        key, owner, rounds, _ = stamped.rsplit(" ", 3)
        sealed_stamp = stamp(key, owner, int(rounds))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(path, "it is not a whole state file of protonorm") from error
    if stamped != sealed_stamp:
        raise damaged(path, "the round in its stamp does not have the checksum that stands beside it")
    return int(rounds)


def is_archived(folder: Path) -> bool:
    """Return whether a run was archived, packed or unpacked again."""
    old_format = (folder / f"{METRICS}.xz").exists() and not (folder / METRICS).exists()
    return old_format or exists(folder / ARCHIVED) or is_packed(folder)


def archived_rounds(folder: Path) -> int:
    """Return the number of archived rounds, 0 if not archived; raise a ValueError for a manifest of another run."""
    path = folder / ARCHIVED
    if not is_archived(folder):
        return 0
    content = read_file(path)
    if content is None or not exists(folder / METRICS):
        raise ValueError(
            f"{folder} was archived by an older version of protonorm, or is not whole: archive the run again, or read "
            "it with the version that wrote it."
        )
    owner = str(parse_json(read_file(folder / INFO) or b"{}", folder / INFO).get("key"))
    rounds = unsealed(content, path, pretty=True, owner=owner).get("rounds")
    if type(rounds) is not int or rounds < 0:
        raise damaged(path, "it does not say how many rounds were archived")
    return rounds


def refuse_archived(folder: Path) -> None:
    """Raise a ValueError if the run is archived, and thus read-only."""
    if is_archived(folder):
        without = "" if exists(folder / SERVER) else " without its networks"
        raise ValueError(
            f"{folder} was archived{without}, and nothing more is written there: the run cannot go on in it. Give "
            "another folder of runs by --out, or by PROTONORM_RUNS; the archived record is left as it is."
        )


def refuse_without_networks(folder: Path) -> None:
    """Raise a ValueError if the run was archived without its networks."""
    if is_archived(folder) and not exists(folder / SERVER):
        raise ValueError(
            f"{folder} was archived without its networks: there are no trained clients in it. They are in the folder "
            "in which the run was done, which --out gives; `protonorm archive --with-clients` takes them along."
        )


def refuse_rounds_without(folder: Path, name: str) -> None:
    """Raise a ValueError if a file is missing but rounds are recorded, which a new start of the run would overwrite."""
    rounds = len(read_lines(folder / METRICS))
    if rounds > 1:  # a single line may belong to an uncommitted round
        raise ValueError(
            f"{folder / name} is missing, but {METRICS} has {rounds} rounds on record. Restore the file, or move the "
            "folder away to run the experiment again."
        )


@contextmanager
def locked(folder: Path, still: str, *, temporary: bool = False) -> Iterator[FileLock]:
    """Lock a folder; raise a BlockingIOError that ends in `still` if another process holds the lock."""
    lock = FileLock(folder / LOCK, mode=PRIVATE_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BlockingIOError(f"Another process is at work on {folder}; {still}.") from None
    try:
        yield lock
    finally:
        if temporary:
            (folder / LOCK).unlink(missing_ok=True)
        lock.release()


def runs_root(out: str | Path | None = None) -> Path:
    """Return the root folder of runs: `out`, PROTONORM_RUNS, or ./runs."""
    if not isinstance(out, str | Path | None):
        raise ValueError(f"out must be the path of a folder, got {out!r:.80}.")
    return Path(out or os.environ.get("PROTONORM_RUNS") or "runs")


def find_runs(root: Path) -> list[Path]:
    """List the runs under a root, including damaged ones that have rounds but no experiment.json."""
    runs = {path.parent for name in (INFO, METRICS) for path in root.glob(f"*/{name}")}
    if study := study_in(root):
        runs |= {root / key for key, files in study.runs.items() if INFO in files or METRICS in files}
    return sorted(runs)


def find_run(root: Path, name: str) -> Path:
    """Find a run by its folder, its name, or a unique prefix of its name."""
    if not name.strip():
        raise ValueError(f"{name!r} is no run: expected a run's folder, its name, or the beginning of its name.")
    for folder in (Path(name), root / name, Path(name) / "run"):  # the last in a federation's folder
        if exists(folder / INFO):
            return folder
    matches = [folder for folder in find_runs(root) if folder.name.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    known = [folder.name for folder in matches or find_runs(root)]
    problem = "Several runs begin with" if matches else "There is no run"
    raise ValueError(f"{problem} {name!r} in {root}; there are: {', '.join(known) or 'none'}.")
