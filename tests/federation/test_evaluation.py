from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from protonorm.core import Counts, Reply
from protonorm.core.samples import Samples
from protonorm.core.training import Training
from protonorm.federation.client import count_answers, count_unseen, score_samples
from protonorm.federation.evaluation import Tally, mean_metrics, prototype_shape
from protonorm.federation.server import Replies
from protonorm.runs.arrays import accuracy_of


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


@pytest.mark.parametrize(
    ("right", "expected"), [([10, 4, 0, 7, 2, 9, 1, 3, 8, 5, 6], 0.1), ([10, 0], 0.1), ([0, 2, 4], 0.04), ([7], 0.7)]
)
def test_p10_is_the_tenth_percentile_between_the_two_nearest_clients(right, expected):
    """Of 10 samples each. Of M sorted accuracies it stands at (M − 1)/10: of eleven 0.0 … 1.0 at place 1, which has
    0.1; of 0 and 1 a tenth of the way, 0.1; of 0, 0.2 and 0.4 a fifth of the way from 0 to 0.2, 0.04."""
    assert accuracy_of(np.array(right), np.full(len(right), 10)).p10 == pytest.approx(expected)


@pytest.mark.parametrize(("clients", "expected"), [(9, 0.0), (10, 0.0), (11, 0.005), (20, 0.005), (21, 0.01)])
def test_worst_is_of_one_client_in_ten_and_of_one_at_least(clients, expected):
    """Accuracies …, 0.02, 0.01, 0: of 9 and 10 clients the last one, of 11 and 20 the mean of two, of 21 of three."""
    assert accuracy_of(np.arange(clients)[::-1], np.full(clients, 100)).worst == pytest.approx(expected)


def test_a_client_without_test_samples_counts_in_no_mean():
    found = accuracy_of(np.array([1, 0]), np.array([2, 0]))
    assert (found.pooled, found.mean) == (0.5, 0.5)


def test_nobody_tested_gives_none():
    assert accuracy_of(np.zeros(2, int), np.zeros(2, int)) is None


def test_a_rule_that_nobody_has_is_none_and_one_that_some_lack_counts_as_wrong():
    tally = Tally("test", ("nearest-global", "nearest-local"), 2, 1)
    tally.add(counts(0, [2], **{"nearest-local": [2]}))
    tally.add(counts(1, [2]))
    found = tally.accuracies()
    assert found["nearest-global"] is None
    assert found["nearest-local"].pooled == 0.5
    assert tally.arrays()["test.correct.clients.nearest-local"].tolist() == [2, 0]


def test_a_rule_that_only_a_later_client_has_counts_the_earlier_ones_as_wrong():
    tally = Tally("test", ("nearest-local",), 2, 2)
    tally.add(counts(0, [2, 0]))
    tally.add(counts(1, [1, 3], **{"nearest-local": [1, 2]}))
    assert tally.arrays()["test.correct.clients.nearest-local"].tolist() == [0, 3]
    assert tally.arrays()["test.correct.classes.nearest-local"].tolist() == [1, 2]
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


def test_every_sample_of_a_class_without_a_prototype_is_unseen():
    """Of the classes 0, 0, 0, 1, 2 the client has a prototype of 1: 3 + 1 samples; a client without any lacks none."""
    client = SimpleNamespace(num_classes=3)
    samples = Samples(torch.zeros(5, 2), torch.tensor([0, 0, 0, 1, 2]), torch.arange(5))
    assert count_unseen(client, samples, {"classes": torch.tensor([1]), "prototypes": torch.zeros(1, 2)}) == 4
    assert count_unseen(client, samples, {}) == 0


def test_every_metric_is_averaged_over_those_who_report_it():
    assert mean_metrics({"loss": [1.0, 3.0], "ratio": [4.0]}) == {"loss": 2.0, "ratio": 4.0}
    assert mean_metrics({}) == {}


def test_metrics_are_gathered_by_name_whoever_reports_them():
    replies = Replies()
    for id, metrics in enumerate(({"loss": 1.0, "ratio": 4.0}, {}, {"loss": 3.0})):
        replies.add(Reply(id, {}, metrics, 0.0))
    assert replies.metrics == {"loss": [1.0, 3.0], "ratio": [4.0]}


def test_prototypes_of_a_right_triangle():
    """Points (0,0), (3,0), (0,4): distances 3, 4, 5; margins 3, 3, 4."""
    points = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    found, arrays = prototype_shape({"prototypes": points, "classes": torch.arange(3)})
    assert (found.min, found.mean, found.max) == (3.0, 4.0, 5.0)
    assert arrays["margins"].tolist() == [3.0, 3.0, 4.0]
    assert prototype_shape({}) == (None, {})


def random_counts(id, random, classes=4):
    """Answers of a client that are drawn: its counts as `federation.client` gives them, and scikit-learn's measures."""
    size = int(random.integers(1, 30))
    labels = random.choice(random.choice(classes, int(random.integers(1, classes + 1)), replace=False), size)
    logits = torch.from_numpy(random.normal(0, 3, (size, classes)))
    found = counted(logits, labels) | {"unseen": torch.tensor(0)}
    return Counts(id, {f"test.{name}": value for name, value in found.items()}), labels, logits.softmax(1).numpy()


def counted(logits, labels):
    """Count the answers of a network that gives these logits (N, K) for samples with these labels (N,)."""

    class Fixed:
        def scores(self, client, state, message, x):
            return {"logits": x, "nearest-global": -x}

    class Nobody:
        device, num_classes, training = "cpu", logits.shape[1], Training()

        def load(self, state):
            return torch.nn.Identity()

        def autocast(self):
            return nullcontext()

    samples = Samples(logits, torch.as_tensor(labels), torch.arange(len(labels)))
    return count_answers(score_samples(Fixed(), Nobody(), samples, {}, {}, None), Nobody())


def expected_calibration(labels, shares):
    """Fifteen bins of equal width, sample by sample."""
    sure, right = shares.max(1), shares.argmax(1) == labels
    bins = [(sure >= low / 15) & (sure < (low + 1) / 15 + (low == 14)) for low in range(15)]
    return sum(abs(right[one].sum() - sure[one].sum()) for one in bins) / len(labels)


def test_all_measures_are_those_of_scikit_learn():
    """Six clients with random logits; some lack classes, some predict classes that they have no sample of."""
    metrics = pytest.importorskip("sklearn.metrics")
    random, tally = np.random.default_rng(3), Tally("test", ("logits",), 6, 4)
    drawn = [random_counts(id, random) for id in range(6)]
    for counts_of_client, *_ in drawn:
        tally.check(counts_of_client)
        tally.add(counts_of_client)
    recall, f1, loss, error = [], [], [], []
    for _, labels, shares in drawn:
        answers = shares.argmax(1)
        recall.append(metrics.recall_score(labels, answers, labels=np.unique(labels), average="macro", zero_division=0))
        f1.append(metrics.f1_score(labels, answers, average="macro", zero_division=0))
        loss.append(metrics.log_loss(labels, shares, labels=range(4)))
        error.append(expected_calibration(labels, shares))
    whole_labels, whole_shares = (np.concatenate([one[place] for one in drawn]) for place in (1, 2))
    found, arrays = tally.accuracies()["logits"], tally.arrays()
    for name, wanted in (("balanced", recall), ("f1", f1), ("log_loss", loss), ("calibration", error)):
        np.testing.assert_allclose(arrays[f"test.{name}.clients.logits"], wanted, rtol=1e-5)
    assert (found.balanced, found.f1) == pytest.approx((np.mean(recall), np.mean(f1)), abs=1e-5)
    assert found.pooled == pytest.approx(metrics.accuracy_score(whole_labels, whole_shares.argmax(1)), abs=1e-5)
    assert found.log_loss == pytest.approx(metrics.log_loss(whole_labels, whole_shares, labels=range(4)), rel=1e-5)
    assert found.calibration == pytest.approx(expected_calibration(whole_labels, whole_shares), rel=1e-5)


def test_who_lacks_a_rule_does_not_lower_its_log_loss():
    """Client 1 has no probabilities: the log loss is that of client 0, ½ for each of two samples, not a quarter."""
    tally, bins = Tally("test", ("logits",), 2, 1), torch.zeros(3, 15, dtype=torch.float64)
    bins[:, 9] = torch.tensor([2.0, 1.2, 2.0])
    beside = {"test.nll.logits": torch.tensor(1.0, dtype=torch.float64), "test.bins.logits": bins}
    tally.add(Counts(0, counts(0, [2], logits=[2]).counts | beside))
    tally.add(counts(1, [2]))
    assert tally.accuracies()["logits"].log_loss == 0.5
    assert tally.arrays()["test.log_loss.clients.logits"].tolist() == pytest.approx([0.5, np.nan], nan_ok=True)
    assert tally.arrays()["test.calibration.clients.logits"].tolist() == pytest.approx([0.4, np.nan], nan_ok=True)


def test_a_probability_of_almost_nothing_counts_as_a_trillionth():
    """p = e⁻¹⁰⁰ and p = 0 count as 10⁻¹²: −log is 27.631021 each, and so it is without numbers at all."""
    scores = torch.tensor([[0.0, 100.0], [-torch.inf, 0.0], [torch.nan, torch.nan]], dtype=torch.float64)
    found = counted(scores, [0, 0, 0])
    assert float(found["nll.logits"]) == pytest.approx(3 * 27.631021, abs=1e-5)
    assert float(found["bins.logits"][0].sum()) == 3
    assert bool(found["bins.logits"].isfinite().all())


def test_only_rules_with_probabilities_have_a_log_loss():
    """Scores by distances are right or wrong, but no probabilities."""
    found = counted(torch.eye(2), [0, 1])
    assert found.keys() >= {"correct.nearest-global", "predicted.nearest-global", "nll.logits", "bins.logits"}
    assert not {"nll.nearest-global", "bins.nearest-global"} & found.keys()


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_a_client_without_samples_counts_in_no_measure_whenever_it_comes(order):
    """Client 0 has no samples, and so no scores; the others are right throughout."""
    tally = Tally("test", ("logits",), 3, 2)
    for id in order:
        if id:
            found = counts(id, [1, 1], logits=[1, 1])
            found.counts["test.predicted.logits"] = torch.tensor([1, 1])
        else:
            found = counts(id, [0, 0])
        tally.add(found)
    accuracy = tally.accuracies()["logits"]
    assert (accuracy.balanced, accuracy.f1) == (1.0, 1.0)
    assert np.isnan(tally.arrays()["test.balanced.clients.logits"]).tolist() == [True, False, False]


@pytest.mark.parametrize(
    "message",
    [
        {"prototypes": torch.ones(3, 2)},
        {"prototypes": torch.ones(3), "classes": torch.arange(3)},
        {"prototypes": torch.ones(3, 2), "classes": torch.arange(2)},
    ],
)
def test_what_is_no_table_of_prototypes_is_not_described(message):
    assert prototype_shape(message) == (None, {})
