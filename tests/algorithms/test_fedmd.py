from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import protonorm as pn
from protonorm.algorithms.feddistill import FedMD, digest_loss, public_logits
from protonorm.algorithms.parts.common_inputs import draw_positions, noise, read_public
from protonorm.core import Client, Samples, SplitModel
from protonorm.core.training import Training
from protonorm.core.types import InputSpec
from protonorm.session.build import build
from tests.algorithms.tasks import federation, server, task_of
from tests.contract.playing import outcome, same
from tests.support import pictures, run, spiral


def example(tmp_path, rows=((1.0, 0.0), (0.0, 1.0)), **settings):
    """K = d = 2, both layers the identity: logits are the inputs; two public inputs, one private sample of class 0."""
    model = pn.SplitModel(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    for layer in (model.features, model.head):
        layer.weight.data = torch.eye(2)
    np.save(tmp_path / "public.npy", np.array(rows, np.float32))
    samples = Samples(torch.tensor([[1.0, 1.0]]), torch.tensor([0]), torch.tensor([0]))
    client = Client(0, 2, 5, model, None, samples, samples, samples, num_classes=2, feature_dim=2, lr=1e-12)
    method = FedMD(public=str(tmp_path / "public.npy"), samples=len(rows), **settings)
    return method, client, method.init_client(client)


def said(logits, round=1):
    """What the server says."""
    return {"logits": logits, "round": torch.tensor(round)}


def test_logits_are_told_of_the_rounds_inputs_in_their_order(tmp_path):
    method, client, state = example(tmp_path, rows=((1.0, 5.0), (2.0, 6.0), (3.0, 7.0)))
    order = draw_positions(3, 3, 0, 2)  # of round 2
    told = method.local_update(client, state, {}).message["logits"]
    assert told.tolist() == [[float(one) + 1, float(one) + 5] for one in order]


def test_an_average_that_one_agrees_with_changes_nothing(tmp_path):
    """Of identical clients loss and gradient are 0."""
    method, client, state = example(tmp_path)
    consensus = public_logits(client, client.load(state), method._chosen(method.inputs(client), 1))
    after = method.local_update(client, state, said(consensus)).state
    torch.testing.assert_close(after, state)


def test_the_digest_is_the_mean_absolute_error():
    """Errors 1, −3, ½ and 0 of two samples and two classes: 4.5/4; each moves its logit by its sign over B·K."""
    logits = torch.tensor([[2.0, -1.0], [0.5, 7.0]], requires_grad=True)
    loss = digest_loss(logits, torch.tensor([[1.0, 2.0], [0.0, 7.0]]))
    loss.backward()
    assert loss.item() == 1.125
    assert logits.grad.tolist() == [[0.25, -0.25], [0.25, 0.0]]


def test_the_error_is_absolute_and_a_mean_over_samples_and_classes(tmp_path):
    """Public inputs e1 and e2, logits the same; consensus 1 lower everywhere: every error is 1, its gradient +1/(2·2).

    ∂/∂W of the head: ¼·(Σ_b z_b) for each row, all above zero. Adam's first step is its rate against the sign.
    """
    method, client, state = example(tmp_path, digest_lr=0.125)
    logits = public_logits(client, client.load(state), method._chosen(method.inputs(client), 1))
    after = method.local_update(client, state, said(logits - 1)).state
    torch.testing.assert_close(after["model.head.weight"], torch.eye(2) - 0.125)


def test_a_digest_is_one_step_of_its_own_whatever_the_clients_settings(tmp_path):
    """Consensus 1 higher everywhere: gradient −¼ in all of the head. One pass, one batch, no decay: one Adam step up.

    Three epochs or batches of one would take more steps; a decay of ½ would turn the diagonal's sign, −¼ + ½·1.
    """
    method, client, state = example(tmp_path, digest_lr=0.125)
    own = replace(client, epochs=3, batch_size=1, training=Training(weight_decay=0.5))
    logits = public_logits(client, client.load(state), method._chosen(method.inputs(client), 1))
    after = method.local_update(own, state, said(logits + 1)).state
    torch.testing.assert_close(after["model.head.weight"], torch.eye(2) + 0.125)


def test_public_pictures_are_digested_as_they_are(tmp_path):
    """1 × 2 pixels, whose mirror image has other logits. Who agrees with the consensus has nothing to learn from it,
    although its own pictures, of two equal pixels, are mirrored in training."""
    layers = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))
    layers[1].weight.data = torch.eye(2)
    samples = Samples(torch.ones(2, 1, 2, 1), torch.tensor([0, 1]), torch.arange(2))
    client = Client(0, 2, 5, pn.SplitModel(layers, nn.Linear(2, 2)), None, *[samples] * 3, num_classes=2, feature_dim=2)
    client = replace(client, lr=1e-12, training=Training(augment="flip"))
    np.save(tmp_path / "public.npy", np.arange(32, dtype=np.float32).reshape(16, 1, 2, 1))
    method = FedMD(public=str(tmp_path / "public.npy"), samples=16)
    state = method.init_client(client)
    consensus = public_logits(client, client.load(state), method._chosen(method.inputs(client), 1))
    after = method.local_update(client, state, said(consensus)).state
    torch.testing.assert_close(after, state, rtol=0, atol=1e-6)


def test_logits_are_told_in_evaluation_mode(tmp_path):
    """With the statistics that batch norm has after training, not those of the public inputs."""
    method, client, _ = example(tmp_path)
    model = pn.SplitModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Linear(2, 2))
    client = replace(client, model=model)
    step = method.local_update(client, method.init_client(client), {})
    kept = client.load(step.state).eval()
    with torch.no_grad():
        wanted = kept(method.inputs(client))[draw_positions(2, 2, 0, 2)]
    torch.testing.assert_close(step.message["logits"], wanted)
    assert torch.equal(kept.state_dict()["features.1.num_batches_tracked"], torch.tensor(1))


def test_alone_a_client_agrees_with_itself_whenever_it_comes_back(tmp_path):
    """It tells its logits in round 1, sits round 2 out, and digests them in round 3: on the inputs of round 1."""
    rows = tuple((float(one), 0.0) for one in range(8))
    method, client, state = example(tmp_path, rows=rows)
    still = replace(client, lr=1e-30)
    first = method.local_update(replace(still, round=1), state, {})
    consensus = method.aggregate(server(1, classes=2), {}, iter([first.message])).message
    assert int(consensus["round"]) == 1
    third = method.local_update(replace(still, round=3), first.state, consensus)
    torch.testing.assert_close(third.state, state, rtol=0, atol=1e-20)
    assert int(method.aggregate(server(3, classes=2), {}, iter([third.message])).message["round"]) == 3


def test_a_consensus_is_of_the_round_that_it_names(tmp_path):
    """Digested with the order of another round, the same logits would be wrong."""
    rows = tuple((float(one), 0.0) for one in range(8))
    method, client, state = example(tmp_path, rows=rows)
    before, now = (method._chosen(method.inputs(client), round) for round in (1, 2))
    assert before.index.tolist() != now.index.tolist()
    told = public_logits(client, client.load(state), before)
    torch.testing.assert_close(method.local_update(client, state, said(told)).state, state)
    wrong = public_logits(client, client.load(state), now)
    moved = method.local_update(client, state, said(wrong)).state["model.head.weight"]
    assert not torch.allclose(moved, state["model.head.weight"])


def test_private_samples_are_revisited(tmp_path):
    """x = (1, 1) of class 0 with equal logits: p = ½, the gradient of the head's first row −½·(1, 1); lr = 1."""
    method, client, state = example(tmp_path)
    step = method.local_update(Client(**{**vars(client), "lr": 1.0}), state, {})
    assert step.metrics["loss"] == pytest.approx(np.log(2), rel=1e-5)
    torch.testing.assert_close(step.state["model.head.weight"], torch.tensor([[1.5, 0.5], [-0.5, 0.5]]))


def test_logits_are_averaged_all_alike():
    """+a and −a: 0."""
    a = torch.tensor([[1.0, -2.0]])
    step = FedMD(samples=1).aggregate(server(classes=2), {}, iter([{"logits": a}, {"logits": -a}]))
    assert step.message["logits"].tolist() == [[0.0, 0.0]]
    assert step.state == {}
    assert FedMD().aggregate(server(), {}, iter([])).message == {}


def test_everybody_draws_the_same_inputs_and_others_in_every_round():
    first, again, other = (draw_positions(50, 10, 3, round) for round in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(set(first.tolist())) == 10
    assert not torch.equal(first, draw_positions(50, 10, 4, 1))
    assert not torch.equal(other, draw_positions(50, 10, 4, 1))  # a seed's second round is not the next seed's first


def test_everybody_has_the_same_noise_and_another_seed_has_other():
    one, two = federation(FedMD(samples=5)), federation(FedMD(samples=5, seed=1))
    first = one.method.inputs(one.client(0))
    assert torch.equal(one.method.inputs(one.client(1)), first)
    assert not torch.equal(two.method.inputs(two.client(0)), first)


def test_noise_is_of_the_form_of_the_samples():
    drawn = noise(torch.zeros(1, 4, 4, 3, dtype=torch.uint8), 5, 0)
    assert (drawn.shape, drawn.dtype) == ((5, 4, 4, 3), torch.uint8)
    assert int(drawn.max()) > 200
    assert noise(torch.zeros(1, 7), 5, 0).shape == (5, 7)
    with pytest.raises(ValueError, match="Noise is no text"):
        noise(torch.zeros(1, 7, dtype=torch.int64), 5, 0)


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.zeros((3, 2), np.float32), r"it holds \(3, 2\) of float32; expected a .npy file of at least 4 inputs"),
        (np.zeros((9, 3), np.float32), r"of shape \(2,\) and type float32"),
        (np.zeros((9, 2), np.float64), "of float64"),
    ],
)
def test_public_inputs_that_do_not_fit_are_refused_with_a_sentence(tmp_path, array, sentence):
    np.save(tmp_path / "public.npy", array)
    with pytest.raises(ValueError, match=sentence):
        read_public(str(tmp_path / "public.npy"), InputSpec(shape=(2,), type="float32"), 4)


def test_a_run_is_known_by_the_content_of_its_public_inputs(tmp_path):
    path = tmp_path / "public.npy"
    keys = set()
    for seed in (0, 1):
        np.save(path, np.random.default_rng(seed).normal(size=(20, 2)).astype(np.float32))
        keys.add(spiral(algorithm={"name": "fedmd", "public": str(path), "samples": 10}).key)
    assert len(keys) == 2
    experiment = spiral(algorithm={"name": "fedmd", "public": str(path), "samples": 10})
    last = run(experiment, out=tmp_path / "runs").history[-1]
    assert last.floats.up == last.floats.down == 6 * 10 * 6  # M·N·K
    assert (last.bytes.up, last.bytes.down) == (6 * 4 * 60, 6 * (4 * 60 + 8))  # the number of the round
    with pytest.raises(ValueError, match="There is no file of public inputs"):
        spiral(algorithm={"name": "fedmd", "public": str(tmp_path / "none.npy")})
    with pytest.raises(ValueError, match="sha256 must be left out"):
        FedMD(sha256="00")


def test_bad_words_are_refused():
    schema = task_of(FedMD(samples=4), classes=2).schema
    schema.check_down({})
    schema.check_up({"logits": torch.zeros(4, 2)}, "It")
    schema.check_down(said(torch.zeros(4, 2)))
    with pytest.raises(ValueError, match="holds round from 0 to 0; expected whole numbers from 1 on"):
        schema.check_down(said(torch.zeros(4, 2), round=0))
    with pytest.raises(ValueError, match="lacks round"):
        schema.check_down({"logits": torch.zeros(4, 2)})
    with pytest.raises(ValueError, match=r"holds logits of shape \(3, 2\); expected \(4, K\)"):
        schema.check_up({"logits": torch.zeros(3, 2)}, "It")


def test_different_networks_on_pictures(tmp_path):
    settings = {"dataset": pictures([0, 1, 2] * 24, 3), "models": "light", "feature_dim": 4}
    last = run(spiral(algorithm=FedMD(samples=20), **settings, clients=4, rounds=2), out=tmp_path).history[-1]
    assert last.floats.up == 4 * 20 * 3
    assert federation(FedMD(samples=20)).started()[2] == {}


# ---- public inputs from a data set ----------------------------------------------------------------------------------


def fedmd(public, **settings):
    return {"name": "fedmd", "public": public, "samples": 10, **settings}


def written(path, images, classes=2):
    """A prepared file of pictures."""
    np.savez(path, images=images, labels=np.arange(len(images)) % classes)
    return f"npz:{path}"


def public_pictures(count=30, seed=5):
    return np.random.default_rng(seed).integers(0, 256, (count, 16, 16, 1), dtype=np.uint8)


def on_pictures(public, **settings):
    usual = {"dataset": pictures([0, 1, 2] * 12, 3), "models": "plain", "feature_dim": 4, "clients": 2, "rounds": 2}
    return spiral(algorithm=fedmd(public), **usual | settings)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder whose data sets are mapped inside it."""
    monkeypatch.setenv("PROTONORM_DATA", str(tmp_path / "data"))
    return tmp_path


def test_a_data_set_that_all_clients_hold(folder):
    """Its inputs are told of as those of a file are, bit for bit; its labels are not looked at."""
    images = public_pictures()
    np.save(folder / "rows.npy", images)
    words = [str(folder / "rows.npy"), written(folder / "a.npz", images), written(folder / "b.npz", images, classes=3)]
    found = [outcome(*build(on_pictures(word))) for word in words]
    assert same(found[0], found[1])
    assert same(found[0], found[2])
    assert not same(found[0], outcome(*build(on_pictures(written(folder / "c.npz", 255 - images)))))


def test_a_run_is_known_by_the_content_of_its_public_data_set(folder):
    keys = {on_pictures(written(folder / f"{k}.npz", public_pictures(seed=k))).key for k in (0, 1)}
    assert len(keys) == 2
    before = on_pictures(written(folder / "0.npz", public_pictures(seed=7)))
    assert before.key not in keys
    written(folder / "0.npz", public_pictures(seed=8))
    with pytest.raises(ValueError, match="is not the data set that the run began with: its content has changed"):
        build(before)


@pytest.mark.parametrize(
    ("public", "sentence"),
    [
        (
            "fashion",
            r"fashion cannot be used as public inputs: it holds \(6000, 28, 28, 1\) of uint8; expected a data set "
            r"of at least 10 inputs of shape \(2,\) and type float32",
        ),
        ("fashon", "Unknown data set of public inputs 'fashon'; did you mean 'fashion'"),
        ("spiral", "public must be other than the clients' own samples, got spiral"),
        ("npz", "public must be npz:PATH, where it is, got 'npz'"),
        ("fashion:here", "public must be fashion, without a path, got 'fashion:here'"),
        ("array:/nowhere/none.npz", "There is no file"),
    ],
)
def test_public_data_that_do_not_fit_are_refused_before_anything_begins(public, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(spiral(algorithm=fedmd(public)))


@pytest.mark.parametrize(("own", "public"), [("fashion", "fashion-mnist"), ("fashion-mnist", "fashion")])
def test_a_part_of_the_clients_data_set_is_refused(own, public):
    with pytest.raises(ValueError, match=f"public must be other than the clients' own samples, got {public}"):
        FedMD(public=public).adapted(own, [])


def test_the_clients_own_files_are_refused_whatever_their_names(folder, monkeypatch):
    """By another path, as another file of the same pictures, and as an array; other pictures are welcome."""
    images = public_pictures()
    own = written(folder / "own.npz", images, classes=3)
    np.save(folder / "rows.npy", images)
    monkeypatch.chdir(folder)
    for word in (own, "npz:own.npz", written(folder / "copy.npz", images), str(folder / "rows.npy")):
        with pytest.raises(ValueError, match="public must be other than the clients' own samples"):
            run(on_pictures(word, dataset=own), folder / "runs")
    images[-1, -1, -1] += 1
    other = on_pictures(written(folder / "other.npz", images), dataset=own, rounds=1)
    assert run(other, folder / "runs").history[-1].floats.up == 2 * 10 * 3


def test_public_numbers_have_to_be_finite(tmp_path):
    """It is looked at again when the file is another."""
    path, rows = tmp_path / "public.npy", np.zeros((4, 2), np.float32)
    for bad in (np.nan, np.inf):
        rows[3, 1] = bad
        np.save(path, rows)
        for _ in range(2):
            with pytest.raises(ValueError, match="cannot be used as public inputs: some of its numbers are NaN or inf"):
                read_public(str(path), InputSpec(shape=(2,), type="float32"), 2)
    np.save(tmp_path / "good.npy", np.zeros((4, 2), np.float32))
    (tmp_path / "good.npy").replace(path)
    assert read_public(str(path), InputSpec(shape=(2,), type="float32"), 2).shape == (4, 2)


def test_too_few_public_samples_are_refused(folder):
    with pytest.raises(ValueError, match=r"it holds \(9, 16, 16, 1\) of uint8; expected a data set of at least 10"):
        build(on_pictures(written(folder / "few.npz", public_pictures(9))))


def test_public_tokens_have_to_be_words_that_networks_know(tmp_path):
    np.save(tmp_path / "tokens.npy", np.array([[0, 1, 5]] * 4))
    kind = InputSpec(shape=(3,), type="int64", vocabulary=5)
    with pytest.raises(ValueError, match="it holds tokens from 0 to 5; expected tokens from 0 to 4"):
        read_public(str(tmp_path / "tokens.npy"), kind, 2)
    assert read_public(str(tmp_path / "tokens.npy"), kind.model_copy(update={"vocabulary": 6}), 2).shape == (4, 3)


def test_noise_for_texts_is_refused_before_anything_begins():
    task = task_of(FedMD(), input=InputSpec(shape=(3,), type="int64", vocabulary=5))
    with pytest.raises(ValueError, match="Noise is no text"):
        FedMD().check_network(SplitModel(nn.Identity(), nn.Identity()), task)


def test_worker_processes_hold_the_public_data_too(folder):
    experiment = on_pictures(written(folder / "a.npz", public_pictures()))
    serial, apart = (run(experiment, folder / one, engine=one).history[-1] for one in ("serial", "processes"))
    assert serial.metrics == apart.metrics
    assert serial.rules == apart.rules
