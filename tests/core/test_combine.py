"""Weighted means of contributions, by hand."""

import pytest
import torch

import protonorm as pn
from protonorm.algorithms.parts.prototypes import by_class, keep_missing, means_by_class
from protonorm.core.combine import Contribution, Mean, combine
from protonorm.federation.server import Gathering


def mean(contributions):
    return combine(contributions, Mean())


def server_step(task, round, state, messages):
    gathered = Gathering(task, round, state)
    for message in messages:
        gathered.add(message)
    return gathered.conclude()


SERVER = pn.Server(1, 1, num_classes=3, feature_dim=2)
ONE = {"classes": torch.tensor([0, 2]), "prototypes": torch.tensor([[1.0, 1.0], [4.0, 0.0]])}
TWO = {"classes": torch.tensor([2]), "prototypes": torch.tensor([[0.0, 2.0]])}


def test_vectors_of_a_class_are_averaged_over_the_clients_that_have_it():
    """Class 0 from one client, class 2 half way between two, class 1 from none."""
    sums = mean(by_class(reply, SERVER) for reply in (ONE, TWO))
    assert sums.means["prototypes"].tolist() == [[1.0, 1.0], [0.0, 0.0], [2.0, 1.0]]
    assert sums.weight_of("prototypes").tolist() == [1.0, 0.0, 2.0]
    assert sums.means["prototypes"].dtype == torch.float32
    assert means_by_class(sums, 2)["classes"].tolist() == [0, 2]


def test_counts_weigh_vectors():
    """Class 2 with 1 and 3 samples: (4·1 + 0·3)/4 and (0·1 + 2·3)/4; not divided by two clients again."""
    replies = [ONE | {"counts": torch.tensor([7, 1])}, TWO | {"counts": torch.tensor([3])}]
    sums = mean(by_class(reply, SERVER) for reply in replies)
    assert sums.means["prototypes"].tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.5]]


def test_without_contributions_there_are_no_means():
    assert mean([]).means == {}
    assert means_by_class(mean([]), 2)["prototypes"].shape == (0, 2)
    none = {"classes": torch.zeros(0, dtype=torch.int64), "prototypes": torch.zeros(0, 2)}
    assert means_by_class(mean([by_class(none, SERVER)]), 2)["classes"].tolist() == []


def test_classes_that_were_not_sent_keep_their_last_vectors():
    last = {"classes": torch.tensor([1, 2]), "prototypes": torch.tensor([[8.0, 8.0], [9.0, 9.0]])}
    after = keep_missing(last, means_by_class(mean([by_class(ONE, SERVER)]), 2), SERVER)
    assert after["classes"].tolist() == [0, 1, 2]
    assert after["prototypes"].tolist() == [[1.0, 1.0], [8.0, 8.0], [4.0, 0.0]]


def test_values_are_weighed_and_totals_added_up():
    """(2·1 + 5·2)/3 = 4; counts 3 + 4."""
    parts = [
        Contribution({"w": torch.tensor([2.0])}, torch.tensor(1), {"n": torch.tensor(3)}),
        Contribution({"w": torch.tensor([5.0])}, torch.tensor(2), {"n": torch.tensor(4)}),
    ]
    sums = mean(iter(parts))
    assert sums.means["w"].tolist() == [4.0]
    assert float(sums.weight) == 3.0
    assert (int(sums.totals["n"]), sums.totals["n"].dtype) == (7, torch.int64)


def test_weights_below_one_weigh_as_others_do():
    """(2·¼ + 6·¼)/½ = 4, of a whole value and of each of its rows; a row without a weight is zero."""
    for weight, expected in ((torch.tensor(0.25), [4.0, 4.0]), (torch.tensor([0.25, 0.0]), [4.0, 0.0])):
        parts = [Contribution({"w": torch.full((2,), value)}, weight) for value in (2.0, 6.0)]
        assert mean(parts).means["w"].tolist() == expected


def test_weights_by_name_are_of_the_shape_of_their_values():
    """Of w the first client has the first number alone: (1, 8/1); b is there twice."""
    parts = [
        Contribution(
            {"w": torch.tensor([1.0, 0.0]), "b": torch.tensor([2.0])}, {"w": torch.tensor([1.0, 0]), "b": torch.ones(1)}
        ),
        Contribution(
            {"w": torch.tensor([0.0, 8.0]), "b": torch.tensor([4.0])}, {"w": torch.tensor([0, 3.0]), "b": torch.ones(1)}
        ),
    ]
    sums = mean(parts)
    assert sums.means["w"].tolist() == [1.0, 8.0]
    assert sums.means["b"].tolist() == [3.0]
    assert sums.weight_of("w").tolist() == [1.0, 3.0]


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_that_no_mean_can_have_are_refused(weight):
    with pytest.raises(ValueError, match="finite and above zero"):
        mean(Contribution({"w": torch.ones(1)}, torch.tensor(w)) for w in (1.0, weight))


def test_contributions_of_different_names_are_refused():
    with pytest.raises(ValueError, match="differ in b, w"):
        mean(Contribution({name: torch.ones(1)}, torch.tensor(1)) for name in "wb")


def test_every_average_of_a_method_goes_through_the_servers_combine(monkeypatch):
    """A server that combines by the sum instead publishes the sum."""

    class Total(Mean):
        def sums(self):
            sums = super().sums()
            return sums._replace(means={name: value * sums.weight for name, value in sums.means.items()})

    task = pn.Task(pn.FedAvg(), ("a", "b"), 2, rounds=1, seed=0)
    replies = [{"model.w": torch.tensor([v]), "num_examples": torch.tensor(1)} for v in (1.0, 2.0)]
    assert server_step(task, 1, {}, replies).message["model.w"].tolist() == [1.5]
    monkeypatch.setattr(
        pn.Task, "server", lambda self, round: pn.Server(round, 1, num_classes=2, feature_dim=2, combine=Total)
    )
    assert server_step(task, 1, {}, replies).message["model.w"].tolist() == [3.0]
