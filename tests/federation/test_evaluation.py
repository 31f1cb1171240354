import numpy as np
import torch

from protonorm.core import Counts
from protonorm.federation.evaluation import Tally, mean_metrics, prototype_shape
from protonorm.runs.accuracy import accuracy_of


def counts(id, support, unseen=0, **correct):
    found = {"support": torch.tensor(support), "unseen": torch.tensor(unseen)}
    found |= {f"correct.{rule}": torch.tensor(values) for rule, values in correct.items()}
    return Counts(id, {f"test.{name}": value for name, value in found.items()})


def test_pooled_is_not_the_mean_of_clients():
    """Client 0: 9 of 10 right; client 1: 0 of 2. Pooled 9/12 = 0.75, mean (0.9 + 0)/2 = 0.45."""
    found = accuracy_of(np.array([9, 0]), np.array([10, 2]))
    assert (found.pooled, found.mean) == (0.75, 0.45)


def test_worst_is_the_mean_of_the_worst_tenth_rounded_up():
    """Of 11 clients with accuracies 0/10 … 10/10, the worst ⌈1.1⌉ = 2 have (0 + 0.1)/2."""
    assert accuracy_of(np.arange(11), np.full(11, 10)).worst == 0.05


def test_a_client_without_test_samples_counts_in_no_mean():
    found = accuracy_of(np.array([1, 0]), np.array([2, 0]))
    assert (found.pooled, found.mean) == (0.5, 0.5)


def test_nobody_tested_gives_none():
    assert accuracy_of(np.zeros(2, int), np.zeros(2, int)) is None


def test_a_rule_that_nobody_has_is_none_and_one_that_some_lack_counts_as_wrong():
    tally = Tally("test", ("global", "local"), 2, 1)
    tally.add(counts(0, [2], local=[2]))
    tally.add(counts(1, [2]))
    found = tally.accuracies()
    assert found["global"] is None
    assert found["local"].pooled == 0.5
    assert tally.arrays()["test.correct.clients.local"].tolist() == [2, 0]


def test_a_rule_that_only_a_later_client_has_counts_the_earlier_ones_as_wrong():
    tally = Tally("test", ("local",), 2, 2)
    tally.add(counts(0, [2, 0]))
    tally.add(counts(1, [1, 3], local=[1, 2]))
    assert tally.arrays()["test.correct.clients.local"].tolist() == [0, 3]
    assert tally.arrays()["test.correct.classes.local"].tolist() == [1, 2]
    assert tally.arrays()["test.support.classes"].tolist() == [3, 3]


def test_a_client_that_comes_late_stands_in_its_place():
    """Clients 2 and 0 of three: `ids` says who was evaluated, in order."""
    tally = Tally("test", ("logits",), 3, 1)
    tally.add(counts(2, [4], unseen=1, logits=[4]))
    tally.add(counts(0, [2], unseen=2, logits=[1]))
    found = tally.arrays()
    assert found["ids"].tolist() == [0, 2]
    assert found["test.support.clients"].tolist() == [2, 4]
    assert found["test.correct.clients.logits"].tolist() == [1, 4]
    assert tally.unseen() == 0.5


def test_nobody_evaluated_leaves_nothing():
    tally = Tally("test", ("logits",), 3, 1)
    assert (tally.accuracies(), tally.arrays(), tally.unseen()) == ({}, {}, None)


def test_every_metric_is_averaged_over_those_who_report_it():
    assert mean_metrics([{"loss": 1.0, "ratio": 4.0}, {"loss": 3.0}]) == {"loss": 2.0, "ratio": 4.0}
    assert mean_metrics([{}, {}]) == {}


def test_prototypes_of_a_right_triangle():
    """Points (0,0), (3,0), (0,4): distances 3, 4, 5; margins 3, 3, 4."""
    points = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    found, arrays = prototype_shape({"prototypes": points, "classes": torch.arange(3)})
    assert (found.min, found.mean, found.max) == (3.0, 4.0, 5.0)
    assert arrays["margins"].tolist() == [3.0, 3.0, 4.0]
    assert prototype_shape({}) == (None, {})
