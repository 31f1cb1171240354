"""Which rule is recommended, how sure an answer is, and what the record says of a client."""

import numpy as np
import pytest

from protonorm.inference.info import default_rule, facts_of, recommend
from protonorm.inference.trained import answers_of, margins
from tests.records import hundred, made
from tests.support import run, spiral


def test_margins_by_hand():
    """Distances 3 and 4: 1 − 3/4. Two at 5: halfway, 0. On a prototype: 1. Classes without prototypes are infinitely
    far: of one prototype the margin is 1. Rounding may make a square slightly negative: that is on the prototype."""
    infinite = np.inf
    squared = np.array([[16.0, 9, 100], [25, 25, 49], [0, 1, 4], [infinite, 7, infinite], [-1e-9, 4, 4]])
    np.testing.assert_allclose(margins(squared), [0.25, 0, 1, 1, 1])
    assert margins(np.zeros((2, 3))).tolist() == [0, 0]  # all prototypes in one place
    assert margins(np.array([[4.0]])).tolist() == [1]


def test_answers_by_hand():
    """z = (3, 0), prototypes (0, 0) and (5, 0): scores 2z·c − ‖c‖² are 0 and 5, distances 3 and 2, margin 1 − 2/3.

    The logits are 0 and log 3 for class 0: its probability is 3/4, and that of the recommended class 1 is 1/4."""
    scores = {"nearest-global": np.array([[0.0, 5.0]]), "logits": np.array([[np.log(3), 0.0]])}
    softmax = {"nearest-global": np.array([[0.01, 0.99]]), "logits": np.array([[0.75, 0.25]])}
    found = answers_of("nearest-global", "logits", scores, softmax, np.array([9.0]))
    assert (found.rule, found.classes.tolist(), found.agree.tolist()) == ("nearest-global", [1], [False])
    assert found.probability.tolist() == [0.25]
    np.testing.assert_allclose(found.rules["nearest-global"].margin, [1 / 3])
    assert found.rules["nearest-global"].confidence.tolist() == [0.99]
    assert found.rules["logits"].margin is None
    assert found.rules["logits"].confidence.tolist() == [0.75]


def test_a_client_without_any_rule_is_recommended_the_usual_one():
    assert default_rule("received", []).rule == "logits"
    assert default_rule("nearest-global", ["nearest-local"]).rule == "nearest-local"


def test_a_method_without_probabilities_has_none():
    scores = {"mine": np.array([[0.0, 5.0]])}
    found = answers_of("mine", "logits", scores, scores, None)
    assert found.probability is None
    assert found.rules["mine"].margin is None
    assert found.agree.tolist() == [True]


def validated(folder, right, **settings):
    """A client with 100 samples of each part: so many right under `nearest-global`, half as many under `logits`."""
    parts = {"tested": right, "validated": right, "population": hundred(1)}
    return made(folder, clients=1, classes=1, rounds=len(right), **parts | settings)


def test_the_rule_that_won_on_validation_is_recommended(tmp_path):
    run_ = validated(tmp_path / "one", [[80], [60]])
    for round, share in ((1, 0.8), (2, 0.6)):
        advice = recommend(run_, round)
        assert (advice.rule, advice.by, advice.validation, advice.probability) == (
            "nearest-global",
            "validation",
            share,
            "logits",
        )
    other = validated(tmp_path / "two", [[80]], rules=["logits", "nearest-global"])  # the first rule has twice as many
    assert recommend(other, 1).rule == "logits"


def test_another_rule_than_the_headline_may_win(tmp_path):
    """On validation `logits` has 80 of 100 in this record, and `nearest-global`, the headline, 40."""
    found = validated(tmp_path / "one", [[80]], rules=["logits", "nearest-global"])
    swapped = found.info.model_copy(update={"headline": "nearest-global"})
    found = type(found)(found.folder, swapped, found.rounds, None)
    assert (recommend(found, 1).rule, recommend(found, 1).validation) == ("logits", 0.8)


def test_of_equal_rules_the_headline_wins(tmp_path):
    found = validated(tmp_path / "one", [[0]], rules=["logits", "nearest-global"])
    for headline in ("nearest-global", "logits"):
        same = type(found)(found.folder, found.info.model_copy(update={"headline": headline}), found.rounds, None)
        assert recommend(same, 1).rule == headline


def test_without_validation_it_is_the_headline(tmp_path):
    found = made(tmp_path / "one")
    advice = recommend(found, 3)
    assert (advice.rule, advice.by, advice.validation, advice.calibration) == ("nearest-global", "headline", None, None)


RULES = ("nearest-global", "nearest-local", "logits", "joint")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run(spiral(rounds=3, validation=0.3), tmp_path_factory.mktemp("runs"))


def test_facts_are_those_of_the_record(result):
    client, record = result.clients[2], result.run.chosen.record
    facts = client.facts
    assert client.info.round == record.round
    measured = {(one.part, one.rule): one for one in facts.metrics}
    assert set(measured) == {(part, rule) for part in ("validation", "test") for rule in RULES}
    for (part, rule), one in measured.items():
        assert one.accuracy == pytest.approx(result.run.by_client(record, rule, part)[2], rel=1e-5)
        assert one.samples == getattr(result.run.population, part)[2].sum()
        assert (one.log_loss is None) == (rule in ("nearest-global", "nearest-local"))
    assert facts.train == result.run.population.train[2].sum()
    assert facts.data == "spiral"
    assert f"round {record.round} of 3: it has the best mean validation accuracy" in facts.chosen
    assert facts.commit == result.run.provenance.commit
    assert facts.versions["torch"] == result.run.provenance.versions["torch"]
    last = facts_of(result.run, 2, 3)
    assert ("the last one" in last.chosen) == (record.round != 3)


def test_the_recommended_rule_is_the_usual_one(result):
    client = result.clients[1]
    x = result.population.dataset.inputs[::5]
    means = {rule: found.mean for rule, found in result.run.chosen.record.validation.items()}
    assert means[client.rule] == max(means.values())
    answers = client.answers(x)
    np.testing.assert_array_equal(client.predict(x), answers.classes)
    np.testing.assert_array_equal(client.predict(x, client.rule), answers.classes)
    shares = client.confidence(x)[client.rule if client.rule == "joint" else "logits"]
    np.testing.assert_allclose(answers.probability, shares[np.arange(len(x)), answers.classes])
    centres = client.message["prototypes"].double().numpy()  # (K', d)
    far = np.sort(np.linalg.norm(client.features(x)[:, None] - centres, axis=2), axis=1)
    np.testing.assert_allclose(answers.rules["nearest-global"].margin, 1 - far[:, 0] / far[:, 1], atol=1e-5)
