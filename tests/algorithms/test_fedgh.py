import math

import pytest
import torch
from torch import nn

import protonorm as pn
from protonorm.algorithms.fedgh import FedGH
from protonorm.algorithms.parts.heads import check_linear
from protonorm.algorithms.parts.prototypes import class_means
from protonorm.tensors import floats
from tests.algorithms.tasks import federation, task_of
from tests.algorithms.tasks import server as any_server
from tests.algorithms.tasks import vectors as reply
from tests.support import pictures, run, spiral


def server(round=1, lr=0.1, batch_size=32):
    """Two classes, two features."""
    return any_server(round, classes=2, lr=lr, batch_size=batch_size)


def zero_head():
    return {"head.weight": torch.zeros(2, 2), "head.bias": torch.zeros(2)}


def test_one_step_on_one_prototype():
    """From zero weights p = (½, ½). For c = (1, 2) of class 0 the gradient of the logits is p − (1, 0) = (−½, ½).

    That of W is its outer product with c, ((−½, −1), (½, 1)); that of b is itself; the step is −0.1 of both. Loss ln 2.
    """
    step = FedGH().aggregate(server(), zero_head(), iter([reply([0], [[1.0, 2.0]])]))
    torch.testing.assert_close(step.message["head.weight"], torch.tensor([[0.05, 0.1], [-0.05, -0.1]]))
    torch.testing.assert_close(step.message["head.bias"], torch.tensor([0.05, -0.05]))
    assert step.metrics["head.loss"] == pytest.approx(math.log(2.0))
    assert step.state.keys() == step.message.keys()


def test_a_head_without_bias_has_none():
    step = FedGH().aggregate(server(), {"head.weight": torch.zeros(2, 2)}, iter([reply([0], [[1.0, 2.0]])]))
    assert set(step.message) == {"head.weight"}


def test_a_batch_is_averaged():
    """(1, 2) of class 0 and (3, 0) of class 1, p = (½, ½) for both.

    The gradient of W's first row is ½·(−½·(1, 2) + ½·(3, 0)) = (½, −½), that of the second the opposite.
    """
    replies = [reply([0], [[1.0, 2.0]]), reply([1], [[3.0, 0.0]])]
    step = FedGH().aggregate(server(), zero_head(), iter(replies))
    torch.testing.assert_close(step.message["head.weight"], torch.tensor([[-0.05, 0.05], [0.05, -0.05]]))
    torch.testing.assert_close(step.message["head.bias"], torch.zeros(2))


def test_two_epochs_are_two_steps():
    """The second step on c = (1, 2): logits ±(0.05·1 + 0.1·2 + 0.05) = ±0.3, 1 − p_0 = 1/(1 + e^0.6)."""
    step = FedGH(server_epochs=2).aggregate(server(), zero_head(), iter([reply([0], [[1.0, 2.0]])]))
    bias = 0.05 + 0.1 / (1 + math.exp(0.6))
    torch.testing.assert_close(step.message["head.bias"], torch.tensor([bias, -bias]))


def test_the_head_goes_on_from_where_it_was():
    first = FedGH().aggregate(server(), zero_head(), iter([reply([0], [[1.0, 2.0]])]))
    second = FedGH().aggregate(server(2), first.state, iter([reply([0], [[1.0, 2.0]])]))
    both = FedGH(server_epochs=2).aggregate(server(), zero_head(), iter([reply([0], [[1.0, 2.0]])]))
    torch.testing.assert_close(second.message, both.message)
    nobody = FedGH().aggregate(server(3), second.state, iter([]))
    torch.testing.assert_close(nobody.message, second.message)


def test_a_client_takes_the_head_and_keeps_its_features():
    """Float payload: K·d down (here the networks have no bias), K_i·d up."""
    method = FedGH()
    client, state, said = federation(method, lr=1e-30).started(1)
    assert {name: tuple(value.shape) for name, value in said.items()} == {"head.weight": (6, 2)}
    assert not torch.equal(state["model.head.weight"], said["head.weight"])
    step = method.local_update(client, state, said)
    torch.testing.assert_close(step.state["model.head.weight"], said["head.weight"])
    torch.testing.assert_close(step.state["model.features.0.weight"], state["model.features.0.weight"])
    assert sum(value.numel() for value in floats(step.message).values()) == len(step.message["classes"]) * 2


def test_prototypes_are_those_of_the_trained_model():
    method = FedGH()
    client, state, message = federation(method).started()
    step = method.local_update(client, state, message)
    assert torch.equal(step.message["prototypes"], class_means(client, client.load(step.state))["prototypes"])


def quiet(shape, feature_dim, num_classes):
    """A head with dropout before its layer."""
    head = nn.Sequential(nn.Dropout(0.2), nn.Linear(feature_dim, num_classes))
    return pn.SplitModel(nn.Linear(shape[0], feature_dim), head)


def loud(shape, feature_dim, num_classes):
    return pn.SplitModel(nn.Linear(shape[0], feature_dim), nn.Linear(feature_dim, num_classes))


def double(shape, feature_dim, num_classes):
    head = nn.Sequential(nn.Linear(feature_dim, 3), nn.Linear(3, num_classes))
    return pn.SplitModel(nn.Linear(shape[0], feature_dim), head)


def test_a_layer_behind_dropout_is_the_same_head(tmp_path):
    """The names differ, model.head.1.weight and model.head.weight; both clients receive the same layer."""
    experiment = spiral(algorithm=FedGH(), models=[quiet, loud], feature_dim=2, clients=2)
    assert run(experiment, out=tmp_path).history[-1].rules["received"] is not None
    one = federation(FedGH(), models=[quiet, loud], feature_dim=2, clients=2)
    for id, name in ((0, "model.head.1.weight"), (1, "model.head.weight")):
        client, state, said = one.started(id)
        assert torch.equal(one.method.receive(client, state, said)[name], said["head.weight"])


@pytest.mark.parametrize(("models", "sentence"), [(["mlp", loud], "bias"), ([double], "one linear layer")])
def test_heads_that_cannot_be_shared_are_refused_with_a_sentence(tmp_path, models, sentence):
    with pytest.raises(ValueError, match=sentence):
        run(spiral(algorithm=FedGH(), models=models, feature_dim=2, clients=2), out=tmp_path)


class Half(nn.Module):
    """Logits divided by two, without parameters."""

    def forward(self, x):
        return x / 2


BENT = [
    lambda layer: nn.Sequential(layer, nn.Tanh()),
    lambda layer: nn.Sequential(layer, nn.LogSoftmax(dim=1)),
    lambda layer: nn.Sequential(nn.ReLU(), layer),
    lambda layer: nn.Sequential(layer, nn.Hardtanh(-20.0, 20.0)),  # only far from zero
    lambda layer: nn.Sequential(layer, nn.Softshrink(0.01)),  # mostly near zero
    lambda layer: nn.Sequential(nn.LayerNorm(4, elementwise_affine=False), layer),
    lambda layer: nn.Sequential(layer, Half()),
]


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("wrap", BENT)
def test_a_head_with_a_nonlinearity_is_refused(wrap, zero):
    """The server trains the linear layer alone: nothing beside it may change the logits, whatever its weights are."""
    layer = nn.Linear(4, 3)
    if zero:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    with pytest.raises(ValueError, match="one has a nonlinearity or another layer that changes its logits"):
        check_linear(pn.SplitModel(nn.Identity(), wrap(layer)), task_of(FedGH()))


@pytest.mark.parametrize("training", [True, False])
def test_looking_at_a_head_changes_nothing(training):
    """Dropout is fine. Neither weights nor mode nor the random state are touched."""
    head = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3, bias=False), nn.Identity()).train(training)
    before, drawn = head[1].weight.clone(), torch.get_rng_state()
    check_linear(pn.SplitModel(nn.Identity(), head), task_of(FedGH(), head_bias=False))
    assert torch.equal(head[1].weight, before)
    assert all(module.training is training for module in head.modules())
    assert torch.equal(torch.get_rng_state(), drawn)


def bent(shape, feature_dim, num_classes):
    head = nn.Sequential(nn.ReLU(), nn.Linear(feature_dim, num_classes))
    return pn.SplitModel(nn.Linear(shape[0], feature_dim), head)


@pytest.mark.parametrize("method", [FedGH(), pn.FedGen()])
def test_a_network_with_such_a_head_is_refused_before_the_first_round(method):
    with pytest.raises(ValueError, match="has a nonlinearity"):
        federation(method, models=[bent], feature_dim=2)


def test_no_network_is_built_for_the_first_head():
    assert not FedGH().auxiliary
    assert FedGH().init_server(server(0)).message.keys() == {"head.weight", "head.bias"}


def test_bad_words_are_refused():
    schema = task_of(FedGH(), classes=2).schema
    with pytest.raises(ValueError, match="It holds prototypes with numbers that are not finite"):
        schema.check_up(reply([0], [[math.nan, 0.0]]), "It")
    with pytest.raises(ValueError, match="lacks head.bias"):
        schema.check_down({"head.weight": torch.zeros(2, 2)})
    with pytest.raises(ValueError, match="holds head.bias, which is not expected"):
        task_of(FedGH(), classes=2, head_bias=False).schema.check_down(zero_head())


def test_different_networks_on_pictures(tmp_path):
    settings = {"dataset": pictures([0, 1, 2] * 24, 3), "models": "light", "feature_dim": 4}
    history = run(spiral(algorithm=FedGH(), **settings, clients=4, rounds=2), out=tmp_path).history
    assert history[-1].bytes.down == 4 * 4 * (3 * 4 + 3)  # K·d + K floats to each of four clients
