"""The owner's steps between training and the carrier."""

import pytest
import torch

import protonorm as pn
from protonorm.core import Order, Samples
from protonorm.core.training import MinimumCount, make_outgoing
from protonorm.deployment.settings import ClientSettings
from protonorm.federation.client import first_state, train_step
from protonorm.session.build import build
from tests.support import contents, run, spiral


def test_classes_below_the_minimum_are_not_sent():
    """The client has 1, 3 and 2 samples of classes 0, 1, 2: with a minimum of 2 it sends classes 1 and 2."""
    labels = torch.tensor([0, 1, 1, 1, 2, 2])
    train = Samples(torch.zeros(6, 2), labels, torch.arange(6))
    client = pn.Client(0, 1, 1, None, None, train, train, train, num_classes=3, feature_dim=2)
    said = {"classes": torch.tensor([2, 0, 1]), "prototypes": torch.tensor([[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]])}
    kept = MinimumCount(least=2).apply(None, client, said)
    assert kept["classes"].tolist() == [2, 1]
    assert kept["prototypes"].tolist() == [[2.0, 2.0], [1.0, 1.0]]


def test_the_step_is_the_last_thing_before_the_reply_leaves_and_does_not_touch_the_state():
    task, population = build(spiral(protect={"name": "minimum_count", "least": 1000}))
    state, reply = train_step(task, population.site(0), Order(0, 1, 0), first_state(task, population.site(0)), {})
    assert reply.message["classes"].tolist() == []
    assert len(state["classes"]) > 0


@pytest.mark.parametrize(("method", "sent"), [("fedavg", "model"), ("fedre", "mixture"), ("lgfedavg", "head")])
def test_methods_that_send_more_than_vectors_by_class_are_refused(method, sent):
    models = "mlp_small" if method == "fedavg" else None
    with pytest.raises(ValueError, match=f"protect=minimum_count is for methods .* send {sent}"):
        build(spiral(algorithm=method, protect="minimum_count", models=models))


def test_engines_agree_and_the_key_names_the_step(tmp_path):
    protected = spiral(protect={"name": "minimum_count", "least": 3})
    assert protected.key != spiral().key == spiral(protect="none").key
    assert protected.changed["protect"] == "minimum_count"
    assert protected.changed["protect.least"] == 3
    one, two = (run(protected, tmp_path / engine, engine=engine) for engine in ("serial", "processes"))
    assert contents(one.run.folder) == contents(two.run.folder)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("minimum", "Unknown protection 'minimum'; did you mean 'minimum_count'"),
        (7, "protect must be one of none, minimum_count, gaussian, got 7"),
        ({"name": "minimum_count", "least": 0}, "protect.least must .*, got 0"),
        ({"name": "minimum_count", "most": 3}, "protect.most"),
    ],
)
def test_what_is_no_step_is_refused_in_a_sentence(value, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_outgoing(value)


def test_the_owner_of_a_deployed_client_has_the_same_steps():
    settings = ClientSettings.of({"name": "clinic", "protect": {"name": "minimum_count", "least": 3}})
    assert settings.training.protect == MinimumCount(least=3)
    assert ClientSettings.of(settings.model_dump(mode="json")).protect == settings.protect
