"""Whole rounds of two checkouts of the repository, taking turns, so that a noisy machine slows both alike.

    python benchmarks/versions.py A B --family light --samples 15000 --rounds 4 --turns 5
    python benchmarks/versions.py A B --compare --turns 5

Every turn runs the same experiment with each checkout, as a process of its own into a fresh folder, and reads the
seconds of its rounds from the record; the first round, in which processes warm up, does not count. The ratio A/B of a
turn is above 1 where B is faster; the median of the turns is printed last. Where a setting has another name in one of
the checkouts, give it with --only-a or --only-b. A checkout that holds samples out for validation is told not to, as
older ones do not: both train and evaluate on the same samples.

With --compare the command `compare` is timed instead, from its start to its end, on six tiny runs that are finished.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

DATA, ELSEWHERE = "cifar100", "fashion"  # the latter where the former is not prepared
WORKERS = 2
COMPARED = ["protonorm", "fedproto", "dataset=spiral", "clients=4", "rounds=2", "seeds=0,1"]  # local is added: six runs


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print each turn and the median ratio."""
    options = parse(words)
    if options.compare:
        compare(options)
        return
    shared = settings(options)
    print(f"A: {options.a}\nB: {options.b}\n{' '.join(shared)}")
    print("turn  A, s a round  B, s a round     A/B")
    ratios = []
    rivals = {
        name: (checkout, [*like_others(checkout), *own])
        for name, checkout, own in (("A", options.a, options.only_a), ("B", options.b, options.only_b))
    }
    for turn in range(options.turns):
        order = list(rivals) if turn % 2 == 0 else list(rivals)[::-1]  # neither is always the first
        seconds = {name: typical(rivals[name][0], [*shared, *rivals[name][1]]) for name in order}
        ratios.append(seconds["A"] / seconds["B"])
        print(f"{turn + 1:4d}  {seconds['A']:12.3f}  {seconds['B']:12.3f}  {ratios[-1]:6.3f}", flush=True)
    print(f"median A/B: {median(ratios):.3f}")


def compare(options: argparse.Namespace) -> None:
    """Time finished comparisons, after two that are not counted: one runs, the other finds all done."""
    print(f"A: {options.a}\nB: {options.b}\n{' '.join(COMPARED)}\nturn  A, s           B, s               A/B")
    ratios = []
    with tempfile.TemporaryDirectory(prefix="protonorm-versions-") as folder:
        rivals = {name: (getattr(options, name), Path(folder) / name) for name in ("a", "b")}
        for checkout, out in rivals.values():
            compared_seconds(checkout, out)
            compared_seconds(checkout, out)
        for turn in range(options.turns):
            order = list(rivals) if turn % 2 == 0 else list(rivals)[::-1]
            seconds = {name: compared_seconds(*rivals[name]) for name in order}
            ratios.append(seconds["a"] / seconds["b"])
            print(f"{turn + 1:4d}  {seconds['a']:12.3f}  {seconds['b']:12.3f}  {ratios[-1]:6.3f}", flush=True)
    print(f"median A/B: {median(ratios):.3f}")


def compared_seconds(checkout: Path, out: Path) -> float:
    """Time one comparison with a checkout's code."""
    start = time.perf_counter()
    with_code_of(checkout, ["-m", "protonorm", "compare", *COMPARED, "--engine", "serial", "--out", str(out)])
    return time.perf_counter() - start


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Compare whole rounds of two checkouts of the repository, taking turns; above 1, B is faster."
    )
    parser.add_argument("a", type=Path, help="a checkout, such as one of an older commit")
    parser.add_argument("b", type=Path, help="another checkout")
    parser.add_argument("settings", nargs="*", help="further settings for both, such as algorithm=fedproto")
    parser.add_argument("--family", default="light", help="the family of networks (default: light)")
    parser.add_argument("--dataset", help=f"the data set; {DATA} if it is prepared, else {ELSEWHERE}")
    parser.add_argument("--samples", type=int, help="so many of the data set's samples; all if not given")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=4, help="rounds of each run; at least 2 (default: 4)")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--compare", action="store_true", help="time finished comparisons instead of rounds")
    parser.add_argument("--only-a", action="append", default=[], metavar="KEY=VALUE", help="a setting for A alone")
    parser.add_argument("--only-b", action="append", default=[], metavar="KEY=VALUE", help="a setting for B alone")
    options = parser.parse_intermixed_args(words)
    for checkout in (options.a, options.b):
        if not (checkout / "src" / "protonorm").is_dir():
            parser.error(f"{checkout} is not a checkout: it has no src/protonorm.")
    if options.rounds < 2 or options.turns < 1:
        parser.error("expected at least 2 rounds, of which the first does not count, and at least 1 turn.")
    return options


def settings(options: argparse.Namespace) -> list[str]:
    """Write the experiment as words of the command line, in a form that both checkouts understand."""
    dataset = options.dataset or (DATA if is_prepared(DATA) else ELSEWHERE)
    samples = [f"dataset.samples={options.samples}"] if options.samples else []
    network = [f"models={options.family}", f"clients={options.clients}", f"rounds={options.rounds}"]
    return [f"dataset={dataset}", *samples, *network, "partition=dirichlet", "partition.alpha=0.1", *options.settings]


def like_others(checkout: Path) -> list[str]:
    """Turn validation off in a checkout that has it."""
    code = "import protonorm; print('validation' in protonorm.Experiment.model_fields)"
    done = with_code_of(checkout, ["-c", code])
    return ["validation=0"] if done.stdout.strip() == "True" else []


def is_prepared(dataset: str) -> bool:
    """Return whether a data set's file is in the folder that PROTONORM_DATA names."""
    folder = os.environ.get("PROTONORM_DATA")
    return bool(folder) and (Path(str(folder)) / f"{dataset}.npz").is_file()


def typical(checkout: Path, words: Sequence[str]) -> float:
    """Run an experiment with a checkout's code; give the median seconds of its rounds but the first."""
    with tempfile.TemporaryDirectory(prefix="protonorm-versions-") as folder:
        options = ["--engine", "processes", "--workers", str(WORKERS), "--out", folder, "--json"]
        with_code_of(checkout, ["-m", "protonorm", "run", *words, *options])
        (path,) = Path(folder).glob("*/timings.jsonl")
        return median(round_seconds(path)[1:])


def with_code_of(checkout: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run Python with a checkout's code; end with what it complained of if it fails."""
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve() / "src")}
    command = [sys.executable, "-P", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{checkout} failed:\n{done.stderr}")
    return done


def round_seconds(path: Path) -> list[float]:
    """Read how long each round took; older and newer records both have it under `round`."""
    return [float(json.loads(line)["round"]) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
