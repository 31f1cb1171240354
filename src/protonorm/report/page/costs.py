"""What runs cost: bytes up and down, and seconds."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from protonorm.files import parse_json, read_lines
from protonorm.history import Run, damaged
from protonorm.report.page.check import is_number
from protonorm.report.page.groups import Groups
from protonorm.report.page.lines import chart, curve_of, over_seeds
from protonorm.report.page.words import duration, listed, size


def traffic(groups: Groups) -> list[dict[str, Any]]:
    """Count each method's bytes, as means over seeds: in the last round, and in all rounds so far."""
    found = []
    for slot, (name, runs) in enumerate(groups.items()):
        one: dict[str, Any] = {"name": name, "slot": slot}
        for way in ("up", "down"):
            counts = [[line["bytes"][way] for line in run.history] for run in runs]
            one[way] = round(fmean(sum(values) for values in counts))
            one[f"round_{way}"] = round(fmean(values[-1] if values else 0 for values in counts))
        found.append(one)
    return found


def traffic_words(rows: list[dict[str, Any]]) -> str:
    """Say what was sent in all."""
    return "Sent in all rounds: " + listed([f"{row['name']} {size(row['up'] + row['down'])}" for row in rows]) + "."


def byte_charts(groups: Groups) -> list[dict[str, Any]]:
    """Draw what all clients together send and are sent in each round."""
    return [_byte_chart(groups, "up"), _byte_chart(groups, "down")]


def _byte_chart(groups: Groups, way: str) -> dict[str, Any]:
    lines = []
    for slot, (name, runs) in enumerate(groups.items()):
        sent = [curve_of(run.history, lambda line: line["bytes"][way]) for run in runs]
        lines.append(over_seeds(name, slot, sent, 1e-3))
    known = [line for line in lines if line["x"]]
    ends = [f"{line['name']} {size(1000 * line['y'][-1])}" for line in known]
    words = f"In the last round, all clients together: {listed(ends)}." if ends else "No round is done yet."
    return chart(f"bytes-{way}", f"Bytes {way}, a round", f"kB {way}", known, words, zero=True)


def seconds_chart(groups: Groups) -> dict[str, Any]:
    """Draw the seconds of each round."""
    lines = []
    for slot, (name, runs) in enumerate(groups.items()):
        lines.append(over_seeds(name, slot, [seconds(run) for run in runs]))
    known = [line for line in lines if line["x"]]
    totals = [f"{name} {duration(total_seconds(runs[0]))}" for name, runs in groups.items() if seconds(runs[0])]
    words = f"All rounds together (first seed): {listed(totals)}." if totals else "There are no times on record."
    lacking = {(name, run.experiment["seed"]): untimed(run) for name, runs in groups.items() for run in runs}
    words += "".join(f" {name}, seed {seed}: {told}." for (name, seed), told in lacking.items() if told)
    return chart("seconds", "Seconds a round", "seconds", known, words, zero=True)


def seconds(run: Run) -> dict[int, float]:
    """Read how long each committed round took."""
    path = run.folder / "timings.jsonl"
    lines: list[Mapping[str, Any]] = [parse_json(line, path) for line in read_lines(path)[: len(run.history)]]
    if wrong := [number for number, line in enumerate(lines, 1) if not is_number(line.get("round", 0.0))]:
        raise damaged(path, f"the seconds of round {wrong[0]} are not a number")
    return {number: float(line["round"]) for number, line in enumerate(lines, 1) if "round" in line}


def untimed(run: Run) -> str:
    """Say how many rounds have a time, if not all of them; else nothing."""
    held, rounds = len(seconds(run)), len(run.history)
    return f"timings.jsonl holds the times of {held} of {rounds} rounds" if held < rounds else ""


def total_seconds(run: Run) -> float:
    """Add up the rounds."""
    return sum(seconds(run).values())
