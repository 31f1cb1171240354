"""The file layer, interposed: count what is done to the files under one folder, and die at one of these operations.

Death is final: whatever is tried after it, by clean-up code too, does not reach the disk. All writing goes through one
of the functions below, whether it is asked for by `open`, `Path`, `shutil`, `tempfile` or `os`.
"""

import builtins
import io
import os
import re
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

MODES = ("before", "after", "torn")  # an operation that is not begun, that is done, and a write that is half done


class Killed(BaseException):
    """Stand for kill -9: nothing may catch it."""


class Operation(NamedTuple):
    """One thing that is done to a file."""

    kind: str
    path: str  # relative to the folder that is watched; N for what is random in a temporary name

    def __str__(self) -> str:
        return f"{self.kind} {self.path}"


class FileLayer:
    """Watches a folder while a block of code runs."""

    def __init__(self, root: Any, death: int | None = None, mode: str = "before") -> None:
        self.root = os.path.realpath(root)
        self.death, self.mode = death, mode
        self.dead = False
        self._busy = False  # an operation that another one consists of is not counted
        self.seen: list[Operation] = []
        self._names: dict[int, str] = {}  # of open files, by their numbers

    @contextmanager
    def watching(self):
        """Replace the real layer by this one."""
        one_path = ("unlink", "remove", "mkdir", "rmdir", "truncate", "chmod")
        two_paths = ("replace", "rename", "link", "symlink")
        numbered = ("fsync", "fdatasync", "ftruncate", "fchmod")
        changes = [(os, name, self._on_path(name, 0)) for name in one_path]
        changes += [(os, name, self._on_path(name, 1)) for name in two_paths]
        changes += [(os, name, self._on_path(name, 0)) for name in numbered if hasattr(os, name)]
        changes += [(os, "open", self._os_open(os.open)), (os, "write", self._os_write(os.write))]
        opened = self._open(io.open)
        changes += [(io, "open", opened), (builtins, "open", opened)]
        patches = [patch.object(owner, name, new) for owner, name, new in changes]
        for one in patches:
            one.start()
        try:
            yield self
        finally:
            for one in patches:
                one.stop()

    def act(self, kind, place, do, torn=None):
        """Do one operation, or die at it."""
        path = self._inside(place)
        if path is None or self._busy:
            return do()
        if self.dead:
            raise Killed
        self._busy = True
        try:
            return self._act(kind, path, do, torn)
        finally:
            self._busy = False

    def _act(self, kind, path, do, torn):
        number = len(self.seen)
        self.seen.append(Operation(kind, re.sub(r"(/\.[^/]*)\.[0-9a-f]{16}$", r"\1.N", path)))
        if number != self.death:
            return do()
        self.dead = True
        if self.mode == "after":
            result = do()
            if kind == "open":
                os.close(result) if isinstance(result, int) else result.close()
        elif self.mode == "torn" and torn:
            torn()
        raise Killed

    def _inside(self, place) -> str | None:
        """Name a path relative to the folder that is watched; None for one elsewhere."""
        if isinstance(place, int):
            place = self._names.get(place)
        if place is None:
            return None
        whole = os.path.join(os.path.realpath(os.path.dirname(os.fspath(place))), os.path.basename(os.fspath(place)))
        return os.path.relpath(whole, self.root) if whole.startswith(self.root + os.sep) else None

    def _on_path(self, name, which):
        real = getattr(os, name)

        def call(*places, **options):
            held = options.get("dir_fd")
            place = places[which]
            if held is not None and not isinstance(place, int):
                place = os.path.join(self._names.get(held, "/"), place)
            return self.act(name, place, lambda: real(*places, **options))

        return call

    def _os_open(self, real):
        def call(path, flags, mode=0o777, *, dir_fd=None):
            place = path if dir_fd is None else os.path.join(self._names.get(dir_fd, "/"), path)

            def do():
                number = real(path, flags, mode, dir_fd=dir_fd)
                self._names[number] = os.fspath(place)
                return number

            return self.act("open", place, do) if flags & WRITING else do()

        return call

    def _os_write(self, real):
        def call(number, content):
            half = memoryview(content)[: len(content) // 2]
            return self.act("write", number, lambda: real(number, content), lambda: real(number, half))

        return call

    def _open(self, real):
        def call(file, mode="r", *rest, **options):
            if not set(mode) & set("wax+"):
                return real(file, mode, *rest, **options)
            place = self._names.get(file) if isinstance(file, int) else file
            if place is None or self._inside(place) is None:
                return real(file, mode, *rest, **options)
            if isinstance(file, int):  # it was opened before
                return Writer(real(file, mode, *rest, **options), self, place)
            return self.act("open", place, lambda: Writer(real(file, mode, *rest, **options), self, place))

        return call


class Writer:
    """A file that is open for writing; what is written is in the file at once."""

    def __init__(self, file, layer: FileLayer, place) -> None:
        self._file, self._layer, self._place = file, layer, place

    def write(self, content):
        half = content[: len(content) // 2]
        return self._layer.act("write", self._place, lambda: self._put(content), lambda: self._put(half))

    def truncate(self, *size):
        return self._layer.act("truncate", self._place, lambda: self._file.truncate(*size))

    def _put(self, content):
        count = self._file.write(content)
        self._file.flush()
        return count

    def fileno(self):
        number = self._file.fileno()
        self._layer._names[number] = os.fspath(self._place)
        return number

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)
