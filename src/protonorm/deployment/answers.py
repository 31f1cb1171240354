"""The last answer that a client gave, on its own disk: the same request costs nothing, also after a crash.

32 bytes   SHA-256 of the request, and of what its owner allowed and how it trains
32 bytes   SHA-256 of the answer
answer     as it was sent
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from protonorm.files import replace

FILE = "answer.bin"
DIGEST = 32  # bytes of a SHA-256


def request_key(settings: str, content: bytes) -> bytes:
    """Tell one request from another, and the settings of its owner by which it was answered."""
    return hashlib.sha256(settings.encode() + b"\0" + content).digest()


class LastAnswer:
    """One file. What is damaged in it is as good as nothing: an answer can be computed again."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def find(self, key: bytes) -> bytes | None:
        """Give the answer to a request, if it was the last one."""
        try:
            with self.path.open("rb") as file:
                if file.read(DIGEST) != key:
                    return None
                digest, answer = file.read(DIGEST), file.read()
        except OSError:
            return None
        return answer if hashlib.sha256(answer).digest() == digest else None

    def keep(self, key: bytes, answer: bytes) -> None:
        """Write an answer in the place of the one before; a full disk is no reason not to send it."""
        with suppress(OSError):
            replace(self.path, key + hashlib.sha256(answer).digest() + answer)

    def forget(self) -> None:
        """Remove it."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)
