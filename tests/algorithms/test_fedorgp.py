import math

import pytest
import torch

from protonorm.algorithms.fedtgp import FedORGP, angle_loss, orthogonality
from protonorm.algorithms.parts.prototypes import class_means
from tests.algorithms.tasks import all_classes, federation, first_batch_loss, server, task_of
from tests.algorithms.tasks import vectors as reply
from tests.support import pictures, run, spiral

EYE, HALF = torch.eye(2), math.sqrt(0.5)


@pytest.mark.parametrize(
    ("adaptive", "intra", "inter"), [(False, 0.29289, 0.70711), (True, 0.49587, 1.19714)], ids=["paper", "adaptive"]
)
def test_a_prototype_between_two_orthogonal_ones(adaptive, intra, inter):
    """c = (1, 1)/√2, ĉ = (e1, e2), y = 0: both cosines √½, so 1 − √½ and √½; σ((√½ − 0.3)/0.5) = 0.69302 more each."""
    found = orthogonality(torch.tensor([[1.0, 1.0]]), torch.tensor([0]), EYE, adaptive)
    assert [one.item() for one in found] == pytest.approx([intra, inter], abs=1e-5)


def test_the_adaptive_weights_among_three_classes():
    """c = (2, 1, 2), ĉ = I, y = 0: cosines ⅔, ⅓, ⅔. The first term, 1 − ⅔, weighs by the mean ½ of the two others,
    σ((½ − 0.3)/0.5) = σ(0.4); each of these by itself, σ(1/15) and σ(11/15): ½(⅓(1 + σ(1/15)) + ⅔(1 + σ(11/15)))."""
    found = orthogonality(torch.tensor([[2.0, 1.0, 2.0]]), torch.tensor([0]), torch.eye(3), adaptive=True)
    assert [one.item() for one in found] == pytest.approx([0.53290, 0.81129], abs=1e-5)


def test_the_adaptive_weights_have_gradients_too():
    """c = (1, 1), ĉ = I, y = 0: a = √½, w = 1 + σ = 1.69302, w' = σ(1 − σ)/0.5 = 0.42549, and cosines change by √½
    across ĉ_j. Own term w·(1 − √½): −w·√½ = −1.1971 for ĉ_0, w'·(1 − √½)·√½ = 0.0881 for ĉ_1. The other one, w·a:
    (w + w'·a)·√½ = 1.4099 for ĉ_1."""
    prototypes = torch.eye(2, requires_grad=True)
    intra, inter = orthogonality(torch.tensor([[1.0, 1.0]]), torch.tensor([0]), prototypes, adaptive=True)
    found = [torch.autograd.grad(one, prototypes, retain_graph=True)[0] for one in (intra, inter)]
    torch.testing.assert_close(found[0], torch.tensor([[0.0, -1.1971], [0.0881, 0.0]]), atol=1e-4, rtol=0)
    torch.testing.assert_close(found[1], torch.tensor([[0.0, 0.0], [1.4099, 0.0]]), atol=1e-4, rtol=0)


def test_lengths_do_not_matter_and_signs_of_other_classes_neither():
    points, labels = torch.tensor([[2.0, -1.0], [0.5, 3.0]]), torch.tensor([0, 1])
    base = orthogonality(points, labels, EYE, adaptive=True)
    torch.testing.assert_close(orthogonality(7 * points, labels, 7 * EYE, adaptive=True), base)
    turned = torch.tensor([[2.0, 1.0], [-0.5, 3.0]])
    torch.testing.assert_close(orthogonality(turned, labels, EYE, adaptive=True), base)


def test_both_terms_are_means_over_prototypes_and_other_classes():
    """K = 3, c = e1 of class 0 and (0, 1, 1) of class 1; ĉ = e1, e2, e3.

    1 − cos: 0 and 1 − √½. |cos| with others: (0, 0) and (0, √½), so √½/(2·2).
    """
    points = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    intra, inter = orthogonality(points, torch.tensor([0, 1]), torch.eye(3), adaptive=False)
    assert intra.item() == pytest.approx((1 - HALF) / 2)
    assert inter.item() == pytest.approx(HALF / 4)


def test_one_class_in_all_is_across_from_nobody():
    found = orthogonality(torch.ones(1, 2), torch.tensor([0]), torch.ones(1, 2), adaptive=True)
    assert [one.item() for one in found] == pytest.approx([0.0, 0.0], abs=1e-6)


def test_the_angle_to_the_prototype_by_hand():
    """z = (3, 4) of class 0 and (0, 2) of class 1, ĉ_0 = 5·e1, ĉ_1 = −e2, nothing known of class 2 at (1, 1).

    cos = 0.6 and −1: (0.4 + 2 + 0)/3.
    """
    prototypes = torch.tensor([[5.0, 0.0], [0.0, -1.0], [0.0, 0.0]])
    z = torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 1.0]])
    found = angle_loss(z, torch.tensor([0, 1, 2]), prototypes, torch.tensor([True, True, False]))
    assert found.item() == pytest.approx(0.8)


def test_a_zero_feature_is_across_from_its_prototype_and_its_gradient_is_finite():
    """0 has no direction: it is divided by 10⁻¹² in the place of its length, so that the cosine is 0. The gradient,
    −ĉ/10⁻¹², is as the program's: huge, but a number, and along the prototype."""
    z = torch.zeros(1, 2, requires_grad=True)
    value = angle_loss(z, torch.tensor([0]), EYE, torch.ones(2, dtype=torch.bool))
    value.backward()
    assert value.item() == 1.0
    torch.testing.assert_close(z.grad, torch.tensor([[-1e12, 0.0]]))


def linear_state(prototypes):
    """A generator of d = 2 whose output for class j is row j of non-negative prototypes: two identities behind it."""
    eye, zero = torch.eye(2), torch.zeros(2)
    parts = {"0.weight": torch.tensor(prototypes), "1.weight": eye, "1.bias": zero, "3.weight": eye, "3.bias": zero}
    return {f"generator.{name}": value for name, value in parts.items()}


def test_one_step_of_the_server_on_its_last_bias():
    """ĉ = (e1, e2), c = (1, 1) of class 0, λ_s = 2, γ = 3: loss 2(1 − √½) + 3·√½.

    ∂cos(c, ĉ_j)/∂ĉ_j is the part of c/‖c‖ across ĉ_j: √½·e2 for j = 0, √½·e1 for j = 1. So ∂/∂ĉ_0 = −2√½·e2 and
    ∂/∂ĉ_1 = 3√½·e1, and the last bias, which moves both, goes against their sum: lr·√½·(−3, 2).
    """
    method = FedORGP(server_lam=2.0, gamma=3.0, hidden=2)
    state = linear_state([[1.0, 0.0], [0.0, 1.0]])
    step = method.aggregate(server(classes=2, lr=0.1), state, iter([reply([0], [[1.0, 1.0]])]))
    assert step.metrics["generator.loss"] == pytest.approx(2 * (1 - HALF) + 3 * HALF)
    torch.testing.assert_close(step.state["generator.3.bias"], 0.1 * HALF * torch.tensor([-3.0, 2.0]))


def test_the_server_may_train_in_the_adaptive_form():
    """The same with the terms 0.49587 and 1.19714 of that form."""
    method, state = FedORGP(server_lam=2.0, gamma=3.0, hidden=2, adaptive=True), linear_state([[1.0, 0.0], [0.0, 1.0]])
    step = method.aggregate(server(classes=2), state, iter([reply([0], [[1.0, 1.0]])]))
    assert step.metrics["generator.loss"] == pytest.approx(2 * 0.49587 + 3 * 1.19714, abs=1e-4)


def test_the_server_takes_a_step_for_each_batch():
    """Two equal prototypes: as one batch they give the loss before any step, one by one a lower second one."""
    method, one = FedORGP(hidden=2), reply([0], [[1.0, 1.0]])
    first, state = 1 - HALF + 10 * HALF, linear_state([[1.0, 0.0], [0.0, 1.0]])
    together = method.aggregate(server(classes=2, batch_size=2), state, iter([one, one]))
    apart = method.aggregate(server(classes=2, batch_size=1), state, iter([one, one]))
    assert together.metrics["generator.loss"] == pytest.approx(first)
    assert apart.metrics["generator.loss"] < first - 0.1
    assert not torch.equal(apart.state["generator.3.bias"], together.state["generator.3.bias"])


def test_what_is_said_are_the_directions_of_all_classes():
    method = FedORGP(hidden=2)
    step = method.aggregate(server(classes=2), linear_state([[3.0, 4.0], [0.0, 2.0]]), iter([]))
    torch.testing.assert_close(step.message["prototypes"], torch.tensor([[0.6, 0.8], [0.0, 1.0]]))
    assert step.message["classes"].tolist() == [0, 1]
    assert method.init_server(server(0)).message == {}


def test_training_turns_prototypes_to_their_classes_and_away_from_others():
    torch.manual_seed(0)
    method = FedORGP(server_epochs=200, gamma=1.0)
    state = method.init_server(server(0, width=3)).state
    sent = reply([0, 1, 2], [[3.0, 1.0, 0.0], [0.0, 2.0, 1.0], [1.0, 0.0, 5.0]])
    losses = []
    for round in range(1, 5):
        step = method.aggregate(server(round, width=3), state, iter([sent]))
        state = step.state
        losses.append(step.metrics["generator.loss"])
    assert losses[-1] < 0.6 * losses[0]
    along = torch.nn.functional.normalize(sent["prototypes"]) @ step.message["prototypes"].T
    assert float(along.diag().min()) > 0.8
    assert float((along - along.diag().diag()).abs().max()) < 0.15  # those that were sent have 0.28, 0.19 and 0.44


def test_the_clients_loss_is_cross_entropy_and_lam_times_the_angle():
    loss, ce, z, _ = first_batch_loss(FedORGP(lam=3.0), all_classes())
    wanted = ce + 3.0 * float((1 - torch.cosine_similarity(z, torch.full_like(z, 0.5))).mean())
    assert loss == pytest.approx(wanted, rel=1e-5)
    loss, ce, *_ = first_batch_loss(FedORGP(), {})
    assert loss == pytest.approx(ce, rel=1e-6)


def test_prototypes_are_those_of_the_trained_model():
    client, state, message = federation(FedORGP()).started()
    step = FedORGP().local_update(client, state, message)
    assert torch.equal(step.message["prototypes"], class_means(client, client.load(step.state))["prototypes"])


def test_the_server_may_say_all_classes_or_nothing():
    schema = task_of(FedORGP()).schema
    schema.check_down({})
    with pytest.raises(ValueError, match=r"holds classes of shape \(2,\); expected \(K,\)"):
        schema.check_down(reply([0, 1], [[0, 1], [1, 0]]))
    with pytest.raises(ValueError, match="more than once"):
        schema.check_up(reply([1, 1], [[0, 1], [1, 0]]), "It")


def test_different_networks_on_pictures(tmp_path):
    settings = {"dataset": pictures([0, 1, 2] * 24, 3), "models": "light", "feature_dim": 4}
    last = run(spiral(algorithm=FedORGP(), **settings, clients=4, rounds=2), out=tmp_path).history[-1]
    assert last.rules["nearest-global"] is not None
