"""Run the benchmarks named on the command line, or all: python -m benchmarks [NAME…]."""

import json
import sys
from importlib import import_module
from pathlib import Path

NAMES = ("workers",)
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run, print and keep the results."""
    names = sys.argv[1:] or NAMES
    for name in names:
        if name not in NAMES:
            sys.exit(f"There is no benchmark {name!r}; known: {', '.join(NAMES)}.")
        found = import_module(f"benchmarks.{name}").measure()
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")
        print(json.dumps(found, indent=2))


main()
