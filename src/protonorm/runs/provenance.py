"""Where a run's numbers come from: the command, the user's repository, versions, and the machine."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from protonorm.runs.schema import Provenance

VERSIONS = ("protonorm", "torch", "torchvision", "numpy")
PATIENCE = 10  # seconds for git
PATH = re.compile(r"(?P<before>^|[=:,])(?:~[^/=:,]*|[A-Za-z]:)?[/\\]+(?:[^/\\=:,]+[/\\]+)*(?=[^/\\=:,])")
GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")  # only looks, and starts nothing


def provenance(done: int, *, engine: str, device: str, threads: int) -> Provenance:
    """Say where the rounds after so many come from."""
    commit = _git("rev-parse", "--verify", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no") if commit else None
    return Provenance(
        done=done,
        command=command(),
        commit=commit,
        dirty=None if changed is None else bool(changed),
        versions=versions(),
        platform=platform.platform(),
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=threads,
        engine=engine,
        device=device,
    )


def versions() -> dict[str, str]:
    """Name what results may depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in VERSIONS}}


def command() -> str:
    """Write the command that this process was started with, as one types it."""
    program, *words = sys.argv or [""]
    own = Path(program).stem == "protonorm" or Path(program).parts[-2:] == ("protonorm", "__main__.py")
    if own:
        return shlex.join(["protonorm", *words])
    typed = sys.orig_argv[: len(sys.orig_argv) - len(words)]
    if typed[-2:-1] == ["-m"] and sys.orig_argv[len(typed) :] == words:
        return shlex.join(["python", "-m", typed[-1], *words])
    return shlex.join(["python", program or "-", *words])


def without_folders(command: str) -> str:
    """Leave of absolute paths in a command only the last part: where a machine keeps things matters to nobody else."""
    return shlex.join(PATH.sub(r"\g<before>", word) for word in shlex.split(command))


def _git(*words: str) -> str | None:
    """Ask git about the repository of the current folder; None if there is none, or no git."""
    try:
        done = subprocess.run([*GIT, *words], capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()


def _cpu() -> str:
    """Name the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine() or "unknown"
