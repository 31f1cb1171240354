"""The standing of a run, round by round, against the whole record; and commits that cost the same for ever."""

import gc
import sys
import tracemalloc
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protonorm.runs.choice import Standing, choose_round
from protonorm.runs.run import read_run
from protonorm.runs.schema import Accuracy, ArrayRef, RoundRecord
from protonorm.runs.writer import Checkpoint, RunWriter
from tests.runs.records import describe, info, outcome


def has_stopped(rounds, rule, patience):
    """Return whether so many evaluations in a row had no better mean validation accuracy than the best before."""
    everybody = [record for record in rounds if record.evaluated == "all"]  # means over other clients tell nothing
    known = [found.mean for record in everybody or rounds if (found := record.validation.get(rule))]
    return patience is not None and bool(known) and len(known) - 1 - int(np.argmax(known)) >= patience


def counted_rounds(info, rounds):
    """Leave out rounds that early stopping does not count: those of a cohort, if everybody is evaluated at times."""
    mixed = hasattr(info.experiment, "evaluate_all_every")
    return [record for record in rounds if record.evaluated == "all"] if mixed else rounds


VALUES = st.one_of(st.none(), st.sampled_from([0.0, 0.2, 0.5, 0.5000001, 1.0]))


def record(number, evaluated, tested, validated):
    """Make a round: `tested` and `validated` are accuracies under the headline rule; None where there is none."""
    plain = outcome(number).record

    def rules(value):
        return {} if evaluated == "nobody" else {"nearest-global": None if value is None else same(value)}

    parts = {"rules": {} if tested == "never" else rules(tested), "validation": rules(validated)}
    return RoundRecord(**plain | {"evaluated": evaluated, "arrays": ArrayRef(start=0, size=1)} | parts)


def same(value):
    return Accuracy(pooled=value, mean=value, worst=value, p10=value)


@st.composite
def histories(draw):
    """Draw rounds of all kinds, also such as no run mixes."""
    whose = st.sampled_from(["all", "cohort", "some", "nobody"])
    tested = st.one_of(VALUES, st.just("never"))
    kinds = draw(st.lists(st.tuples(whose, tested, VALUES), max_size=12))
    return [record(number, *kind) for number, kind in enumerate(kinds, 1)]


@settings(deadline=None, derandomize=True, max_examples=400)
@given(rounds=histories(), patience=st.one_of(st.none(), st.integers(1, 3)), mixed=st.booleans())
def test_the_standing_is_what_the_whole_record_says_after_every_round(rounds, patience, mixed):
    told = info(early_stopping=patience)
    if mixed:
        experiment = told.experiment.model_copy(update={"evaluate_all_every": 5})
        told = told.model_copy(update={"experiment": experiment})
    standing = Standing(told)
    for done, one in enumerate(rounds, 1):
        standing.add(one)
        choice = choose_round(rounds[:done], "nearest-global")
        assert standing.chosen == (choice.record.round if choice and choice.by == "validation" else 0)
        assert standing.stopped == has_stopped(counted_rounds(told, rounds[:done]), "nearest-global", patience)
    after = Standing.after(told, rounds)
    assert (after.chosen, after.stopped) == (standing.chosen, standing.stopped)


def test_where_everybody_is_evaluated_at_times_the_cohorts_rounds_do_not_try_the_patience():
    """Means of cohorts fall from 0.9 to 0.1 in three rounds, but they are over other clients each time."""
    rounds = [record(number, "cohort", mean, mean) for number, mean in enumerate((0.9, 0.5, 0.1), 1)]
    told = info(early_stopping=2)
    assert Standing.after(told, rounds).stopped
    experiment = told.experiment.model_copy(update={"evaluate_all_every": 4})
    told = told.model_copy(update={"experiment": experiment})
    assert not Standing.after(told, rounds).stopped
    later = [record(number, "all", 0.4, 0.4) for number in (4, 8, 12)]
    assert not Standing.after(told, [*rounds, *later[:2]]).stopped
    assert Standing.after(told, [*rounds, *later]).stopped
    assert Standing.after(told, [*rounds, *later]).chosen == 4  # not 1, whose mean is of a cohort


def count_calls(action):
    """Count what Python calls, of its own functions and of libraries', while something is done."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


@pytest.fixture
def writer(tmp_path):
    with patch("os.fsync", lambda file: None), RunWriter(tmp_path / "key", "key") as made:
        describe(made, 1000)
        yield made


def commit(writer, number):
    """Commit a round, and look at what the loop looks at; in rounds 3, 103, 203 … validation is best so far."""
    better = 0.5 + number / 1000 if number % 100 == 3 else 0.4
    writer.commit(Checkpoint(number, {}, {}, [number, number]), outcome(number, validation=better))
    return writer.chosen, writer.stopped


def test_a_commit_costs_the_same_after_hundreds_of_rounds(writer):
    """Counted, not timed: rounds 20 and 320 are alike, each 17 rounds after the best one so far."""
    calls = {}
    for number in range(1, 321):
        if number in (20, 320):
            calls[number] = count_calls(lambda number=number: commit(writer, number))
        else:
            assert commit(writer, number)[0] == (number - 3) // 100 * 100 + 3 or number < 3
    assert calls[320] <= 1.1 * calls[20]


def test_a_writer_remembers_no_rounds(writer):
    """A record is four kilobytes: a hundred of them would show."""
    for number in range(1, 51):
        commit(writer, number)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(51, 151):
            commit(writer, number)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 100_000
    assert writer.chosen == 103


def test_the_arrays_of_a_run_that_is_read_do_not_all_stay_in_memory(writer, monkeypatch):
    """With room for ten rounds no more than ten are held, and all are read right."""
    for number in range(1, 31):
        commit(writer, number)
    run = read_run(writer.folder)
    size = sum(one.nbytes for one in run.arrays(run.rounds[0]).values())
    monkeypatch.setattr(run._arrays, "limit", 10 * size)
    for record in run.rounds * 2:
        assert run.by_client(record, "nearest-global").tolist() == [0.5, 1.0]
        assert len(run._arrays) <= 10
    assert np.isclose(run.summary("nearest-global").own_best, 0.75)
