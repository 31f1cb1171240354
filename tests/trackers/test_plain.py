from pathlib import Path

from protonorm.federation import Round
from protonorm.history import Run
from protonorm.trackers import plain

VALUE = {"pooled": 0.5, "mean": 0.4, "worst": 0.1, "clients": [0.4, None, 0.6], "classes": [None, 0.5]}
LINE = {
    "round": 7,
    "cohort": "all",
    "loss": 1.5,
    "rules": {"global": None, "logits": VALUE},
    "unseen": None,
    "bytes": {"up": 10, "down": 20},
    "floats": {"up": 1, "down": 2},
    "server": {"alignment.steps": 29.0},
    "prototypes": {
        "distance": {"min": 1.0, "mean": 1.5, "max": 2.0},
        "margins": [1.0, 3.0],
        "classes": [0, 1],
    },
}


def run(history, **about):
    known = {
        "headline": "logits",
        "majority": None,
        "experiment": {
            "algorithm": {"name": "protonorm", "gamma": 10.0, "upscaling": True},
            "models": ["mlp", {"name": "own|net"}],
            "least": None,
            "rounds": 9,
        },
    }
    return Run(Path(), known | about, history, None)


def test_a_rounds_numbers_have_names_and_what_is_unknown_is_left_out():
    assert plain.scalars(Round(7, LINE, {"round": 0.25})) == {
        "accuracy/logits/pooled": 0.5,
        "accuracy/logits/mean": 0.4,
        "accuracy/logits/worst": 0.1,
        "loss/train": 1.5,
        "bytes/up": 10,
        "bytes/down": 20,
        "floats/up": 1,
        "floats/down": 2,
        "seconds/round": 0.25,
        "prototypes/distance/min": 1.0,
        "prototypes/distance/mean": 1.5,
        "prototypes/distance/max": 2.0,
        "prototypes/margin/mean": 2.0,
        "prototypes/margin/min": 1.0,
        "server/alignment.steps": 29.0,
    }


def test_a_rounds_lists_have_names_without_those_who_test_nothing():
    assert plain.spreads(Round(7, LINE, {"round": 0.25})) == {
        "accuracy/logits/clients": [0.4, 0.6],
        "accuracy/logits/classes": [0.5],
        "prototypes/margins": [1.0, 3.0],
    }


def test_the_outcome_is_under_the_headline_rule():
    """Client 0 is best in round 7 with 0.4, client 2 in round 8 with 0.8: their mean is 0.6."""
    later = LINE | {
        "round": 8,
        "rules": {"logits": VALUE | {"pooled": 0.45, "mean": 0.5, "clients": [0.2, None, 0.8]}},
    }
    assert plain.outcome(run([LINE, later])) == {
        "accuracy/best/pooled": 0.5,
        "accuracy/best/mean": 0.4,
        "accuracy/best/worst": 0.1,
        "accuracy/best/own": 0.6,
        "accuracy/last/pooled": 0.45,
    }
    assert plain.outcome(run([])) == {}


def test_settings_are_numbers_or_text_and_a_table():
    assert plain.settings(run([])) == {
        "algorithm": "protonorm",
        "algorithm.gamma": 10.0,
        "algorithm.upscaling": "true",
        "models": '["mlp", {"name": "own|net"}]',
        "least": "null",
        "rounds": 9,
    }
    assert '| models | ["mlp", {"name": "own\\|net"}] |' in plain.settings_table(run([])).splitlines()


def test_nobody_to_test_has_no_majority():
    assert plain.majority(run([])) == {}
    assert plain.majority(run([], majority=VALUE))["accuracy/majority/worst"] == 0.1
