"""Machine of a measurement, and the memory that a process takes."""

from __future__ import annotations

import os
import platform
import threading
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

STATUS = Path("/proc/self/status")
OFTEN = 0.1  # seconds between two looks at the memory


def facts() -> dict[str, Any]:
    """Describe the machine: what decides speed, and nothing that tells whose it is."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": processor(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
    }


def processor() -> str:
    """Name the processor, as far as the system tells."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def forget_peak() -> None:
    """Begin a new peak of this process's memory, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def memory(kind: str) -> float | None:
    """Read this process's memory in MB: VmRSS, what it has, or VmHWM, its peak; None where no system tells.

    Unlike the peak of `resource.getrusage`, this one does not begin with that of the process that started it.
    """
    with suppress(OSError):
        for line in STATUS.read_text().splitlines():
            if line.startswith(f"{kind}:"):
                return int(line.split()[1]) * 1024 / 1e6
    return None


def tree(pid: int) -> list[int]:
    """List a process and all that it started, and that those started (Linux)."""
    pids, waiting = [], [pid]
    while waiting:
        pids.append(waiting.pop())
        with suppress(OSError):
            for task in Path(f"/proc/{pids[-1]}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
    return pids


def tree_memory(pid: int) -> float | None:
    """Add up the memory in MB of a process and all that it started; what they share counts once (PSS)."""
    total, readable = 0, False
    for process in tree(pid):
        with suppress(OSError):
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total, readable = total + int(line.split()[1]), True
    return total * 1024 / 1e6 if readable else None


class TreePeak:
    """The peak of what this process and all that it started have in memory, looked at again and again."""

    def __init__(self) -> None:
        self.megabytes: float | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._end.wait(OFTEN):
            self._look()

    def _look(self) -> None:
        used = tree_memory(os.getpid())
        if used is not None:
            self.megabytes = max(used, self.megabytes or 0.0)
