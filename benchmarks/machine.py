"""Say what a result was measured on, and how much memory a process takes."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")


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
