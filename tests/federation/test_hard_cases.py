"""Clients and classes that break other programs: nobody crashes, nothing is NaN, everybody is evaluated."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest

import protonorm as pn
from protonorm.algorithms.parts.prototypes import class_means
from tests.support import Given, pictures, run, spiral

METHODS = ["protonorm", "fedproto", "local"]


def play(tmp_path, **settings):
    result = run(
        pn.Experiment.of({"models": "light", "feature_dim": 8, "rounds": 3, "batch_size": 4} | settings), out=tmp_path
    )
    for record in result.history:
        assert json.dumps(record.model_dump(), allow_nan=False)  # refuses NaN and infinity
    return result


def evaluated(result, rule="logits"):
    """List for each round the clients with an accuracy under a rule."""
    return ~np.isnan(result.accuracy(rule, "clients"))


def given(shares, classes):
    labels = [label for share in shares for label in share]
    ends = np.cumsum([0, *map(len, shares)])
    return {
        "dataset": pictures(labels, classes),
        "partition": Given([list(range(a, b)) for a, b in pairwise(ends)]),
        "clients": len(shares),
    }


@pytest.mark.parametrize("method", METHODS)
def test_a_client_with_one_class(tmp_path, method):
    result = play(tmp_path, algorithm=method, **given([[0] * 20, [0, 1, 2] * 8], 3))
    assert evaluated(result).all()
    if method != "local":
        assert result.clients[0].state["classes"].tolist() == [0]


@pytest.mark.parametrize("method", METHODS)
def test_a_class_that_no_client_of_a_round_has_keeps_its_last_prototype(tmp_path, method):
    """With one client a round, classes of the others are missing in it."""
    result = play(
        tmp_path, algorithm=method, participation=0.4, rounds=6, **given([[0, 1] * 10, [2, 3] * 10, [4, 5] * 10], 6)
    )
    assert all(len(record.cohort) == 1 for record in result.history)
    if method != "local":
        seen = [set(result.run.margins(record)[0].tolist()) for record in result.history]
        assert all(before <= after for before, after in pairwise(seen))
        assert len(seen[0]) == 2


@pytest.mark.parametrize("method", METHODS)
def test_a_class_never_seen_is_masked_everywhere(tmp_path, method):
    """Class 2 exists by name only: no prototype, no prediction, no zero vector."""
    result = play(tmp_path, algorithm=method, **given([[0, 1] * 10, [0, 1] * 10], 3))
    if method != "local":
        assert result.run.margins(result.history[-1])[0].tolist() == [0, 1]
        assert not (result.clients[0].predict(result.population.dataset.inputs) == 2).any()
    assert np.isnan(result.accuracy("logits", "classes")[-1]).tolist() == [False, False, True]


@pytest.mark.parametrize("method", METHODS)
def test_a_cohort_of_one_and_everybody_is_evaluated(tmp_path, method):
    result = play(tmp_path, algorithm=method, participation=0.01, **given([[0, 1] * 10, [1, 2] * 10, [0, 2] * 10], 3))
    assert all(len(record.cohort) == 1 for record in result.history)
    assert evaluated(result).all()


def test_test_classes_without_a_local_prototype_count_as_wrong_under_the_local_rule(tmp_path):
    """Eight samples of class 0 and one each of four others: some of those four are only in the test part."""
    result = play(tmp_path, algorithm="protonorm", **given([[0] * 8 + [1, 2, 3, 4], [0, 1, 2, 3, 4] * 4], 5))
    held = set(result.clients[0].state["classes"].tolist())
    data, parts = result.population.dataset, result.population.parts
    missed = sum(label not in held for label in data.labels[parts[0].test])
    assert missed > 0
    assert result.history[-1].unseen == pytest.approx(missed / sum(len(part.test) for part in parts), abs=1e-5)
    assert set(result.clients[0].predict(data.inputs, "local")) <= held


@pytest.mark.parametrize("method", METHODS)
def test_a_client_with_fewer_samples_than_a_batch_and_one_with_a_single_sample(tmp_path, method):
    result = play(tmp_path, algorithm=method, batch_size=16, **given([[0, 1, 0], [1], [0, 1] * 20], 2))
    assert evaluated(result)[:, 0].all()
    assert not evaluated(result)[:, 1].any()  # its one sample trains; there is none to test with
    assert all(math.isfinite(record.loss) for record in result.history)


def test_prototypes_uploaded_are_of_the_trained_model_not_stale(tmp_path):
    """What a client says is measured with the weights it remembers then."""
    result = run(spiral(rounds=1), out=tmp_path)
    client = result.clients[0]
    here = result.population.site(0).client(1)
    fresh = class_means(here, here.load(client.state))
    assert np.allclose(fresh["prototypes"].numpy(), client.state["prototypes"].numpy())


def test_first_alignment_is_traced_for_the_figures(tmp_path):
    result = run(spiral(), out=tmp_path)
    steps = int(result.history[0].server["alignment.steps"])
    assert result.run.figures()["alignment.distances"].shape == (steps + 1, 3)  # least, mean, greatest
