"""Partitions that PFLlib and HtFLlib wrote: config.json, and train/I.npz and test/I.npz of each client.

Such a file holds a pickle, which is read as plain data: nothing in it is executed. Nothing here needs torch.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protonorm.core.progress import steps
from protonorm.data.access import require_file, require_room
from protonorm.data.dataset import Inputs
from protonorm.data.own.encoding import Options
from protonorm.data.own.folders import files_in
from protonorm.data.pickled import read_pickled_object
from protonorm.data.prepared import Arrays, open_npz

CONFIG, COUNTS = "config.json", "Size of samples for labels in clients"
WHOLE = 1e-3  # largest distance of a pixel from a whole number; scaling as float32 leaves 1e-5


def client_files(path: Path) -> list[tuple[Path, Path]]:
    """List the training and test file of each client, by number."""
    train, test = ({file.stem: file for file in files_in(path / part, (".npz",))} for part in ("train", "test"))
    names = [str(id) for id in range(len(train))]
    if not train or set(names) != train.keys() or train.keys() != test.keys():
        raise ValueError(f"{path} must have the files train/0.npz, train/1.npz, … and a file in test for each of them.")
    return [(train[name], test[name]) for name in names]


def read_partition(path: Path, options: Options) -> Arrays:
    """Read all clients' samples, with their owners and their split; raise a ValueError if they do not fit together."""
    files = [(file, id, part) for id, pair in enumerate(client_files(path)) for part, file in enumerate(pair)]
    require_room(sum(require_file(file).st_size for file, *_ in files), str(path), "fewer samples are needed.")
    read = [(file, id, part, *_read_file(file)) for file, id, part in steps(files, "Reading clients")]
    first, total = read[0], sum(x.nbytes for *_, x, _ in read)
    require_room(total, f"The samples in {path}", "fewer samples are needed.")
    for file, _, _, x, _ in read:
        if x.shape[1:] != first[3].shape[1:] or x.dtype.kind != first[3].dtype.kind:
            raise ValueError(
                f"The samples of {file} are {x.shape[1:]} {x.dtype}, those of {first[0]} differ from that."
            )
    labels = np.concatenate([y for *_, y in read])
    lengths = [len(y) for *_, y in read]
    owner, split = np.repeat([(id, part) for _, id, part, *_ in read], lengths, axis=0).T.copy()
    _check_config(path, labels, owner)
    inputs, vocabulary = _inputs(np.concatenate([x for *_, x, _ in read]), path)
    classes = tuple(map(str, range(int(labels.max()) + 1)))
    return Arrays(inputs, labels, split.astype(np.int8), classes, owner, vocabulary)


def _read_file(path: Path) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Read a client's samples x (n, …) and labels y (n,) from a file with one array `data` of a dict."""
    with open_npz(path, "a client of PFLlib") as file:
        held = read_pickled_object(file.pickled("data"), "data")
        x, y = held.get("x"), held.get("y")
        if isinstance(x, list):
            x = _tokens(x)
        if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray) or y.shape != x.shape[:1] or x.ndim < 2:
            raise ValueError("data must hold x (n, …) and y (n,)")
        if y.dtype.kind not in "iu" or (len(y) and (y.min() < 0 or y.max() >= len(y) + 2**20)):
            raise ValueError(f"y has type {y.dtype}; expected whole numbers from 0")
        return x, y.astype(np.int64)


def _tokens(rows: list[list[Any]]) -> NDArray[np.int64]:
    """Return tokens (n, L) of the rows [tokens, how many of them count]; those behind are padding, 0."""
    if not all(len(row) == 2 and type(row[0]) is list and type(row[1]) is int for row in rows):
        raise ValueError("the rows of x must hold a list of tokens and their number")
    tokens = np.array([row[0] for row in rows], np.int64).reshape(len(rows), -1)
    lengths = np.array([row[1] for row in rows], np.int64)
    return np.where(np.arange(tokens.shape[1]) < lengths[:, None], tokens, 0)


def _inputs(x: NDArray[Any], path: Path) -> tuple[Inputs, int | None]:
    """Return pictures (N, H, W, C) as bytes, whole numbers as tokens with their vocabulary, others as vectors."""
    if x.dtype.kind in "iu" and x.ndim == 2:
        return x.astype(np.int64), int(x.max()) + 1
    if x.ndim == 4 and x.shape[1] in (1, 3) and min(x.shape[2:]) > 4:
        for scale, shift in ((127.5, 127.5), (255.0, 0.0)):  # scaled to −1 … 1, or to 0 … 1
            pixels = scale * x + shift
            whole = np.rint(pixels)
            if whole.min() >= 0 and whole.max() <= 255 and np.abs(pixels - whole).max() < WHOLE:
                return np.ascontiguousarray(whole.astype(np.uint8).transpose(0, 2, 3, 1)), None
        raise ValueError(f"The pictures in {path} must be bytes scaled to −1 … 1 or to 0 … 1, got other numbers.")
    return x.reshape(len(x), -1).astype(np.float32), None


def _check_config(path: Path, labels: NDArray[np.int64], owner: NDArray[np.int64]) -> None:
    """Raise a ValueError if config.json, which may be absent, counts other samples than there are."""
    if not (path / CONFIG).exists():
        return
    require_room(require_file(path / CONFIG).st_size, str(path / CONFIG), "it is no file of these libraries.")
    try:
        told = json.loads((path / CONFIG).read_bytes()).get(COUNTS)
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path / CONFIG} cannot be read ({error}); the partition can be read without it.") from None
    counts = [np.unique(labels[owner == id], return_counts=True) for id in range(int(owner.max()) + 1)]
    if told and told != [np.stack(pair, axis=1).tolist() for pair in counts]:
        reason = f"what {CONFIG} counts is not what the clients' files have; without it they are read as they are"
        raise ValueError(f"The files in {path} are not of one partition: {reason}.")
