import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import protonorm as pn
from protonorm.algorithms.fml import FML
from protonorm.core import Client
from protonorm.geometry.losses import divergence
from protonorm.session.build import build
from protonorm.tensors import strip_prefix
from tests.algorithms.tasks import Federation, OneNetwork, federation, server, task_of
from tests.support import pictures, run

LN2, LN3 = math.log(2), math.log(3)


def example(**settings):
    """One sample of class 1: the own model says p = (¼, ¾), the meme p_g = (½, ½)."""
    o = torch.tensor([[0.0, LN3]], dtype=torch.float64, requires_grad=True)
    o_g = torch.tensor([[0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    return FML(**settings).losses(o, o_g, torch.tensor([1])), o, o_g


@pytest.mark.parametrize(("reduction", "parts"), [("mean", 2), ("batchmean", 1)])
@pytest.mark.parametrize("detach", [False, True])
def test_both_losses_by_hand(reduction, parts, detach):
    """CE = ln 4/3 and ln 2; KL(p_g‖p) = ½ ln 2 + ½ ln 2/3; KL(p‖p_g) = ¼ ln ½ + ¾ ln 3/2; parts = B·K or B."""
    (own, meme), *_ = example(alpha=0.6, beta=0.3, reduction=reduction, detach=detach)
    assert own.item() == pytest.approx(0.6 * (2 * LN2 - LN3) + 0.4 * (LN2 - LN3 / 2) / parts)
    assert meme.item() == pytest.approx(0.3 * LN2 + 0.7 * (0.75 * LN3 - LN2) / parts)


def test_all_weight_on_the_labels_is_no_distillation():
    (own, meme), *_ = example(alpha=1.0, beta=1.0)
    assert (own.item(), meme.item()) == (pytest.approx(2 * LN2 - LN3), pytest.approx(LN2))


def test_a_detached_teacher_gets_no_gradient_from_its_pupil():
    """∂KL(q‖p)/∂o = p − q. Own: ½(p − (0, 1)) + ½(p − p_g) = ½(¼, −¼) + ½(−¼, ¼) = 0. Meme: ½(½, −½) + ½(¼, −¼)."""
    (own, meme), o, o_g = example(reduction="batchmean", detach=True)
    (own + meme).backward()
    assert o.grad[0].tolist() == pytest.approx([0.0, 0.0])
    assert o_g.grad[0].tolist() == pytest.approx([0.375, -0.375])


def test_a_teacher_that_is_not_detached_gets_the_gradient_of_both_losses():
    """∂KL(q‖p)/∂o_q = q (log q/p − KL). For q = p_g: ½ ln 2 − ½ KL, KL = ½ ln 4/3, so ¼ ln 3 and −¼ ln 3, halved by
    1 − α. For q = p: 3/16 of log p_1/p_g1 − log p_2/p_g2 = −ln 3, so ∓3/16 ln 3, halved by 1 − β."""
    (own, meme), o, o_g = example(reduction="batchmean")
    (own + meme).backward()
    assert o.grad[0].tolist() == pytest.approx([-3 / 32 * LN3, 3 / 32 * LN3])
    assert o_g.grad[0].tolist() == pytest.approx([0.375 + LN3 / 8, -0.375 - LN3 / 8])


def test_memes_are_averaged_all_alike():
    """(0 + 4)/2 = 2, however many samples the clients have."""
    replies = [{"meme.w": torch.tensor([0.0])}, {"meme.w": torch.tensor([4.0])}]
    step = FML().aggregate(server(), {"meme.w": torch.tensor([9.0])}, iter(replies))
    assert step.message["meme.w"].tolist() == step.state["meme.w"].tolist() == [2.0]


def tiny():
    """One linear layer of features, (2, 2) and (2,), and a head (3, 2)."""
    return pn.SplitModel(nn.Linear(2, 2), nn.Linear(2, 3, bias=False))


def meme(**changes):
    said = {"features.weight": torch.ones(2, 2), "features.bias": torch.ones(2), "head.weight": torch.ones(3, 2)}
    return {f"meme.{name}": value for name, value in (said | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (meme(**{"head.weight": None}), "lacks meme.head.weight"),
        (meme(**{"head.bias": torch.ones(3)}), "holds meme.head.bias, which is not expected"),
        (meme(**{"features.bias": torch.ones(3)}), r"holds meme.features.bias of shape \(3,\); expected \(2,\)"),
        (meme(**{"features.bias": torch.tensor([1, torch.nan])}), "holds meme.features.bias with numbers that are not"),
        (meme(**{"features.bias": torch.ones(2).double()}), "holds meme.features.bias as torch.float64"),
    ],
)
def test_what_is_not_a_meme_is_refused_from_both_sides_with_a_sentence(said, sentence):
    schema = task_of(FML(), shared_network=OneNetwork(tiny)).schema
    schema.check_up(meme(), "It")
    with pytest.raises(ValueError, match=f"It {sentence}"):
        schema.check_up(said, "It")
    with pytest.raises(ValueError, match=f"The server's message {sentence}"):
        schema.check_down(said)


def test_the_second_network_is_the_tasks():
    one = federation(FML(), models=["mlp"])
    assert one.task.shared_network is not None
    assert one.server().auxiliary.state_dict().keys() == one.client().auxiliary.state_dict().keys()
    assert one.server().model is None


def test_the_reported_loss_is_the_sum_of_both_at_the_received_meme():
    """One step on one batch of everything with lr → 0: the mean loss is the loss at the start."""
    method = FML(alpha=0.9, beta=0.2)
    client, state, message = federation(method, batch_size=4096, lr=1e-12).started(1)
    step = method.local_update(client, state, message)
    x, y = client.train.batch(torch.arange(len(client.train)))
    with torch.no_grad():
        o = client.load(state)(x)
        client.auxiliary.load_state_dict(strip_prefix(message, "meme"))
        o_g = client.auxiliary(x)
    expected = 0.9 * cross_entropy(o, y) + 0.1 * divergence(o_g, o, "mean")
    expected += 0.2 * cross_entropy(o_g, y) + 0.8 * divergence(o, o_g, "mean")
    assert step.metrics["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert all(torch.allclose(step.message[name], value) for name, value in message.items())


def test_both_networks_are_trained_and_their_steps_are_clipped():
    """With a bound of 10⁻³ and lr = 1, one step changes each network by at most 10⁻³ in all."""
    method = FML(clip=1e-3)
    client, state, message = federation(method, batch_size=4096, lr=1.0).started(1)
    step = method.local_update(client, state, message)
    for before, after in ((state, step.state), (message, step.message)):
        moved = sum(float((after[name] - value).square().sum()) for name, value in before.items()) ** 0.5
        assert moved == pytest.approx(1e-3, rel=1e-2)


def test_only_floats_travel_and_counters_stay_at_home(tmp_path):
    """`plain` with d = 8, K = 3 travels whole, up and down, with the statistics of batch norm, to any network."""
    data = pictures([0, 1, 2] * 20, 3)
    experiment = pn.Experiment(
        algorithm="fml", dataset=data, models="light", clients=4, feature_dim=8, rounds=2, partition="iid"
    )
    one = Federation(*build(experiment))
    network = one.server().auxiliary
    parameters = sum(value.numel() for value in network.parameters())
    statistics = sum(value.numel() for value in network.buffers() if value.is_floating_point())
    client, state, message = one.started(3)
    kept = one.method.local_update(client, state, message)
    assert {name.rsplit(".", 1)[1] for name in strip_prefix(kept.state, "meme")} == {"num_batches_tracked"}
    sent = run(experiment, out=tmp_path).history[1].bytes
    assert sent.up == sent.down == 4 * 4 * (parameters + statistics)


def test_settings_outside_their_range_are_refused():
    for wrong in ({"alpha": 1.1}, {"beta": -0.1}, {"reduction": "sum"}, {"clip": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            pn.Experiment.of({"algorithm": {"name": "fml", **wrong}})


def test_the_average_meme_answers_beside_the_own_model():
    """`shared` is the server's meme, not the one that the client trained; both answer together under `joint`."""
    method = FML()
    client, state, message = federation(method).started(1)
    step = method.local_update(client, state, message)
    said = {name: value + 1 for name, value in message.items()}
    x, _ = client.test.batch(torch.arange(3))
    client.load(step.state).eval()
    with torch.no_grad():
        found = method.scores(client, step.state, said, x)
        client.auxiliary.load_state_dict(strip_prefix(step.state | said, "meme"))
        torch.testing.assert_close(found["shared"], client.auxiliary.eval()(x))
        torch.testing.assert_close(found["logits"], client.model(x))
    assert method.rules == ("logits", "shared", "joint")
    assert method.headline == "logits"
    assert method.scores(Client(**{**vars(client), "auxiliary": None}), state, said, x).keys() == {"logits"}
