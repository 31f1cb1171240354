"""Rounds are chosen on samples that are neither trained on nor tested with."""

import numpy as np
import pytest
import torch

import protonorm as pn
from protonorm.federation.client import count_answers, score_samples
from protonorm.metrics.base import BalancedAccuracy, MacroF1, calibration_error
from protonorm.runs.choice import choose_round
from protonorm.runs.run import read_run
from protonorm.runs.states import stray_states
from protonorm.session.build import build
from tests.contract.playing import outcome, same
from tests.runs.records import outcome as recorded
from tests.runs.test_standing import has_stopped
from tests.support import contents, killed_after_last_round, run, run_folder, spiral


def rounds(*means, evaluated="all"):
    """Make round records with these mean validation accuracies."""
    from protonorm.runs.schema import ArrayRef, RoundRecord

    found = []
    for number, mean in enumerate(means, 1):
        line = recorded(number, validation=mean or 0.0).record | {"evaluated": evaluated}
        line |= {} if mean is not None else {"validation": {}}
        found.append(RoundRecord(**line, arrays=ArrayRef(start=0, size=1)))
    return found


def test_the_reported_round_has_the_best_validation_accuracy_the_first_of_equals():
    assert choose_round(rounds(0.5, 0.7, 0.6, 0.7), "nearest-global").record.round == 2
    assert choose_round(rounds(0.5, 0.7), "nearest-global").by == "validation"


def test_without_validation_it_is_the_best_test_round_and_says_so():
    history = rounds(None, None, None)
    for record, pooled in zip(history, (0.6, 0.9, 0.75), strict=True):
        record.rules["nearest-global"] = record.rules["nearest-global"].model_copy(update={"pooled": pooled})
    choice = choose_round(history, "nearest-global")
    assert (choice.by, choice.record.round) == ("test", 2)
    assert choose_round(rounds(0.9, evaluated="cohort"), "nearest-global").by == "last"
    assert choose_round([], "nearest-global") is None


def test_patience():
    """Best in round 2; two evaluations without a better one since."""
    history = rounds(0.5, 0.7, 0.6, 0.7)
    assert has_stopped(history, "nearest-global", 2)
    assert not has_stopped(history, "nearest-global", 3)
    assert not has_stopped(history, "nearest-global", None)


def test_patience_counts_the_rounds_in_which_everybody_was_evaluated():
    """Means over some clients are neither a best one nor one without a better; if there are no others, they count."""
    history = [
        one for part in ((0.5, "all"), (0.9, "some"), (0.6, "all")) for one in rounds(part[0], evaluated=part[1])
    ]
    assert not has_stopped(history, "nearest-global", 1)
    assert has_stopped(rounds(0.9, 0.5, evaluated="cohort"), "nearest-global", 1)


def test_nobody_trains_on_validation_samples():
    """Exchanging the validation part changes no state and no message; exchanging a training sample does."""
    task, population = build(spiral(algorithm="fedproto"))
    before = outcome(task, population)
    data = population.dataset
    for id in range(len(population)):
        held = population.site(id).client(1).validation.index.numpy()
        data.inputs[held] += 100.0
    assert same(outcome(*build(spiral(algorithm="fedproto"), data)), before)
    data.inputs[population.site(0).client(1).train.index.numpy()[0]] += 100.0
    assert not same(outcome(*build(spiral(algorithm="fedproto"), data)), before)


def test_the_test_part_chooses_nothing(tmp_path):
    """Whatever the test labels are, the same round is reported."""
    data = spiral().dataset.load()
    experiments = []
    for turn in (0, 1):
        population = build(spiral(rounds=6, lr=0.02))[1]
        labels = data.labels.copy()
        for part in population.parts:
            labels[part.test] = (labels[part.test] + turn) % 6
        given = pn.Dataset(f"turned {turn}", data.inputs, labels, data.classes)
        shares = [np.sort(np.concatenate(part)) for part in population.parts]

        class Fixed:
            seed = 1

            def assign(self, labels, clients, shares=shares):
                return shares

            def description(self):
                return {"name": "fixed"}

        settings = {"dataset": given, "partition": Fixed(), "models": "mlp", "feature_dim": 2}
        experiments.append(spiral(rounds=6, lr=0.02, **settings))
    results = [run(one, tmp_path) for one in experiments]
    assert results[0].run.chosen.record.round == results[1].run.chosen.record.round
    assert [a.validation for a in results[0].history] == [b.validation for b in results[1].history]
    assert [a.rules for a in results[0].history] != [b.rules for b in results[1].history]


def test_more_rounds_later_are_those_of_an_unbroken_run(tmp_path):
    run(spiral(rounds=2), tmp_path / "later")
    later = run(spiral(rounds=6), tmp_path / "later", engine="processes", workers=2)
    run(spiral(rounds=6), tmp_path / "once")
    assert len(later.history) == 6
    folder = run_folder(spiral(), tmp_path / "later")
    assert contents(folder) == contents(run_folder(spiral(), tmp_path / "once"))
    fewer = run(spiral(rounds=3), tmp_path / "later")
    assert [record.round for record in fewer.history] == [1, 2, 3]
    assert fewer.run.finished
    with pytest.raises(ValueError, match="has gone on to round 6; its clients after round 3 are gone"):
        fewer.trained("last")[0]
    assert len(read_run(folder).rounds) == 6


def test_early_stopping_ends_a_run_which_then_is_finished(tmp_path):
    experiment = spiral(rounds=40, early_stopping=2, lr=0.02)
    result = run(experiment, tmp_path)
    done = len(result.history)
    assert done < 40
    assert result.run.finished
    assert done - result.run.chosen.record.round == 2
    assert len(run(experiment, tmp_path).history) == done
    with pytest.raises(ValueError, match="early_stopping needs a validation part"):
        spiral(validation=0, early_stopping=2)


def test_more_rounds_of_a_run_that_ended_early_are_none(tmp_path):
    """Its record is then that of a run that was asked for all of them at once, but for what was asked."""
    settings = {"early_stopping": 1, "lr": 0.02, "algorithm": "local"}
    done = len(run(spiral(rounds=40, **settings), tmp_path / "once").history)
    run(spiral(rounds=done, **settings), tmp_path / "later")
    later = run(spiral(rounds=40, **settings), tmp_path / "later")
    assert len(later.history) == done < 39
    assert (later.run.info.experiment.rounds, later.run.finished, later.run.stopped_early) == (40, True, True)
    earlier = run(spiral(rounds=done - 1, **settings), tmp_path / "later").run
    assert (len(earlier.rounds), earlier.info.experiment.rounds, earlier.finished) == (done - 1, done - 1, True)
    assert not earlier.stopped_early


@pytest.mark.parametrize(("engine", "workers"), [("serial", None), ("processes", 2)])
def test_states_of_a_round_that_is_no_longer_the_best_are_not_left_behind(tmp_path, engine, workers):
    """A run goes on after its best round, and a later one becomes the best: the states of the first must go."""
    experiment = spiral(algorithm="fedproto", control="solo", lr=0.02, seed=7, rounds=6)
    whole = run(experiment, tmp_path / "whole")
    means = [record.validation["nearest-global"].mean for record in whole.history]
    assert whole.run.chosen.record.round == 6
    assert max(means[:4]) == means[2] > means[3]  # after four rounds it was the third
    run(spiral(algorithm="fedproto", control="solo", lr=0.02, seed=7, rounds=4), tmp_path / "later")
    run(experiment, tmp_path / "later", engine=engine, workers=workers)
    assert contents(run_folder(experiment, tmp_path / "later")) == contents(run_folder(experiment, tmp_path / "whole"))


@pytest.mark.parametrize("settings", [{}, {"participation": 0.5}, {"lr": 0.2}], ids=str)
def test_a_run_that_is_killed_after_its_last_round_is_tidied_by_the_next_look(tmp_path, settings):
    """States of the round before stay behind if nobody hears that the last one is final; the next call removes them."""
    experiment = spiral(**{"algorithm": "fedproto", "lr": 0.02, "rounds": 4} | settings)
    whole = run(experiment, tmp_path / "whole")
    assert not stray_states(whole.run)
    folder = killed_after_last_round(experiment, tmp_path / "killed")
    run(experiment, tmp_path / "killed")
    assert contents(folder) == contents(run_folder(experiment, tmp_path / "whole"))


def test_validation_can_be_turned_off_and_training_is_then_on_all_samples(tmp_path):
    result = run(spiral(validation=0), tmp_path)
    assert all(record.validation == {} for record in result.history)
    assert result.run.chosen.by == "test"
    assert result.run.population.validation.sum() == 0
    held = run(spiral(), tmp_path).run.population
    assert (held.train + held.validation == result.run.population.train).all()


def test_luck_on_the_test_part_is_not_reported(tmp_path):
    """Random labels: the best of 20 rounds on 100 test samples is above chance (1/2) by luck, the chosen one is not.

    The standard error of an accuracy of 1/2 over 4 seeds of 100 samples is 0.025: the headline stays within two of it.
    The best of twenty rounds, which differ a little, is a few points above.
    """
    random = np.random.default_rng(1)
    inputs = random.integers(0, 256, (400, 16, 16, 1), dtype=np.uint8)
    data = pn.Dataset("noise", inputs, random.integers(0, 2, 400), ("heads", "tails"))
    settings = {"models": "plain", "feature_dim": 8, "clients": 4, "rounds": 20, "batch_size": 16, "lr": 0.2}
    settings |= {"algorithm": "local", "dataset": data, "partition": "iid"}
    results = [run(pn.Experiment.of(settings | {"seed": seed}), tmp_path) for seed in range(4)]
    chosen = np.mean([result.run.chosen.record.rules["logits"].pooled for result in results])
    best = np.mean([result.summary().best.pooled for result in results])
    assert abs(chosen - 0.5) < 0.05
    assert best > max(0.54, chosen + 0.015)


# ---- measures -------------------------------------------------------------------------------------------------------


def test_balanced_accuracy_and_f1_by_hand():
    """3 of 4, 0 of 1, none of class 2: recalls 0.75 and 0, mean 0.375. Predictions 3, 0, 2:
    F1 = 2·3/(4 + 3) = 6/7, 0/(1 + 0) = 0, 0/(0 + 2) = 0, mean 2/7."""
    correct, support, predicted = np.array([3, 0, 0]), np.array([4, 1, 0]), np.array([3, 0, 2])
    assert BalancedAccuracy().of_client({"correct": correct}, support) == 0.375
    assert MacroF1().of_client({"correct": correct, "predicted": predicted}, support) == pytest.approx(2 / 7)
    nothing = np.zeros(3, int)
    assert np.isnan(BalancedAccuracy().of_client({"correct": nothing}, nothing))
    assert np.isnan(MacroF1().of_client({"correct": nothing, "predicted": nothing}, nothing))


def test_calibration_error_by_hand():
    """Two bins: 3 samples with confidence 0.9 and 2 right, 1 sample with 0.6 and right: (|2 − 2.7| + |1 − 0.6|)/4."""
    assert calibration_error(np.array([[3, 1], [2.7, 0.6], [2, 1]])) == pytest.approx(1.1 / 4)
    assert calibration_error(np.zeros((3, 2))) is None


def test_calibration_error_is_at_most_one_whatever_rounding_adds():
    """Two samples of confidence 1 + 1e-6 that are wrong: a record holds shares from 0 to 1."""
    assert calibration_error(np.array([[2.0], [2.000002], [0.0]])) == 1.0


def test_counts_of_a_pass_agree_with_torch_on_the_whole_part():
    task, population = build(spiral(algorithm="local"))
    client = population.site(0).fresh_client()
    state = task.algorithm.init_client(client)
    found = count_answers(score_samples(task.algorithm, client, client.test, state, {}, None), client)
    x, y = client.test.batch(torch.arange(len(client.test)))
    with torch.no_grad():
        logits = client.load(state).eval()(x).double()
    expected = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    assert float(found["nll.logits"]) == pytest.approx(float(expected), rel=1e-6)
    assert found["predicted.logits"].tolist() == torch.bincount(logits.argmax(1), minlength=6).tolist()
    assert found["bins.logits"][0].sum() == len(y)
    assert float(found["bins.logits"][1].sum()) == pytest.approx(float(logits.softmax(1).amax(1).sum()), rel=1e-6)
    assert int(found["bins.logits"][2].sum()) == int((logits.argmax(1) == y).sum())


def test_measures_of_clients_add_up_to_those_of_all(tmp_path):
    """Log loss weighted by samples is that of all; balanced accuracy and F1 are means over clients."""
    found = run(spiral(algorithm="fedavg", participation=0.5, evaluate="cohort"), tmp_path).run
    for record in found.rounds:
        for part, rules in (("test", record.rules), ("validation", record.validation)):
            support = getattr(found.population, part).sum(1)
            for rule in ("logits", "received"):
                loss, balanced, f1 = (found.measured(record, rule, one, part) for one in ("log_loss", "balanced", "f1"))
                known = ~np.isnan(loss)
                assert set(np.flatnonzero(known)) == {id for id in record.cohort if support[id]}
                assert np.average(loss[known], weights=support[known]) == pytest.approx(rules[rule].log_loss, rel=1e-5)
                assert balanced[known].mean() == pytest.approx(rules[rule].balanced, rel=1e-5)
                assert f1[known].mean() == pytest.approx(rules[rule].f1, rel=1e-5)
    assert np.isnan(found.measured(found.rounds[0], "nearest-global", "log_loss")).all()
    with pytest.raises(
        ValueError, match="no measure 'loss' beside accuracy; known: balanced, f1, log_loss, calibration"
    ):
        found.measured(found.rounds[0], "logits", "loss")
