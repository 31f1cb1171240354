"""Folders of images, one per class, and images that clients own. Nothing here needs torch."""

import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from protonorm.core.progress import steps
from protonorm.core.text import visible
from protonorm.data.access import reason, require_room
from protonorm.data.dataset import sample_keys
from protonorm.data.mapped import file_version, short_hash
from protonorm.data.own.encoding import Options
from protonorm.data.pictures import SUFFIXES, ImageHeader, describe_errors, read_headers, read_usable, read_window
from protonorm.data.prepared import UNDECIDED, Arrays, read_prepared, read_shape

SPLITS = {"train": 0, "test": 1, "val": 1, "valid": 1}  # names of sub-folders that separate training and test images
DEFAULT_SIDE = 64  # pixels, for images of different sizes
HIDDEN, UNASSIGNED, UNNAMED = "hidden", "pictures that are not in a class folder", "without an ending"


class PictureFile(NamedTuple):
    """Image file, with the class, split and client that its path implies."""

    path: Path
    label: str  # class
    split: int  # 0 training, 1 test, −1 undecided
    client: int


def picture_files(folder: Path, client: int = 0, *, allow_empty: bool = False) -> list[PictureFile]:
    """List the images of class folders, or of train and test folders of these; without test images none is assigned."""
    inside = folders_in(folder)
    if inside and all(part.name in SPLITS for part in inside) and any(folders_in(part) for part in inside):
        classes = [(label, SPLITS[part.name]) for part in inside for label in folders_in(part)]
    else:
        classes = [(label, UNDECIDED) for label in inside]
    if not classes:
        raise ValueError(f"{folder} has no folders in it; expected one for each class, with pictures.")
    files = []
    for label, split in classes:
        paths = files_in(label, SUFFIXES)
        if not paths and not allow_empty:
            if folders_in(label):
                raise ValueError(
                    f"{label} has no pictures in it, but folders; expected a folder of class folders, as "
                    f"{label} may be."
                )
            raise ValueError(f"{label} has no pictures in it; expected files that end in {', '.join(SUFFIXES)}.")
        files += [PictureFile(path, label.name, split, client) for path in paths]
    if not files:
        raise ValueError(f"{folder} has no pictures in it; expected files that end in {', '.join(SUFFIXES)}.")
    tested = any(file.split > 0 for file in files)
    return files if tested else [file._replace(split=UNDECIDED) for file in files]


def pictures_in(folder: Path) -> list[Path]:
    """List the images in a folder and its sub-folders, sorted by name, without hidden ones."""
    paths = files_in(folder, SUFFIXES)
    for inside in folders_in(folder):
        paths += [] if inside.is_symlink() or inside in paths else pictures_in(inside)  # a link may form a cycle
    return paths


def folders_in(folder: Path) -> list[Path]:
    """List the folders in a folder, without hidden ones."""
    return _inside(folder, Path.is_dir)


def files_in(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """List the entries of a folder with one of the suffixes, without hidden ones; they need not be regular files."""
    return _inside(folder, lambda path: path.suffix.lower() in suffixes)


def _inside(folder: Path, accepts: Callable[[Path], bool]) -> list[Path]:
    try:
        if not folder.is_dir():
            raise ValueError(f"There is no folder {folder}.")
        return sort_by_name(path for path in folder.iterdir() if not path.name.startswith(".") and accepts(path))
    except OSError as error:
        raise ValueError(f"{folder} cannot be read: {reason(error)}.") from None


def sort_by_name(paths: Iterable[Path]) -> list[Path]:
    """Sort by name, with numbers in a name by their value: client2 before client10."""

    def key(path: Path) -> list[tuple[bool, int, str]]:
        parts = re.findall(r"\d+|\D+", path.name)
        return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]

    return sorted(paths, key=key)


def common_form(paths: Sequence[Path], headers: Sequence[ImageHeader], options: Options) -> tuple[tuple[int, int], int]:
    """Return the size (H, W) and channels for all images; raise a ValueError if they exceed the memory limit."""
    kinds = {header.channels: path for path, header in zip(paths, headers, strict=True)}
    if len(kinds) > 1 and not options.channels:
        raise ValueError(
            f"Some pictures are coloured ({kinds[3]}) and some are grey ({kinds[1]}); "
            "dataset.channels=3 or dataset.channels=1 makes them alike: "
            "--channels 3 or --channels 1 of `deploy client`."
        )
    channels = options.channels or headers[0].channels
    sizes = {(header.height, header.width): path for path, header in zip(paths, headers, strict=True)}
    height, width = (options.size, options.size) if options.size else next(iter(sizes))
    if len(sizes) > 1 and not options.size:
        examples = ", ".join(f"{h}×{w} {path.name}" for (h, w), path in list(sizes.items())[:2])
        height = width = DEFAULT_SIDE
        warnings.warn(
            f"The pictures differ in size ({examples}): all are resized to {height}×{width}; "
            "dataset.size, or --size of `deploy client`, says otherwise.",
            stacklevel=3,
        )
    description = f"{len(paths)} pictures of {height}×{width}"
    require_room(
        len(paths) * height * width * channels,
        description,
        "dataset.size=64, say, makes them smaller; --size 64 of `deploy client`.",
    )
    return (height, width), channels


def read_picture_files(files: Sequence[PictureFile], folder: Path, options: Options) -> Arrays:
    """Read the listed images of a folder into arrays."""
    _class_names(files, folder)
    warn_of_unused_files(folder, {file.path for file in files})
    window = read_window(options.window)
    headers, errors = read_headers([file.path for file in files], window)  # by position
    paths = [files[position].path for position in headers]
    size, channels = (1, 1), 1  # if bad headers end it anyway, pixels are read only to list all that are damaged
    if headers and (options.skip_bad or not errors):
        size, channels = common_form(paths, list(headers.values()), options)
    images, damaged = read_usable(paths, size, channels, window)
    errors |= {list(headers)[position]: text for position, text in damaged.items()}
    readable = [file for position, file in enumerate(files) if position not in errors]
    if errors:
        description = describe_errors(errors, len(files))
        if not options.skip_bad:
            raise ValueError(f"{description}\n--skip-bad, or dataset.skip_bad=true, goes on without them.")
        if not readable:
            raise ValueError(f"{description}\nNo picture is left.")
        if emptied := {file.client for file in files} - {file.client for file in readable}:
            owner = next(file.path for file in files if file.client in emptied)
            raise ValueError(f"{description}\nNo picture is left of the client that {owner} is of.")
        warnings.warn(f"{description}\nThe other {len(readable)} are used.", stacklevel=2)
    classes = _class_names(readable, folder)
    number = {name: k for k, name in enumerate(classes)}
    labels, owner = np.array([(number[file.label], file.client) for file in readable], np.int64).T.copy()  # (N,) each
    keys = sample_keys(file.path.read_bytes() for file in readable)  # of files: sizes and forms change with others
    return Arrays(images, labels, np.array([file.split for file in readable], np.int8), classes, owner, keys=keys)


def read_folder(path: Path, options: Options) -> Arrays:
    """Read the images of a folder of class folders."""
    return read_picture_files(picture_files(path), path, options)._replace(owner=None)


def files_version(paths: Iterable[Path]) -> str:
    """Return a hash of files' sizes and times; entries that are not files raise errors later, when read."""

    def version(path: Path) -> str | None:
        try:
            return file_version(path)
        except ValueError:
            return None

    return short_hash(*((path, version(path)) for path in paths))


def warn_of_unused_files(folder: Path, used: Collection[Path]) -> None:
    """Warn about unused files in a folder, by kind."""
    if counts := count_left_out(folder, used):
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        warnings.warn(f"In {folder} {len(used)} pictures were found; left out: {listed}.", stacklevel=3)


def count_left_out(folder: Path, used: Collection[Path]) -> Counter[str]:
    """Count the unused files in a folder and its sub-folders, by kind; links are not followed."""
    counts: Counter[str] = Counter()
    for parent, folders, names in os.walk(folder):
        counts[HIDDEN] += sum(name.startswith(".") for name in (*folders, *names))
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(parent, name) for name in names if not name.startswith(".")):
            if path not in used:
                ending = path.suffix.lower()
                counts[UNASSIGNED if ending in SUFFIXES else ending or UNNAMED] += 1
    return +counts  # the unary plus drops zeros


def _class_names(files: Sequence[PictureFile], folder: Path) -> tuple[str, ...]:
    """Return the class names, sorted; raise a ValueError if two differ only in case."""
    names = sorted({file.label for file in files})
    plain: dict[str, str] = {}
    for name in names:
        if (other := plain.setdefault(name.casefold(), name)) != name:
            raise ValueError(f"{folder} has the classes {other} and {name}; give both the same name, or other names.")
    return tuple(names)


def client_paths(path: Path) -> list[Path]:
    """List the clients' folders or files, sorted by name."""
    folders, files = folders_in(path), files_in(path, (".npz",))
    if folders and files:
        raise ValueError(f"{path} has folders ({folders[0].name}) and files ({files[0].name}); expected one kind only.")
    if not folders and not files:
        raise ValueError(f"{path} has no clients in it; expected a folder of class folders, or an .npz file, for each.")
    return folders or files


def client_names(path: Path) -> tuple[str, ...]:
    """Return the clients' names, from their folders or files; suffixes are kept if names would repeat."""
    paths = client_paths(path)
    short = tuple(visible(client.name if client.is_dir() else client.stem) for client in paths)
    return short if len(set(short)) == len(short) else tuple(visible(client.name) for client in paths)


def client_pictures(paths: Sequence[Path]) -> list[PictureFile]:
    """List the images in all clients' folders."""
    return [file for id, path in enumerate(paths) for file in picture_files(path, id, allow_empty=True)]


def client_files(path: Path) -> list[Path]:
    """List all files of all clients: images, or one .npz file each."""
    paths = client_paths(path)
    return [file.path for file in client_pictures(paths)] if paths[0].is_dir() else paths


def read_clients(path: Path, options: Options) -> Arrays:
    """Read the images of all clients, client by client."""
    paths = client_paths(path)
    if paths[0].is_dir():
        return read_picture_files(client_pictures(paths), path, options)
    if unused := [name for name in ("size", "channels", "skip_bad", "window") if getattr(options, name)]:
        names = f"dataset.{unused[0]} is"
        raise ValueError(f"{names} for picture files; {paths[0]} is taken as it is.")
    total = sum(math.prod(read_shape(client)) for client in paths)
    require_room(total, f"The pictures of {len(paths)} clients", "fewer or smaller pictures are needed.")
    clients = [read_prepared(client) for client in steps(paths, "Reading clients")]
    first = clients[0]
    for client, arrays in zip(paths, clients, strict=True):
        if arrays.classes != first.classes:
            differ = sorted(set(arrays.classes) ^ set(first.classes))
            difference = f"they differ in {', '.join(differ)}" if differ else "they are in another order"
            raise ValueError(f"{client} and {paths[0]} name other classes: {difference}; labels must mean the same.")
        if arrays.images.shape[1:] != first.images.shape[1:]:
            size, expected = ("×".join(map(str, images.shape[1:])) for images in (arrays.images, first.images))
            raise ValueError(f"The pictures of {client} are {size}, those of {paths[0]} {expected}.")
        if not (arrays.split <= 0).any():
            raise ValueError(f"{client} has no training pictures.")
    # Without test images, a client's split is undecided.
    splits = [arrays.split if arrays.split.any() else np.full_like(arrays.split, UNDECIDED) for arrays in clients]
    return Arrays(
        images=np.concatenate([arrays.images for arrays in clients]),
        labels=np.concatenate([arrays.labels for arrays in clients]),
        split=np.minimum(np.concatenate(splits), 1),
        classes=first.classes,
        owner=np.repeat(np.arange(len(clients)), [len(arrays.labels) for arrays in clients]),
    )


def read_domains(path: Path, options: Options) -> Arrays:
    """Read data sets in the folders or files of clients as groups of one data set; parts are merged."""
    arrays = read_clients(path, options)
    names = np.array(client_names(path))
    return arrays._replace(owner=None, groups=None if arrays.owner is None else names[arrays.owner])
