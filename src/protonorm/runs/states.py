"""The clients' states of a run: a file each, and the last used ones in memory."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from protonorm import tensors
from protonorm.files import check_seal, damaged, read_sealed, replace
from protonorm.runs.layout import CLIENTS, is_archived, stamp
from protonorm.runs.run import Run
from protonorm.tensors import Tensors, nbytes

CACHE = 2**29  # bytes of states that all processes of a run together keep in memory


def stray_states(run: Run) -> bool:
    """Tell whether states lie in a run's folder that nobody needs: neither those of the last round nor of the best.

    An archived record is left as it is.
    """
    if is_archived(run.folder):
        return False
    best = run.chosen.record.round if run.chosen and run.chosen.by == "validation" else 0
    kept = [_last_trained(run, done) for done in (len(run.rounds), best)]
    files = FolderStore(run.folder / CLIENTS, run.info.key).files()
    return any(round not in (kept[0].get(id), kept[1].get(id)) for id, round, _ in files)


def _last_trained(run: Run, done: int) -> dict[int, int]:
    """Find from the record in which of so many rounds each client trained last; those that never did are left out."""
    last: dict[int, int] = {}
    clients = run.info.experiment.clients
    for record in reversed(run.rounds[:done]):
        cohort = range(clients) if record.cohort == "all" else record.cohort
        last |= {id: record.round for id in cohort if id not in last and str(id) not in record.lost}
        if len(last) == clients:
            break
    return last


class StateCache:
    """The last state of each client in memory, up to a number of bytes; the longest unused ones go first."""

    def __init__(self, limit: int = CACHE) -> None:
        self._limit = limit
        self._size = 0
        self._held: OrderedDict[int, tuple[int, Tensors]] = OrderedDict()  # by client: round and state

    def get(self, id: int, round: int) -> Tensors | None:
        """Find a client's state after a round."""
        held = self._held.get(id)
        if held is None or held[0] != round:
            return None
        self._held.move_to_end(id)
        return held[1]

    def put(self, id: int, round: int, state: Tensors) -> None:
        """Keep a client's state in place of the one before."""
        self.drop(id)
        self._held[id] = round, state
        self._size += nbytes(state)
        while self._size > self._limit:
            self.drop(next(iter(self._held)))

    def keep(self, ids: Collection[int]) -> None:
        """Forget the states of all other clients."""
        for id in [id for id in self._held if id not in ids]:
            self.drop(id)

    def drop(self, id: int) -> None:
        """Forget a client's state, if there is one."""
        if (old := self._held.pop(id, None)) is not None:
            self._size -= nbytes(old[1])


class FolderStore:
    """States in a folder, one file for each client and round; processes may share it, each with its own clients."""

    def __init__(self, folder: Path, key: str, cache: int = CACHE) -> None:
        self.folder = folder
        self.key = key
        self.cache = StateCache(cache)
        self._known: dict[int, set[int]] = {}  # rounds of each client whose files were found, read or written here
        self._newest: dict[int, int] = {}  # the last round of each client whose file was written here
        self._listed = False  # whether the folder was looked through

    def load(self, id: int, round: int) -> Tensors:
        """Read a client's state after a round."""
        self._known.setdefault(id, set()).add(round)
        state = self.cache.get(id, round)
        if state is None:
            state = tensors.load(self._path(id, round), self._stamp(id, round))
            self.cache.put(id, round, state)
        return state

    def save(self, id: int, round: int, state: Tensors) -> None:
        """Keep a client's state after a round, beside the one before."""
        self._known.setdefault(id, set()).add(round)
        self._newest[id] = round
        tensors.save(self._path(id, round), state, self._stamp(id, round))
        self.cache.put(id, round, state)

    def keep_only(self, id: int, round: int, chosen: int = 0) -> None:
        """Drop the states of a client, but the one after a round and that of the best.

        That of the best round is the newest one that is not after it. States of an earlier process are found too;
        later ones, of a client that has gone on in another process, are left alone.
        """
        if not self._listed:
            for owner, other, _ in self.files():
                self._known.setdefault(owner, set()).add(other)
            self._listed = True
        latest = max(round, self._newest.get(id, 0))
        known = {other for other in self._known.get(id, ()) if other <= latest}
        best = max((other for other in known if other <= chosen), default=round)
        for other in known - {round, best}:
            self._path(id, other).unlink(missing_ok=True)
        self._known[id] = known & {round, best} | {round}

    def drop(self, id: int, round: int) -> None:
        """Remove a client's state after a round, and forget it: it is no longer one that could be the best."""
        self._path(id, round).unlink(missing_ok=True)
        self._known.get(id, set()).discard(round)
        if self.cache.get(id, round) is not None:
            self.cache.drop(id)

    def has(self, id: int, round: int) -> bool:
        """Tell whether the file of a client's state is here."""
        return self._path(id, round).is_file()

    def copy_out(self, id: int, round: int) -> bytes:
        """Give the file of a client's state as it is, for another store."""
        self._known.setdefault(id, set()).add(round)
        return read_sealed(self._path(id, round), self._stamp(id, round))

    def copy_in(self, id: int, round: int, content: bytes) -> None:
        """Keep the file of a client's state that another store gave, if it is whole and the right one."""
        path = self._path(id, round)
        if check_seal(content, path) != self._stamp(id, round):
            raise damaged(path, "what came for it is the state of another client, round or run")
        self._known.setdefault(id, set()).add(round)
        self._newest[id] = max(round, self._newest.get(id, 0))
        replace(path, content)

    def tidy(self, kept: Sequence[Collection[int]]) -> None:
        """Remove what nobody can need any more, given the rounds of each client whose states are kept."""
        for id, round, path in self.files():
            if id < len(kept) and round not in kept[id]:
                path.unlink(missing_ok=True)

    def files(self) -> Iterator[tuple[int, int, Path]]:
        """List the files of the folder: of which client, after which round."""
        for path in self.folder.glob("*.safetensors"):
            if match := re.fullmatch(r"(\d+)\.(\d+)\.safetensors", path.name):
                yield int(match[1]), int(match[2]), path

    def _path(self, id: int, round: int) -> Path:
        return self.folder / f"{id}.{round}.safetensors"

    def _stamp(self, id: int, round: int) -> str:
        return stamp(self.key, f"client-{id}", round)
