"""Measure where exchange pays: the runs of docs/exchange.md, and its tables from what has been run.

    python -m tools.exchange tune            learning rate, γ and rule of each method, on a seed that no table has
    python -m tools.exchange table           the methods of one cell, three seeds, with what `tune` chose
    python -m tools.exchange ablation        Duet without each of its parts, in the same cell
    python -m tools.exchange map             clients × samples × α, one seed
    python -m tools.exchange tables          nothing is run: the tables of all that is there, in Markdown

Runs are ordinary ones in --runs; what is done is not run again, so that a stage that was stopped goes on. The same
command may be started several times side by side, with --workers 1 each: what one is at, the others leave to it. The
pictures are written to --data once.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.exchange.jobs import CENTRE, METHODS, write_fresh_pictures
from tools.exchange.tables import TABLES
from tools.exchange.work import Work


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="+", choices=["tune", "table", "ablation", "map", "tables"])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument(
        "--data", type=Path, default=Path("fresh-pictures"), help="folder for the pictures that are used"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--only", action="append", choices=list(METHODS), help="a method that is run; several may be given"
    )
    arguments = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    work = Work(arguments.runs, arguments.data, arguments.workers)
    for stage in arguments.stages:
        if stage == "tables":
            print("\n".join(f"{name}\n\n{make(work)}" for name, make in TABLES.items()))
        else:
            write_fresh_pictures(arguments.data, CENTRE.dataset)
            work.run(stage, arguments.only or METHODS)


if __name__ == "__main__":
    main()
