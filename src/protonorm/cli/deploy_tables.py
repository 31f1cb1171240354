"""How a federation or a client stands, in tables and lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from protonorm.cli.tables import Column, make_table
from protonorm.core.text import visible

CLIENTS = (
    Column("", "right"),
    Column("client", no_wrap=True),
    Column("connected"),
    Column("this round"),
    Column("last answer", "right"),
    Column("answers", "right"),
    Column("late", "right"),
    Column("refused", "right"),
    Column("problem"),
)
ACCURACY = (
    Column("round", "right"),
    Column("mean of clients", "right"),
    Column("all samples", "right"),
    Column("validation", "right"),
)
ROUNDS = 10  # whose accuracy is shown
WORDS = {"unknown": "-", "absent": "away"}  # for what a client did in a round


def federation_tables(seen: dict[str, Any]) -> Iterator[Any]:
    """Show how a federation stands: its clients, its rounds, and the last problems."""
    rows = [_client_row(one) for one in seen["clients"]]
    yield make_table(f"{seen['federation']}: {_standing(seen)}", CLIENTS, rows)
    lines = [f"Rounds: {seen['done']} of {seen['rounds']} are done; {_speed(seen)}."]
    if refused := {why: times for why, times in seen["refused"].items() if times}:
        lines.append("Answers refused: " + ", ".join(f"{times} {why}" for why, times in refused.items()) + ".")
    if seen["denied"]:
        lines.append(f"Requests that were not let in: {seen['denied']}.")
    if history := seen["history"]:
        yield "\n".join(lines)
        lines = []
        yield make_table("Accuracy so far, in per cent", ACCURACY, map(_accuracy_row, history[-ROUNDS:]), _rule(seen))
    elif seen["done"]:
        lines.append("No accuracy yet: no client has been evaluated, or their owners do not tell it.")
    if "record" in seen:
        lines.append(visible(seen["record"]))
    lines += [visible(f"{one['time']} {one['text']}") for one in seen["problems"]]
    if lines:
        yield "\n".join(lines)


def client_lines(seen: dict[str, Any]) -> str:
    """Show how a client stands on its own machine."""
    state = f"running, as process {seen['process']}" if seen["running"] else "not running"
    joined = "its agreement is confirmed" if seen["joined"] else "no agreement is confirmed yet"
    data = seen["data"] if isinstance(seen["data"], str) else seen["data"].get("path", "")
    lines = [
        f"Client {seen['name']}: {state}; {joined}.",
        f"data: {data or 'none yet'}; network: {seen['model'] or 'as agreed on'}; evaluation: {seen['allowed']}",
        *(f"{one['time']} {one['text']}" for one in seen["events"]),
    ]
    return "\n".join(map(visible, lines))


def _standing(seen: dict[str, Any]) -> str:
    server = "the server is running" if seen["server"]["running"] else "the server is not running"
    said = f"{server}; {seen['means']}"
    if seen["state"] in ("running", "waiting"):
        said += f": round {seen['round']} of {seen['rounds']}, {seen['needed']} of {len(seen['clients'])} must answer"
    elif seen["state"] == "failed":
        said += f": {seen['text']}"
    return said


def _speed(seen: dict[str, Any]) -> str:
    if not seen["done"] or not seen["seconds"]:
        return f"clients have {seen['deadline']:g} seconds in a round"
    carried = (seen["bytes_up"] + seen["bytes_down"]) / 2**20
    return f"the last took {seen['last_seconds']:.1f} seconds; {carried:.1f} MiB went over the wire"


def _client_row(one: dict[str, Any]) -> list[str]:
    last = f"round {one['answered']}" if one["answered"] else "-"
    return [
        str(one["id"]),
        one["name"],
        "yes" if one["here"] else "no",
        WORDS.get(one["state"], one["state"]),
        last,
        *(str(one[name]) for name in ("answers", "late", "refused")),
        one["said"],
    ]


def _accuracy_row(one: dict[str, Any]) -> list[str]:
    values = [one[name] for name in ("test", "pooled", "validation")]
    return [str(one["round"]), *("-" if value is None else f"{100 * value:.2f}" for value in values)]


def _rule(seen: dict[str, Any]) -> str:
    return f"Rule {seen['rule']}, on what clients test and validate on, as far as their owners tell it."
