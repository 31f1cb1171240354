"""Download official archives: go on where a download stopped, and keep only files with the known checksum."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from protonorm.core.progress import report
from protonorm.data.access import CHUNK, Unreadable, require_file
from protonorm.data.published.archives import File
from protonorm.data.published.prepare import require_md5, sources
from protonorm.errors import NotFetched
from protonorm.files import make_folder, open_private

WAIT = 30.0  # seconds without a byte
PARTIAL = 206  # the status of an answer that goes on where we asked


def download(
    name: str,
    folder: Path,
    *,
    mirror: str | None = None,
    checksums: dict[str, str] | None = None,
    checked: bool = True,
) -> list[Path]:
    """Download a data set's archives into a folder; files that are there already and right are kept."""
    source = sources(name)[0]
    make_folder(folder)
    found = []
    for file in source.files:
        md5 = (checksums or {}).get(file.name, file.md5) if checked else None
        found.append(_fetch_checked(file, folder, mirror, md5, source.unpacked))
    return found


def _fetch_checked(file: File, folder: Path, mirror: str | None, md5: str | None, unpacked: bool) -> Path:
    path, part = folder / file.name, folder / f"{file.name}.part"
    for found in (path, part):
        if found.exists():
            require_file(found)
    if path.exists() and (md5 is None or _is_right(path, md5, unpacked)):
        return path
    fetch(f"{(mirror or file.url).rstrip('/')}/{file.name}", part)
    if md5 is not None:
        try:
            require_md5(part, md5, unpacked=unpacked)
        except Unreadable:
            raise
        except ValueError:
            part.unlink()  # going on from here would never become right
            raise
    os.replace(part, path)
    return path


def _is_right(path: Path, md5: str, unpacked: bool) -> bool:
    try:
        require_md5(path, md5, unpacked=unpacked)
    except Unreadable:
        raise
    except ValueError:
        return False
    return True


def fetch(url: str, part: Path) -> None:
    """Download a file, after the bytes that are there already."""
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
        if error.code == 416 and have:  # nothing comes after what is there
            return
        raise NotFetched(f"{url} cannot be downloaded: the server answers {error.code} {error.reason}.") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise NotFetched(
            f"{url} cannot be downloaded ({reason}); is there a network? What has come is kept, "
            "and the same command goes on from there."
        ) from error
