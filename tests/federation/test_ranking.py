"""AUROC, AUPRC and sensitivity from binned scores, against scikit-learn and numbers by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from protonorm.core.task import Counts
from protonorm.federation.client import count_answers
from protonorm.federation.evaluation import Tally
from protonorm.metrics import METRICS, counters, metrics
from protonorm.metrics.ranking import BINS
from protonorm.tensors import prefixed
from tests.support import run, spiral

RANKING = [name for name, metric in metrics().items() if metric.optional]
CLIENT = SimpleNamespace(num_classes=3, training=SimpleNamespace(metrics="ranking"))


def count(scores, y, rule="logits", classes=3):
    client = SimpleNamespace(num_classes=classes, training=SimpleNamespace(metrics="ranking"))
    counts = count_answers([({rule: part}, labels) for part, labels in zip(scores, y, strict=True)], client)
    return counts | {"unseen": torch.tensor(0)}


def test_a_setting_alone_has_them_counted():
    assert len(RANKING) == 5
    assert [metric.optional for metric in counters("usual")] == [False, False]
    assert [metric.optional for metric in counters("ranking")] == [False, False, True]  # five share one count
    assert METRICS.keys() == metrics().keys()


@pytest.mark.parametrize("rule", ["logits", "nearest-global"])
@pytest.mark.parametrize("scale", [0.2, 1.0, 20.0])
def test_they_equal_scikit_learn_within_the_stated_bounds(scale, rule):
    """Of flat, usual and very sure scores; each bound follows from the counts of the bins.

    In a bin of p samples of the class and n others, the order of p·n pairs is unknown: AUROC is off by p·n/2 pairs at
    most. The precision at each of the p samples is between (t + 1)/(t + 1 + f + n) and (t + p)/(t + p + f), for t and f
    samples above the bin. Sensitivity at a bin's edge is between the true one and that less the next bin's p samples.
    """
    chance = torch.Generator().manual_seed(3)
    y = torch.randint(10, (4000,), generator=chance)
    logits = scale * (torch.randn(4000, 10, generator=chance) + 2 * torch.nn.functional.one_hot(y, 10))
    counts = count(logits.split(256), y.split(256), rule, 10)
    bins = counts[f"scores.{rule}"].numpy()
    values = {name: metrics()[name].of_classes({"scores": bins}) for name in RANKING}
    for k in range(10):
        true, score = (y == k).numpy(), logits.double().softmax(1)[:, k].numpy()
        others, own = bins[:, k, ::-1].astype(np.float64)
        pairs = own.sum() * others.sum()
        bound = (own * others).sum() / pairs / 2
        assert bound < 0.02
        assert abs(values["auroc"][k] - roc_auc_score(true, score)) <= min(bound + 1e-12, 1e-3)
        found, false = own.cumsum() - own, others.cumsum() - others
        high = (found + own) / np.maximum(found + own + false, 1)
        low = (found + 1) / (found + 1 + false + others)
        bound = (own * (high - low)).sum() / own.sum()
        assert bound < 0.2
        assert abs(values["auprc"][k] - average_precision_score(true, score)) <= bound
        assert abs(values["auprc"][k] - average_precision_score(true, score)) < 0.005
        rates, sensitivities, _ = roc_curve(true, score, drop_intermediate=False)
        for level in (90, 95, 99):
            exact = sensitivities[rates <= 1 - level / 100 + 1e-12].max()
            assert exact - own.max() / own.sum() <= values[f"sensitivity{level}"][k] <= exact


def test_numbers_by_hand():
    """Two classes; the class's score is the logit of p: 2, 1 of its samples, 1.5, −1 of the others.

    Three of four pairs are in order: 3/4. Its samples come first and third: (1/1 + 2/3)/2. Without a false alarm the
    first alone is found: 1/2.
    """
    logits, y = torch.tensor([[2.0, 0], [1, 0], [1.5, 0], [-1, 0]]), torch.tensor([0, 0, 1, 1])
    counts = {"scores": count([logits], [y], classes=2)["scores.logits"].numpy()}
    assert metrics()["auroc"].of_classes(counts) == pytest.approx([0.75, 0.75])
    assert metrics()["auprc"].of_classes(counts)[0] == pytest.approx(5 / 6)
    assert metrics()["sensitivity90"].of_classes(counts)[0] == 0.5
    alone = {"scores": count([logits[:2]], [y[:2]], classes=2)["scores.logits"].numpy()}
    assert np.isnan(metrics()["auroc"].of_classes(alone)).all()  # no other class: there is nothing to rank


def test_the_server_folds_means_over_classes_and_clients():
    """Client 0 ranks class 0 and 1 as above, 3/4; client 1 has a pair in order, 1; class 2 nobody has."""
    first = count([torch.tensor([[2.0, 0, -9], [1, 0, -9], [1.5, 0, -9], [-1, 0, -9]])], [torch.tensor([0, 0, 1, 1])])
    second = count([torch.tensor([[2.0, 0, -9], [1, 0, -9]])], [torch.tensor([0, 1])])
    tally = Tally("test", ("logits",), 2, 3)
    for id, counts in ((1, second), (0, first)):
        tally.check(Counts(id, prefixed("test", counts)))
        tally.add(Counts(id, prefixed("test", counts)))
    assert tally.accuracies()["logits"].auroc == pytest.approx(0.875)
    arrays = tally.arrays()
    np.testing.assert_allclose(arrays["test.auroc.clients.logits"], [0.75, 1])
    np.testing.assert_allclose(arrays["test.auroc.classes.logits"], [0.875, 0.875, np.nan])


def test_counts_that_cannot_be_are_refused():
    counts = count([torch.eye(3)], [torch.arange(3)])
    tally = Tally("test", ("logits",), 1, 3)
    tally.check(Counts(0, prefixed("test", counts)))
    moved = counts["scores.logits"].clone()
    moved[:, 0] = moved[:, 0].flip(0)  # the others' as the class's own
    for wrong in (moved, counts["scores.logits"] * 2, counts["scores.logits"].long(), torch.zeros(2, 3, BINS - 1)):
        with pytest.raises(ValueError, match=r"scores\.logits"):
            tally.check(Counts(0, prefixed("test", counts | {"scores.logits": wrong})))


def test_frames_tell_of_them_where_they_were_counted(tmp_path):
    usual, ranked = (run(spiral(rounds=1, **more), tmp_path) for more in ({}, {"metrics": "ranking"}))
    assert not set(RANKING) & {*usual.frame().columns, *usual.frame("client").columns}
    for by in ("round", "client", "class", "rule"):
        assert set(RANKING) <= set(ranked.frame(by).columns)
    clients, (record,) = ranked.frame("client"), ranked.history
    mean = ranked.run.measured(record, "logits", "auroc").mean()
    assert record.rules["logits"].auroc == pytest.approx(mean, rel=1e-5)
    assert clients["auroc"].notna().all()
    np.testing.assert_array_equal(ranked.accuracy(of="auroc"), [record.rules["nearest-global"].auroc])
    with pytest.raises(ValueError, match="This run has no auroc: metrics=ranking measures it"):
        usual.accuracy(of="auroc")
    shared = {"pooled", "balanced", "log_loss"}  # counting more changes nothing else
    same = [record.rules["logits"].model_dump(include=shared) for record in (usual.history[0], record)]
    assert same[0] == same[1]
