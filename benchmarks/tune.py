"""What a search needs to find a good γ, against a grid: ProtoNorm on `fashion`, γ from 10 to 1,000.

The grid has twelve values, each run to its end. The search may use half of the grid's rounds. Both choose by validation
accuracy; then both choices are run with seeds that neither has seen, and tested.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from protonorm.search.grid import read_grid
from protonorm.search.scores import scores_of, winners
from protonorm.search.space import read_space
from protonorm.search.sweeping import Sweep, how_many
from protonorm.search.tuning import Search, best_trial, used_rounds

from .results import silent

WORDS = ["dataset=fashion", "models=light", "clients=20", "partition=dirichlet", "partition.alpha=0.1", "rounds=20"]
LOW, HIGH, POINTS = 10, 1000, 12
TRIALS, FRESH = 60, 3


def measure(
    notify: Callable[[str], None] = silent,
    words: list[str] = WORDS,
    points: int = POINTS,
    fresh: int = FRESH,
    engine: str | None = None,
) -> dict[str, Any]:
    """Run the grid and the search, and compare what they choose."""
    with tempfile.TemporaryDirectory() as folder:
        gammas = [float(f"{LOW * (HIGH / LOW) ** (position / (points - 1)):.4g}") for position in range(points)]
        listed = ",".join(f"{gamma:g}" for gamma in gammas)
        sweep = Sweep(read_grid(["protonorm", *words, f"algorithm.gamma={listed}"]), Path(folder))
        jobs = sweep.jobs()
        notify(f"tune: a grid of {points} runs")
        sweep.run(jobs, notify, count=how_many(len(jobs), None, engine, None), engine=engine)
        scores = scores_of(sweep)
        (best,) = winners(scores)
        search = Search(read_space(["protonorm", *words, f"gamma={LOW}..{HIGH}:log"]), Path(folder), engine)
        rounds = sum(job.rounds for job in jobs)
        notify(f"tune: a search of {rounds // 2} rounds")
        trials = search.run(TRIALS, budget=rounds // 2, notify=lambda trial: notify(str(trial)))
        searched = best_trial(trials)
        assert searched is not None
        assert searched.validation is not None
        assert best.validation is not None
        notify(f"tune: both choices with {fresh} fresh seeds")
        chosen = {
            "grid": {"algorithm.gamma": float(best.point.chosen["algorithm.gamma"])},
            "search": searched.values,
        }
        tested = {name: _tested(search, values, fresh) for name, values in chosen.items()}
    return {
        "experiment": words,
        "grid": {
            "rounds": rounds,
            "gamma": chosen["grid"]["algorithm.gamma"],
            "validation": best.validation.mean,
            "test, fresh seeds": tested["grid"],
            "all": {
                str(score.point.chosen["algorithm.gamma"]): score.validation.mean
                for score in scores
                if score.validation
            },
        },
        "search": {
            "rounds": used_rounds(trials),
            "trials": len(trials),
            "gamma": chosen["search"]["algorithm.gamma"],
            "validation": searched.validation,
            "test, fresh seeds": tested["search"],
        },
        "points behind in validation": round(100 * (best.validation.mean - searched.validation), 2),
        "points behind in test": round(100 * (tested["grid"] - tested["search"]), 2),
    }


def _tested(search: Search, values: dict[str, Any], fresh: int) -> float:
    """Return the mean pooled test accuracy over fresh seeds, in the rounds that validation chooses."""
    accuracies = []
    for run in search.confirm(values, fresh):
        assert run.chosen is not None
        scores = run.chosen.record.rules[run.info.headline]
        assert scores is not None
        accuracies.append(scores.pooled)
    return fmean(accuracies)


def table(result: dict[str, Any]) -> list[list[str]]:
    """Show a line for the grid and one for the search, headings first."""
    rows = [
        [
            name,
            str(result[name]["rounds"]),
            f"{result[name]['gamma']:g}",
            f"{100 * result[name]['validation']:.2f}",
            f"{100 * result[name]['test, fresh seeds']:.2f}",
        ]
        for name in ("grid", "search")
    ]
    return [["", "rounds", "γ", "validation, %", "test with fresh seeds, %"], *rows]
