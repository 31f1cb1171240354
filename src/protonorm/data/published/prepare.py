"""Download of official archives, their conversion to prepared files, and reading of archive members.

Members are read into memory: nothing is ever extracted to a path that an archive names. Nothing here needs torch.
"""

import gzip
import hashlib
import http.client
import os
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from protonorm.core.progress import report
from protonorm.core.registry import Entry, nearest
from protonorm.core.text import listed
from protonorm.data.access import CHUNK, Unreadable, expand, hash_file, reason, require_file
from protonorm.data.prepared import Arrays, data_root, write_prepared
from protonorm.errors import NotFetched
from protonorm.files import make_folder, open_private

# All over https, which every owner offers, and with checksums. Fashion-MNIST comes from the repository of its owners:
# the address in their text is that of a bucket's web site, which supports http only.
TORONTO = "https://www.cs.toronto.edu/~kriz/"
OXFORD = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"
STANFORD = "https://cs231n.stanford.edu/"
ZALANDO = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"
DIGITS = "https://ossci-datasets.s3.amazonaws.com/mnist/"

WAIT = 30.0  # timeout in seconds without a byte
PARTIAL = 206  # HTTP status of a resumed download
MAX_MEMBER = 2**30  # maximum bytes of a member; the largest official one has 155 million


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


def _source(reader: str, url: str, *checksums: str, unpacked: bool = False) -> Source:
    """Return a source; a checksum is a line as `md5sum` writes it."""
    files = tuple(File(name, md5, url) for md5, name in map(str.split, checksums))
    return Source(files, Entry(f"protonorm.data.published.archives:{reader}", "reads the archive"), unpacked)


SOURCES: dict[str, tuple[Source, ...]] = {  # the first source is downloaded; any one is enough
    "cifar10": (
        _source("read_binary10", TORONTO, "c32a1d4ab5d03f1284b67883e8d87530 cifar-10-binary.tar.gz"),
        _source("read_python10", TORONTO, "c58f30108f718f92721af3b95e74349a cifar-10-python.tar.gz"),
    ),
    "cifar100": (
        _source("read_binary100", TORONTO, "03b5dce01913d631647c71ecec9e9cb8 cifar-100-binary.tar.gz"),
        _source("read_python100", TORONTO, "eb9058c3a382ffc7106e4002c42a8d85 cifar-100-python.tar.gz"),
    ),
    "flowers102": (
        _source(
            *("read_flowers", OXFORD),
            "52808999861908f626f3c1f4e79d11fa 102flowers.tgz",
            "e0620be6f572b9609742df49c70aed4d imagelabels.mat",
            "a5357ecc9cb78c4bef273ce3793fc85c setid.mat",
        ),
    ),
    "tinyimagenet": (_source("read_tinyimagenet", STANFORD, "90528d7ca1a48142e341f4ef8d21d0de tiny-imagenet-200.zip"),),
    "fashion-mnist": (
        _source(
            *("read_fashion", ZALANDO),
            "f4a8712d7a061bf5bd6d2ca38dc4d50a train-images-idx3-ubyte.gz",
            "9018921c3c673c538a1fc5bad174d6f9 train-labels-idx1-ubyte.gz",
            "8181f5470baa50b63fa0f6fddb340f0a t10k-images-idx3-ubyte.gz",
            "15d484375f8d13e6eb1aabb0c3f46965 t10k-labels-idx1-ubyte.gz",
            unpacked=True,
        ),
    ),
    "mnist": (
        _source(
            *("read_digits", DIGITS),
            "6bbc9ace898e44ae57da46a324031adb train-images-idx3-ubyte.gz",
            "a25bea736e30d166cdddb491f175f624 train-labels-idx1-ubyte.gz",
            "2646ac647ad5339dbf082846283269ea t10k-images-idx3-ubyte.gz",
            "27ae3e4e09519cfbb04c329615203637 t10k-labels-idx1-ubyte.gz",
            unpacked=True,
        ),
    ),
}


def prepare(
    name: str,
    folder: Path,
    root: Path | None = None,
    *,
    checksums: Mapping[str, str] | None = None,
    checked: bool = True,
) -> tuple[Path, Arrays]:
    """Create NAME.npz from official files, or any if not `checked`; `checksums` by file replace the official."""
    source, files = find_files(name, folder)
    if checked:
        expected = {file.name: file.md5 for file in source.files} | dict(checksums or {})
        for file, path in files.items():
            require_md5(path, expected[file], unpacked=source.unpacked)
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
    """Return the first source whose files are all in the folder, compressed or not, and their paths."""
    choices, folder = sources(name), expand(folder)
    if os.path.isfile(folder):
        folder = folder.parent
    if not os.path.isdir(folder):
        raise ValueError(f"There is no folder {folder}.")
    for source in choices:
        paths = {}
        for file in source.files:
            spellings = [file.name, file.name.removesuffix(".gz")] if source.unpacked else [file.name]
            if path := next((folder / spelling for spelling in spellings if os.path.exists(folder / spelling)), None):
                require_file(path)
                paths[file.name] = path
        if len(paths) == len(source.files):
            return source, paths
    raise ValueError(f"{folder} does not hold {wanted(name)}.")


def wanted(name: str) -> str:
    """Return the names of the files that a dataset is prepared from."""
    return " or ".join(listed([file.name for file in source.files]) for source in sources(name))


def require_md5(path: Path, md5: str, *, unpacked: bool) -> None:
    """Raise a ValueError if a file does not have the known checksum."""
    digest = hashlib.md5(usedforsecurity=False)
    if unpacked:
        digest.update(gunzip(path))
    else:
        with reading(path):
            hash_file(path, digest, f"Checking {path.name}")
    if digest.hexdigest() != md5:
        raise ValueError(
            f"{path} is not the official file, or it is incomplete: its md5 is {digest.hexdigest()}, expected {md5}. "
            "--no-check takes it all the same."
        )


def download(
    name: str, folder: Path, *, mirror: str | None = None, checksums: dict[str, str] | None = None, checked: bool = True
) -> list[Path]:
    """Download a dataset's archives into a folder; keep existing files with the right checksum."""
    source = sources(name)[0]
    make_folder(folder)
    for file in source.files:
        md5 = (checksums or {}).get(file.name, file.md5) if checked else None
        path, part = folder / file.name, folder / f"{file.name}.part"
        for existing in filter(Path.exists, (path, part)):
            require_file(existing)
        if path.exists() and not _damage(path, md5, source.unpacked):
            continue
        fetch(f"{(mirror or file.url).rstrip('/')}/{file.name}", part)
        if damage := _damage(part, md5, source.unpacked):
            part.unlink()  # resuming from wrong bytes cannot succeed
            raise damage
        os.replace(part, path)
    return [folder / file.name for file in source.files]


def _damage(path: Path, md5: str | None, unpacked: bool) -> ValueError | None:
    """Return the error of a file with another checksum than the known one; raise Unreadable if it cannot be read."""
    try:
        if md5 is not None:
            require_md5(path, md5, unpacked=unpacked)
    except Unreadable:
        raise
    except ValueError as error:
        return error
    return None


def fetch(url: str, part: Path) -> None:
    """Download a file, resuming after the bytes that already exist."""
    received = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "protonorm"})
    if received:
        request.add_header("Range", f"bytes={received}-")
    try:
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            resumed = answer.status == PARTIAL
            received = received if resumed else 0
            total = received + int(answer.headers.get("Content-Length") or 0)
            with open_private(part, "ab" if resumed else "wb") as file:
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                    received += len(chunk)
                    report(f"Downloading {part.stem}", received, total)
            if received < total:
                raise http.client.IncompleteRead(b"", total - received)
    except urllib.error.HTTPError as error:
        if error.code == 416 and received:  # the file is already complete
            return
        raise NotFetched(f"{url} cannot be downloaded: the server answers {error.code} {error.reason}.") from error
    except (OSError, http.client.HTTPException) as error:
        raise NotFetched(
            f"{url} cannot be downloaded ({getattr(error, 'reason', error)}); is there a network? "
            "What has come is kept, and the same command goes on from there."
        ) from error


def tar_members(path: Path, accepts: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of the wanted files of a .tar.gz, in archive order."""
    with reading(path), tarfile.open(path, "r:gz") as archive:
        for member in archive:
            name = _plain(member.name)
            if not member.isfile() or not accepts(name):
                continue
            _check_size(path, name, member.size)
            file = archive.extractfile(member)
            content = file.read() if file else b""
            if len(content) != member.size:
                raise EOFError(f"{name} ends early")
            yield name, content


def zip_members(path: Path, accepts: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of the wanted files of a .zip, sorted by name."""
    with reading(path), zipfile.ZipFile(path) as archive:
        for member in sorted(archive.infolist(), key=lambda member: member.filename):
            name = _plain(member.filename)
            if not member.is_dir() and accepts(name):
                _check_size(path, name, member.file_size)
                yield name, archive.read(member)


def zip_names(path: Path) -> list[str]:
    """List the files of a .zip, sorted."""
    with reading(path), zipfile.ZipFile(path) as archive:
        return sorted(_plain(member.filename) for member in archive.infolist() if not member.is_dir())


def gunzip(path: Path) -> bytes:
    """Read a file, decompressed if it is gzip."""
    with reading(path):
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            content = file.read(MAX_MEMBER + 1)
    _check_size(path, path.name, len(content))
    return content


def _plain(name: str) -> str:
    return str(PurePosixPath(name))  # without ./ and empty parts


def _check_size(path: Path, name: str, size: int) -> None:
    if size > MAX_MEMBER:
        raise ValueError(f"{name} in {path} has {size} bytes: it is not the official archive.")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Require a regular file, and convert the errors of a damaged archive to a ValueError."""
    require_file(path)
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged or incomplete ({error}).") from error
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {reason(error)}.") from error
