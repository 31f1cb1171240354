"""Methods on top of frozen trunks of different widths: on every engine, resumed, exported, in a federation."""

import json

import numpy as np
import pytest
import torch
from experiments.reproduction.communication import task_of

import protonorm as pn
from protonorm.data.features import with_trunks
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.site import make_site
from protonorm.engines.handover import hand_over, take_over
from protonorm.models import frozen
from protonorm.session.build import build
from tests.deployment.federation import Federation, without_states
from tests.deployment.sites import agreement_of
from tests.support import contents, long_unless, pictures, run, run_folder

TRUNKS = """
from torch import nn

def wide():
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())

def narrow():
    return nn.Sequential(nn.AdaptiveAvgPool2d(3), nn.Flatten())
"""
BOTH = ("frozen:trunks.py:wide", "frozen:trunks.py:narrow+mlp")
DATA = pictures([0, 1, 2] * 24, 3)


@pytest.fixture(autouse=True)
def _trunks(tmp_path, monkeypatch):
    (tmp_path / "trunks.py").write_text(TRUNKS)
    monkeypatch.chdir(tmp_path)


def small(**settings):
    usual = {"algorithm": "protonorm", "dataset": DATA, "models": BOTH, "clients": 4, "rounds": 2, "batch_size": 4}
    usual |= {"partition": {"name": "dirichlet", "alpha": 1.0, "least": 6}, "feature_dim": 8, "lr": 0.05}
    return pn.Experiment.of(usual | settings)


@pytest.mark.parametrize("algorithm", long_unless(["fml"], ["protonorm", "fml"]))
def test_processes_give_the_bits_of_serial_and_a_resumed_run_those_of_an_unbroken_one(algorithm, tmp_path):
    experiment = small(algorithm=algorithm)
    run(experiment, tmp_path / "serial")
    expected = contents(run_folder(experiment, tmp_path / "serial"))
    run(experiment.model_copy(update={"rounds": 1}), tmp_path / "processes", engine="processes", workers=2)
    run(experiment, tmp_path / "processes", engine="processes", workers=2)
    assert contents(run_folder(experiment, tmp_path / "processes")) == expected


@pytest.mark.long
def test_ray_gives_the_bits_of_serial(tmp_path):
    pytest.importorskip("ray")
    from protonorm.engines.ray.cluster import disconnect

    experiment = small()
    run(experiment, tmp_path / "serial")
    try:
        run(experiment, tmp_path / "ray", engine="ray", workers=2)
    finally:
        disconnect()
    expected = contents(run_folder(experiment, tmp_path / "serial"))
    assert contents(run_folder(experiment, tmp_path / "ray")) == expected


@pytest.mark.parametrize(
    "algorithm",
    ["local", "fedproto", "fedtgp", "fedsa", "duet", "lgfedavg", "targets", "fedgh", "fedmrl", "fedkd", "feddistill"],
)
def test_methods_run_on_top(algorithm, tmp_path):
    record = run(small(algorithm=algorithm, rounds=1), tmp_path).run
    assert record.rounds[0].rules
    if algorithm != "targets":  # whose targets depend on d
        assert task_of(record).schema.up == build(small(algorithm=algorithm))[0].schema.up


def test_networks_of_a_client_read_their_own_columns():
    """Client 0 has the shared trunk itself, and one range of columns; client 1 has 9 columns, then the 16 shared."""
    task, population = build(small(algorithm="fml"))
    assert [trunk.name for trunk in task.trunks] == ["frozen:trunks.py:wide", "frozen:trunks.py:narrow"]
    assert task.template.trunk == task.trunks[0]
    _, features = with_trunks(population.networks, DATA.inputs)
    wide, narrow = (torch.from_numpy(np.array(features[trunk.digest])) for trunk in task.trunks)
    for id, columns, (own, shared) in (
        (0, [wide], (slice(0, 16), slice(0, 16))),
        (1, [narrow, wide], (slice(0, 9), slice(9, 25))),
    ):
        client = population.site(id).fresh_client()
        x, _ = client.train.batch(torch.arange(3))
        assert torch.equal(x, torch.cat(columns, 1)[client.train.index[:3]])
        assert (client.model.columns, client.auxiliary.columns) == (own, shared)
        assert torch.equal(client.auxiliary.trunk_features(x), wide[client.train.index[:3]])


def test_workers_have_the_same_task_and_the_same_features(tmp_path):
    task, population = build(small(algorithm="fml"))
    (tmp_path / "arrays").mkdir()
    there, others = take_over(json.loads(json.dumps(hand_over(task, population, tmp_path / "arrays"))))
    assert there.digest == task.digest
    for id in range(2):
        x, wanted = (who.site(id).fresh_client().train.batch(torch.arange(3))[0] for who in (others, population))
        assert torch.equal(x, wanted)


def test_the_digest_of_a_task_knows_all_trunks():
    def digest(**settings):
        return build(small(**settings))[0].digest

    assert len({digest(), digest(models=BOTH[0]), digest(models=["frozen:trunks.py:wide@8", BOTH[1]])}) == 3
    shared = [digest(algorithm="fml", models=BOTH[1], auxiliary=f"{BOTH[0]}{size}") for size in ("", "@8")]
    assert shared[0] != shared[1]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"augment": "flip"}, "augment must be none with frozen:trunks.py:wide, whose features .* once, got flip"),
        (
            {"algorithm": "fml", "auxiliary": "plain"},
            "all models must have frozen trunks, or none of them: auxiliary=plain",
        ),
        ({"algorithm": "fml", "models": "light", "auxiliary": BOTH[0]}, "all models must have frozen trunks, or none"),
        ({"algorithm": "fml", "models": [BOTH[0], "plain"]}, "all models must have frozen trunks, or none"),
        ({"algorithm": "fedavg"}, "has 2 different ones"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, expected):
    with pytest.raises(ValueError, match=expected):
        small(**settings)


def test_methods_that_compare_networks_on_common_inputs_are_refused():
    with pytest.raises(ValueError, match="of which frozen:trunks.py:wide has no features"):
        build(small(algorithm="fedmd"))


def test_clients_with_and_without_frozen_trunks_learn_together(tmp_path):
    result = run(small(models=[BOTH[0], "plain"]), tmp_path)
    assert result.run.info.networks[1] == "plain"
    assert [trunk.name for trunk in result.run.info.trunks] == [BOTH[0]]


@pytest.mark.parametrize("algorithm", ["protonorm", "fml"])
def test_a_client_predicts_from_pictures_what_its_record_says(algorithm, tmp_path, monkeypatch):
    """Also once it is exported, loaded elsewhere, and made one module; weights are named, and never others."""
    result = run(small(algorithm=algorithm), tmp_path / "runs")
    record = result.run.chosen.record
    for id in range(2):
        trained, part = result.clients[id], result.population.parts[id].test
        x, y = DATA.inputs[part], DATA.labels[part]
        for rule in trained.algorithm.rules:
            assert (trained.predict(x, rule) == y).mean() == result.run.by_client(record, rule, "test")[id]
        folder = trained.save(tmp_path / f"client{id}")
        again = pn.load_client(folder, network=BOTH[id], auxiliary=BOTH[0] if algorithm == "fml" else None)
        for rule, scores in trained.scores(x).items():
            np.testing.assert_array_equal(again.scores(x)[rule], scores)
            np.testing.assert_allclose(again.module(torch.from_numpy(x))[rule].detach(), scores, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(trained.features(x), trained.features(), rtol=1e-5, atol=1e-5)
        plain = json.loads((folder / "client.json").read_text())
        assert (plain["trunk"]["name"], plain["trunk"]["width"]) == ((BOTH[0], 16), ("frozen:trunks.py:narrow", 9))[id]
        card = (folder / "README.md").read_text()
        assert f"its weights have the SHA-256 `{plain['trunk']['weights']}`" in card
        assert "Their licence: the user's own." in card
    (tmp_path / "trunks.py").write_text(TRUNKS + "# another text\n")
    frozen._own.cache_clear()
    with pytest.raises(ValueError, match="of frozen:trunks.py:narrow here are others"):
        pn.load_client(tmp_path / "client1", network=BOTH[1]).predict(DATA.inputs)


def test_onnx_predicts_from_pictures(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    trained = run(small(models="frozen:trunks.py:wide@12", rounds=1), tmp_path / "runs").clients[0]  # 12 of 16 pixels
    folder = trained.save(tmp_path / "client", onnx=True)
    session = runtime.InferenceSession(folder / "model.onnx")
    found = dict(
        zip([one.name for one in session.get_outputs()], session.run(None, {"inputs": DATA.inputs[:4]}), strict=True)
    )
    for rule, scores in trained.scores(DATA.inputs[:4]).items():
        np.testing.assert_allclose(found[rule], scores, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("algorithm", ["protonorm", "fml"])
def test_a_federation_gives_the_bits_of_a_simulation(algorithm, tmp_path):
    """Each client computes the features of its own samples alone."""
    experiment = small(algorithm=algorithm, clients=3, models=[item.replace("+mlp", "") for item in BOTH])
    if algorithm == "fml":  # a shared network of one's own code is refused
        with pytest.raises(ValueError, match="Nobody else has the network"):
            agreement_of(build(experiment)[0])
        return
    federation = Federation(experiment, tmp_path)
    assert federation.task.digest != Federation(small(clients=3, models="light"), tmp_path).task.digest
    assert [trunk.width for trunk in federation.task.trunks] == [16, 9]
    assert without_states(federation.run()) == federation.serial()


VECTORS = pn.Dataset("vectors", np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32), np.arange(60) % 3)


def test_parties_of_a_federation_have_the_trunks_that_they_agreed_on():
    terms = {"algorithm": "fml", "classes": ["0", "1", "2"], "feature_dim": 8, "rounds": 1, "seed": 0}
    terms |= {"shared_network": "frozen:identity", "input": {"shape": [6], "type": "float32"}}
    agreement = Agreement.of(terms | {"trunks": ["frozen:identity"]})
    assert Agreement.read(agreement.write()) == agreement
    assert agreement.task.trunks == (agreement.task.template.trunk,)
    client = make_site(agreement, 0, VECTORS, "frozen:identity+mlp").client(0)
    x, _ = client.train.batch(torch.arange(2))
    assert client.model(x).shape == client.auxiliary(x).shape == (2, 3)
    with pytest.raises(ValueError, match="must have a frozen trunk if the shared frozen:identity has, got mlp"):
        make_site(agreement, 0, VECTORS, "mlp")
    plain = agreement.plain()
    plain["trunks"][0]["digest"] = "0" * 64
    with pytest.raises(
        ValueError, match="one of the frozen trunks of the agreement, .*: frozen:identity; got frozen:identity"
    ):
        make_site(Agreement.of(plain), 0, VECTORS, "frozen:identity")
    plain = agreement.plain()
    plain["shared_trunk"]["digest"] = "0" * 64
    with pytest.raises(ValueError, match="of frozen:identity here are others than those agreed on"):
        make_site(Agreement.of(plain), 0, VECTORS, "frozen:identity")
    with pytest.raises(ValueError, match="augment must be none with frozen:identity|no pictures"):
        make_site(agreement, 0, VECTORS, "frozen:identity", pn.Training(augment="flip"))
    with pytest.raises(ValueError, match="shared_trunk"):
        Agreement.read(json.dumps({**agreement.plain(), "shared_trunk": None}).encode())


def test_agreements_without_frozen_trunks_are_what_they_were():
    agreement = Agreement.of({"algorithm": "fedproto", "classes": ["a", "b"], "feature_dim": 8, "rounds": 1, "seed": 0})
    assert not agreement.plain().keys() & {"trunks", "shared_trunk"}
