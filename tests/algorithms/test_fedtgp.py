import math

import pytest
import torch

from protonorm.algorithms.fedtgp import FedTGP, adaptive_margin
from protonorm.algorithms.parts.prototypes import class_means
from protonorm.geometry.losses import margin_loss
from protonorm.tensors import floats, strip_prefix
from tests.algorithms.tasks import all_classes, federation, first_batch_loss, server, task_of
from tests.algorithms.tasks import vectors as reply
from tests.support import pictures, run, spiral


def test_the_margin_is_the_largest_gap_between_class_means_but_tau_at_most():
    """Means (0, 0), (3, 4), (3, 0); class 3 is absent and has no say.

    Class 1 has two prototypes, (2, 4) and (4, 4). Distances: 5 between 0 and 1, 3 between 0 and 2, 4 between 1 and 2.
    Gaps to the nearest other mean: 3, 4, 3. The largest is 4.
    """
    vectors = torch.tensor([[0.0, 0.0], [2.0, 4.0], [3.0, 0.0], [4.0, 4.0]])
    labels = torch.tensor([0, 1, 2, 1])
    assert adaptive_margin(vectors, labels, 4, tau=100.0) == pytest.approx(4.0)
    assert adaptive_margin(vectors, labels, 4, tau=2.5) == 2.5


def test_with_less_than_two_classes_there_is_no_gap_and_the_margin_is_tau():
    one = torch.tensor([[1.0, 2.0], [5.0, 2.0]])
    assert adaptive_margin(one, torch.tensor([3, 3]), 4, tau=7.0) == 7.0
    assert adaptive_margin(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), 4, tau=7.0) == 7.0


def test_coinciding_class_means_give_margin_zero():
    assert adaptive_margin(torch.ones(2, 2), torch.tensor([0, 1]), 2, tau=7.0) == 0.0


def two_classes():
    """c = (0, 0) of class 0; ĉ_0 = (3, 4) at distance 5, ĉ_1 = (0, 1) at distance 1."""
    return torch.zeros(1, 2), torch.tensor([0]), torch.tensor([[3.0, 4.0], [0.0, 1.0]], requires_grad=True)


def test_the_loss_of_two_classes():
    """δ = 2: logits −7 and −1, for only the true class is penalised; −log(e⁻⁷/(e⁻⁷ + e⁻¹)) = log(1 + e⁶)."""
    assert margin_loss(*two_classes(), 2.0).item() == pytest.approx(math.log1p(math.exp(6.0)))
    assert margin_loss(*two_classes(), 0.0).item() == pytest.approx(math.log1p(math.exp(4.0)))


def test_the_loss_pulls_the_own_prototype_and_pushes_the_other_with_the_same_force():
    """With q = 1 − p_0 = 1/(1 + e⁻⁶): ∂/∂ĉ_0 = q·(3, 4)/5 and ∂/∂ĉ_1 = −q·(0, 1)/1."""
    points, labels, prototypes = two_classes()
    margin_loss(points, labels, prototypes, 2.0).backward()
    q = 1 / (1 + math.exp(-6.0))
    torch.testing.assert_close(prototypes.grad, q * torch.tensor([[0.6, 0.8], [0.0, -1.0]]))


def test_the_loss_is_a_mean_over_prototypes():
    """Two prototypes at (0, 0), of class 0 and 1: log(1 + e⁶) and, with logits −5 and −3, log(1 + e⁻²)."""
    _, _, prototypes = two_classes()
    value = margin_loss(torch.zeros(2, 2), torch.tensor([0, 1]), prototypes, 2.0)
    assert value.item() == pytest.approx((math.log1p(math.exp(6.0)) + math.log1p(math.exp(-2.0))) / 2)


@pytest.mark.parametrize("other", [[5.0, 0.0], [0.0, 0.0], [1e-20, 0.0]])
def test_a_distance_of_zero_has_gradient_zero_and_is_not_nan(other):
    prototypes = torch.tensor([[0.0, 0.0], other], requires_grad=True)
    margin_loss(torch.zeros(1, 2), torch.tensor([0]), prototypes, 2.0).backward()
    assert bool(prototypes.grad.isfinite().all())
    assert prototypes.grad[0].tolist() == [0.0, 0.0]


def test_small_distances_between_long_vectors_are_not_lost():
    """Distances 1/8 and 1/2 at (1000, 1000), where the expanded square is a difference of numbers near two million."""
    points, prototypes = torch.tensor([[1000.0, 1000.0]]), torch.tensor([[1000.125, 1000.0], [1000.0, 1000.5]])
    value = margin_loss(points, torch.tensor([0]), prototypes, 0.0)
    assert value.item() == pytest.approx(math.log1p(math.exp(0.125 - 0.5)), rel=1e-6)


def test_nothing_is_said_before_the_first_round_and_all_classes_after_it():
    """Float payload: K_i·d up, K·d down, also for classes that nobody has."""
    method = FedTGP(server_epochs=2)
    begun = method.init_server(server(0))
    assert begun.message == {}
    step = method.aggregate(server(), begun.state, iter([reply([1], [[1.0, 2.0]])]))
    assert step.message["classes"].tolist() == [0, 1, 2]
    assert sum(value.numel() for value in floats(step.message).values()) == 3 * 2
    assert step.metrics["generator.margin"] == 100.0  # τ, for there is one class


def test_what_is_said_is_what_the_remembered_generator_gives():
    """ĉ_j = W_2·relu(W_1·e_j + b_1) + b_2."""
    method = FedTGP(server_epochs=3)
    state = method.init_server(server(0)).state
    step = method.aggregate(server(), state, iter([reply([0, 2], [[1.0, 2.0], [-3.0, 0.0]])]))
    kept = strip_prefix(step.state, "generator")
    hidden = torch.relu(kept["0.weight"] @ kept["1.weight"].T + kept["1.bias"])
    torch.testing.assert_close(step.message["prototypes"], hidden @ kept["3.weight"].T + kept["3.bias"])
    assert not torch.equal(step.state["generator.0.weight"], state["generator.0.weight"])
    again = method.aggregate(server(2), step.state, iter([]))  # nobody answers: nothing is learnt, nothing forgotten
    torch.testing.assert_close(again.message["prototypes"], step.message["prototypes"])


def test_one_step_of_the_server_on_its_last_bias():
    """With zero weights and b_2 = (0, 0) all ĉ_j are 0, so the distances to c = (3, 4) are all 5.

    K = 3, one class sent, δ = τ = 1: logits −6, −5, −5, p_0 = 1/(1 + 2e). ∂/∂ĉ_j = (1[j = 0] − p_j)·(ĉ_j − c)/5, and
    b_2 moves all ĉ_j alike: Σ_j (1[j = 0] − p_j) = 0, so that it stays; e_j and the weights have no gradient either.
    With ĉ_1 moved to c, its distance is 0 and has no gradient: b_2's is ((1 − p_0) − p_2)·(−0.6, −0.8).
    """
    method = FedTGP(server_epochs=1, tau=1.0, hidden=2)
    zero = {name: torch.zeros_like(value) for name, value in method.init_server(server(0)).state.items()}
    said = method.aggregate(server(), zero, iter([reply([0], [[3.0, 4.0]])])).message["prototypes"]
    torch.testing.assert_close(said, torch.zeros(3, 2))
    # e_1 = (1, 1) goes through both hidden units to (3·1, 4·1) = c; the other classes stay at 0.
    state = zero | {
        "generator.0.weight": torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]),
        "generator.1.weight": torch.eye(2),
        "generator.3.weight": torch.tensor([[3.0, 0.0], [0.0, 4.0]]),
    }
    step = method.aggregate(server(), state, iter([reply([0], [[3.0, 4.0]])]))
    weights = [math.exp(-6.0), 1.0, math.exp(-5.0)]  # of the logits −6, 0, −5
    p = [weight / sum(weights) for weight in weights]
    force = (1 - p[0]) - p[2]
    assert step.metrics["generator.loss"] == pytest.approx(-math.log(p[0]), rel=1e-6)
    expected = -0.01 * force * torch.tensor([-0.6, -0.8])  # lr = 0.01
    torch.testing.assert_close(step.state["generator.3.bias"], expected)


def test_training_brings_prototypes_to_their_classes_and_apart():
    torch.manual_seed(0)
    method = FedTGP(server_epochs=300)
    state = method.init_server(server(0)).state
    sent = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    losses = []
    for round in range(1, 9):
        step = method.aggregate(server(round), state, iter([reply([0, 1, 2], sent)]))
        state = step.state
        losses.append(step.metrics["generator.loss"])
    assert losses[-1] < losses[0]
    nearest = torch.cdist(torch.tensor(sent), step.message["prototypes"]).argmin(1)
    assert nearest.tolist() == [0, 1, 2]
    assert float(torch.pdist(step.message["prototypes"]).min()) > 1.0  # farther apart than the means


def test_the_target_is_gamma_times_the_prototype():
    loss, ce, z, _ = first_batch_loss(FedTGP(lam=2.0, gamma=1.3), all_classes())
    assert loss == pytest.approx(ce + 2.0 * float(((z - 1.3 * 0.5) ** 2).mean()), rel=1e-5)


def test_without_any_prototype_the_loss_is_cross_entropy():
    loss, ce, *_ = first_batch_loss(FedTGP(), {})
    assert loss == pytest.approx(ce, rel=1e-6)


def test_stale_prototypes_are_those_of_the_weights_before_training():
    client, state, _ = federation(FedTGP()).started()
    before = class_means(client, client.load(state))["prototypes"]
    assert torch.equal(FedTGP(measured="before").local_update(client, state, {}).message["prototypes"], before)
    after = FedTGP().local_update(client, state, {})
    assert not torch.equal(after.message["prototypes"], before)
    trained = class_means(client, client.load(after.state))["prototypes"]
    assert torch.equal(after.message["prototypes"], trained)


@pytest.mark.parametrize(("setting", "width"), [(None, 64), (5, 5)])
def test_the_hidden_layer_is_as_wide_as_asked_for(setting, width):
    """d = 2 would be too narrow: None gives 64."""
    assert FedTGP(hidden=setting).init_server(server(0)).state["generator.1.weight"].shape == (width, 2)
    wide = FedTGP().init_server(server(0, width=70)).state
    assert wide["generator.1.weight"].shape == (70, 70)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (reply([0], [[math.nan, 0.0]]), "finite"),
        (reply([0], [[1.0, 2.0, 3.0]]), r"expected \(K_i, d\)"),
        (reply([5], [[1.0, 2.0]]), "from 0 to 2"),
        (reply([1, 1], [[1.0, 2.0], [1.0, 2.0]]), "more than once"),
    ],
)
def test_a_bad_reply_is_refused_with_a_sentence(bad, sentence):
    with pytest.raises(ValueError, match=sentence):
        task_of(FedTGP()).schema.check_up(bad, "It")


def test_the_server_may_say_all_classes_or_nothing():
    schema = task_of(FedTGP()).schema
    schema.check_down({})
    schema.check_down(reply([0, 1, 2], [[0, 1], [1, 0], [2, 2]]))
    with pytest.raises(ValueError, match=r"holds classes of shape \(2,\); expected \(K,\)"):
        schema.check_down(reply([0, 1], [[0, 1], [1, 0]]))


def test_different_networks_on_pictures(tmp_path):
    experiment = {"algorithm": FedTGP(), "dataset": pictures([0, 1, 2] * 24, 3), "models": "light", "feature_dim": 4}
    history = run(spiral(**experiment, clients=4, rounds=2), out=tmp_path).history
    assert history[-1].rules["nearest-global"] is not None


def test_a_memory_that_lacks_weights_is_refused_with_a_sentence():
    fed = federation(FedTGP())
    state = fed.method.init_server(fed.server()).state
    name = next(name for name in state if name.endswith("weight"))
    lacking = {key: value for key, value in state.items() if key != name}
    with pytest.raises(ValueError, match="(?s)The weights of the generator do not fit the network: .*missing"):
        fed.method.aggregate(fed.server(1), lacking, iter([reply([0, 1], [[1.0, 0.0], [0.0, 1.0]])]))
