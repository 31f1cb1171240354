"""Download of official archives, and their conversion to prepared files. Nothing here needs torch."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from protonorm.core.progress import report
from protonorm.core.registry import Entry, nearest
from protonorm.core.text import listed
from protonorm.data.access import CHUNK, Unreadable, expand, hash_file, require_file
from protonorm.data.prepared import Arrays, data_root, write_prepared
from protonorm.data.published.archives import gunzip, reading
from protonorm.errors import NotFetched
from protonorm.files import make_folder, open_private

# All over https, which every owner offers, and with checksums. Fashion-MNIST comes from the repository of its owners:
# the address in their text is that of a bucket's web site, which supports http only.
TORONTO = "https://www.cs.toronto.edu/~kriz/"
OXFORD = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"
STANFORD = "https://cs231n.stanford.edu/"
ZALANDO = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"
DIGITS = "https://ossci-datasets.s3.amazonaws.com/mnist/"

# checksums (md5) by file
CIFAR10_BINARY = {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"}
CIFAR10_PYTHON = {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"}
CIFAR100_BINARY = {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"}
CIFAR100_PYTHON = {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"}
FLOWERS = {
    "102flowers.tgz": "52808999861908f626f3c1f4e79d11fa",
    "imagelabels.mat": "e0620be6f572b9609742df49c70aed4d",
    "setid.mat": "a5357ecc9cb78c4bef273ce3793fc85c",
}
TINY = {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"}
FASHION = {
    "train-images-idx3-ubyte.gz": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte.gz": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte.gz": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte.gz": "15d484375f8d13e6eb1aabb0c3f46965",
}
MNIST = {
    "train-images-idx3-ubyte.gz": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte.gz": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte.gz": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte.gz": "27ae3e4e09519cfbb04c329615203637",
}

WAIT = 30.0  # timeout in seconds without a byte
PARTIAL = 206  # HTTP status of a resumed download


class File(NamedTuple):
    """File to download."""

    name: str
    md5: str
    url: str  # of its folder


class Source(NamedTuple):
    """Files that make up a dataset, and the function that reads them."""

    files: tuple[File, ...]
    reader: Entry
    unpacked: bool = False  # whether checksums are of the decompressed content; then files may be uncompressed, too


def _source(reader: str, url: str, checksums: Mapping[str, str], *, unpacked: bool = False) -> Source:
    files = tuple(File(name, md5, url) for name, md5 in checksums.items())
    return Source(files, Entry(f"protonorm.data.published.{reader}", "reads the archive"), unpacked)


SOURCES: dict[str, tuple[Source, ...]] = {  # the first source is downloaded; any one is enough
    "cifar10": (
        _source("cifar:read_binary10", TORONTO, CIFAR10_BINARY),
        _source("cifar:read_python10", TORONTO, CIFAR10_PYTHON),
    ),
    "cifar100": (
        _source("cifar:read_binary100", TORONTO, CIFAR100_BINARY),
        _source("cifar:read_python100", TORONTO, CIFAR100_PYTHON),
    ),
    "flowers102": (_source("photographs:read_flowers", OXFORD, FLOWERS),),
    "tinyimagenet": (_source("photographs:read_tinyimagenet", STANFORD, TINY),),
    "fashion-mnist": (_source("photographs:read_fashion", ZALANDO, FASHION, unpacked=True),),
    "mnist": (_source("photographs:read_digits", DIGITS, MNIST, unpacked=True),),
}


def prepare(
    name: str,
    folder: Path,
    root: Path | None = None,
    *,
    checksums: Mapping[str, str] | None = None,
    checked: bool = True,
) -> tuple[Path, Arrays]:
    """Create NAME.npz from the official files in a folder; on any failure nothing is written.

    `checksums`, by file name, replace the official ones; `checked=False` accepts any file.
    """
    source, files = find_files(name, folder)
    if checked:
        known = {file.name: file.md5 for file in source.files} | dict(checksums or {})
        for file, path in files.items():
            require_md5(path, known[file], unpacked=source.unpacked)
    arrays: Arrays = source.reader.load()(files)
    path = data_root(root) / f"{name}.npz"
    report(f"Writing {path.name}", 0, 1)
    write_prepared(path, arrays)
    report(f"Writing {path.name}", 1, 1)
    return path, arrays


def sources(name: str) -> tuple[Source, ...]:
    """Return the sources of a dataset."""
    if name not in SOURCES:
        raise ValueError(f"{name!r} cannot be prepared; {nearest(name, SOURCES)}")
    return SOURCES[name]


def find_files(name: str, folder: Path) -> tuple[Source, dict[str, Path]]:
    """Return the first source whose files are all in the folder, and their paths."""
    choices = sources(name)
    folder = expand(folder)
    if os.path.isfile(folder):
        folder = folder.parent
    if not os.path.isdir(folder):
        raise ValueError(f"There is no folder {folder}.")
    for source in choices:
        found = {file.name: _find_file(folder, file.name, plain=source.unpacked) for file in source.files}
        if None not in found.values():
            return source, {file: path for file, path in found.items() if path}
    raise ValueError(f"{folder} does not hold {wanted(name)}.")


def wanted(name: str) -> str:
    """Return the names of the files that a dataset is prepared from."""
    return " or ".join(listed([file.name for file in source.files]) for source in sources(name))


def require_md5(path: Path, md5: str, *, unpacked: bool) -> None:
    """Raise a ValueError if a file does not have the known checksum."""
    if (actual := _md5(path, unpacked)) != md5:
        raise ValueError(
            f"{path} is not the official file, or it is incomplete: its md5 is {actual}, expected {md5}. "
            "--no-check takes it all the same."
        )


def _md5(path: Path, unpacked: bool) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    if unpacked:
        digest.update(gunzip(path))
        return digest.hexdigest()
    with reading(path):
        return hash_file(path, digest, f"Checking {path.name}")


def _find_file(folder: Path, name: str, *, plain: bool) -> Path | None:
    """Find a file, or if `plain` its uncompressed form; raise a ValueError if it is not a regular file."""
    names = [name, name.removesuffix(".gz")] if plain else [name]
    found = next((folder / one for one in names if os.path.exists(folder / one)), None)
    if found:
        require_file(found)
    return found


def download(
    name: str,
    folder: Path,
    *,
    mirror: str | None = None,
    checksums: dict[str, str] | None = None,
    checked: bool = True,
) -> list[Path]:
    """Download a dataset's archives into a folder; keep existing files with the right checksum."""
    source = sources(name)[0]
    make_folder(folder)
    found = []
    for file in source.files:
        md5 = (checksums or {}).get(file.name, file.md5) if checked else None
        found.append(_fetch_checked(file, folder, mirror, md5, source.unpacked))
    return found


def _fetch_checked(file: File, folder: Path, mirror: str | None, md5: str | None, unpacked: bool) -> Path:
    path, part = folder / file.name, folder / f"{file.name}.part"
    for existing in (path, part):
        if existing.exists():
            require_file(existing)
    if path.exists() and (md5 is None or _is_right(path, md5, unpacked)):
        return path
    fetch(f"{(mirror or file.url).rstrip('/')}/{file.name}", part)
    if md5 is not None and not _is_right(part, md5, unpacked):
        try:
            require_md5(part, md5, unpacked=unpacked)
        finally:
            part.unlink()  # resuming from wrong bytes cannot succeed
    os.replace(part, path)
    return path


def _is_right(path: Path, md5: str, unpacked: bool) -> bool:
    try:
        return _md5(path, unpacked) == md5
    except Unreadable:
        raise
    except ValueError:  # a damaged archive
        return False


def fetch(url: str, part: Path) -> None:
    """Download a file, resuming after the bytes that already exist."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "protonorm"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            goes_on = answer.status == PARTIAL
            have = have if goes_on else 0
            whole = have + int(answer.headers.get("Content-Length") or 0)
            with open_private(part, "ab" if goes_on else "wb") as file:
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                    have += len(chunk)
                    report(f"Downloading {part.stem}", have, whole)
            if have < whole:
                raise http.client.IncompleteRead(b"", whole - have)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # the file is already complete
            return
        raise NotFetched(f"{url} cannot be downloaded: the server answers {error.code} {error.reason}.") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise NotFetched(
            f"{url} cannot be downloaded ({reason}); is there a network? What has come is kept, "
            "and the same command goes on from there."
        ) from error
