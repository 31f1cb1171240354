"""Other ways to test: samples that test all clients alike, and clients that never train."""

import numpy as np
import pytest

import protonorm as pn
from protonorm.data.prepared import Arrays, write_prepared
from protonorm.data.published.datasets import MNIST
from protonorm.federation.policy import draw_cohort
from protonorm.runs.run import read_run
from protonorm.session.build import build, policy_of
from tests.support import contents, pictures, run, spiral

BOTH = {"common_test": 0.2, "held_out": 0.34, "participation": 0.5}


def data(official=None):
    whole = pictures(np.tile(np.arange(3), 40), 3)
    return pn.Dataset("tiny", whole.inputs, whole.labels, whole.classes, official=official)


def small(**settings):
    usual = {"models": "plain", "feature_dim": 8, "clients": 4, "rounds": 2, "partition": "iid", "batch_size": 8}
    return pn.Experiment(**usual | settings)


@pytest.mark.parametrize(("method", "split"), [("protonorm", "random"), ("fedavg", "content")])
def test_bits_are_equal_on_engines_and_after_a_resumption(tmp_path, method, split):
    settings = {"algorithm": method, "split": split, "validation": 0.3, **BOTH}
    whole = run(spiral(**settings, rounds=4), tmp_path / "serial")
    run(spiral(**settings, rounds=2), tmp_path / "resumed")
    for out, engine in (("resumed", "serial"), ("processes", "processes")):
        again = run(spiral(**settings, rounds=4), tmp_path / out, engine)
        assert contents(again.run.folder) == contents(whole.run.folder)


def test_official_test_samples_are_nobody_s_and_test_everybody(tmp_path):
    """Of 120 samples 30 are official: four clients share 90, and each is tested on the 30 as well."""
    official = np.arange(120) >= 90
    experiment = small(dataset=data(official), common_test="official", algorithm="fedavg")
    population = build(experiment)[1]
    owned = population.parts.index
    assert sorted(owned.tolist()) == list(range(90))
    for id in range(4):
        assert population.site(id).client(1).part("common").index.tolist() == list(range(90, 120))
    result = run(experiment, tmp_path)
    (last,) = result.history[-1:]
    support = result.run.arrays(last)["common.support.clients"]
    assert support.tolist() == [30] * 4
    assert len(result.run.by_client(last, "received", "common")) == 4
    assert len(set(result.run.by_client(last, "received", "common"))) == 1  # one model, one test: one accuracy
    np.testing.assert_array_equal(result.accuracy("received", part="common")[-1], last.common["received"].pooled)
    frame = result.frame(by="client", rule="received")
    assert frame["common"].tolist() == pytest.approx([last.common["received"].mean] * 4, rel=1e-5)
    assert result.frame()["common"].notna().all()


def test_the_common_accuracy_is_that_of_the_trained_clients(tmp_path):
    official = np.arange(120) >= 90
    result = run(small(dataset=data(official), common_test="official"), tmp_path)
    where = result.population.dataset
    for id in range(4):
        predicted = result.trained("chosen")[id].predict(where.inputs[90:], "logits")
        accuracy = (predicted == where.labels[90:]).mean()
        assert accuracy == pytest.approx(result.run.by_client(result.run.chosen.record, "logits", "common")[id])


def test_a_share_of_each_class_tests_everybody_where_there_is_no_official_split():
    """Of each class 40 samples, of which a quarter: ten of each, whatever clients have."""
    for split in ("random", "content"):
        parts = build(small(dataset=data(), common_test=0.25, split=split))[1].parts
        assert np.bincount(data().labels[parts.common]).tolist() == [10, 10, 10]
        assert len(np.union1d(parts.common, parts.index)) == 120
    again = build(small(dataset=data(), common_test=0.25, partition={"name": "iid", "seed": 2}))[1].parts.common
    assert again.tolist() != parts.common.tolist()


def test_published_data_know_their_official_test_samples(tmp_path):
    whole = pictures([0, 1] * 20, 2)
    split = np.array([0] * 30 + [1] * 10, np.int8)
    write_prepared(tmp_path / "mnist.npz", Arrays(whole.inputs, whole.labels, split, ("a", "b")))
    loaded = MNIST(root=tmp_path).load()
    np.testing.assert_array_equal(loaded.official, split > 0)
    assert MNIST(root=tmp_path, samples=20).load().official is None  # the first of each class are all for training


def test_clients_that_are_held_out_never_train_and_are_measured_apart(tmp_path):
    """A third of six clients: two, in no cohort and in no number but `newcomers`."""
    experiment = spiral(algorithm="fedavg", held_out=0.34, rounds=3)
    result = run(experiment, tmp_path)
    out = policy_of(experiment).held_out
    assert len(out) == 2
    for record in result.history:
        assert record.cohort == sorted(set(range(6)) - set(out))
        assert record.evaluated == "all"
        assert np.isnan(result.run.by_client(record, "received")[list(out)]).all()
    assert not any((result.run.folder / "clients").glob(f"{out[0]}.*"))
    last, population = result.history[-1], result.population
    trained = next(id for id in range(6) if id not in out)
    right = total = 0  # all have the model that the server published last
    for id in out:
        index = population.parts[id].test
        predicted = result.trained("last")[trained].predict(population.dataset.inputs[index], "received")
        right += int((predicted == population.dataset.labels[index]).sum())
        total += len(index)
    assert last.newcomers["received"].pooled == pytest.approx(right / total, rel=1e-5)
    assert result.accuracy("received", part="newcomers")[-1] == last.newcomers["received"].pooled
    assert set(
        result.frame(by="client,class")["evaluated"].groupby(result.frame(by="client,class")["number"]).sum()[list(out)]
    ) == {0}
    with pytest.raises(ValueError, match="has not trained yet"):
        result.clients[out[0]]


def test_newcomers_are_measured_where_everybody_is(tmp_path):
    rounds = run(spiral(algorithm="fedavg", held_out=0.34, rounds=3, evaluate_every=2), tmp_path).history
    assert [bool(record.newcomers) for record in rounds] == [False, True, True]


def test_a_comparison_s_frame_has_both(tmp_path):
    settings = {"dataset": {"name": "spiral", "points": 60}, "clients": 4, "rounds": 1, "seeds": 2, "engine": "serial"}
    comparison = pn.compare("fedproto", out=tmp_path, common_test=0.2, held_out=0.25, **settings)
    row = comparison.frame().query("method == 'fedproto' and rule == 'logits'").iloc[0]
    records = [result.history[0] for result in comparison.results["fedproto"]]
    for part in ("common", "newcomers"):
        values = [getattr(record, part)["logits"].pooled for record in records]
        assert row[part] == pytest.approx(sum(values) / 2)
        low, high = row[f"{part}_low"], row[f"{part}_high"]
        assert (low + high) / 2 == pytest.approx(row[part])
    usual = pn.compare("fedproto", out=tmp_path, **settings)
    assert not {"common", "newcomers"} & {*usual.frame().columns}
    head = "gain on local"
    assert "<th>common</th><th>newcomers</th>" in comparison._repr_html_().replace('<th scope="col">', "<th>")
    assert "newcomers" not in usual._repr_html_()
    for text, has in ((comparison.page(tmp_path / "a.html"), True), (usual.page(tmp_path / "b.html"), False)):
        assert ("Newcomers: accuracy of the clients that never train" in text.read_text("utf-8")) == has, head


def test_the_majority_is_of_the_clients_that_train(tmp_path):
    result = run(spiral(held_out=0.34, rounds=1), tmp_path)
    out = list(policy_of(result.experiment).held_out)
    train, _, test = result.run.population
    right = test[np.arange(len(test)), train.argmax(1)]
    assert test[out].sum() > 0
    expected = np.delete(right, out).sum() / np.delete(test, out, 0).sum()
    assert result.run.majority.pooled == pytest.approx(expected, abs=1e-6)
    assert expected != pytest.approx(right.sum() / test.sum(), abs=1e-6)


def test_cohorts_are_drawn_from_those_that_train():
    policy = policy_of(spiral(held_out=0.34, participation=0.5, seed=3))
    drawn = {id for round in range(1, 30) for id in draw_cohort(3, round, policy.participants, policy.cohort_size)}
    assert drawn == set(policy.participants) == set(range(6)) - set(policy.held_out)
    assert policy.cohort_size == 2
    assert len({policy_of(spiral(held_out=0.34, seed=seed)).held_out for seed in range(8)}) > 2


def test_records_without_them_have_no_such_fields(tmp_path):
    result = run(spiral(rounds=1), tmp_path)
    line = (result.run.folder / "metrics.jsonl").read_bytes()
    assert b"common" not in line
    assert b"newcomers" not in line
    assert not read_run(result.run.folder).rounds[0].common


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"held_out": 0.1}, "held_out must hold out a client, got 0.1 of 4 clients"),
        ({"held_out": 1}, "held_out must be "),
        ({"common_test": 1.0}, "common_test must "),
        ({"common_test": "all"}, "common_test must "),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        small(**settings)


def test_data_without_such_samples_are_refused():
    owned = pn.Dataset("owned", data().inputs, data().labels, owner=np.arange(120) % 4)
    for source, share, sentence in (
        (data(), "official", "needs an official test split, which tiny does not have"),
        (data(), 0.001, "must be a larger share"),
        (owned, 0.2, "data that belong to clients already"),
    ):
        with pytest.raises(ValueError, match=sentence):
            build(pn.Experiment(dataset=source, common_test=share, clients=4, models="plain", feature_dim=8))
    with pytest.raises(ValueError, match="official has shape"):
        data(np.ones(3, bool))
