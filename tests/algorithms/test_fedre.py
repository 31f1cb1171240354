import math

import pytest
import torch

from protonorm.algorithms.fedgh import FedRE, draw_weights, stack_mixtures
from protonorm.algorithms.parts.prototypes import class_means
from protonorm.core import seeded
from tests.algorithms.tasks import federation, server, task_of
from tests.support import pictures, run, spiral


def reply(classes, weights, mixture):
    return {"classes": torch.tensor(classes), "weights": torch.tensor(weights), "mixture": torch.tensor(mixture)}


def zero_head(classes=2):
    return {"head.weight": torch.zeros(classes, 2), "head.bias": torch.zeros(classes)}


def test_one_step_on_a_zero_head():
    """lr = 0.1, K = 2, two clients: loss 2·log 2. The gradient of W is Σ_i (½ − q_i) e_iᵀ:

    q_1 = (1, 0), e_1 = (1, 2) and q_2 = (¼, ¾), e_2 = (4, 0): first row −½(1, 2) + ¼(4, 0) = (½, −1), the second its
    opposite; of the bias −½ + ¼ = −¼ and ¼.
    """
    replies = [reply([0], [1.0], [1.0, 2.0]), reply([1, 0], [0.75, 0.25], [4.0, 0.0])]
    step = FedRE().aggregate(server(classes=2, lr=0.1), zero_head(), iter(replies))
    assert step.metrics["head.loss"] == pytest.approx(2 * math.log(2))
    torch.testing.assert_close(step.message["head.weight"], torch.tensor([[-0.05, 0.1], [0.05, -0.1]]))
    torch.testing.assert_close(step.message["head.bias"], torch.tensor([0.025, -0.025]))
    assert step.state.keys() == step.message.keys()


def test_a_mean_divides_the_step_by_the_batch():
    """Two equal mixtures: the mean's step is that of one alone, the sum's twice that."""
    one = reply([0], [1.0], [1.0, 2.0])
    alone = FedRE().aggregate(server(classes=2), zero_head(), iter([one])).message["head.weight"]
    mean = FedRE(reduction="mean").aggregate(server(classes=2), zero_head(), iter([one, one])).message["head.weight"]
    total = FedRE().aggregate(server(classes=2), zero_head(), iter([one, one])).message["head.weight"]
    torch.testing.assert_close(mean, alone)
    torch.testing.assert_close(total, 2 * alone)


def test_the_server_takes_a_step_for_each_batch():
    """Two equal mixtures under a zero head: 2·log 2 as one batch; one by one log 2 and then less."""
    one = reply([0], [1.0], [1.0, 2.0])
    together = FedRE().aggregate(server(classes=2, batch_size=2), zero_head(), iter([one, one]))
    apart = FedRE().aggregate(server(classes=2, batch_size=1), zero_head(), iter([one, one]))
    assert together.metrics["head.loss"] == pytest.approx(2 * math.log(2))
    assert 0.5 * math.log(2) < apart.metrics["head.loss"] < 0.99 * math.log(2)


def test_the_head_goes_on_from_where_it_was_and_epochs_are_steps():
    one = reply([0, 1], [0.5, 0.5], [1.0, 2.0])
    first = FedRE().aggregate(server(classes=2), zero_head(), iter([one | {"weights": torch.tensor([0.9, 0.1])}]))
    assert float(first.message["head.bias"][0]) == pytest.approx(0.01 * 0.4)
    nobody = FedRE().aggregate(server(2, classes=2), first.state, iter([]))
    torch.testing.assert_close(nobody.message, first.message)
    twice = FedRE(server_epochs=2).aggregate(server(classes=2), zero_head(), iter([reply([0], [1.0], [0.0, 0.0])]))
    # bias alone: 0.005, then logits ±0.005 and 1 − p = 1/(1 + e^0.01)
    assert float(twice.message["head.bias"][0]) == pytest.approx(0.005 + 0.01 / (1 + math.exp(0.01)))


def test_shares_are_laid_out_over_all_classes():
    mixtures, shares = stack_mixtures(iter([reply([2, 0], [0.7, 0.3], [1.0, 2.0])]), server(classes=4))
    assert mixtures.tolist() == [[1.0, 2.0]]
    assert shares.tolist() == [[pytest.approx(0.3), 0.0, pytest.approx(0.7), 0.0]]


def test_weights_are_above_zero_and_sum_to_one():
    torch.manual_seed(0)
    found = draw_weights(50)
    assert float(found.min()) > 0
    assert float(found.sum()) == pytest.approx(1.0)
    assert float(found.std()) == pytest.approx(1 / math.sqrt(12) / 25, rel=0.2)  # uniform over a sum of about 25
    assert draw_weights(1).tolist() == [1.0]


def test_a_client_says_one_mixture_of_its_trained_prototypes():
    """Float payload: d + K_i up."""
    method = FedRE()
    client, state, message = federation(method).started()
    with seeded(0, 1, 0):
        step = method.local_update(client, state, message)
    own = class_means(client, client.load(step.state))
    assert step.message["classes"].tolist() == own["classes"].tolist()
    torch.testing.assert_close(step.message["mixture"], step.message["weights"] @ own["prototypes"])
    with seeded(0, 2, 0):
        again = method.local_update(client, state, message)
    assert not torch.equal(again.message["weights"], step.message["weights"])


def test_a_client_with_one_class_says_its_prototype(tmp_path):
    """w = (1), e = c."""
    method = FedRE()
    client, state, message = federation(method, partition={"name": "pathological", "classes_per_client": 1}).started()
    step = method.local_update(client, state, message)
    own = class_means(client, client.load(step.state))
    assert step.message["weights"].tolist() == [1.0]
    assert torch.equal(step.message["mixture"], own["prototypes"][0])


def test_a_client_takes_the_head_and_keeps_its_features():
    method = FedRE()
    client, state, said = federation(method, lr=1e-30).started(1)
    assert not torch.equal(state["model.head.weight"], said["head.weight"])
    step = method.local_update(client, state, said)
    torch.testing.assert_close(step.state["model.head.weight"], said["head.weight"])
    torch.testing.assert_close(step.state["model.features.0.weight"], state["model.features.0.weight"])


def test_bad_words_are_refused():
    schema = task_of(FedRE(), classes=2).schema
    schema.check_up(reply([1], [1.0], [1.0, 2.0]), "It")
    with pytest.raises(ValueError, match=r"holds weights of shape \(2,\); expected \(K_i,\)"):
        schema.check_up(reply([1], [0.5, 0.5], [1.0, 2.0]), "It")
    with pytest.raises(ValueError, match="It holds weights from -0.5 to 0.5; expected numbers from 0 to 1"):
        schema.check_up(reply([0, 1], [-0.5, 0.5], [1.0, 2.0]), "It")
    with pytest.raises(ValueError, match="It holds weights from 0 to 1.5; expected numbers from 0 to 1"):
        schema.check_up(reply([0, 1], [0.0, 1.5], [1.0, 2.0]), "It")
    schema.check_up(reply([0, 1], [0.0, 1.0], [1.0, 2.0]), "It")
    with pytest.raises(ValueError, match="lacks mixture"):
        schema.check_up({"classes": torch.tensor([1]), "weights": torch.ones(1)}, "It")


def test_different_networks_on_pictures(tmp_path):
    settings = {"dataset": pictures([0, 1, 2] * 24, 3), "models": "light", "feature_dim": 4}
    last = run(spiral(algorithm=FedRE(), **settings, clients=4, rounds=2, partition="iid"), out=tmp_path).history[-1]
    assert last.floats.up == 4 * (4 + 3)
    assert last.floats.down == 4 * (3 * 4 + 3)
