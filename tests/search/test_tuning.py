import json
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import protonorm as pn
from protonorm.core.samples import Samples
from protonorm.data.builtin import Spiral
from protonorm.runs.run import read_run
from protonorm.runs.schema import ArrayRef, RoundRecord
from protonorm.search import tuning
from protonorm.search.space import read_space
from protonorm.search.tuning import Search, Trial, best_trial, open_study, used_rounds
from protonorm.session.build import build
from tests.runs.records import outcome
from tests.search.grids import SPIRAL
from tests.support import contents, killed_after_last_round, run

pytest.importorskip("optuna")
WORDS = [*SPIRAL, "protonorm", "rounds=4", "gamma=1..100:log", "lr=0.001..0.2:log"]


def search(out, *words):
    return Search(read_space([*WORDS, *words]), out, engine="serial")


class Secret(Exception):
    """The test part was looked at."""


@pytest.fixture
def unreadable(monkeypatch):
    """Let every reading of a test sample, its input or its label, be an error: all go through `Samples`."""
    _, population = build(search("unused").space.experiment({}, tested=True))
    tested = torch.cat([torch.from_numpy(population.parts[id].test) for id in range(len(population))])
    batch, labels = Samples.batch, Samples.labels.func

    def check(rows):
        if torch.isin(rows, tested).any():
            raise Secret

    def checked_batch(self, positions, *more):
        check(self.index[positions])
        return batch(self, positions, *more)

    def checked_labels(self):
        check(self.index)
        return labels(self)

    monkeypatch.setattr(Samples, "batch", checked_batch)
    monkeypatch.setattr(Samples, "labels", property(checked_labels))
    return tested


def test_the_search_never_reads_the_test_part(tmp_path, unreadable):
    """The same reading that the search does without is an error once the best settings are tested."""
    assert len(unreadable) > 10
    found = search(tmp_path)
    trials = found.run(6)
    assert len(trials) == 6
    with pytest.raises(Secret):
        found.confirm(best_trial(trials).values, 1)
    with pytest.raises(Secret):
        run(found.space.experiment(trials[0].values, tested=True), tmp_path)


def test_other_test_samples_change_nothing_in_the_search(tmp_path, monkeypatch):
    """Test samples that are out of this world: the records are the same to the last byte."""
    search(tmp_path / "a").run(6)
    load, chosen = Spiral.load, search("unused").space.experiment({}, tested=True)
    _, population = build(chosen)
    rows = np.concatenate([population.parts[id].test for id in range(len(population))])

    def poisoned(self):
        data = load(self)
        inputs = data.inputs.copy()
        inputs[rows] = 1e30
        return pn.Dataset(data.name, inputs, data.labels, data.classes)

    monkeypatch.setattr(Spiral, "load", poisoned)
    search(tmp_path / "b").run(6)
    assert runs_of(search(tmp_path / "a")) == runs_of(search(tmp_path / "b"))
    assert len(runs_of(search(tmp_path / "a"))) == 6


def runs_of(found):
    return {path.name: contents(path) for path in found.folder.iterdir() if path.is_dir()}


def test_a_trial_is_a_run_that_says_it_was_not_tested(tmp_path):
    found = search(tmp_path)
    (trial,) = found.run(1)
    record = read_run(found.folder / trial.key)
    assert record.info.experiment.plain()["tested"] is False
    assert record.info.changed["tested"] is False
    assert [one.rules for one in record.rounds] == [{}] * 4
    assert all(one.validation["nearest-global"] for one in record.rounds)
    assert record.chosen.by == "validation"
    assert trial.validation == max(one.validation["nearest-global"].mean for one in record.rounds)
    assert not any(name.startswith("test.") for one in record.rounds for name in record.arrays(one))
    assert record.summary() is None


def test_trials_that_fall_behind_are_stopped_and_kept(tmp_path):
    found = search(tmp_path)
    trials = found.run(9)
    stopped = [one for one in trials if one.state == "stopped"]
    assert stopped
    assert {one.state for one in trials[:3]} == {"complete"}  # the first are not judged
    for one in stopped:
        record = read_run(found.folder / one.key)
        assert len(record.rounds) == one.rounds < 4
        assert not record.finished
        assert record.failure is None
    assert best_trial(trials).validation == max(one.validation for one in trials if one.state == "complete")


def test_a_trial_is_not_stopped_in_its_last_round(tmp_path):
    """Optuna would stop it, but all its rounds are run: it can be chosen."""
    found = search(tmp_path)
    record = found.run(1) and read_run(found.folder / found.run(1)[0].key).rounds
    with open_study(found.folder, found.space, 4) as study:
        trial = study.ask()
        trial.should_prune = lambda: True
        follow = tuning._Follower(trial, "nearest-global", 4, None)
        with pytest.raises(tuning._Ends, match="PRUNED"):
            follow(record[2])
        follow(record[3])
    assert follow.rounds == 4


def facts(trials):
    return [(one.number, one.values, one.rounds, one.validation, one.state) for one in trials]


def test_a_search_goes_on_where_it_was_and_as_it_would_have(tmp_path, monkeypatch):
    """Interrupted in the middle of a trial, at a moment when the journal's last line is half written."""
    whole = search(tmp_path / "whole").run(8)
    found, real = search(tmp_path / "broken"), tuning.run
    for death in (2, 5, 6):
        rounds = 0

        def die(experiment, *, watch, death=death, **options):
            def dying(round):
                nonlocal rounds
                rounds += 1
                if rounds == death:
                    raise KeyboardInterrupt
                watch(round)

            return real(experiment, watch=dying, **options)

        monkeypatch.setattr(tuning, "run", die)
        with pytest.raises(KeyboardInterrupt):
            found.run(8)
        with open(found.folder / "journal.jsonl", "ab") as journal:
            journal.write(b'{"op_code":6,"wor')
    monkeypatch.setattr(tuning, "run", real)
    assert facts(found.run(8)) == facts(whole)
    assert runs_of(found) == runs_of(search(tmp_path / "whole"))
    assert facts(found.run(8)) == facts(whole)  # and nothing more is done


def test_a_search_killed_after_the_last_round_of_a_trial_clears_its_folder(tmp_path):
    """The trial is run, but the journal does not know that it has ended."""
    whole, killed = search(tmp_path / "whole"), search(tmp_path / "killed")
    (trial,) = whole.run(1)
    killed_after_last_round(killed.space.experiment(trial.values, tested=False), killed.folder)
    assert facts(killed.run(1)) == facts([trial])
    assert runs_of(killed) == runs_of(whole)


def test_a_killed_search_goes_on(tmp_path):
    words = [
        *WORDS,
        "--trials",
        "5",
        "--repeat",
        "0",
        "--engine",
        "serial",
        "--json",
        "--out",
        str(tmp_path / "killed"),
    ]
    command = [sys.executable, "-P", "-m", "protonorm", "tune", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list((tmp_path / "killed").glob("searches/*/*/metrics.jsonl")) and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    done = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    whole = search(tmp_path / "whole").run(5)
    assert [(one["values"], one["rounds"], one["validation"]) for one in done["trials"]] == [
        (one.values, one.rounds, one.validation) for one in whole
    ]
    assert done["rounds"] == used_rounds(whole)


def test_more_trials_later_are_those_of_one_search(tmp_path):
    found = search(tmp_path / "twice")
    found.run(3)
    assert facts(found.run(7)) == facts(search(tmp_path / "once").run(7))


def test_rounds_are_bounded(tmp_path):
    """Trials of 4 rounds, 10 in all: two whole ones, and one that is cut after 2."""
    trials = search(tmp_path).run(50, budget=10)
    assert [(one.rounds, one.state) for one in trials] == [(4, "complete"), (4, "complete"), (2, "cut")]
    assert used_rounds(trials) == 10
    assert facts(search(tmp_path).run(50, budget=10)) == facts(trials)


def test_a_trial_that_the_budget_cut_goes_on_with_a_larger_one(tmp_path):
    """As if the first budget had been the larger one; it can then be chosen."""
    whole = search(tmp_path / "whole").run(3, budget=12)
    assert [one.state for one in whole] == ["complete"] * 3
    found = search(tmp_path / "cut")
    assert [one.state for one in found.run(3, budget=10)] == ["complete", "complete", "cut"]
    assert facts(found.run(3, budget=12)) == facts(whole)
    assert runs_of(found) == runs_of(search(tmp_path / "whole"))


def test_settings_that_come_again_use_no_rounds_of_the_budget(tmp_path):
    """Two settings of two rounds each: six trials need four rounds, and a budget of five does not cut any."""
    found = Search(read_space([*SPIRAL, "fedproto", "lam=0|1"]), tmp_path, engine="serial")
    trials = found.run(6, budget=5)
    assert [one.state for one in trials] == ["complete"] * 6
    assert used_rounds(trials) == 4


def test_a_trial_that_diverges_is_the_worst_and_the_search_goes_on(tmp_path):
    found = Search(read_space([*WORDS, "lr=1.0e+10..1.0e+12:log"]), tmp_path, engine="serial")
    trials = found.run(2)
    assert [one.state for one in trials] == ["diverged"] * 2
    assert best_trial(trials) is None


def test_choices_that_come_again_are_run_once(tmp_path):
    found = Search(read_space([*SPIRAL, "fedproto", "lam=0|1"]), tmp_path, engine="serial")
    trials = found.run(6)
    assert {one.values["algorithm.lam"] for one in trials} <= {0, 1}
    assert len(runs_of(found)) <= 2
    assert used_rounds(trials) <= 4


def test_a_trials_value_is_that_of_its_best_round_in_which_everybody_was_evaluated(tmp_path):
    """Mean validation accuracies 0.5, 0.8 and 0.6 of everybody, and 0.9 of a cohort, which is no value of all."""
    reported = {}

    class Study:
        def get_trials(self, deepcopy):
            return [SimpleNamespace(intermediate_values={})]

    trial = SimpleNamespace(
        number=0, study=Study(), should_prune=lambda: False, report=lambda value, round: reported.update({round: value})
    )
    follow = tuning._Follower(trial, "nearest-global", 4, None)
    for number, (mean, evaluated) in enumerate(((0.5, "all"), (0.8, "all"), (0.9, "cohort"), (0.6, "all")), 1):
        line = outcome(number, validation=mean).record | {"evaluated": evaluated}
        follow(RoundRecord(**line, arrays=ArrayRef(start=0, size=1)))
    assert (follow.best, follow.rounds) == (0.8, 4)
    assert reported == {1: 0.5, 2: 0.8, 4: 0.6}


def test_of_equals_the_first_is_chosen_and_only_whole_ones():
    def trial(number, validation, state="complete"):
        return Trial(number, {}, str(number), 1, validation, state)

    trials = [trial(0, 0.5), trial(1, 0.7), trial(2, 0.7), trial(3, 0.9, "stopped"), trial(4, None, "diverged")]
    assert best_trial(trials).number == 1


def test_the_best_is_run_with_fresh_seeds(tmp_path):
    found = search(tmp_path, "seed=5")
    runs = found.confirm({"algorithm.gamma": 10.0, "lr": 0.05}, 2)
    assert [one.info.experiment.seed for one in runs] == [6, 7]
    assert all(one.chosen.record.rules["nearest-global"] for one in runs)
    assert [one.folder.parent for one in runs] == [tmp_path, tmp_path]


def test_one_process_at_a_time_and_no_other_file(tmp_path):
    found = search(tmp_path)
    with open_study(found.folder, found.space, 4), pytest.raises(BlockingIOError, match="Another process is at work"):
        found.run(1)
    (found.folder / "journal.jsonl").write_text('{"op_code": 99}\n')
    with pytest.raises(ValueError, match="journal.jsonl is damaged"):
        found.run(1)
    (found.folder / "journal.jsonl").write_text("notes\n")
    with pytest.raises(ValueError, match="journal.jsonl is damaged"):
        found.run(1)


def test_the_journal_is_lines_of_json(tmp_path):
    found = search(tmp_path)
    found.run(2)
    lines = (found.folder / "journal.jsonl").read_bytes().splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert sorted(path.name for path in found.folder.iterdir() if path.is_file()) == ["journal.jsonl", "lock"]
