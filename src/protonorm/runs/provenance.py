"""Provenance of a run: command, repository of the working directory, versions and machine."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from protonorm.runs.schema import Provenance

VERSIONS = ("protonorm", "torch", "torchvision", "numpy")
PATIENCE = 10  # seconds for git
PATH = re.compile(r"(?P<before>^|[=:,])(?:~[^/=:,]*|[A-Za-z]:)?[/\\]+(?:[^/\\=:,]+[/\\]+)*(?=[^/\\=:,])")
GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
FILTERS = r"^filter\..*\.(clean|process|required)$"  # repository settings that name programs to run
STATUS = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")


def provenance(done: int, *, engine: str, device: str, threads: int) -> Provenance:
    """Collect the provenance of the rounds after `done`."""
    commit = _git("rev-parse", "--verify", "HEAD")
    changed = _git(*STATUS, without=_filters()) if commit else None
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
    """Return the versions that results may depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in VERSIONS}}


def command() -> str:
    """Return the command line of this process, as typed in a shell."""
    program, *words = sys.argv or [""]
    own = Path(program).stem == "protonorm" or Path(program).parts[-2:] == ("protonorm", "__main__.py")
    if own:
        return shlex.join(["protonorm", *words])
    typed = sys.orig_argv[: len(sys.orig_argv) - len(words)]
    if typed[-2:-1] == ["-m"] and sys.orig_argv[len(typed) :] == words:
        return shlex.join(["python", "-m", typed[-1], *words])
    return shlex.join(["python", program or "-", *words])


def without_folders(command: str) -> str:
    """Strip the folders of absolute paths from a command, to keep a machine's layout out of archives."""
    return shlex.join(PATH.sub(r"\g<before>", word) for word in shlex.split(command))


def _filters() -> list[str]:
    """List the settings of the current repository that make git start programs."""
    return (_git("config", "-z", "--name-only", "--get-regexp", FILTERS) or "").split("\0")[:-1]


def _git(*words: str, without: Sequence[str] = ()) -> str | None:
    """Return the output of a git command in the working directory; None without a repository or git.

    The command is read-only: it starts no program and fetches nothing that the repository's settings name. Settings
    listed in `without` are set to empty.
    """
    empty = {f"GIT_CONFIG_KEY_{number}": name for number, name in enumerate(without)}
    empty |= {f"GIT_CONFIG_VALUE_{number}": "" for number in range(len(without))}
    shut = os.environ | empty | {"GIT_CONFIG_COUNT": str(len(without)), "GIT_ALLOW_PROTOCOL": "none"}
    try:
        done = subprocess.run([*GIT, *words], env=shut, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip("\n")


def _cpu() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine() or "unknown"
