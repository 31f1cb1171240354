"""What a run keeps on request: answers by client and class, prototypes of rounds and of clients, data of figures."""

import numpy as np
import pytest
import torch

import protonorm as pn
from protonorm.core.task import Counts
from protonorm.federation.evaluation import Tally
from protonorm.report.page.write import content
from protonorm.runs.archive import archive_runs
from protonorm.runs.arrays import unfit
from protonorm.runs.run import read_run
from protonorm.runs.states import FolderStore
from tests.support import run, spiral

KEPT = {"keep_classes": True, "keep_prototypes": "every:2", "keep_client_prototypes": "every:3", "rounds": 5}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return run(spiral(**KEPT), tmp_path_factory.mktemp("kept"))


def test_answers_by_client_and_class_add_up_to_those_of_clients_and_of_classes(kept):
    frame = kept.frame(by="class, round,client", rule="logits")
    for record in kept.history:
        one = frame[frame["round"] == record.round]
        correct, support = (kept.run.arrays(record)[f"test.{name}.classes{rest}"] for name, rest in PAIRS)
        by_class = one.groupby("class_number")[["correct", "evaluated"]].sum()
        np.testing.assert_array_equal(by_class["correct"], correct)
        np.testing.assert_array_equal(by_class["evaluated"], support)
        by_client = one.groupby("number")[["correct", "evaluated"]].sum()
        shares = by_client["correct"] / by_client["evaluated"]
        np.testing.assert_allclose(shares, kept.run.by_client(record, "logits"))
        np.testing.assert_array_equal(one["evaluated"], one["test"])


PAIRS = (("correct", ".logits"), ("support", ""))


def test_without_the_setting_trained_clients_answer_again(kept, tmp_path):
    usual = run(spiral(rounds=5), tmp_path)
    pn_frames = [result.frame(by="client,class") for result in (kept, usual)]
    assert pn_frames[0].equals(pn_frames[1])
    with pytest.raises(ValueError, match="keep_classes=true records them in every round"):
        usual.frame(by="client,class,round")


@pytest.mark.parametrize("unit", ["client", "class"])
def test_frames_by_round_have_the_reported_round_s_rows(kept, unit):
    frame, reported = kept.frame(by=f"round,{unit}"), kept.frame(by=unit)
    assert len(frame) == 5 * len(reported)
    of_round = frame[frame["round"] == reported["round"][0]].reset_index(drop=True)
    assert of_round.equals(reported)
    with pytest.raises(ValueError, match="by must be round, client"):
        kept.frame(by=f"{unit},rule")


def test_prototypes_of_chosen_rounds_are_kept(kept, tmp_path):
    assert kept.run.snapshots() == [1, 2, 4, 5]
    whole = run(spiral(keep_prototypes="all", rounds=5), tmp_path)
    assert whole.run.snapshots() == [1, 2, 3, 4, 5]
    for round in kept.run.snapshots():
        np.testing.assert_array_equal(kept.run.prototypes(round).vectors, whole.run.prototypes(round).vectors)


def test_clients_own_prototypes_are_those_of_their_states(tmp_path):
    result = run(spiral(**KEPT | {"rounds": 3}), tmp_path)
    clients, classes, vectors = result.run.client_prototypes(3)
    store = FolderStore(result.run.folder / "clients", result.run.info.key)
    for id in range(6):
        state = store.load(id, 3)
        np.testing.assert_array_equal(classes[clients == id], state["classes"])
        np.testing.assert_array_equal(vectors[clients == id].astype(np.float32), state["prototypes"])
    with pytest.raises(ValueError, match="No prototypes of clients are recorded in round 2: they are of rounds 3"):
        result.run.client_prototypes(2)
    archive_runs([result.run.folder], tmp_path / "records", with_clients=True)
    archived = read_run(tmp_path / "records" / result.run.info.key)
    np.testing.assert_array_equal(archived.client_prototypes(3).vectors, vectors)
    assert archived.snapshots() == [1, 2, 3]


def test_own_prototypes_are_kept_of_the_clients_that_trained_in_the_round(tmp_path):
    result = run(spiral(keep_client_prototypes="all", participation=0.5, rounds=3), tmp_path)
    cohorts = [record.cohort for record in result.history]
    assert [sorted(set(result.run.client_prototypes(round).clients)) for round in (1, 2, 3)] == cohorts
    assert cohorts[0] != cohorts[1]


def test_arrays_that_cannot_be_are_named(kept):
    arrays = dict(kept.run.arrays(kept.history[0]))
    assert not unfit(arrays, 6, 6)
    name, support = "test.correct.cells.logits", arrays["test.support.cells"]
    for wrong in (support + 1, support[1:], support.astype(float), support - 10**6):
        assert unfit(arrays | {name: wrong}, 6, 6) == [name]


def test_every_figure_of_the_page_has_its_data(tmp_path):
    settings = {"dataset": {"name": "spiral", "points": 60}, "clients": 4, "rounds": 2}
    comparison = pn.compare("protonorm", "fedproto", out=tmp_path, engine="serial", seeds=2, **settings)
    frames, data = comparison.figures(), content(comparison.runs)["data"]
    charts = [chart["id"] for charts in data["charts"].values() for chart in charts]
    assert list(frames) == [*charts, "traffic", "samples", "clients", "classes", "gains", "sphere"]
    one = frames["accuracy-logits"]
    record = comparison.results["protonorm"][0].history[-1], comparison.results["protonorm"][1].history[-1]
    value = one[(one["line"] == "ProtoNorm") | (one["line"] == "protonorm")].iloc[-1]["value"]
    assert value == pytest.approx(50 * sum(item.rules["logits"].pooled for item in record), rel=1e-3)
    assert frames["samples"][["train", "validation", "test"]].to_numpy().sum() == 60 * 6
    assert set(frames["gains"]["comparison"]) == {panel["title"] for panel in data["gains"]["panels"]}
    single = comparison.results["protonorm"][0].figures()
    assert {"accuracy", "samples", "sphere"} <= single.keys()


def test_a_comparison_is_plotted(tmp_path):
    settings = {"dataset": {"name": "spiral", "points": 60}, "clients": 4, "rounds": 1}
    comparison = pn.compare("fedproto", out=tmp_path, engine="serial", **settings)
    curves, samples = comparison.plot(), comparison.plot("partition")
    assert curves.axes[0].get_ylabel() == "test accuracy, pooled (%)"
    assert samples.axes[0].get_xlabel() == "client"
    assert {*comparison.frame(by="client,class")["method"]} == {"fedproto", "local"}
    with pytest.raises(ValueError, match="kind must be accuracy or partition"):
        comparison.plot("sphere")


def test_answers_of_a_client_that_was_counted_late_are_in_its_row():
    """Client 1 comes first: of class 1 two of three are right; client 0 has one sample of class 0, and no answer."""
    tally = Tally("test", ("logits",), 2, 2, by_cell=True)
    first = {"support": [0, 3], "correct.logits": [0, 2], "predicted.logits": [1, 2], "unseen": 0}
    for id, counts in ((1, first), (0, {"support": [1, 0], "unseen": 0})):
        tally.add(Counts(id, {f"test.{name}": torch.tensor(value) for name, value in counts.items()}))
    arrays = tally.arrays()
    assert arrays["test.support.cells"].tolist() == [[1, 0], [0, 3]]
    assert arrays["test.correct.cells.logits"].tolist() == [[0, 0], [0, 2]]
