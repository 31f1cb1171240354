"""Reading of .npz files that may be damaged or inconsistent, and the prepared form of an image dataset.

A prepared dataset is a file NAME.npz of four arrays:

images   uint8 (N, H, W, C)
labels   int64 (N,), from 0 to K − 1
split    uint8 (N,), 0 for the original training images; all 0 if absent
classes  text (K,); the numbers if absent

Nothing is unpickled, and sizes are checked before memory is allocated. Nothing here needs torch.
"""

import io
import math
import os
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import platformdirs
from numpy.typing import NDArray

from protonorm.data.access import expand, reason, require_file, require_room
from protonorm.data.dataset import MAX_UNNAMED, Inputs, channels_first, split_numbers
from protonorm.files import Scratch, make_folder, replacing

HEADER = 2**16  # maximum bytes of an array's header
PACKINGS = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1100}  # maximum unpacked bytes per packed byte
END = 22  # bytes of the record at the end of an archive, before its comment
UNDECIDED = -1  # in a split: neither training nor test yet

Optional = NDArray[Any] | None
Labelled = tuple[NDArray[np.int64], tuple[str, ...]]  # labels (N,) and names of the classes


class NpzReader:
    """Reader of the arrays in an open .npz file; raises a ValueError if anything is wrong with it."""

    def __init__(self, archive: zipfile.ZipFile, file: IO[bytes], size: int) -> None:
        """Check the names of the arrays; `size` is the size of the file in bytes."""
        self._archive, self._size = archive, size
        members = archive.infolist()
        self._members = {info.filename.removesuffix(".npy"): info for info in members}
        if len(self._members) < len(members):
            raise ValueError("it holds two arrays of the same name")
        file.seek(-END - len(archive.comment), io.SEEK_END)
        if len(members) != int.from_bytes(file.read(END)[10:12], "little"):  # a count that zipfile does not check
            raise ValueError("it is damaged: arrays are missing")
        for name, info in self._members.items():
            if info.compress_type not in PACKINGS:
                raise ValueError(f"{name} is packed in a way that numpy does not use")
            archive.open(info).close()  # checks that the two places in which an archive stores each name agree

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def shape(self, name: str) -> tuple[int, ...]:
        """Return an array's shape without reading its values; raise a ValueError if header and data disagree."""
        shape, dtype, start = self._header(name)
        expected, available = math.prod(shape) * dtype.itemsize, self._members[name].file_size - start
        if dtype.hasobject:
            raise ValueError(f"{name} holds objects of Python, which are never loaded")
        if min(shape, default=0) < 0 or expected != available:
            raise ValueError(
                f"{name} has {available} bytes, which do not fit shape {shape} and type {dtype} of its header"
            )
        self._require_room(name)
        return shape

    def pickled(self, name: str) -> bytes:
        """Return the bytes of an array () of objects of Python, which are not loaded here."""
        shape, dtype, start = self._header(name)
        if dtype != np.dtype(object) or shape != ():
            raise ValueError(f"{name} has shape {shape} and type {dtype}; expected () and objects")
        self._require_room(name)
        with _sentences(), self._archive.open(self._members[name]) as file:
            return file.read()[start:]

    def _header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any], int]:
        """Return shape and type of an array, and how many bytes its header has."""
        if name not in self:
            raise ValueError(f"it lacks {name}")
        with _sentences(), self._archive.open(self._members[name]) as file:
            header = io.BytesIO(file.read(HEADER))
            version_1 = np.lib.format.read_magic(header) == (1, 0)
            read = np.lib.format.read_array_header_1_0 if version_1 else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(header)
        return shape, dtype, header.tell()

    def _require_room(self, name: str) -> None:
        """Raise a ValueError if an array is larger than its file allows, or than the memory limit."""
        info = self._members[name]
        if info.compress_size > self._size or info.file_size > PACKINGS[info.compress_type] * info.compress_size:
            raise ValueError(f"{name} cannot have {info.file_size} bytes in a file of {self._size}")
        require_room(info.file_size, name, "fewer or smaller samples are needed")

    def read(self, name: str) -> NDArray[Any]:
        """Read an array after checking its size."""
        self.shape(name)
        with _sentences(), self._archive.open(self._members[name]) as file:
            values: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False, max_header_size=HEADER)
            file.read()  # reading to the end verifies the checksum
        return values

    def get(self, name: str) -> NDArray[Any] | None:
        """Return an array, or None if it is absent."""
        return self.read(name) if name in self else None

    def refuse(self, *names: str) -> None:
        """Raise a ValueError if there is an array of these names, which would have no effect."""
        for name in names:
            if name in self:
                raise ValueError(
                    f"it has an array {name}, which is not used here; leave it out, or use "
                    "pn.Dataset(…, owner=…, split=…) in Python, or one file for each client with dataset=clients:PATH"
                )


@contextmanager
def open_npz(path: Path, noun: str = "prepared data") -> Iterator[NpzReader]:
    """Open an .npz file without unpickling anything; raise a ValueError that names it if it is damaged."""
    size = require_file(path).st_size
    try:
        with ExitStack() as stack:
            with _sentences():
                file = stack.enter_context(path.open("rb"))
                archive = stack.enter_context(zipfile.ZipFile(file))
                reader = NpzReader(archive, file, size)
            yield reader
    except ValueError as error:
        raise ValueError(f"{path} cannot be used as {noun}: {str(error).rstrip('.')}.") from error


@contextmanager
def _sentences() -> Iterator[None]:
    """Convert the errors of a damaged file, which can be of almost any type, to a ValueError with the reason."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers written by Python 2
            yield
    except zipfile.BadZipFile as error:
        raise ValueError(f"it is not a whole .npz archive ({error})") from error
    except OSError as error:
        raise ValueError(reason(error)) from error
    except Exception as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


class Arrays(NamedTuple):
    """Labelled images in the prepared form; for user data also vectors or tokens in place of images."""

    images: Inputs  # (N, H, W, C), or (N, D), or (N, L)
    labels: NDArray[np.int64]  # (N,)
    split: NDArray[np.int8]  # (N,): 0 training, more test, −1 undecided
    classes: tuple[str, ...]  # K names
    owner: NDArray[np.int64] | None = None  # (N,): client of each image, if given
    vocabulary: int | None = None  # V, for tokens
    keys: NDArray[np.uint64] | None = None  # (N,): hash of each sample as it was before it was resized or scaled
    groups: NDArray[Any] | None = None  # (N,): numbers or texts that say which samples belong together, if given


def data_root(root: Path | None = None) -> Path:
    """Return the folder of prepared data: the given one, PROTONORM_DATA, or the user's cache folder."""
    folder = root or os.environ.get("PROTONORM_DATA")
    return expand(Path(folder)) if folder else platformdirs.user_cache_path("protonorm")


def read_prepared(path: Path, options: object = None) -> Arrays:
    """Read a prepared file; raise a ValueError if it is invalid. No options of user data apply to it."""
    with open_npz(path) as file:
        if missing := [name for name in ("images", "labels") if name not in file]:
            vectors = "; array:PATH reads vectors" if "inputs" in file or "features" in file else ""
            raise ValueError(f"it lacks {' and '.join(missing)}{vectors}")
        file.refuse("owner")
        arrays = check_arrays(file.read("images"), file.read("labels"), file.get("split"), file.get("classes"))
        return arrays._replace(groups=file.get("groups"))


def has_training(path: Path) -> bool:
    """Return whether a prepared file has original training images, without reading images."""
    with open_npz(path) as file:
        split = file.get("split")
        return split is None or bool((split == 0).any())


def read_shape(path: Path) -> tuple[int, ...]:
    """Return the shape (N, H, W, C) of prepared images without reading them."""
    with open_npz(path) as file:
        return file.shape("images")


def check_arrays(images: NDArray[Any], labels: NDArray[Any], split: Optional, classes: Optional) -> Arrays:
    """Convert arrays to the prepared form; raise a ValueError if they do not fit it."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or not images.size or channels_first(images):
        expected = f"expected uint8 (N, H, W, C){channels_first(images)}"
        raise ValueError(f"images has shape {images.shape} and type {images.dtype}; {expected}")
    if split is not None and (split.shape != labels.shape or split.dtype.kind not in "iub"):
        raise ValueError(f"split has shape {split.shape} and type {split.dtype}; expected uint8 ({len(images)},)")
    numbers, names = check_labels(labels, classes, len(images))
    parts = np.zeros(len(labels), np.int8) if split is None else split_numbers(split)
    return Arrays(images if images.ndim == 4 else images[..., None], numbers, parts, names)


def check_labels(labels: NDArray[Any], classes: NDArray[Any] | None, samples: int) -> Labelled:
    """Return labels (N,) that number the classes, and the classes' names; raise a ValueError if they do not fit."""
    if labels.shape != (samples,) or labels.dtype.kind not in "iu":
        raise ValueError(f"labels has shape {labels.shape} and type {labels.dtype}; expected int64 ({samples},)")
    if classes is None and labels.max() >= MAX_UNNAMED:
        raise ValueError(
            f"labels go up to {labels.max()}, and no names of classes are given; expected numbers from 0 to K − 1, "
            f"below {MAX_UNNAMED}, or an array `classes` with the K names"
        )
    if classes is not None and (classes.ndim != 1 or classes.dtype.kind != "U"):
        raise ValueError(f"classes has shape {classes.shape} and type {classes.dtype}; expected text (K,)")
    names = tuple(map(str, range(int(labels.max()) + 1) if classes is None else classes.tolist()))
    if labels.min() < 0 or labels.max() >= len(names):
        raise ValueError(f"labels go from {labels.min()} to {labels.max()}, but {len(names)} classes are named")
    if len(set(names)) < len(names):
        raise ValueError("two classes have the same name")
    return labels.astype(np.int64), names


def write_prepared(path: Path, arrays: Arrays) -> None:
    """Write a prepared file atomically, uncompressed, readable by its owner only."""
    images, labels, split, classes, *_ = arrays
    make_folder(path.parent)
    with Scratch(path.parent, prefix=f".{path.name}-") as scratch:
        with replacing(scratch.folder / path.name) as file:
            np.savez(file, images=images, labels=labels, split=split.astype(np.uint8), classes=np.array(classes))
        os.replace(scratch.folder / path.name, path)
