"""What runs cost: bytes up and down, and seconds."""

from __future__ import annotations

from statistics import fmean
from typing import Any, Literal

from protonorm.report.page.curves import by_round, chart, over_seeds
from protonorm.report.page.groups import Groups
from protonorm.report.page.text import duration, listed, size
from protonorm.runs.run import Run
from protonorm.runs.schema import RoundRecord

Direction = Literal["up", "down"]


def traffic(groups: Groups) -> list[dict[str, Any]]:
    """Count each method's bytes, as means over seeds: in the last round, and in all rounds so far."""
    found = []
    for slot, (name, runs) in enumerate(groups.items()):
        one: dict[str, Any] = {"name": name, "slot": slot}
        ways: tuple[Direction, ...] = ("up", "down")
        for way in ways:
            counts = [[sent(record, way) for record in run.rounds] for run in runs]
            one[way] = round(fmean(sum(values) for values in counts))
            one[f"round_{way}"] = round(fmean(values[-1] if values else 0 for values in counts))
        found.append(one)
    return found


def traffic_conclusion(rows: list[dict[str, Any]]) -> str:
    """Say how much was sent in all rounds."""
    return "Sent in all rounds: " + listed([f"{row['name']} {size(row['up'] + row['down'])}" for row in rows]) + "."


def byte_charts(groups: Groups) -> list[dict[str, Any]]:
    """Draw what all clients together send and are sent in each round."""
    return [_byte_chart(groups, "up"), _byte_chart(groups, "down")]


def sent(record: RoundRecord, way: Direction) -> int:
    """Give the bytes that a round's clients sent, or were sent."""
    return record.bytes.up if way == "up" else record.bytes.down


def total_bytes(run: Run) -> int:
    """Add up the bytes of all rounds, up and down."""
    return sum(record.bytes.up + record.bytes.down for record in run.rounds)


def seconds_chart(groups: Groups) -> dict[str, Any]:
    """Draw the seconds of each round."""
    lines = [over_seeds(name, slot, [run.seconds for run in runs]) for slot, (name, runs) in enumerate(groups.items())]
    known = [line for line in lines if line["x"]]
    totals = [f"{name} {duration(total_seconds(runs[0]))}" for name, runs in groups.items() if runs[0].seconds]
    told = f"All rounds together (first seed): {listed(totals)}." if totals else "There are no times on record."
    lacking = {(name, run.info.experiment.seed): untimed(run) for name, runs in groups.items() for run in runs}
    told += "".join(f" {name}, seed {seed}: {one}." for (name, seed), one in lacking.items() if one)
    return chart("seconds", "Seconds a round", "seconds", known, told, zero=True)


def untimed(run: Run) -> str:
    """Say how many rounds have a time, if not all of them; else nothing."""
    held, rounds = len(run.seconds), len(run.rounds)
    return f"timings.jsonl holds the times of {held} of {rounds} rounds" if held < rounds else ""


def total_seconds(run: Run) -> float:
    """Add up the times of all rounds."""
    return sum(run.seconds.values())


def _byte_chart(groups: Groups, way: Direction) -> dict[str, Any]:
    lines = []
    for slot, (name, runs) in enumerate(groups.items()):
        curves = [by_round(run, lambda record: sent(record, way)) for run in runs]
        lines.append(over_seeds(name, slot, curves, 1e-3))
    known = [line for line in lines if line["x"]]
    ends = [f"{line['name']} {size(1000 * line['y'][-1])}" for line in known]
    told = f"In the last round, all clients together: {listed(ends)}." if ends else "No round is done yet."
    return chart(f"bytes-{way}", f"Bytes {way}, a round", f"kB {way}", known, told, zero=True)
