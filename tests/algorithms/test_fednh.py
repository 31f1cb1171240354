import math

import numpy as np
import pytest
import torch
from torch import nn

import protonorm as pn
from protonorm.algorithms.fednh import Directions, FedNH, Unit
from protonorm.core import Client, Samples
from protonorm.core.training import Training
from protonorm.federation.client import count_answers, score_samples
from tests.algorithms.tasks import OneNetwork, federation, server, task_of
from tests.support import Given, count_floats, pictures, run


def held(directions, w=1.0):
    """What a server with one weight w remembers."""
    return {
        "model.features.w": torch.tensor([w]),
        "scale": torch.tensor(2.0),
        "classes": torch.arange(len(directions)),
        "prototypes": torch.tensor(directions),
    }


def reply(classes, vectors, counts, w=1.0, scale=2.0):
    return {
        "model.features.w": torch.tensor([w]),
        "scale": torch.tensor(scale),
        "classes": torch.tensor(classes),
        "prototypes": torch.tensor(vectors),
        "counts": torch.tensor(counts),
    }


def seeing(inputs, labels, lr=1e-12):
    """A client whose features are its inputs (n, 2), of three classes."""
    samples = Samples.of(np.array(inputs, np.float32), np.array(labels), np.arange(len(labels)))
    model = pn.SplitModel(nn.Identity(), nn.Linear(2, 3))
    return Client(
        0, 1, 1, model, None, samples, samples, samples, 3, 2, lr=lr, batch_size=64, training=Training(shuffle=False)
    )


def told(client, directions=((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)), scale=1.0, method=None):
    message = {"scale": torch.tensor(scale), "classes": torch.arange(3), "prototypes": torch.tensor(directions)}
    return (method or FedNH()).local_update(client, FedNH(scale=20).init_client(client), message)


def test_directions_move_towards_the_mean_weighted_by_counts():
    """4·(1, 0) + 3·(0, 1) = (4, 3), of direction (0.8, 0.6); ½(1, 0) + ½(0.8, 0.6) = (0.9, 0.3), of length √0.9."""
    replies = [reply([0], [[1.0, 0.0]], [4]), reply([0], [[0.0, 1.0]], [3])]
    step = FedNH(rho=0.5).aggregate(server(classes=2), held([[1.0, 0.0], [0.0, 1.0]]), iter(replies))
    torch.testing.assert_close(step.message["prototypes"][0], torch.tensor([0.9, 0.3]) / math.sqrt(0.9))


def test_nine_tenths_of_a_direction_stay_by_default():
    """0.9·(1, 0) + 0.1·(0, 1) = (0.9, 0.1), of length √0.82."""
    step = FedNH().aggregate(server(classes=1), held([[1.0, 0.0]]), iter([reply([0], [[0.0, 1.0]], [7])]))
    torch.testing.assert_close(step.message["prototypes"], torch.tensor([[0.9, 0.1]]) / math.sqrt(0.82))


def test_directions_of_classes_that_nobody_holds_stay_and_all_are_unit_vectors():
    one = federation(FedNH())
    state = one.method.init_server(one.server()).state
    shape = {name: value for name, value in state.items() if name.startswith(("model", "scale"))}
    said = shape | {
        "classes": torch.tensor([4, 1]),
        "prototypes": torch.tensor([[0.6, 0.8], [1.0, 0.0]]),
        "counts": torch.tensor([2, 9]),
    }
    after = FedNH().aggregate(server(classes=6), state, iter([said])).message["prototypes"]
    for j in (0, 2, 3, 5):
        assert torch.equal(after[j], state["prototypes"][j])
    assert not torch.equal(after[1], state["prototypes"][1])
    assert after.norm(dim=1).tolist() == pytest.approx([1.0] * 6)


def test_opposite_measurements_cancel_and_the_direction_stays():
    """5·(0, 1) + 5·(0, −1) = 0 has no direction."""
    replies = [reply([0], [[0.0, 1.0]], [5]), reply([0], [[0.0, -1.0]], [5])]
    step = FedNH().aggregate(server(classes=1), held([[1.0, 0.0]]), iter(replies))
    assert step.message["prototypes"].tolist() == [[1.0, 0.0]]


def test_features_and_scale_are_averaged_whatever_clients_hold():
    """Mean of 2 and 6 is 4, of 1 and 5 is 3, with 1 and 99 samples; half the way from 1 is 2.5, and from 2 is 2.5."""
    replies = [
        reply([0], [[1.0, 0.0]], [1], w=2.0, scale=1.0),
        reply([0], [[1.0, 0.0]], [99], w=6.0, scale=5.0),
    ]
    whole = FedNH().aggregate(server(classes=1), held([[1.0, 0.0]]), iter(replies)).message
    assert (float(whole["model.features.w"]), float(whole["scale"])) == (4.0, 3.0)
    half = FedNH(server_lr=0.5).aggregate(server(classes=1), held([[1.0, 0.0]]), iter(replies)).message
    assert (float(half["model.features.w"]), float(half["scale"])) == (2.5, 2.5)


def test_the_first_directions_are_orthonormal_or_stand_on_the_circle():
    _, state, _ = federation(FedNH(), feature_dim=8).started()
    drawn = state["prototypes"]  # (6, 8)
    torch.testing.assert_close(drawn @ drawn.T, torch.eye(6), atol=1e-6, rtol=0)
    first = federation(FedNH(initial="circle")).started()[2]["prototypes"]
    torch.testing.assert_close(first[:3], torch.tensor([[1.0, 0.0], [0.5, 0.75**0.5], [-0.5, 0.75**0.5]]))


def test_logits_are_scaled_cosines():
    """e = (3, 4), ê = (0.6, 0.8); W = (1, 0), (0, 1), (−0.6, −0.8); s = 2: logits 1.2, 1.6, −2."""
    directions = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-0.6, -0.8]])
    logits = Directions(directions, torch.tensor(2.0), True)(Unit()(torch.tensor([[3.0, 4.0]])))
    torch.testing.assert_close(logits, torch.tensor([[1.2, 1.6, -2.0]]))


def test_a_client_measures_the_mean_of_unit_features():
    """Class 0 at (3, 0) and (0, 1): unit vectors, mean (½, ½), direction (1, 1)/√2; not that of (1.5, 0.5)."""
    said = told(seeing([[3.0, 0.0], [0.0, -2.0], [0.0, 1.0]], [0, 2, 0])).message
    assert said["classes"].tolist() == [0, 2]
    assert said["counts"].tolist() == [2, 1]
    torch.testing.assert_close(said["prototypes"], torch.tensor([[0.5**0.5, 0.5**0.5], [0.0, -1.0]]))


def test_one_step_of_the_scale():
    """ê = (1, 0), W = (1, 0), (0, 1), (−1, 0), s = 1: logits 1, 0, −1, cross-entropy of class 0 −log p_0.

    Its derivative by s is Σ_k p_k·cos_k − cos_0 = p_0 − p_2 − 1; one step with lr 1 takes that off. The same sample
    stands twice in the batch.
    """
    step = told(seeing([[5.0, 0.0]], [0], lr=1.0))
    total = math.e + 1 + 1 / math.e
    assert step.metrics["loss"] == pytest.approx(-math.log(math.e / total))
    assert float(step.message["scale"]) == pytest.approx(1.0 - (math.e / total - 1 / math.e / total - 1.0))
    assert float(step.state["scale"]) == float(step.message["scale"])


def test_a_step_is_bounded():
    """The gradient of the scale is far above 0.001: a step with lr 1 moves it by at most that."""
    method = FedNH(clip=1e-3)
    step = told(seeing([[5.0, 0.0]], [0], lr=1.0), method=method)
    assert 0 < abs(float(step.message["scale"]) - 1.0) <= 1.01e-3


def test_a_frozen_scale_stays():
    method = FedNH(scaling="frozen", scale=30.0)
    client, state, message = federation(method).started()
    step = method.local_update(client, state, message)
    assert float(message["scale"]) == float(step.message["scale"]) == 30.0


def test_features_of_length_zero_give_no_nan():
    """ê = 0: logits 0, the loss is log 3; a class without direction sends a zero vector, which moves nothing."""
    step = told(seeing([[0.0, 0.0]], [1]))
    assert step.metrics["loss"] == pytest.approx(math.log(3))
    assert step.message["prototypes"].tolist() == [[0.0, 0.0]]
    state = {"scale": torch.tensor(1.0), "classes": torch.arange(3), "prototypes": torch.eye(3)[:, :2]}
    after = FedNH().aggregate(server(classes=3), state, iter([step.message])).message
    assert torch.equal(after["prototypes"], state["prototypes"])


def test_sgd_moves_neither_directions_nor_the_head_and_the_head_is_not_sent():
    method = FedNH()
    client, state, message = federation(method).started()
    step = method.local_update(client, state, message)
    assert torch.equal(step.state["prototypes"], message["prototypes"])
    assert torch.equal(step.state["model.head.weight"], state["model.head.weight"])
    assert not torch.equal(step.state["model.features.0.weight"], message["model.features.0.weight"])
    assert not any(name.startswith("model.head") for said in (message, step.message) for name in said)


def test_the_payload():
    """Features 2 → 16 → 8 → 4 → 2: 48 + 136 + 36 + 10 = 230 floats, the scale, and 2 for each class: 6 or K_i."""
    one = federation(FedNH())
    client, state, down = one.started()
    up = one.method.local_update(client, state, down).message
    held = len(client.train.labels.unique())  # K_i
    schema = one.task.schema
    assert count_floats(down) == schema.numbers(schema.down, {}) == 230 + 1 + 6 * 2
    assert count_floats(up) == schema.numbers(schema.up, {"K_i": held}) == 230 + 1 + held * 2


def test_a_client_starts_from_what_it_received_whatever_its_workspace_holds():
    method = FedNH()
    client, state, said = federation(method, lr=1e-30).started()
    for weight in client.model.parameters():
        nn.init.zeros_(weight)
    step = method.local_update(client, state, said)
    for name in said:
        assert torch.equal(step.state[name], said[name])


def test_predictions_are_those_of_the_directions_and_not_of_the_head():
    """(2, 0), (0, 2) and (−2, 0) are told by W, whatever the head says."""
    client = seeing([[2.0, 0.0], [0.0, 2.0], [-2.0, 0.0]], [0, 1, 2])
    state = told(client).state
    state = state | {name: torch.zeros_like(state[name]) for name in state if name.startswith("model.head")}
    counts = count_answers(score_samples(FedNH(), client, client.test, state, {}, None), client)
    assert counts["correct.logits"].tolist() == [1, 1, 1]


def flat(width=1):
    """Features with the one weight w; the head is not shared."""
    features = nn.Module()
    features.w = nn.Parameter(torch.zeros(width))
    return pn.SplitModel(features, nn.Linear(2, 3))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model.features.w": torch.zeros(3)}, r"holds model.features.w of shape \(3,\); expected \(1,\)"),
        ({"model.head.weight": torch.zeros(3, 2)}, "holds model.head.weight, which is not expected"),
        ({"prototypes": torch.tensor([[math.nan, 0.0]])}, "holds prototypes with numbers that are not finite"),
        ({"prototypes": torch.ones(2, 2)}, r"holds prototypes of shape \(2, 2\)"),
        ({"classes": torch.tensor([3])}, "holds classes from 3 to 3"),
        ({"counts": torch.tensor([0])}, "holds counts from 0 to 0"),
        ({"counts": torch.tensor([1, 1])}, r"holds counts of shape \(2,\)"),
        ({"counts": None}, "lacks counts"),
        ({"scale": torch.tensor([1.0])}, r"holds scale as torch.float32 of shape \(1,\)"),
    ],
)
def test_a_reply_that_does_not_fit_is_refused(changes, sentence):
    fine = reply([0], [[1.0, 0.0]], [1])
    schema = task_of(FedNH(), shared_network=OneNetwork(flat)).schema
    schema.check_up(fine, "It")
    schema.check_down(held([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
    wrong = {name: value for name, value in (fine | changes).items() if value is not None}
    with pytest.raises(ValueError, match=f"It {sentence}"):
        schema.check_up(wrong, "It")


@pytest.mark.parametrize(("network", "scale"), [("cnn4", 1.0), ("resnet18", 20.0), ("plain", 20.0), ("mlp", 20.0)])
def test_the_first_scale_is_the_authors_for_the_network(network, scale):
    """Their code has 1 for the 4-layer CNN and 20 for ResNet-18."""
    assert FedNH().adapted("cifar10", [network]).scale == scale
    assert FedNH(scale=3).adapted("cifar10", [network]).scale == 3


def test_a_scale_that_nobody_chose_is_refused():
    client = seeing([[1.0, 0.0]], [0])
    with pytest.raises(ValueError, match=r"FedNH has no scale: give one, or let adapted\(dataset, networks\)"):
        FedNH().init_client(client)
    with pytest.raises(ValueError, match="FedNH has no scale"):
        FedNH().init_server(server(0, model=client.model))


@pytest.mark.parametrize("buffers", ["averaged", "local"])
def test_pictures(tmp_path, buffers):
    """Also a client with one sample; the geometry of the directions is in the record."""
    data = pictures([0, 1, 2] * 20 + [0, 0], 3)
    experiment = pn.Experiment(
        algorithm=FedNH(buffers=buffers),
        dataset=data,
        models="plain",
        feature_dim=8,
        clients=3,
        rounds=3,
        batch_size=8,
        partition=Given([list(range(30)), list(range(30, 60)), [60, 61]]),
        train=0.5,
    )
    last = run(experiment, out=tmp_path).history[-1]
    assert math.isfinite(last.loss)
    assert last.rules["received"] is not None
    assert 0 < last.prototypes.max <= 2
