"""Ten thousand clients, of whom few take part: what is touched, what is written, and who is evaluated when."""

import numpy as np
import pytest
import torch

from protonorm.core import Counts
from protonorm.engines import serial
from protonorm.engines.serial import Serial
from protonorm.federation import rounds
from protonorm.federation.evaluation import Tally
from protonorm.federation.policy import Policy
from protonorm.runs.arrays import encode_arrays
from protonorm.runs.layout import CLIENTS
from tests.support import contents, run, run_folder, spiral

MANY, COHORT = 10_000, 5
LIMIT = 60e6  # bytes of the folder of 100 rounds, besides states


def many(**settings):
    """Build ten thousand clients with three points of the spiral each; five of them train in a round."""
    usual = {"dataset": {"name": "spiral", "points": 5000}, "partition": "iid", "clients": MANY}
    return spiral(**usual | {"participation": COHORT / MANY, "validation": 0.4} | settings)


def folder_bytes(folder):
    """Count the bytes of a run's folder besides states."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.parent.name != CLIENTS)


def evaluation_bytes(clients, classes, rules):
    """Count the bytes of a round's arrays if all clients are evaluated, each with samples of every class."""
    arrays, counts = {}, torch.ones(classes, dtype=torch.int64)
    bins = torch.ones(3, 15, dtype=torch.float64)
    for part in ("validation", "test"):
        tally = Tally(part, rules, clients, classes)
        held = {"support": counts, "unseen": torch.tensor(0)}
        for rule in rules:
            held |= {f"correct.{rule}": counts, f"predicted.{rule}": counts, f"bins.{rule}": bins}
            held |= {f"nll.{rule}": torch.tensor(1.0, dtype=torch.float64)}
        for id in range(clients):
            tally.add(Counts(id, {f"{part}.{name}": value for name, value in held.items()}))
        arrays |= tally.arrays()
    return len(encode_arrays(arrays, "stamp"))


def test_clients_that_never_take_part_are_not_touched(tmp_path, monkeypatch):
    """Five in each of three rounds: only they begin, only they have states, and a round adds little to the record."""
    begun = []
    real = serial.first_state
    monkeypatch.setattr(serial, "first_state", lambda task, site: begun.append(site.id) or real(task, site))
    sizes = []
    experiment = many(evaluate="cohort")
    folder = run_folder(experiment, tmp_path)
    found = run(experiment, tmp_path, watch=lambda round: sizes.append(folder_bytes(folder))).run
    took_part = {id for record in found.rounds for id in record.cohort}
    assert [len(record.cohort) for record in found.rounds] == [COHORT] * 3
    assert sorted(begun) == sorted(took_part)
    states = {int(path.name.split(".")[0]) for path in (folder / CLIENTS).iterdir()}
    assert states == took_part
    assert {record.evaluated for record in found.rounds} == {"cohort"}
    # A hundred rounds, in two of which everybody is evaluated, as by default: what is there now, and what comes.
    growth = (sizes[2] - sizes[0]) / 2
    assert sizes[2] + 97 * growth + 2 * evaluation_bytes(MANY, 6, ("nearest-global", "nearest-local", "logits")) < LIMIT


@pytest.mark.long
def test_the_folder_of_a_hundred_rounds_of_ten_thousand_clients_is_small(tmp_path):
    """With usual settings: cohorts are evaluated, and everybody in rounds 50 and 100."""
    experiment = many(rounds=100)
    found = run(experiment, tmp_path, engine=None).run
    assert [record.round for record in found.rounds if record.evaluated == "all"] == [50, 100]
    assert found.chosen.by == "validation"
    assert folder_bytes(found.folder) < LIMIT
    assert len(list((found.folder / CLIENTS).iterdir())) <= 2 * 100 * COHORT


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"evaluate": "all"}, ["all"] * 5),
        ({"evaluate": "all", "evaluate_every": 3}, ["nobody", "nobody", "all", "nobody", "all"]),
        ({"evaluate": "cohort"}, ["cohort"] * 5),
        ({"evaluate": "cohort", "evaluate_all_every": 2}, ["cohort", "all", "cohort", "all", "all"]),
        (
            {"evaluate": "cohort", "evaluate_every": 2, "evaluate_all_every": 3},
            ["nobody", "cohort", "all", "cohort", "all"],
        ),
    ],
)
def test_who_is_asked(settings, expected):
    policy = Policy(6, 3, **settings)
    assert [policy.evaluation_scope(number, 5) for number in range(1, 6)] == expected


def test_everybody_is_evaluated_now_and_then_and_at_the_end(tmp_path):
    """Rounds of cohorts are not compared with those of all: the chosen round is one of 2, 4 and 5."""
    found = run(spiral(participation=0.5, evaluate_all_every=2, rounds=5), tmp_path).run
    assert [record.evaluated for record in found.rounds] == ["cohort", "all", "cohort", "all", "all"]
    tested = [int(np.sum(~np.isnan(found.by_client(record, "logits")))) for record in found.rounds]
    assert tested == [3, 6, 3, 6, 6]
    best = max((2, 4, 5), key=lambda number: found.rounds[number - 1].validation["nearest-global"].mean)
    assert (found.chosen.by, found.chosen.record.round) == ("validation", best)


def test_clients_are_asked_in_blocks_and_the_bytes_are_the_same(tmp_path, monkeypatch):
    asked = []
    real = Serial.evaluate

    def evaluate(self, orders, messages, parts):
        asked.append([order.id for order in orders])
        return real(self, orders, messages, parts)

    monkeypatch.setattr(Serial, "evaluate", evaluate)
    experiment = spiral(rounds=1)
    run(experiment, tmp_path / "whole")
    monkeypatch.setattr(rounds, "BLOCK", 4)
    run(experiment, tmp_path / "blocks")
    assert asked == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3], [4, 5]]
    one, other = (contents(run_folder(experiment, tmp_path / name)) for name in ("whole", "blocks"))
    assert one == other


def test_workers_that_share_few_of_many_clients_give_the_same_bytes(tmp_path):
    """Cohorts of three of six are shared out anew in each round, so that clients change their workers."""
    experiment = spiral(participation=0.5, evaluate_all_every=3, rounds=7)
    run(experiment, tmp_path / "serial")
    run(experiment, tmp_path / "workers", engine="processes", workers=2)
    one, other = (contents(run_folder(experiment, tmp_path / name)) for name in ("serial", "workers"))
    assert one == other


def test_early_stopping_ends_in_a_round_in_which_everybody_was_evaluated(tmp_path):
    """With a rate of almost nothing nobody learns: rounds 2 and 4 are equal, and one evaluation is the patience."""
    settings = {"participation": 0.5, "evaluate_all_every": 2, "rounds": 20, "early_stopping": 1, "lr": 1e-12}
    found = run(spiral(algorithm="local", **settings), tmp_path).run
    assert found.stopped_early
    assert len(found.rounds) % 2 == 0
    assert found.rounds[-1].evaluated == "all"
