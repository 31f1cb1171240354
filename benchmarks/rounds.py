"""Whole ProtoNorm rounds on worker processes, against the bare limit and against the usual way.

The three take turns, a round each, so that a noisy machine slows all of them alike.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Self

import protonorm as pn
from protonorm.core import one_thread
from protonorm.core.randomness import cores
from protonorm.engines.processes import Processes

from .results import silent
from .running import MeasuredRun

COMMON: dict[str, Any] = {"clients": 20, "partition": {"name": "dirichlet", "alpha": 0.1}}
CIFAR: dict[str, Any] = COMMON | {"dataset": {"name": "cifar100", "samples": 15_000}}  # a quarter of all
ELSEWHERE: dict[str, Any] = COMMON | {"dataset": "fashion"}  # where CIFAR-100 is not prepared
FAMILIES = ("paper", "light", "cnn4")
WARM_UP = 2  # of our rounds: the balance learns costs from them; the others need none but get one
TURNS = 3


def measure(
    notify: Callable[[str], None] = silent,
    families: Sequence[str] = FAMILIES,
    turns: int = TURNS,
    settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Time rounds of the three ways in turns, for each family of networks."""
    settings = (settings or available(notify)) | {"validation": 0}  # the other ways have no pass over such a part
    cases = [measure_family(settings | {"models": family}, turns, notify) for family in families]
    return {"settings": settings, "processes": cores(), "turns": turns, "cases": cases}


def available(notify: Callable[[str], None]) -> dict[str, Any]:
    """Use CIFAR-100 where it is prepared, and say so where it is not."""
    try:
        pn.Experiment.of(CIFAR).dataset.load()
    except ValueError as error:
        notify(f"rounds: the embedded pictures instead of CIFAR-100. {error}")
        return ELSEWHERE
    return CIFAR


def measure_family(settings: dict[str, Any], turns: int, notify: Callable[[str], None]) -> dict[str, Any]:
    """Time one family."""
    with tempfile.TemporaryDirectory() as root, one_thread():
        ours = MeasuredRun(settings | {"rounds": WARM_UP + turns}, Path(root) / "run", Processes)
        notify(f"rounds: {settings['models']}, warming up")
        for _ in range(WARM_UP):
            ours.round_and_commit()
        with (
            Team("bare", settings, ours.assigned) as bare,
            Team("usual", settings, [sorted(id for part in ours.assigned for id in part)]) as usual,
        ):
            ways: dict[str, Callable[[], float]] = {
                "protonorm": ours.round_and_commit,
                "bare": bare.round,
                "usual": usual.round,
            }
            for name in ("bare", "usual"):
                ways[name]()
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(turns):
                notify(f"rounds: {settings['models']}, turn {turn + 1} of {turns}")
                for name, way in ways.items():
                    seconds[name].append(way())
        ours.close()
    return {"models": settings["models"], "pictures": ours.pictures, "seconds": seconds} | ratios(seconds)


def ratios(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Compare within each turn, and take the middle of the turns."""
    ours = seconds["protonorm"]
    return {
        f"against {name}": round(median(other / own for own, other in zip(ours, seconds[name], strict=True)), 3)
        for name in ("bare", "usual")
    }


class Team:
    """Processes that run clients in one of the other ways; a round ends when the last is done."""

    def __init__(self, way: str, settings: dict[str, Any], assigned: Sequence[Sequence[int]]) -> None:
        context = get_context("spawn")
        self._lines: list[Connection] = []
        self._processes = []
        for ids in assigned:
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(there, way, settings, list(ids)), daemon=True)
            process.start()
            self._lines.append(here)
            self._processes.append(process)
        for line in self._lines:
            line.recv()

    def round(self) -> float:
        """Run a round; give its seconds."""
        start = time.perf_counter()
        for line in self._lines:
            line.send("go")
        for line in self._lines:
            line.recv()
        return time.perf_counter() - start

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.join()


def serve(line: Connection, program: str, settings: dict[str, Any], ids: list[int]) -> None:
    """Be one of those processes."""
    module = import_module(f".{program}", __package__)
    clients = module.make_clients(settings, ids)
    line.send("ready")
    while line.recv():
        module.run_round(*clients)
        line.send("done")


def table(result: dict[str, Any]) -> list[list[str]]:
    """Show a line for each family, headings first."""
    heading = ["networks", "pictures", "seconds a round", "pictures a second"]
    head = [*heading, "bare limit (s)", "of the bare limit", "usual way (s)", "against the usual way"]
    return [head, *(_row(case) for case in result["cases"])]


def _row(case: dict[str, Any]) -> list[str]:
    ours, bare, common = (median(case["seconds"][name]) for name in ("protonorm", "bare", "usual"))
    speed = [f"{ours:.2f}", f"{case['pictures'] / ours:.0f}", f"{bare:.2f}", f"{case['against bare']:.2f}"]
    return [case["models"], f"{case['pictures']}", *speed, f"{common:.2f}", f"{case['against usual']:.1f}×"]
