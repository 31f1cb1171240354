"""An algorithm of one's own that returns the wrong thing ends in a sentence that names its method, on every engine."""

import re
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

import protonorm as pn
from protonorm.core.algorithm import checked_schema, checked_scores, checked_state, checked_step
from protonorm.errors import Failed
from tests.support import run, spiral

MINE = """
from dataclasses import dataclass
import torch
import protonorm as pn


@dataclass(frozen=True)
class Mine(pn.Local):
    def {method}(self, {arguments}):
        return {value}
"""


@dataclass(frozen=True)
class Mine(pn.Local):
    """A method whose name is told."""


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "Mine.aggregate must return pn.Step(state, message), but returned nothing."),
        (({}, {}), "Mine.aggregate must return pn.Step(state, message), but returned a tuple."),
        (5, "Mine.aggregate must return pn.Step(state, message), but returned an int."),
        (pn.Step(5, {}), "Mine.aggregate must return the state as a dict of tensors, but it is an int."),
        (
            pn.Step({}, {"x": 3}),
            "Mine.aggregate must return the message as a dict of tensors, but 'x' in it is an int.",
        ),
        (
            pn.Step({}, {1: torch.zeros(1)}),
            "Mine.aggregate must return the message as a dict of tensors, but 1 in it is a Tensor.",
        ),
        (
            pn.Step({}, {}, {"loss": "high"}),
            "Mine.aggregate must return metrics that are numbers, but 'loss' is a str.",
        ),
        (
            pn.Step({}, {}, {"loss": 1.0, "norm": float("nan")}),
            "Mine.aggregate must return metrics that are finite numbers, but 'norm' is nan.",
        ),
        (
            pn.Step({}, {}, {"norm": 10**400}),
            f"Mine.aggregate must return metrics that are finite numbers, but 'norm' is 1{'0' * 78}….",
        ),
        (pn.Step({}, {}, 3), "Mine.aggregate must return the metrics as a dict of numbers, but they are an int."),
        (
            pn.Step({}, {}, {}, {"picture": 1}),
            "Mine.aggregate must return the figures as a dict of tensors, but 'picture' in it is an int.",
        ),
    ],
)
def test_a_step_that_is_none(found, said):
    with pytest.raises(Failed) as error:
        checked_step(Mine(), "aggregate", found)
    assert str(error.value) == said


def test_what_is_right_passes_as_it_is():
    step = pn.Step({"a": torch.ones(1)}, {}, {"loss": 1})
    assert checked_step(Mine(), "aggregate", step) == step
    assert type(checked_step(Mine(), "aggregate", step).metrics["loss"]) is float  # whatever kind of number it was
    assert checked_state(Mine(), "init_client", step.state) is step.state


def test_other_things_that_are_wrong():
    with pytest.raises(
        Failed, match=r"^Mine.init_client must return the state as a dict of tensors, but it is nothing"
    ):
        checked_state(Mine(), "init_client", None)
    with pytest.raises(Failed, match=r"^Mine.schema must return a pn.Schema, but returned an int\.$"):
        checked_schema(Mine(), 3)


@pytest.mark.parametrize(
    ("method", "arguments", "value", "said"),
    [
        ("local_update", "client, state, message", "state, message", "Mine.local_update must return pn.Step"),
        ("local_update", "client, state, message", "pn.Step(state, {}, {'loss': 'high'})", "'loss' is a str"),
        ("aggregate", "server, state, replies", "list(replies)", "Mine.aggregate must return pn.Step"),
        ("init_server", "server", "None", "Mine.init_server must return pn.Step"),
        ("init_client", "client", "None", "Mine.init_client must return the state"),
        ("schema", "task", "3", "Mine.schema must return a pn.Schema"),
    ],
)
@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_run_ends_in_a_sentence(method, arguments, value, said, engine, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE.format(method=method, arguments=arguments, value=value))
    experiment = pn.Experiment(
        algorithm=f"{file}:Mine", dataset={"name": "spiral", "points": 30}, partition="iid", clients=2, rounds=1
    )
    with pytest.raises(Failed, match=said):
        pn.run(experiment, out=tmp_path / "runs", engine=engine, workers=1)


def test_the_command_says_it_in_a_line(tmp_path):
    (tmp_path / "mine.py").write_text(
        MINE.format(method="local_update", arguments="client, state, message", value="None")
    )
    words = (
        "run algorithm=mine.py:Mine dataset=spiral dataset.points=30 partition=iid clients=2 rounds=1 --engine serial"
    )
    done = subprocess.run(
        [sys.executable, "-m", "protonorm", *words.split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].endswith("must return pn.Step(state, message), but returned nothing.")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (torch.zeros(2, 3), "Mine.scores must return the scores as a dict of tensors, but it is a Tensor."),
        ({"logits": [1]}, "Mine.scores must return the scores as a dict of tensors, but 'logits' in it is a list."),
        ({"logits": torch.zeros(2)}, "samples and classes, but those of 'logits' have shape (2,)."),
        ({"logits": torch.zeros(2, 6)}, "must return scores of shape (2, 3), samples and classes"),
    ],
)
def test_scores_are_checked(found, said):
    with pytest.raises(Failed) as refused:
        checked_scores(Mine(), found, (2, 3))
    assert said in str(refused.value)


def test_scores_of_the_right_shape_are_taken():
    scores = {"logits": torch.zeros(2, 3)}
    assert checked_scores(Mine(), scores, (2, 3)) == scores


def test_scores_are_checked_while_a_client_is_evaluated(tmp_path):
    @dataclass(frozen=True)
    class Flat(pn.Local):
        def scores(self, client, state, message, x):
            return {"logits": torch.zeros(len(x))}

    with pytest.raises(Failed, match="Flat.scores must return scores of shape"):
        run(spiral(algorithm=Flat(), rounds=1), tmp_path)


@pytest.mark.parametrize(
    ("rules", "headline", "said"),
    [
        ("logits", "logits", "rules must be a tuple of names, such as ('logits',), got 'logits'"),
        (("joint",), "joint", "rules must have a rule whose scores the method gives"),
        (("logits",), "nearest-global", "headline must be one of its rules, logits, got 'nearest-global'"),
        (("global", "logits"), "logits", "rules must have present names, nearest-global, got the old global"),
        ((1,), 1, "rules must be a tuple of names"),
    ],
)
def test_rules_and_headline_are_checked_before_anything_runs(rules, headline, said):
    cls = type("Odd", (pn.Local,), {"rules": rules, "headline": headline})
    with pytest.raises(ValueError, match=re.escape(said)):
        pn.Experiment(algorithm=cls())
