"""Clients with names are named in what is said of them: when they diverge, do not reply, or are followed."""

from dataclasses import replace

import numpy as np
import pytest

import protonorm as pn
from protonorm.errors import TooFewReplies
from protonorm.federation.rounds import begin, run_rounds
from protonorm.runs.writer import RunWriter
from protonorm.search.sweeping import stand
from protonorm.session.build import build, policy_of
from protonorm.session.running import _counts, info_of
from tests.data.test_bad_pictures import draw
from tests.federation.test_rounds import Unreliable
from tests.support import contents, run

NAMES = ("berlin", "paris", "rome")


def three(**settings):
    """Three named clients with sixteen points each."""
    random = np.random.default_rng(0)
    points, labels = random.normal(size=(48, 2)).astype(np.float32), np.arange(48) % 2
    owner = np.repeat(np.arange(3), 16)
    data = pn.Dataset("three", points, labels, ("left", "right"), owner=owner, client_names=NAMES)
    return pn.Experiment(**{"dataset": data, "models": "mlp", "batch_size": 4, "rounds": 1} | settings)


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_client_that_diverges_is_named(tmp_path, engine):
    with pytest.raises(pn.Diverged, match=r"^The (training loss|weights) of client (berlin|paris|rome) "):
        run(three(algorithm="local", lr=1e30), out=tmp_path, engine=engine)


def test_clients_that_do_not_reply_are_named(tmp_path):
    experiment = three(algorithm="fedproto", retries=0)
    task, population = build(experiment)
    policy = policy_of(experiment, population.client_names)
    with RunWriter(tmp_path / "run", experiment.key) as writer:
        writer.describe(info_of(experiment, task, NAMES), _counts(population))
        engine = Unreliable(task, population, writer.store, plan={(1, 1): 1})
        with pytest.raises(TooFewReplies, match=r"2 of 3 clients replied, 3 must \(client paris: it was switched off"):
            list(run_rounds(task, engine, policy, begin(task, policy), writer))
        engine = Unreliable(task, population, writer.store, spoil=lambda order, _: {"x": _some()} if order.id else None)
        with pytest.raises(TooFewReplies, match=r"\(client paris: The reply of client paris "):
            list(run_rounds(task, engine, policy, begin(task, policy), writer))
        engine = Unreliable(task, population, writer.store, blind={2: 1})
        with pytest.raises(TooFewReplies, match="cannot be evaluated: client rome: it was switched off"):
            list(run_rounds(task, engine, policy, begin(task, policy), writer))


def _some():
    import torch

    return torch.zeros(1)


def test_a_client_without_a_number_of_its_own_is_called_by_it():
    found = build(three())[1].site(1).client(1)
    assert (found.name, found.label) == ("paris", "client paris")
    numbered = build(pn.Experiment(dataset={"name": "spiral", "points": 20}, clients=2, rounds=1))[1].site(1).client(1)
    assert (numbered.name, numbered.label) == ("", "client 1")


def test_a_tracker_has_a_curve_for_each(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard")
    found = run(three(algorithm="local"), out=tmp_path, tracker="tensorboard").run
    log = reader.EventAccumulator(str(found.folder / "tensorboard")).Reload()
    for id, name in enumerate(NAMES):
        share = found.by_client(found.rounds[0], "logits")[id]
        assert [event.value for event in log.Scalars(f"client/{name}/accuracy")] == [pytest.approx(share)]
        assert log.Scalars(f"client/{name}/validation")


def test_names_are_in_frames_and_tables(tmp_path):
    found = run(three(algorithm="local"), out=tmp_path)
    assert found.frame(by="client")["client"].tolist() == list(NAMES)
    assert "paris" in found._repr_html_()
    assert found.client_names == NAMES


def test_a_client_with_nothing_to_train_on_is_named():
    points, labels = np.zeros((6, 2), np.float32), np.arange(6) % 2
    with pytest.raises(ValueError, match="client paris has no sample to train on"):
        pn.Dataset(
            "x",
            points,
            labels,
            ("a", "b"),
            owner=np.repeat(np.arange(3), 2),
            split=np.array([0, 0, 1, 1, 0, 0], np.int8),
            client_names=NAMES,
        )


def renamed(classes=("left", "right"), names=NAMES, **settings):
    """The three clients with other names: in no key, for all samples are the same."""
    data = replace(three().dataset, classes=classes, client_names=names)
    return three(algorithm="local", dataset=data, **settings)


OTHERS = {
    "classes: number 1 was 'right', and is 'up' now": {"classes": ("left", "up")},
    "classes: number 0 was 'left', and is 'right' now": {"classes": ("right", "left")},
    "classes: number 2 was without a name, and is 'up' now": {"classes": ("left", "right", "up")},
    "clients: number 2 was 'rome', and is 'oslo' now": {"names": ("berlin", "paris", "oslo")},
    "clients: number 0 was 'berlin', and is without a name now": {"names": None},
}


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("told", OTHERS)
def test_a_run_with_other_names_is_refused_and_left(tmp_path, told, rounds):
    first, other = three(algorithm="local"), renamed(**OTHERS[told], rounds=rounds)
    assert other.key == first.key
    folder = run(first, out=tmp_path).run.folder
    before = contents(folder)
    with pytest.raises(ValueError, match=rf"other names of {told}.*left as it is; give another folder with --out"):
        run(other, out=tmp_path)
    with pytest.raises(ValueError, match=f"other names of {told}"):
        stand(renamed(**OTHERS[told]), tmp_path)
    assert contents(folder) == before
    assert run(other, out=tmp_path / "elsewhere").classes == other.dataset.classes
    assert run(three(algorithm="local", rounds=rounds), out=tmp_path).run.finished


def test_a_renamed_folder_of_a_class_or_a_client_is_refused(tmp_path):
    """Pictures and their order are the same, so that the key is."""
    partners = tmp_path / "partners"
    for client in ("berlin", "paris"):
        for kind in ("cat", "dog"):
            for number in range(4):
                draw(partners / client / kind / f"{number}.png", 40 * number + 3 * len(kind))
    data = {"name": "clients", "path": str(partners), "size": 16}
    settings = {"dataset": data, "algorithm": "local", "models": "plain", "rounds": 1}
    run(pn.Experiment.of(settings), out=tmp_path / "runs")
    (partners / "paris").rename(partners / "rome")
    with pytest.raises(ValueError, match="names of clients: number 1 was 'paris', and is 'rome' now"):
        run(pn.Experiment.of(settings), out=tmp_path / "runs")
    (partners / "rome").rename(partners / "paris")
    for client in ("berlin", "paris"):
        (partners / client / "dog").rename(partners / client / "emu")
    with pytest.raises(ValueError, match="names of classes: number 1 was 'dog', and is 'emu' now"):
        run(pn.Experiment.of(settings), out=tmp_path / "runs")
