"""Persistent client and server states: a file per client, an in-memory cache, and the server checkpoint."""

import re
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from protonorm import tensors
from protonorm.core.task import ByClient, Messages
from protonorm.files import check_seal, damaged, replace
from protonorm.runs.layout import CLIENTS, is_archived, read_tensor_file, stamp
from protonorm.runs.run import Run
from protonorm.tensors import DeviceCopies, Tensors, nbytes, prefixed, strip_prefix

MEGABYTE = 2**20
CACHE = 512 * MEGABYTE  # cached states, summed over all processes of a run


def load_tensors(path: Path, stamp: str) -> Tensors:
    """Read a tensor file of a run; raise a ValueError if it is damaged or its stamp differs."""
    return tensors.decode_file(read_tensor_file(path, stamp), path)


def stray_states(run: Run) -> bool:
    """Return whether a run that is not archived has client states of neither the last nor the best round."""
    if is_archived(run.folder):
        return False
    best = run.chosen.record.round if run.chosen and run.chosen.by == "validation" else 0
    kept = [_last_trained(run, done) for done in (len(run.rounds), best)]
    files = FolderStore(run.folder / CLIENTS, run.info.key).files()
    return any(round not in (kept[0].get(id), kept[1].get(id)) for id, round, _ in files)


def _last_trained(run: Run, done: int) -> dict[int, int]:
    """Map each client to the last round it trained in, up to round `done`; clients that never trained are omitted."""
    last: dict[int, int] = {}
    clients = run.info.experiment.clients
    for record in reversed(run.rounds[:done]):
        cohort = range(clients) if record.cohort == "all" else record.cohort
        last |= {id: record.round for id in cohort if id not in last and str(id) not in record.lost}
        if len(last) == clients:
            break
    return last


class StateCache:
    """Least-recently-used cache of the last state of each client, limited in bytes.

    A state's copies on a device last as long as it is cached: they take at most as many bytes there.
    """

    def __init__(self, limit: int = CACHE) -> None:
        self.limit, self._size = limit, 0
        self._states: OrderedDict[int, tuple[int, Tensors, DeviceCopies]] = OrderedDict()  # by client, with the round

    def get(self, id: int, round: int) -> Tensors | None:
        """Return a client's state after a round; None if it is not cached."""
        if id not in self._states or self._states[id][0] != round:
            return None
        self._states.move_to_end(id)
        return self._states[id][1]

    def copies(self, id: int) -> DeviceCopies:
        """Return the copies of a client's cached state on its device; new ones if it is not cached."""
        return self._states[id][2] if id in self._states else DeviceCopies()

    def put(self, id: int, round: int, state: Tensors, copies: DeviceCopies | None = None) -> None:
        """Cache a client's state, replacing the previous one."""
        self.drop(id)
        copies = copies or DeviceCopies()
        copies.keep(state)
        self._states[id] = round, state, copies
        self._size += nbytes(state)
        while self._size > self.limit:
            self.drop(next(iter(self._states)))

    def keep(self, ids: Collection[int]) -> None:
        """Drop the states of all clients not in `ids`."""
        for id in self._states.keys() - ids:
            self.drop(id)

    def drop(self, id: int) -> None:
        """Drop a client's state, if it is cached."""
        if id in self._states:
            self._size -= nbytes(self._states.pop(id)[1])


class FolderStore:
    """Folder of states, one file per client and round; processes with disjoint clients may share it."""

    def __init__(self, folder: Path, key: str, cache: int = CACHE) -> None:
        self.folder, self.key, self.cache = folder, key, StateCache(cache)
        self._known: defaultdict[int, set[int]] = defaultdict(set)  # by client: rounds listed, read or written here
        self._newest: dict[int, int] = {}  # by client: the last round whose file was written here
        self._listed = False  # whether the folder was listed

    def load(self, id: int, round: int) -> Tensors:
        """Read a client's state after a round."""
        self._known[id].add(round)
        state = self.cache.get(id, round)
        if state is None:
            state = load_tensors(self._path(id, round), self._stamp(id, round))
            self.cache.put(id, round, state)
        return state

    def peek(self, id: int, round: int) -> Tensors:
        """Read a client's state after a round, which another process may have written, past the cache."""
        return load_tensors(self._path(id, round), self._stamp(id, round))

    def save(self, id: int, round: int, state: Tensors, copies: DeviceCopies | None = None) -> None:
        """Write a client's state after a round; earlier states are kept."""
        self._known[id].add(round)
        self._newest[id] = round
        tensors.save(self._path(id, round), state, self._stamp(id, round))
        self.cache.put(id, round, state, copies)

    def keep_only(self, id: int, round: int, chosen: int = 0) -> None:
        """Remove a client's states except those of a round and of the best round.

        The state of the best round `chosen` is the newest one not after it, nor after `round`: a state after that is of
        a reply that did not count. States written by an earlier process are included; later states, written by another
        process that took over the client, are kept.
        """
        if not self._listed:
            for owner, other, _ in self.files():
                self._known[owner].add(other)
            self._listed = True
        latest = max(round, self._newest.get(id, 0))
        known = {other for other in self._known[id] if other <= latest}
        best = max((other for other in known if other <= min(round, chosen)), default=round)
        for other in known - {round, best}:
            self._path(id, other).unlink(missing_ok=True)
        self._known[id] = known & {round, best} | {round}

    def drop(self, id: int, round: int) -> None:
        """Remove a client's state after a round, so that it can no longer be the best."""
        self._path(id, round).unlink(missing_ok=True)
        self._known[id].discard(round)
        if self.cache.get(id, round) is not None:
            self.cache.drop(id)

    def has(self, id: int, round: int) -> bool:
        """Return whether the file of a client's state exists."""
        return self._path(id, round).is_file()

    def copy_out(self, id: int, round: int) -> bytes:
        """Return the raw file of a client's state, for another store."""
        self._known[id].add(round)
        return read_tensor_file(self._path(id, round), self._stamp(id, round))

    def copy_in(self, id: int, round: int, content: bytes) -> None:
        """Write a raw state file from another store; raise a ValueError if it is damaged or of another state."""
        path = self._path(id, round)
        if check_seal(content, path) != self._stamp(id, round):
            raise damaged(path, "what came for it is the state of another client, round or run")
        self._known[id].add(round)
        self._newest[id] = max(round, self._newest.get(id, 0))
        replace(path, content)

    def tidy(self, kept: Sequence[Collection[int]]) -> None:
        """Remove all states but those of the rounds in `kept`, indexed by client."""
        for id, round, path in self.files():
            if id < len(kept) and round not in kept[id]:
                path.unlink(missing_ok=True)

    def files(self) -> Iterator[tuple[int, int, Path]]:
        """Yield client, round and path of each state file."""
        for path in self.folder.glob("*.safetensors"):
            if match := re.fullmatch(r"(\d+)\.(\d+)\.safetensors", path.name):
                yield int(match[1]), int(match[2]), path

    def _path(self, id: int, round: int) -> Path:
        return self.folder / f"{id}.{round}.safetensors"

    def _stamp(self, id: int, round: int) -> str:
        return stamp(self.key, f"client-{id}", round)


ALONE = "alone"  # key that marks per-client server states, in a solo run


class Checkpoint(NamedTuple):
    """Committed state of a run."""

    round: int  # the last committed round
    state: Messages  # server state; in a solo run, by client
    message: Messages  # last server message; in a solo run, by client
    trained: list[int]  # (M,) the last round each client trained in; 0 for never


def pack(point: Checkpoint) -> Tensors:
    """Flatten a checkpoint into tensors; its round is stored in the file's stamp."""
    packed = {"trained": torch.tensor(point.trained)}
    for name, value in (("state", point.state), ("message", point.message)):
        if isinstance(value, ByClient):
            packed[f"{name}.{ALONE}"] = torch.tensor(len(value))
            for id, tensors in value.items():
                packed |= prefixed(f"{name}.{id}", tensors)
        else:
            packed |= prefixed(name, value)
    return packed


def unpack(packed: Tensors, round: int, trained: list[int]) -> Checkpoint:
    """Restore a checkpoint from the tensors of `pack`."""

    def restored(name: str) -> Messages:
        value = strip_prefix(packed, name)
        return ByClient((id, strip_prefix(value, str(id))) for id in range(len(trained))) if ALONE in value else value

    return Checkpoint(round, restored("state"), restored("message"), list(trained))


def message_to(packed: Tensors, id: int) -> Tensors:
    """Return the last message to a client, from the server or, in a solo run, from the client's own server."""
    message = strip_prefix(packed, "message")
    return strip_prefix(message, str(id)) if ALONE in message else message


def trained_rounds(packed: Tensors, clients: int, rounds: int, path: Path) -> list[int]:
    """Return the last round each client trained in, 0 for never; raise a ValueError if a value is out of range."""
    trained = packed.get("trained", torch.empty(0))
    valid = trained.dtype == torch.int64 and trained.ndim == 1 and len(trained) <= clients  # others joined since
    if not valid or bool(((trained < 0) | (trained > rounds)).any()):
        raise damaged(path, f"it does not say in which of {rounds} rounds each of {clients} clients trained last")
    last: list[int] = trained.tolist()
    return last + [0] * (clients - len(last))
