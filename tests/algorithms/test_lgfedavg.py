import pytest
import torch
from torch import nn

import protonorm as pn
from protonorm.algorithms.lgfedavg import LGFedAvg
from tests.algorithms.tasks import federation, server, task_of
from tests.support import pictures, run, spiral


def head(value, examples=None):
    said = {"head.weight": torch.full((3, 2), float(value)), "head.bias": torch.full((3,), float(-value))}
    return said if examples is None else said | {"num_examples": torch.tensor(examples)}


def test_heads_are_averaged_by_numbers_of_samples():
    """(1·0 + 3·4)/4 = 3; all alike it is (0 + 4)/2 = 2."""
    step = LGFedAvg().aggregate(server(), head(9), iter([head(0, 1), head(4, 3)]))
    assert step.message["head.weight"].tolist() == [[3.0, 3.0]] * 3
    assert step.message["head.bias"].tolist() == [-3.0] * 3
    assert step.message.keys() == step.state.keys() == head(0).keys()
    step = LGFedAvg(weighting="clients").aggregate(server(), head(9), iter([head(0), head(4)]))
    assert step.message["head.weight"].tolist() == [[2.0, 2.0]] * 3


def test_one_client_alone_gets_its_own_head_back():
    step = LGFedAvg().aggregate(server(), head(9), iter([head(0.1, 7)]))
    assert all(torch.equal(step.message[name], value) for name, value in head(0.1).items())


def test_all_begin_with_the_servers_head_on_features_of_their_own():
    method = LGFedAvg()
    client, state, message = federation(method).started(1)
    received = method.receive(client, state, message)
    assert torch.equal(received["model.head.weight"], message["head.weight"])
    own = [name for name in state if name.startswith("model.features.")]
    assert own
    assert all(received[name] is state[name] for name in own)


def test_features_and_head_are_trained_and_only_the_head_is_said():
    """K·d = 6·2 numbers: the spiral's head has no bias."""
    method = LGFedAvg()
    client, state, message = federation(method).started(1)
    step = method.local_update(client, state, message)
    assert {name: tuple(value.shape) for name, value in step.message.items()} == {
        "head.weight": (6, 2),
        "num_examples": (),
    }
    assert step.message["num_examples"] == len(client.train)
    assert torch.equal(step.message["head.weight"], step.state["model.head.weight"])
    assert not torch.equal(step.message["head.weight"], message["head.weight"])
    assert not torch.equal(step.state["model.features.0.weight"], state["model.features.0.weight"])


def test_numbers_of_samples_are_told_only_where_they_count():
    method = LGFedAvg(weighting="clients")
    one = federation(method)
    client, state, message = one.started(1)
    said = method.local_update(client, state, message).message
    assert said.keys() == {"head.weight"}
    one.task.schema.check_up(said, "It")


def wide(shape, feature_dim, num_classes):
    """Build a network whose head stands behind a dropout, and so has other names."""
    made = pn.SplitModel(nn.Linear(shape[0], feature_dim), nn.Linear(feature_dim, num_classes, bias=False))
    made.head = nn.Sequential(nn.Dropout(0.2), made.head)
    return made


def biased(shape, feature_dim, num_classes):
    return pn.SplitModel(nn.Linear(shape[0], feature_dim), nn.Linear(feature_dim, num_classes))


@pytest.mark.parametrize("models", [["mlp", wide], [wide, "mlp"]])
def test_heads_of_other_names_and_equal_shapes_are_one(tmp_path, models):
    experiment = spiral(algorithm=LGFedAvg(), models=models, feature_dim=2)
    history = run(experiment, out=tmp_path).history
    assert history[-1].bytes.down == 6 * 4 * 12


def test_a_head_with_a_bias_does_not_fit_one_without_and_is_refused_before_anything_begins(tmp_path):
    with pytest.raises(ValueError, match="either all or none must have a bias"):
        run(spiral(algorithm=LGFedAvg(), models=["mlp", biased], feature_dim=2), out=tmp_path)
    assert not list(tmp_path.iterdir())


def deep(shape, feature_dim, num_classes):
    head = nn.Sequential(nn.Linear(feature_dim, 3), nn.Linear(3, num_classes))
    return pn.SplitModel(nn.Linear(shape[0], feature_dim), head)


def bare(shape, feature_dim, num_classes):
    return pn.SplitModel(nn.Linear(shape[0], num_classes), nn.Identity())


def bent(shape, feature_dim, num_classes):
    head = nn.Sequential(nn.Linear(feature_dim, num_classes, bias=False), nn.Tanh())
    return pn.SplitModel(nn.Linear(shape[0], feature_dim), head)


def test_a_head_of_two_layers_or_none_is_refused_before_the_first_round():
    with pytest.raises(ValueError, match="the parameters of one linear layer, got 0.bias, 0.weight, 1.b"):
        federation(LGFedAvg(), models=[deep], feature_dim=2)
    with pytest.raises(ValueError, match="the parameters of one linear layer, got none"):
        federation(LGFedAvg(), models=[bare], feature_dim=6)


def test_a_nonlinearity_does_no_harm_where_the_server_only_averages():
    federation(LGFedAvg(), models=["mlp", bent], feature_dim=2)


@pytest.mark.parametrize("bias", [True, False])
def test_the_server_draws_a_first_head_of_the_clients_form_and_no_network(bias):
    assert not LGFedAvg().auxiliary
    begun = LGFedAvg().init_server(server(0, head_bias=bias))
    assert {name: tuple(value.shape) for name, value in begun.message.items()} == {
        "head.weight": (3, 2),
        **({"head.bias": (3,)} if bias else {}),
    }
    task_of(LGFedAvg(), head_bias=bias).schema.check_down(begun.message)


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        ({"head.weight": torch.ones(3, 2)}, "lacks head.bias"),
        (head(1), "lacks num_examples"),
        (head(1, 2) | {"head.bias": torch.ones(2)}, r"holds head.bias of shape \(2,\); expected \(K,\)"),
        (head(torch.nan, 2), "holds head.weight with numbers that are not finite"),
        (head(1, 0), "holds num_examples from 0 to 0; expected whole numbers from 1 to 2147483647"),
        (head(1) | {"num_examples": torch.tensor(torch.inf)}, "holds num_examples as torch.float32"),
        (head(1, 2) | {"head.more": torch.ones(2)}, "holds head.more, which is not expected"),
    ],
)
def test_what_is_not_a_head_is_refused_with_a_sentence(reply, sentence):
    with pytest.raises(ValueError, match=f"It {sentence}"):
        task_of(LGFedAvg()).schema.check_up(reply, "It")


def test_the_received_head_is_what_is_reported(tmp_path):
    """Personal features under the shared head; beside it the model after training."""
    history = run(spiral(algorithm="lgfedavg"), out=tmp_path).history
    assert set(history[0].rules) == {"joint", "logits", "received"}
    assert history[0].rules["received"] is not None


def test_different_networks_share_one_head(tmp_path):
    """K·d + K = 3·8 + 3 = 27 floats up and down for each of four clients, and one integer up."""
    data = pictures([0, 1, 2] * 20, 3)
    experiment = pn.Experiment(
        algorithm="lgfedavg", dataset=data, models="light", clients=4, feature_dim=8, rounds=1, partition="iid"
    )
    sent = run(experiment, out=tmp_path).history[0].bytes
    assert (sent.up, sent.down) == (4 * (27 * 4 + 8), 4 * 27 * 4)
