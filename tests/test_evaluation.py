import numpy as np
import torch

from protonorm.evaluation import accuracy, by_rule, majority, prototype_metrics
from protonorm.history import summary


def test_pooled_is_not_the_mean_of_clients():
    """Client 0: 9 of 10 right; client 1: 0 of 2. Pooled 9/12 = 0.75, mean (0.9 + 0)/2 = 0.45."""
    found = accuracy(np.array([[9, 0], [0, 0]]), np.array([[10, 0], [1, 1]]))
    assert (found["pooled"], found["mean"], found["clients"]) == (0.75, 0.45, [0.9, 0.0])
    assert found["classes"] == [0.818182, 0.0]  # 9/11, 0/1


def test_worst_is_the_mean_of_the_worst_tenth_rounded_up():
    """Of 11 clients with accuracies 0/10 … 10/10, the worst ⌈1.1⌉ = 2 have (0 + 0.1)/2."""
    found = accuracy(np.arange(11)[:, None], np.full((11, 1), 10))
    assert found["worst"] == 0.05


def test_a_client_without_test_samples_counts_in_no_mean():
    found = accuracy(np.array([[1], [0]]), np.array([[2], [0]]))
    assert (found["pooled"], found["mean"], found["clients"]) == (0.5, 0.5, [0.5, None])


def test_nobody_tested_gives_none():
    assert accuracy(np.zeros((2, 3), int), np.zeros((2, 3), int)) is None


def test_a_rule_that_nobody_has_is_none_and_one_that_some_lack_counts_as_wrong():
    counts = {0: {"support": torch.tensor([2]), "correct.local": torch.tensor([2])}, 1: {"support": torch.tensor([2])}}
    found = by_rule(("global", "local"), counts)
    assert found["global"] is None
    assert found["local"]["pooled"] == 0.5


def test_majority_predicts_the_most_frequent_training_class():
    """Client 0 trains mostly on class 1 and has 3 of 4 test samples of it; client 1 on class 0, 1 of 2."""
    found = majority(np.array([[1, 5], [4, 0]]), np.array([[1, 3], [1, 1]]))
    assert (found["pooled"], found["clients"]) == (0.666667, [0.75, 0.5])


def test_summary_has_best_last_and_the_mean_of_own_bests():
    """Own bests of the two clients: 0.9 (round 1) and 0.8 (round 2), mean 0.85, above any round's mean."""
    lines = [
        {"round": r, "rules": {"logits": {"pooled": p, "mean": p, "worst": w, "clients": list(c)}, "global": None}}
        for r, p, w, c in [(1, 0.6, 0.3, (0.9, 0.3)), (2, 0.65, 0.5, (0.5, 0.8)), (3, 0.4, 0.4, (0.4, 0.4))]
    ]
    found = summary(lines, "logits")
    assert found["best"] == {"round": 2, "pooled": 0.65, "mean": 0.65, "worst": 0.5}
    assert found["last"]["round"] == 3
    assert found["own_best"] == 0.85
    assert summary(lines, "global") is None


def test_prototype_metrics_of_a_right_triangle():
    """Points (0,0), (3,0), (0,4): distances 3, 4, 5; margins 3, 3, 4."""
    points = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    found = prototype_metrics({"prototypes": points, "classes": torch.arange(3)})
    assert found["distance"] == {"min": 3.0, "mean": 4.0, "max": 5.0}
    assert found["margins"] == [3.0, 3.0, 4.0]
    assert prototype_metrics({}) == {}
