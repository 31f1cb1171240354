"""What a result gives: frames, confusions, a short text and a table; and results of runs that somebody else made."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import protonorm as pn
from tests.records import hundred, made, record
from tests.support import run, spiral

OWN = """
from torch import nn

import protonorm as pn


def small(shape, feature_dim, num_classes):
    features = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], feature_dim))
    return pn.SplitModel(features, nn.Linear(feature_dim, num_classes))
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """One experiment, and the same clients alone."""
    out = tmp_path_factory.mktemp("runs")
    return run(spiral(rounds=2), out=out), run(spiral(rounds=2, algorithm="local"), out=out)


def test_a_frame_by_client_has_what_each_has_and_gains(pair):
    together, alone = pair
    frame = together.frame(by="client", alone=alone)
    assert list(frame["client"]) == ["0", "1", "2", "3", "4", "5"]
    assert set(frame["method"]) == {"protonorm"}
    assert set(frame["network"]) == {"mlp"}
    assert list(frame["train"]) == together.run.population.train.sum(1).tolist()
    chosen = [one.run.chosen.record.round - 1 for one in pair]
    assert list(frame["accuracy"]) == together.accuracy("nearest-global", "clients")[chosen[0]].tolist()
    theirs = alone.accuracy(of="clients")[chosen[1]]
    np.testing.assert_allclose(frame["gain"], frame["accuracy"] - theirs)


@pytest.mark.parametrize("part", ["test", "validation"])
def test_accuracies_of_clients_and_classes_are_of_the_part_that_is_asked_for(pair, part):
    """Weighted by the part's samples both are the pooled accuracy of the part, in every round."""
    result, sizes = pair[0], getattr(pair[0].run.population, part)  # (M, K)
    pooled = result.accuracy("logits", part=part)
    for of, axis in (("clients", 1), ("classes", 0)):
        shares, counts = result.accuracy("logits", of, part), sizes.sum(axis)
        np.testing.assert_allclose(shares[:, counts > 0] @ counts[counts > 0] / counts.sum(), pooled, rtol=1e-5)
    with pytest.raises(ValueError, match="part must be test, validation, common or newcomers, got 'train'"):
        result.accuracy("logits", "clients", "train")


def test_frames_by_class_rule_and_round(pair):
    result = pair[0]
    assert list(result.frame(by="class")["class"]) == list(result.classes)
    assert list(result.frame(by="rule")["rule"]) == ["nearest-global", "nearest-local", "logits", "joint"]
    assert len(result.frame()) == len(result.frame(by="round")) == 2 * 4
    with pytest.raises(ValueError, match="by must be round, client, class or rule, or several of .*, got 'clients'"):
        result.frame(by="clients")


def test_a_confusion_counts_what_the_record_counts(pair):
    """Its rows add up to the client's test samples, its diagonal to the right answers of the reported round."""
    result = pair[0]
    found = result.confusion(3)
    assert found.sum(1).tolist() == result.run.population.test[3].tolist()
    share = result.frame(by="client")["accuracy"][3]
    assert found.trace() / found.sum() == share
    every = result.confusion(rule="logits")
    assert every.sum(1).tolist() == result.run.population.test.sum(0).tolist()
    assert every.trace() / every.sum() == pytest.approx(result.frame(by="rule").set_index("rule")["pooled"]["logits"])
    np.testing.assert_array_equal(every, np.sum([result.confusion(id, "logits") for id in range(6)], axis=0))


def test_cells_are_counted_by_the_true_class(pair):
    result = pair[0]
    right, support = result.cells("logits")
    np.testing.assert_array_equal(support, result.run.population.test)
    every = result.confusion(rule="logits")
    assert right.sum(0).tolist() == every.diagonal().tolist()
    assert support.sum(0).tolist() != every.sum(0).tolist()  # some answers are wrong


def test_a_confusion_has_true_classes_in_rows_and_predicted_ones_in_columns(pair):
    result = pair[0]
    data, part = result.population.dataset, result.population.parts[2].test
    wanted = np.zeros((6, 6), int)
    for x, label in zip(data.inputs[part], data.labels[part], strict=True):
        wanted[label, result.clients[2].predict(x[None])[0]] += 1
    np.testing.assert_array_equal(result.confusion("2"), wanted)


def test_a_confusion_needs_a_client_and_a_rule_that_there_are(pair):
    with pytest.raises(ValueError, match="There is no client 6"):
        pair[0].confusion(6)
    with pytest.raises(ValueError, match="no rule 'nearest'"):
        pair[0].confusion(0, "nearest")


def test_data_that_have_changed_are_noticed(pair, tmp_path):
    result = pn.Result(spiral(rounds=2, partition={"name": "iid"}), pair[0].run)
    with pytest.raises(ValueError, match="The data are no longer those of the run"):
        result.confusion(0)


def test_a_loaded_run_gives_the_same(pair):
    result = pair[0]
    loaded = pn.load_run(result.run.folder)
    assert loaded.given is None
    assert loaded.history == result.history
    np.testing.assert_array_equal(loaded.accuracy(of="clients"), result.accuracy(of="clients"))
    assert loaded.experiment == result.experiment
    np.testing.assert_array_equal(loaded.confusion(1), result.confusion(1))
    x = result.population.dataset.inputs[:5]
    np.testing.assert_array_equal(
        loaded.clients[0].scores(x)["nearest-global"], result.clients[0].scores(x)["nearest-global"]
    )


def test_a_run_is_found_by_its_name_and_by_its_beginning(pair):
    key, root = pair[0].run.info.key, pair[0].run.folder.parent
    for name in (key, key[:12]):
        assert pn.load_run(name, out=root).run.folder == root / key
    with pytest.raises(ValueError, match="There is no run 'nobody'"):
        pn.load_run("nobody", out=root)


def test_a_record_alone_is_enough(tmp_path):
    """No such data are here, and no such experiment was ever made: what is on record is there all the same."""
    folder = record(
        tmp_path / "key", clients=2, classes=1, rounds=1, population=hundred(2), tested=[[50, 100]],
        client_names=["berlin", "paris"],
    )  # fmt: skip
    loaded = pn.load_run(folder)
    assert loaded.client_names == ("berlin", "paris")
    assert list(loaded.frame(by="client")["accuracy"]) == [0.5, 1.0]


def test_what_a_record_does_not_hold_is_named(tmp_path):
    cases = {
        "dataset clients:three": {"dataset": {"name": "clients:three", "sha256": "ab"}},
        "algorithm net.py:Mine": {"method": {"name": "net.py:Mine", "source": "ab"}},
        "models net.py:small": {"models": [{"name": "net.py:small", "source": "ab"}]},
        "partition mine.py:P": {"partition": {"name": "mine.py:P", "source": "ab"}},
    }
    for place, (told, settings) in enumerate(cases.items()):
        name = told.split()[0]
        loaded = pn.Result(None, made(tmp_path / str(place), **settings))
        said = rf"The {told} of {place} is the user's own: .* pn\.load_run\(…, {name}=…\) takes it"
        with pytest.raises(ValueError, match=said):
            _ = loaded.experiment


def test_what_a_record_does_not_hold_can_be_given(tmp_path):
    """Data and a network of one's own: without them the record can be read, with them clients predict."""
    (tmp_path / "own_small.py").write_text(OWN)
    for number, name in enumerate(("berlin", "paris")):
        save(tmp_path / "two" / f"{name}.npz", number)
    settings = {"dataset": f"clients:{tmp_path / 'two'}", "models": f"{tmp_path / 'own_small.py'}:small"}
    experiment = pn.Experiment(**settings, rounds=1, feature_dim=4, batch_size=4, validation=0)
    result = run(experiment, out=tmp_path)
    assert result.client_names == ("berlin", "paris")
    bare = pn.load_run(result.run.folder)
    with pytest.raises(ValueError, match="is the user's own"):
        bare.clients["paris"]
    with pytest.raises(ValueError, match="models"):
        pn.load_run(result.run.folder, dataset=settings["dataset"])
    whole = pn.load_run(result.run.folder, **settings)
    assert whole.clients["paris"].id == 1
    np.testing.assert_array_equal(whole.confusion("paris"), result.confusion(1))
    with pytest.raises(ValueError, match="An experiment has no setting 'networks'"):
        pn.load_run(result.run.folder, networks=[])
    with pytest.raises(ValueError, match="is another experiment"):
        pn.load_run(result.run.folder, **settings, lr=0.5)


def save(path, first):
    path.parent.mkdir(exist_ok=True)
    images = np.random.default_rng(first).integers(0, 255, (16, 4, 4, 1)).astype(np.uint8)
    np.savez(path, images=images, labels=np.arange(16) % 2)


def test_texts_are_short(pair):
    result = pair[0]
    assert repr(result.experiment) == str(result.experiment)
    assert repr(result.experiment).startswith("Experiment(algorithm=protonorm, dataset=spiral, dataset.points=60, ")
    assert "clients=6" in repr(result.experiment)
    assert "momentum" not in repr(result.experiment)
    assert repr(pn.Experiment()) == "Experiment(algorithm=protonorm, dataset=fashion)"
    found = result.run.chosen.record
    share = f"{100 * found.rules['nearest-global'].pooled:.2f}"
    told = f"protonorm on spiral, seed 0: 2 of 2 rounds, accuracy {share} % in round {found.round}"
    assert repr(result).startswith(f"Result({told}; ")
    assert repr(result).endswith(f"{result.run.folder.name})")  # however long the path is


def test_tables_for_notebooks_are_escaped(tmp_path):
    names = ["<script>", "b\x1b[2J"]
    run = made(
        tmp_path / "run", clients=2, classes=1, rounds=1, population=hundred(2), tested=[[50, 100]], client_names=names
    )
    table = pn.Result(None, run)._repr_html_()
    assert "<script>" not in table
    assert "&lt;script&gt;" in table
    assert "\x1b" not in table
    assert ">50.00<" in table
    assert "<td" in pn.Experiment(rounds=7)._repr_html_()
    assert ">7<" in pn.Experiment(rounds=7)._repr_html_()


def test_a_long_table_says_how_long_it_is(tmp_path):
    table = pn.Result(None, made(tmp_path / "run", clients=31))._repr_html_()
    assert table.count("<tr>") == 1 + 30
    assert "The first 30 of 31 rows." in table


def test_a_rule_or_measure_that_there_is_not_is_refused(tmp_path):
    found = pn.Result(None, made(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"There is no rule 'globl' in this run; known: nearest-global, logits\."):
        found.accuracy("globl")
    with pytest.raises(ValueError, match=r"of must be pooled, mean, worst, .*, clients or classes, got 'pooledd'"):
        found.accuracy(of="pooledd")
    with pytest.raises(ValueError, match=r"^This run has no auroc: metrics=ranking measures it\.$"):
        found.accuracy(of="auroc")
    for part, how in (("common", "common_test=official or a share"), ("newcomers", "held_out=SHARE holds out")):
        with pytest.raises(ValueError, match=f"^This run has no part {part}: {how}"):
            found.accuracy(part=part)
    with pytest.raises(ValueError, match="^part must be test, validation, common or newcomers, got 'x'"):
        found.accuracy(part="x", of="clients")


def test_what_is_not_there_is_refused_in_a_sentence(pair):
    result = pair[0]
    with pytest.raises(IndexError, match=r"^There is no client 99; the run has clients 0 to 5\.$"):
        result.clients[99]
    with pytest.raises(ValueError, match=r"^A client must be given by its number or its name, got 1.5\.$"):
        result.clients[1.5]
    with pytest.raises(ValueError, match=r"^checkpoint must be chosen or last, got 'first'\.$"):
        result.trained("first")
    with pytest.raises(ValueError, match=r"^by must be round, .* or rule, .*, got \['client'\]\.$"):
        result.frame(by=["client"])
    with pytest.raises(ValueError, match=r"^of must be pooled, .*, got \['pooled'\]\.$"):
        result.accuracy(of=["pooled"])
    with pytest.raises(ValueError, match=r"^alone must be a run or the result of one, got 'x'\.$"):
        result.frame(by="client", alone="x")
    with pytest.raises(ValueError, match=r"^There is no rule \['x'\] in this run; known: "):
        result.summary(["x"])
    with pytest.raises(ValueError, match=r"^run must be the folder or the name of a run, got 5\.$"):
        pn.load_run(5)
    with pytest.raises(ValueError, match=r"^out must be the path of a folder, got 5\.$"):
        pn.load_run("x", out=5)
    with pytest.raises(ValueError, match=r"^text is not a run: it has no experiment\.json\.$"):
        pn.read_run("text")
    with pytest.raises(ValueError, match=r"^5 is not a run: expected the path of its folder\.$"):
        pn.read_run(5)
    assert pn.read_run(str(result.run.folder)).info.key == result.run.info.key
    assert result.clients[-1].id == 5


def test_texts_of_results_runs_and_clients_are_short(pair):
    result = pair[0]
    for thing in (result, result.run, result.clients, result.clients[0], result.trained("last")):
        assert len(repr(thing)) <= 200
        assert "\n" not in repr(thing)
    settings = result.run.info.experiment
    settings = settings.model_copy(update={"algorithm": settings.algorithm.model_copy(update={"name": "m" * 300})})
    info = result.run.info.model_copy(update={"experiment": settings, "key": "k" * 300})
    long = replace(result.run, folder=Path("/" + "f" * 300), info=info)
    assert max(len(repr(thing)) for thing in (long, pn.Result(None, long))) <= 200
    assert repr(result.run).startswith("Run(protonorm on spiral, seed 0: 2 of 2 rounds; ")
    assert repr(result.clients[0]).endswith(f", mlp, 6 classes, rule {result.clients[0].rule})")
    assert repr(result.clients) == f"TrainedClients(6 of {result.run.info.key}, chosen round)"
