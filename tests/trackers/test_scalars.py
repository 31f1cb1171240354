import numpy as np
import pytest

from protonorm.federation.rounds import Round
from protonorm.runs.run import Population, read_run
from protonorm.runs.schema import Accuracy, ArrayRef, Distances, RoundRecord, Traffic
from protonorm.trackers import tracker
from tests.records import guessing, hundred, made, record

LINE = RoundRecord(
    round=7,
    cohort="all",
    lost={"3": "it is late"},
    evaluated="all",
    metrics={"loss": 1.5, "skipped": 2.0},
    rules={"nearest-global": None, "logits": Accuracy(pooled=0.5, mean=0.4, worst=0.1, p10=0.2, f1=0.3)},
    validation={"nearest-global": None, "logits": Accuracy(pooled=0.6, mean=0.5, worst=0.2, p10=0.3)},
    unseen=None,
    bytes=Traffic(up=10, down=20),
    floats=Traffic(up=1, down=2),
    server={"alignment.steps": 29.0},
    prototypes=Distances(min=1.0, mean=1.5, max=2.0),
    arrays=ArrayRef(start=0, size=1),
)
NUMBERS = {
    "accuracy/logits/pooled": 0.5,
    "accuracy/logits/mean": 0.4,
    "accuracy/logits/worst": 0.1,
    "accuracy/logits/p10": 0.2,
    "accuracy/logits/f1": 0.3,
    "validation/logits/pooled": 0.6,
    "validation/logits/mean": 0.5,
    "validation/logits/worst": 0.2,
    "validation/logits/p10": 0.3,
    "loss/train": 1.5,
    "clients/skipped": 2.0,
    "clients/lost": 1,
    "bytes/up": 10,
    "bytes/down": 20,
    "floats/up": 1,
    "floats/down": 2,
    "seconds/round": 0.25,
    "prototypes/distance/min": 1.0,
    "prototypes/distance/mean": 1.5,
    "prototypes/distance/max": 2.0,
    "server/alignment.steps": 29.0,
}


def test_a_rounds_numbers_have_names_and_what_is_unknown_is_left_out():
    assert tracker.scalars(Round(LINE, {"round": 0.25})) == NUMBERS


def test_the_common_test_and_newcomers_have_names_of_their_own():
    others = {"common": LINE.rules, "newcomers": LINE.validation}
    found = tracker.scalars(Round(LINE.model_copy(update=others), {"round": 0.25}))
    assert {name: found[name] for name in found if name not in NUMBERS} == {
        **{f"common/{name.partition('/')[2]}": NUMBERS[name] for name in NUMBERS if name.startswith("accuracy/")},
        **{f"newcomers/{name.partition('/')[2]}": NUMBERS[name] for name in NUMBERS if name.startswith("validation/")},
    }


def test_a_round_without_loss_evaluation_prototypes_and_time_has_the_other_numbers():
    bare = LINE.model_copy(update={"metrics": {}, "rules": {}, "validation": {}, "prototypes": None, "lost": {}})
    wanted = {name: NUMBERS[name] for name in NUMBERS if name.split("/")[0] in ("bytes", "floats", "server")}
    assert tracker.scalars(Round(bare, {})) == wanted


def test_a_rounds_lists_leave_out_those_who_test_nothing(tmp_path):
    """Client 1 has no test sample, and class 0 nobody; half of 8 and of 4 samples are right."""
    one = np.ones((3, 2), np.int64)
    population = Population(one, one, np.array([[0, 8], [0, 0], [0, 4]]))
    run = made(tmp_path / "run", classes=2, clients=3, rounds=1, population=population)
    found = tracker.distributions(run, run.rounds[-1])
    assert {name: values.tolist() for name, values in found.items()} == {
        "accuracy/logits/clients": [0.25, 0.25],
        "accuracy/logits/classes": [0.25],
        "prototypes/margins": [1.0, 1.0],
    }
    assert tracker.margin_scalars(found) == {"prototypes/margin/mean": 1.0, "prototypes/margin/min": 1.0}
    assert tracker.margin_scalars({}) == {}


def test_lists_of_a_round_can_be_read_that_was_committed_after_the_run_was_read(tmp_path):
    early, late = made(tmp_path / "a" / "run", done=1), made(tmp_path / "b" / "run", done=3)
    (early.folder / "evaluations.bin").write_bytes((late.folder / "evaluations.bin").read_bytes())
    for one in late.rounds:
        found, wanted = tracker.distributions(early, one), late.by_client(one, "logits")
        np.testing.assert_allclose(found["accuracy/logits/clients"], wanted)


def test_a_damaged_block_is_refused_by_the_name_of_its_file(tmp_path):
    folder = record(tmp_path / "run")
    path = folder / "evaluations.bin"
    path.write_bytes(path.read_bytes()[:-20])
    run = read_run(folder)
    with pytest.raises(ValueError, match=r"evaluations\.bin is damaged"):
        tracker.distributions(run, run.rounds[-1])


def test_the_outcome_is_under_the_headline_rule(tmp_path):
    """Of 3 rounds, n has n/4 under `nearest-global`, from the second on; of 8 samples each 4 and 6 are right."""
    four = np.full((2, 2), 4)
    run = made(tmp_path / "run", classes=2, clients=2, population=Population(four, 0 * four, four))
    reported = {f"accuracy/reported/{name}": 0.75 for name in ("pooled", "mean", "worst", "p10")}
    best = {f"accuracy/best/{name}": 0.75 for name in ("pooled", "mean", "worst", "own")}
    round = {"accuracy/reported/round": 3}
    assert tracker.outcome(run) == {**reported, **round, **best, "accuracy/last/pooled": 0.75}
    assert "Round 3 is reported: it has the best test accuracy, which is optimistic" in tracker.reported_text(run)
    none = made(tmp_path / "none", done=0)
    assert tracker.outcome(none) == {}
    assert tracker.reported_text(none) == "No round has been evaluated yet."


def test_the_reported_round_is_that_of_validation_and_the_best_lies_beside_it(tmp_path):
    """Two clients with 100 samples each: validation is best in round 1, test in round 2; (20 + 40)/200, (90 + 70)/200.

    The worst tenth of two is the worse one; a tenth of the way from 20 to 40 is 22.
    """
    right = {"tested": [[20, 40], [90, 70]], "validated": [[9, 9], [1, 1]]}
    run = made(tmp_path / "run", classes=1, clients=2, rounds=2, population=hundred(2), **right)
    found = tracker.outcome(run)
    wanted = {"pooled": 0.3, "mean": 0.3, "worst": 0.2, "p10": 0.22, "round": 1}
    assert {name: found[f"accuracy/reported/{name}"] for name in wanted} == wanted
    assert (found["accuracy/best/pooled"], found["accuracy/last/pooled"]) == (0.8, 0.8)
    assert tracker.reported_text(run) == "Round 1 is reported: it has the best mean validation accuracy."
    lists = tracker.distributions(run, run.rounds[0])
    assert lists["accuracy/nearest-global/clients"].tolist() == [0.2, 0.4]
    assert lists["validation/nearest-global/clients"].tolist() == [0.09, 0.09]


def test_the_reported_the_best_and_the_last_round_are_three(tmp_path):
    """Validation is best in round 1, test in round 2, and there is a third: 60, 160 and 120 right answers of 200.

    The best of client 0 is 0.9, that of client 1 0.7, both in round 2; the worse one of two has 0.2, 0.7 and 0.5."""
    right = {"tested": [[20, 40], [90, 70], [50, 70]], "validated": [[9, 9], [1, 1], [2, 2]]}
    found = tracker.outcome(made(tmp_path / "run", classes=1, clients=2, rounds=3, population=hundred(2), **right))
    assert found["accuracy/reported/pooled"] == 0.3
    assert [found[f"accuracy/best/{name}"] for name in ("pooled", "mean", "worst", "own")] == [0.8, 0.8, 0.7, 0.8]
    assert found["accuracy/last/pooled"] == 0.6


def test_settings_are_numbers_or_text_and_a_table(tmp_path):
    method = {"name": "protonorm", "gamma": 10.0, "upscaling": True, "schedule": {"steps": 5}}
    run = made(tmp_path / "run", method=method, models=["mlp", {"name": "own|net"}], least=None)
    found = tracker.settings(run)
    wanted = {
        "algorithm": "protonorm",
        "algorithm.gamma": 10.0,
        "algorithm.upscaling": "true",
        "algorithm.schedule.steps": 5,
        "models": '["mlp", {"name": "own|net"}]',
        "least": "null",
        "rounds": 3,
    }
    assert found | wanted == found
    table = tracker.settings_table(run).splitlines()
    assert r'| models | \["mlp", \{"name": "own\|net"\}\] |' in table  # signs of Markdown are shown as they are


def test_the_majority_has_names_and_nobody_to_test_has_none(tmp_path):
    """Each of four clients guesses 12 of 20 samples right."""
    found = tracker.majority(made(tmp_path / "run", population=guessing(0.6)))
    assert found == {f"accuracy/majority/{name}": 0.6 for name in ("pooled", "mean", "worst", "p10")}
    one = np.ones((4, 3), np.int64)
    nobody = Population(one, one, 0 * one)
    assert tracker.majority(made(tmp_path / "none", done=0, population=nobody)) == {}


def test_clients_with_names_have_curves_of_their_own(tmp_path):
    """Of 100 samples berlin has 40 right and paris 60 in the test part, 30 and 20 in validation; rome tests none."""
    counts = hundred(3)._replace(test=np.array([[100], [100], [0]]))
    right = {"tested": [[40, 60, 0]], "validated": [[30, 20, 50]]}
    more = {"clients": 3, "classes": 1, "rounds": 1, "population": counts, **right}
    named = made(tmp_path / "a", client_names=["berlin", "paris", "rome"], **more)
    found = tracker.client_scalars(named, named.rounds[0])
    tested = {"client/berlin/accuracy": 0.4, "client/paris/accuracy": 0.6}
    validated = {f"client/{name}/validation": share for name, share in (("berlin", 0.3), ("paris", 0.2), ("rome", 0.5))}
    assert found == pytest.approx(tested | validated)
    numbered = made(tmp_path / "b", **more)
    assert tracker.client_scalars(numbered, numbered.rounds[0]) == {}


def test_very_many_clients_have_none(tmp_path, monkeypatch):
    monkeypatch.setattr(tracker, "MOST_CLIENTS", 1)
    found = made(tmp_path / "a", clients=2, client_names=["berlin", "paris"])
    assert tracker.client_scalars(found, found.rounds[-1]) == {}
