"""Read the record of runs, and condense it. Nothing here needs torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from protonorm.files import parse_json, read_json, read_lines


@dataclass(frozen=True)
class Run:
    """A run as its folder tells it."""

    folder: Path
    about: dict[str, Any]  # experiment.json
    history: list[dict[str, Any]]  # metrics.jsonl, the committed rounds
    failure: dict[str, Any] | None  # failure.json: why it stopped

    @property
    def experiment(self) -> dict[str, Any]:
        """Give the settings."""
        return dict(self.about["experiment"])

    @property
    def finished(self) -> bool:
        """Tell whether all rounds are done."""
        return bool(len(self.history) == self.experiment["rounds"])

    def summary(self, rule: str | None = None) -> dict[str, Any] | None:
        """Condense the rounds under a rule; the method's headline if none is given."""
        return summary(self.history, rule or self.about["headline"])


def runs_root(out: Path | None = None) -> Path:
    """Find the folder of all runs: the one given, PROTONORM_RUNS, or ./runs."""
    return out or Path(os.environ.get("PROTONORM_RUNS") or "runs")


def find_runs(root: Path) -> list[Path]:
    """List the run folders under a root."""
    return sorted(path.parent for path in root.glob("*/experiment.json"))


def find_run(root: Path, name: str) -> Path:
    """Find a run by its folder, its name, or the beginning of its name."""
    for folder in (Path(name), root / name):
        if (folder / "experiment.json").exists():
            return folder
    matches = [folder for folder in find_runs(root) if folder.name.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    known = [folder.name for folder in matches or find_runs(root)]
    what = "Several runs begin with" if matches else "There is no run"
    raise ValueError(f"{what} {name!r} in {root}; there are: {', '.join(known) or 'none'}.")


def read_run(folder: Path) -> Run:
    """Read a run's folder."""
    if not (folder / "experiment.json").exists():
        raise ValueError(f"{folder} is not a run: it has no experiment.json.")
    return Run(folder, _read_about(folder / "experiment.json"), _read_history(folder), _read_failure(folder))


def damaged(path: Path, reason: str) -> ValueError:
    """Say what is wrong with a file of a record."""
    return ValueError(f"{path} is damaged: {reason}.")


def _read_about(path: Path) -> dict[str, Any]:
    about = read_json(path)
    if missing := {"experiment", "headline", "rules", "majority"} - set(about):
        raise damaged(path, f"it lacks {', '.join(sorted(missing))}")
    experiment, rules = about["experiment"], about["rules"]
    if not isinstance(experiment, dict) or type(rounds := experiment.get("rounds")) is not int or rounds < 0:
        raise damaged(path, "expected settings under experiment, and a whole number of rounds among them")
    if not isinstance(rules, list) or not rules or not all(isinstance(rule, str) for rule in rules):
        raise damaged(path, "expected the names of one or more prediction rules under rules")
    if about["headline"] not in rules:
        raise damaged(path, f"its headline {about['headline']!r} is none of its rules, {', '.join(rules)}")
    return about


def _read_history(folder: Path) -> list[dict[str, Any]]:
    path, done = folder / "metrics.jsonl", committed(folder)  # a run at work adds a line first and then commits it
    lines = read_lines(path)
    if len(lines) < done:
        raise damaged(path, f"{len(lines)} lines for {done} committed rounds")
    history = [parse_json(line, path) for line in lines[:done]]
    for number, line in enumerate(history, 1):
        if line.get("round") != number:
            raise damaged(path, f"line {number} is not that of round {number}")
        if not isinstance(line.get("rules"), dict):
            raise damaged(path, f"line {number} lacks the accuracy under each rule, rules")
    return history


def _read_failure(folder: Path) -> dict[str, Any] | None:
    path = folder / "failure.json"
    if not path.exists():
        return None
    found = read_json(path)
    if type(found.get("round")) is not int or not isinstance(found.get("reason"), str):
        raise damaged(path, "expected the round in which the run stopped, and the reason")
    return found


def committed(folder: Path) -> int:
    """Tell how many rounds of a run are committed."""
    path = folder / "server.safetensors"
    if not path.exists():
        return 0
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return int((file.metadata() or {})["stamp"].rsplit(" ", 1)[1])
    except (safetensors.SafetensorError, KeyError, ValueError, IndexError) as error:
        raise ValueError(f"{path} is not a state file of protonorm, or it is damaged ({error}).") from error


def stamp(key: str, node: str, round: int) -> str:
    """Say whose state after which round a file holds."""
    return f"{key} {node} {round}"


def summary(history: Sequence[Mapping[str, Any]], rule: str) -> dict[str, Any] | None:
    """Condense one rule's rounds: best and last round, and the mean of each client's own best."""
    rounds = [(line["round"], line["rules"][rule]) for line in history if line["rules"].get(rule)]
    if not rounds:
        return None
    own = np.array([[np.nan if one is None else one for one in value["clients"]] for _, value in rounds])  # (R, M)
    tested = ~np.isnan(own).all(0)
    return {
        "best": _brief(*max(rounds, key=lambda pair: pair[1]["pooled"])),
        "last": _brief(*rounds[-1]),
        "own_best": float(f"{np.nanmax(own[:, tested], 0).mean():.6g}"),
    }


def _brief(round: int, value: Mapping[str, Any]) -> dict[str, Any]:
    return {"round": round, **{name: value[name] for name in ("pooled", "mean", "worst")}}
