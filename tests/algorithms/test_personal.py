"""FedProx, Ditto, MOON, FedPer and FedRep: variants of FedAvg."""

import math

import pytest
import torch

import protonorm as pn
from protonorm.algorithms import fedper
from protonorm.algorithms.fedavg import fit_near, model_contrast
from protonorm.algorithms.parts.training import squared_distance
from protonorm.core import Client
from protonorm.core.schema import Schema
from protonorm.session.build import build
from protonorm.tensors import snapshot, strip_prefix
from tests.algorithms.tasks import federation, normalising, normalising_client
from tests.contract.playing import played, same
from tests.contract.test_laws import tiny
from tests.support import pictures


def three_rounds(**method):
    return played(*build(tiny(algorithm=method)), 3)


@pytest.mark.parametrize(
    "method",
    [{"name": "fedprox", "mu": 0}, {"name": "moon", "mu": 0}, {"name": "ditto"}, {"name": "ditto", "lam": 0}],
    ids=str,
)
def test_without_its_regulariser_a_method_sends_what_fedavg_sends(method):
    """In three rounds with batch norm, bit for bit; Ditto's pull is on the personal model alone, whatever its λ."""
    found, plain = three_rounds(**method), three_rounds(name="fedavg")
    assert same(found["step"].message, plain["step"].message)
    assert all(same(found["replies"][id].message, plain["replies"][id].message) for id in range(3))


def test_without_a_pull_dittos_personal_models_are_those_of_local():
    """Begun from the server's first model, and trained on the batches of the shared model's training."""
    found, alone = three_rounds(name="ditto", lam=0)["after"], three_rounds(name="local", initial="server")["after"]
    assert all(same(strip_prefix(found[id], "model"), strip_prefix(alone[id], "model")) for id in range(3))


def test_the_first_step_has_no_pull_and_the_second_has():
    """At w = w_r the gradient of the pull is zero: one batch trains as FedAvg, two do not."""
    for epochs, equal in ((1, True), (2, False)):
        sent = []
        for method in (pn.FedAvg(), pn.FedProx(mu=5.0)):
            client, state, message = federation(method, batch_size=4096, epochs=epochs).started()
            torch.manual_seed(0)
            sent.append(method.local_update(client, state, message).message)
        assert same(*sent) is equal


class Flat(Client):
    """A client whose cross-entropy has no gradient."""

    def cross_entropy(self, logits, y):
        return 0 * logits.sum()


def test_a_step_of_rate_times_weight_one_ends_at_the_target():
    """w − ημ(w − w_0) = w_0 for η = ½, μ = 2."""
    made = normalising_client()
    client = Flat(**{name: getattr(made, name) for name in made.__dataclass_fields__} | {"lr": 0.5})
    model = normalising()
    target = [weight.detach() + 1 for weight in model.parameters()]
    assert float(squared_distance(model, target).detach()) == pytest.approx(2 + 2 + 4 + 2)  # all weights, each by 1
    fit_near(client, model, 2.0, target)
    for weight, aim in zip(model.parameters(), target, strict=True):
        torch.testing.assert_close(weight, aim)


def test_dittos_personal_model_is_drawn_to_the_received_one_and_not_to_itself():
    """Without a gradient of its own, a step of ηλ = 1 from anywhere ends at the received weights."""
    made = normalising_client()
    client = Flat(**{name: getattr(made, name) for name in made.__dataclass_fields__} | {"lr": 0.5})
    received = snapshot("model", client.model)
    state = {name: value + 3 for name, value in received.items()} | {"trained": torch.tensor(True)}
    step = pn.Ditto(lam=2.0).local_update(client, state, received)
    for name, _ in client.model.named_parameters():
        torch.testing.assert_close(step.state[f"model.{name}"], received[f"model.{name}"])


@pytest.mark.parametrize(
    ("towards", "away", "wanted"), [((3, 4), (3, 4), math.log(2)), ((6, 8), (-3, -4), math.log1p(math.exp(-4)))]
)
def test_the_contrast_by_hand(towards, away, wanted):
    """Cosines 1 and 1: log 2. Cosines 1 and −1 with τ = ½: log(1 + e⁻⁴) = 0.01815."""
    z, z_g, z_p = (torch.tensor([one], dtype=torch.float32) for one in ((3, 4), towards, away))
    assert float(model_contrast(z, z_g, z_p, 0.5)) == pytest.approx(wanted, abs=1e-6)


def test_before_its_first_round_moon_has_no_other_model_to_leave():
    """Then the contrast is log 2 whatever the features; later it is of the model that the client trained last."""
    losses = {}
    for mu in (0.0, 1.0):
        method = pn.MOON(mu=mu)
        client, state, message = federation(method, batch_size=4096, lr=1e-12).started()
        losses[mu] = method.local_update(client, state, message).metrics["loss"]
        again = state | {"trained": torch.tensor(True)}
        losses[mu, "again"] = method.local_update(client, again, message).metrics["loss"]
    assert losses[1.0] - losses[0.0] == pytest.approx(math.log(2), abs=1e-6)
    model, received = (client.load(one).features for one in (state, state | message))
    assert abs(losses[1.0, "again"] - losses[1.0]) > 1e-3, "the client's own first model is another than the server's"
    assert losses[0.0, "again"] == pytest.approx(losses[0.0], abs=1e-6)
    assert model is received  # one workspace: the teachers are copies


def test_moons_other_models_normalise_by_their_own_statistics():
    """Features are (0, 0) and (2, 4), normalised: z by the batch's mean (1, 2) and deviation (1, 2), as (−1, −1) and
    (1, 1), and so by the client's last model; by the received one they stay. c_g = 0 and 6/√(2·20), c_p = 1 and 1, so
    that with τ = ½ the contrast is the mean of log(1 + e²) and log(1 + e^(2 − 12/√40))."""
    client = normalising_client()
    received = snapshot("model", client.model)
    last = received | {"model.features.0.running_mean": torch.tensor([1.0, 2.0]), "trained": torch.tensor(True)}
    last |= {"model.features.0.running_var": torch.tensor([1.0, 4.0])}
    alone, both = (pn.MOON(mu=mu).local_update(client, last, received).metrics["loss"] for mu in (0.0, 1.0))
    wanted = (math.log1p(math.exp(2)) + math.log1p(math.exp(2 - 12 / math.sqrt(40)))) / 2
    assert both - alone == pytest.approx(wanted, abs=1e-4)


def test_heads_stay_at_home_and_features_are_the_servers():
    for method in (pn.FedPer(), pn.FedRep()):
        one = federation(method, dataset=pictures([0, 1] * 20, 2), models="plain", clients=2, feature_dim=4)
        client, state, message = one.started(1)
        assert all(name.startswith("model.features.") for name in message)
        received = method.receive(client, state, message)
        assert all(torch.equal(received[name], message[name]) for name in message)
        assert received["model.head.weight"] is state["model.head.weight"]
        assert method.local_update(client, state, message).message.keys() == message.keys() | {"num_examples"}


def test_fedper_with_a_single_client_trains_as_local():
    """From the second round on it receives its own features; the first ones are the server's."""
    settings = {"clients": 1, "models": "plain", "feature_dim": 2, "dataset": pictures([0, 1] * 12, 2), "rounds": 2}
    method = federation(pn.FedPer(), **settings)
    client, state, message = method.started()
    torch.manual_seed(0)
    step = pn.FedPer().local_update(client, state, message)
    torch.manual_seed(0)
    alone = pn.Local().local_update(client, state | message, {})
    assert same(step.state, alone.state)
    averaged = pn.FedPer().aggregate(method.server(1), message, iter([step.message])).message
    assert same(pn.FedPer().receive(client, step.state, averaged), step.state)


def test_fedrep_trains_the_head_first_and_then_the_features(monkeypatch):
    """First the features' weights are kept to the bit, then the head's; batch norm's statistics move in both parts."""
    changed, epochs = [], []
    train = fedper.fit_labels

    def watched(client, model):
        before = snapshot("model", model)
        loss = train(client, model)
        after = snapshot("model", model)
        changed.append({name for name, value in after.items() if not torch.equal(value, before[name])})
        epochs.append(client.epochs)
        return loss

    monkeypatch.setattr(fedper, "fit_labels", watched)
    settings = {"models": "plain", "feature_dim": 4, "clients": 2, "dataset": pictures([0, 1] * 20, 2), "epochs": 2}
    client, state, message = federation(pn.FedRep(head_epochs=3), **settings).started()
    pn.FedRep(head_epochs=3).local_update(client, state, message)
    weights = {f"model.{name}" for name, _ in client.model.named_parameters()}
    head = {name for name in weights if name.startswith("model.head.")}
    assert [names & weights for names in changed] == [head, weights - head]
    assert all(any(name.endswith("running_mean") for name in names) for names in changed)
    assert epochs == [3, 2]
    assert all(weight.requires_grad for weight in client.model.parameters())


def test_a_network_without_a_head_is_refused():
    def bare(shape, feature_dim, num_classes):
        return pn.SplitModel(torch.nn.Linear(shape[0], num_classes), torch.nn.Identity())

    with pytest.raises(ValueError, match="FedRep trains features and head in turn; the head has no weights"):
        federation(pn.FedRep(), models=bare, feature_dim=6)
    assert isinstance(federation(pn.FedPer(), models=bare, feature_dim=6).task.schema, Schema)


def test_the_personal_model_has_epochs_of_its_own():
    """One epoch of one batch without a pull is a step of Local from the received model, whatever the shared one's."""
    found = []
    for method, epochs in ((pn.Ditto(lam=0.0, personal_epochs=1), 3), (pn.Ditto(lam=0.0), 1)):
        client, state, message = federation(method, batch_size=4096, epochs=epochs).started()
        torch.manual_seed(0)
        found.append(method.local_update(client, state, message))
    assert same(found[0].state, found[1].state)
    assert not same(found[0].message, found[1].message)


@pytest.mark.parametrize(("mu", "tau"), [(3.0, 0.5), (1.0, 0.1)])
def test_moons_teachers_are_as_in_evaluation_and_weight_and_temperature_count(mu, tau):
    """Of one batch at the start: CE + μ·log(1 + e^{(cos(z, z_p) − cos(z, z_g))/τ}); the client then remembers."""
    method = pn.MOON(mu=mu, tau=tau)
    one = federation(method, batch_size=4096, lr=1e-12, models="plain", dataset=pictures([0, 1] * 20, 2), feature_dim=4)
    client, state, message = one.started()
    state |= {"trained": torch.tensor(True)}
    step = method.local_update(client, state, message)
    x, y = client.train.batch(torch.arange(len(client.train)))
    with torch.no_grad():
        z_p = client.load(state).eval().features(x)
        z_g = client.load(state | message).eval().features(x)
        z = client.load(state | message).train().features(x)
        cosines = (torch.nn.functional.cosine_similarity(z, teacher) / tau for teacher in (z_p, z_g))
        contrast = torch.stack(
            [previous.exp().add(received.exp()).log() - received for previous, received in [tuple(cosines)]]
        ).mean()
        ce = torch.nn.functional.cross_entropy(client.model.head(z), y)
    assert step.metrics["loss"] == pytest.approx(float(ce + mu * contrast), rel=1e-4)
    first = method.local_update(client, state | {"trained": torch.tensor(False)}, message)
    assert bool(first.state["trained"])


@pytest.mark.parametrize("method", [pn.FedPer(), pn.FedRep()], ids=str)
def test_features_are_trained_from_those_received(method):
    """With a rate of almost nothing the server's features stay; the own head too."""
    client, state, message = federation(method, lr=1e-12).started(1)
    step = method.local_update(client, state, message)
    torch.testing.assert_close({name: step.state[name] for name in message}, message)
    torch.testing.assert_close(step.state["model.head.weight"], state["model.head.weight"])
