"""Provenance of a run: command, repository of the working directory, versions and machine."""

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from protonorm.runs.schema import Provenance

VERSIONS = ("protonorm", "torch", "torchvision", "numpy")
PATIENCE = 10  # seconds for git
PATH = re.compile(r"(?P<before>^|[=:,])(?:~[^/=:,]*|[A-Za-z]:)?[/\\]+(?:[^/\\=:,]+[/\\]+)*(?=[^/\\=:,])")
GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
FILTERS = re.compile(r"filter\..*\.(clean|process|required)", re.DOTALL)  # repository settings that name programs
STATUS = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")


def provenance(done: int, *, engine: str, device: str, threads: int) -> Provenance:
    """Collect the provenance of the rounds after `done`."""
    commit = _git("rev-parse", "--verify", "HEAD")
    names = _git("config", "-z", "--name-only", "--list") if commit else None
    filters = [name for name in (names or "").split("\0") if FILTERS.fullmatch(name)]
    changed = None if names is None else _git(*STATUS, without=filters)  # never with unknown settings
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
    if Path(program).stem == "protonorm" or Path(program).parts[-2:] == ("protonorm", "__main__.py"):
        return shlex.join(["protonorm", *words])
    typed = sys.orig_argv[: len(sys.orig_argv) - len(words)]
    if typed[-2:-1] == ["-m"] and sys.orig_argv[len(typed) :] == words:
        return shlex.join(["python", "-m", typed[-1], *words])
    return shlex.join(["python", program or "-", *words])


def without_folders(command: str) -> str:
    """Strip the folders of absolute paths from a command, to keep a machine's layout out of archives."""
    return shlex.join(PATH.sub(r"\g<before>", word) for word in shlex.split(command))


def _git(*words: str, without: Sequence[str] = ()) -> str | None:
    """Return the output of a git command in the working directory; None without a repository or git.

    The command is read-only: it starts no program and fetches nothing that the repository's settings name. Settings
    listed in `without` are set to empty.
    """
    empty = {f"GIT_CONFIG_KEY_{number}": name for number, name in enumerate(without)}
    empty |= {f"GIT_CONFIG_VALUE_{number}": "" for number in range(len(without))}
    environment = os.environ | empty | {"GIT_CONFIG_COUNT": str(len(without)), "GIT_ALLOW_PROTOCOL": "none"}
    try:
        process = subprocess.run([*GIT, *words], env=environment, capture_output=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return os.fsdecode(process.stdout).strip("\n")


def _cpu() -> str:
    """Return the processor's name."""
    with suppress(OSError):
        if match := re.search(r"^model name.*?:[ \t]*(.*\S)", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return match[1]
    return platform.processor() or platform.machine() or "unknown"
