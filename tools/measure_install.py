"""Install a wheel in a fresh environment, and print the table of docs/install.md: sizes, and how long things take.

    python -m build --wheel && python tools/measure_install.py dist/protonorm-*.whl

The environment is made in a temporary folder. Times to start are medians of ten, after one that does not count.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUIET = ("install", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "-c", str(ROOT / "constraints.txt"))
REPEATS = 10


def timed(*words: str) -> tuple[float, float]:
    """Run a command that must go well; give its seconds by the clock and those it computed, on all cores."""
    start, before = time.perf_counter(), os.times()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=dict(os.environ, PYTHONPATH=""), cwd="/")
    after = os.times()
    computed = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, computed


def size(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if not path.is_symlink())


def main() -> None:
    """Measure, and print lines of a Markdown table."""
    wheel = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, "-m", "venv", name], check=True)
        pip, program = str(folder / "bin" / "pip"), str(folder / "bin" / "protonorm")
        empty = size(folder)
        torch, _ = timed(pip, *QUIET, "torch", "torchvision")
        with_torch = size(folder)
        remaining, _ = timed(pip, *QUIET, str(wheel))
        total = size(folder)
        starts = {}
        for option in ("--help", "--version"):
            timed(program, option)
            clock, computed = zip(*(timed(program, option) for _ in range(REPEATS)), strict=True)
            starts[option] = f"{statistics.median(clock):.2f} s, of which {statistics.median(computed):.2f} s computing"
        (packages,) = (folder / "lib").glob("python*/site-packages")
        own = size(packages / "protonorm")
    rows = {
        "the wheel": f"{wheel.stat().st_size / 1e6:.1f} MB",
        "the package, installed": f"{own / 1e6:.1f} MB",
        "torch and torchvision, and what they need": f"{(with_torch - empty) / 1e6:,.0f} MB, {torch:.0f} s",
        "the package, and what else it needs": f"{(total - with_torch) / 1e6:,.0f} MB, {remaining:.0f} s",
        "the whole environment": f"{total / 1e6:,.0f} MB, {torch + remaining:.0f} s",
        "`protonorm --help`": starts["--help"],
        "`protonorm --version`": starts["--version"],
    }
    print("| what | measured |\n|---|---|")
    print("\n".join(f"| {measure} | {number} |" for measure, number in rows.items()))
    machine = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    print(f"\n{machine}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
