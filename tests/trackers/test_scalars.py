import numpy as np
import pytest

from protonorm.federation.rounds import Round
from protonorm.runs.reader import Population, read_run
from protonorm.runs.schema import Accuracy, ArrayRef, Distances, RoundRecord, Traffic
from protonorm.trackers import scalars
from tests.records import guessing, made, record

LINE = RoundRecord(
    round=7,
    cohort="all",
    lost={"3": "it is late"},
    evaluated="all",
    metrics={"loss": 1.5, "skipped": 2.0},
    rules={"global": None, "logits": Accuracy(pooled=0.5, mean=0.4, worst=0.1)},
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
    assert scalars.scalars(Round(LINE, {"round": 0.25})) == NUMBERS


def test_a_round_without_loss_evaluation_prototypes_and_time_has_the_other_numbers():
    bare = LINE.model_copy(update={"metrics": {}, "rules": {}, "prototypes": None, "lost": {}})
    wanted = {name: NUMBERS[name] for name in NUMBERS if name.split("/")[0] in ("bytes", "floats", "server")}
    assert scalars.scalars(Round(bare, {})) == wanted


def test_a_rounds_lists_leave_out_those_who_test_nothing(tmp_path):
    """Client 1 has no test sample, and class 0 nobody; half of 8 and of 4 samples are right."""
    population = Population(np.ones((3, 2), np.int64), np.array([[0, 8], [0, 0], [0, 4]]))
    run = made(tmp_path / "run", classes=2, clients=3, rounds=1, population=population)
    found = scalars.distributions(run, run.rounds[-1])
    assert {name: values.tolist() for name, values in found.items()} == {
        "accuracy/logits/clients": [0.25, 0.25],
        "accuracy/logits/classes": [0.25],
        "prototypes/margins": [1.0, 1.0],
    }
    assert scalars.margin_scalars(found) == {"prototypes/margin/mean": 1.0, "prototypes/margin/min": 1.0}
    assert scalars.margin_scalars({}) == {}


def test_lists_of_a_round_can_be_read_that_was_committed_after_the_run_was_read(tmp_path):
    early, late = made(tmp_path / "a" / "run", done=1), made(tmp_path / "b" / "run", done=3)
    (early.folder / "evaluations.bin").write_bytes((late.folder / "evaluations.bin").read_bytes())
    for one in late.rounds:
        found, wanted = scalars.distributions(early, one), late.by_client(one, "logits")
        np.testing.assert_allclose(found["accuracy/logits/clients"], wanted)


def test_a_damaged_block_is_refused_by_the_name_of_its_file(tmp_path):
    folder = record(tmp_path / "run")
    path = folder / "evaluations.bin"
    path.write_bytes(path.read_bytes()[:-20])
    run = read_run(folder)
    with pytest.raises(ValueError, match=r"evaluations\.bin is damaged"):
        scalars.distributions(run, run.rounds[-1])


def test_the_outcome_is_under_the_headline_rule(tmp_path):
    """Of 3 rounds, n has n/4 under `global`, from the second on; of 8 samples of each client 4 and 6 are right."""
    population = Population(np.full((2, 2), 4), np.full((2, 2), 4))
    found = scalars.outcome(made(tmp_path / "run", classes=2, clients=2, population=population))
    best = {f"accuracy/best/{name}": 0.75 for name in ("pooled", "mean", "worst", "own")}
    assert found == {**best, "accuracy/last/pooled": 0.75}
    assert scalars.outcome(made(tmp_path / "none", done=0)) == {}


def test_settings_are_numbers_or_text_and_a_table(tmp_path):
    method = {"name": "protonorm", "gamma": 10.0, "upscaling": True, "schedule": {"steps": 5}}
    run = made(tmp_path / "run", method=method, models=["mlp", {"name": "own|net"}], least=None)
    found = scalars.settings(run)
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
    table = scalars.settings_table(run).splitlines()
    assert r'| models | \["mlp", \{"name": "own\|net"\}\] |' in table  # signs of Markdown are shown as they are


def test_the_majority_has_names_and_nobody_to_test_has_none(tmp_path):
    """Each of four clients guesses 12 of 20 samples right."""
    found = scalars.majority(made(tmp_path / "run", population=guessing(0.6)))
    assert found == {f"accuracy/majority/{name}": 0.6 for name in ("pooled", "mean", "worst")}
    nobody = Population(np.ones((4, 3), np.int64), np.zeros((4, 3), np.int64))
    assert scalars.majority(made(tmp_path / "none", done=0, population=nobody)) == {}
