"""All classifiers of a client as one: temperatures by hand, and what the record keeps of them."""

import math

import numpy as np
import pytest
import torch

from protonorm.core import Order
from protonorm.core.task import Counts
from protonorm.federation.client import evaluate_step, first_state
from protonorm.federation.evaluation import Tally
from protonorm.federation.experts import fit_experts, joint_scores
from protonorm.geometry.temperature import fit_inverse_temperature as fit_several
from protonorm.inference.info import recommend
from protonorm.inference.loading import load_from_run
from protonorm.runs.arrays import unfit
from protonorm.session.build import build
from tests.contract.playing import played
from tests.support import contents, run, run_folder, spiral

INF = math.inf


def rows(*scores):
    return torch.tensor(scores, dtype=torch.float64)


def fit_inverse_temperature(scores, y):
    """Of one rule, as of one among several, and with samples beside them that do not count."""
    others = torch.randn(2, *scores.shape, generator=torch.Generator().manual_seed(3)).to(scores)
    alone = fit_several(scores.unsqueeze(0), y, torch.ones(len(y), dtype=torch.bool))
    more, rows = torch.stack([others[0], scores, others[1]]).repeat(1, 2, 1), torch.arange(2 * len(y)) < len(y)
    torch.testing.assert_close(fit_several(more, y.repeat(2), rows)[1:2], alone)
    return float(alone)


@pytest.mark.parametrize(
    ("labels", "odds"),
    [([0, 0, 0], 7.0), ([0, 0, 1], 5 / 3), ([0, 0, 0, 0, 1], 9 / 3)],
)
def test_a_temperature_by_hand(labels, odds):
    """Two classes, scores (2, 0): p = 1/(1 + e^(−2/T)). Of n samples m are right, and one more is half right, so that
    the likeliest p is (m + ½)/(n + 1), and 2/T = log((m + ½)/(n − m + ½)): log 7, log 5/3, log 3."""
    scores = rows(*[(2.0, 0.0)] * len(labels))
    assert 2 * fit_inverse_temperature(scores, torch.tensor(labels)) == pytest.approx(math.log(odds), rel=1e-8)


def test_a_temperature_has_the_unit_of_the_scores():
    """Scores a thousand times as large, and higher by 5, have a temperature a thousand times as high."""
    scores, y = torch.randn(20, 4, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 4
    scores[torch.arange(20), y] += 1
    assert fit_inverse_temperature(1000 * scores + 5, y) == pytest.approx(
        fit_inverse_temperature(scores, y) / 1000, rel=1e-5
    )


def test_the_likelihood_is_the_best_there_is():
    """Smoothed labels, 1/(n + 1) of each spread over all classes: no other temperature near it is likelier."""
    generator = torch.Generator().manual_seed(0)
    scores, y = 3 * torch.randn(30, 5, generator=generator).double(), torch.arange(30) % 5
    scores[torch.arange(30), y] += 2
    labels = torch.full((30, 5), 1 / 31 / 5).double()
    labels[torch.arange(30), y] += 30 / 31
    best = fit_inverse_temperature(scores, y)
    losses = [-(labels * (scale * best * scores).log_softmax(1)).sum() for scale in (0.999, 1.0, 1.001)]
    assert losses[1] < losses[0]
    assert losses[1] < losses[2]


def test_what_tells_nothing_of_a_temperature():
    """No sample, equal scores, and classes that a rule does not know: of the last the others tell."""
    none = torch.zeros(0, dtype=torch.int64)
    assert fit_inverse_temperature(torch.zeros(0, 3), none) == 1.0
    assert fit_inverse_temperature(torch.ones(2, 3), torch.tensor([0, 1])) == 1.0
    assert fit_inverse_temperature(rows((0.0, -INF)), torch.tensor([1])) == 1.0
    known = rows((2.0, 0.0, -INF), (2.0, 0.0, -INF), (2.0, 0.0, -INF), (9.0, 0.0, -INF))
    found = fit_inverse_temperature(known, torch.tensor([0, 0, 1, 2]))  # three samples count, as above
    assert 2 * found == pytest.approx(math.log(5 / 3), rel=1e-8)
    assert fit_inverse_temperature(rows((math.nan, 0.0)), torch.tensor([1])) == 1.0


def test_a_rule_that_is_always_wrong_keeps_its_order_and_weighs_next_to_nothing():
    found = fit_inverse_temperature(rows((4.0, 0.0), (4.0, 0.0)), torch.tensor([1, 1]))
    assert 0 < 4 * found < 0.0011


def test_log_probabilities_are_added_up():
    """a: shares ½, ½; b at sharpness 2: e² and 1 of scores (1, 0). The sum is log ½ + 2 − log(e² + 1) and
    log ½ − log(e² + 1), and has a sharpness of its own, 3."""
    found = joint_scores({"a": rows((5.0, 5.0)), "b": rows((1.0, 0.0))}, {"a": 1.0, "b": 2.0, "joint": 3.0})
    whole = math.log(math.e**2 + 1)
    wanted = rows((3 * (math.log(0.5) + 2 - whole), 3 * (math.log(0.5) - whole)))
    torch.testing.assert_close(found, wanted)
    even = joint_scores({"a": rows((5.0, 5.0)), "b": rows((1.0, 0.0))}, {})  # temperatures of 1
    torch.testing.assert_close(even, rows((math.log(0.5) + 1, math.log(0.5))) - math.log(math.e + 1))


def test_a_class_that_one_rule_excludes_is_never_the_answer_and_one_that_knows_none_says_nothing():
    found = joint_scores({"a": rows((0.0, 9.0)), "b": rows((0.0, -INF))}, {})
    assert found[0].tolist()[1] == -INF
    assert found.argmax() == 0
    silent = joint_scores({"a": rows((0.0, 9.0)), "b": rows((-INF, -INF))}, {})
    torch.testing.assert_close(silent, rows((0.0, 9.0)).log_softmax(1))
    torch.testing.assert_close(joint_scores({"a": rows((0.0, 9.0)), "b": rows((math.nan, 1.0))}, {}), silent)


def test_the_sum_has_a_temperature_as_well():
    """Two equal rules, 2/T = log 7 each: their sum has twice the margin, and is halved."""
    scores, y = rows((2.0, 0.0), (2.0, 0.0), (2.0, 0.0)), torch.tensor([0, 0, 0])
    found, _ = fit_experts({"a": scores, "b": scores}, y)
    assert found == pytest.approx({"a": math.log(7) / 2, "b": math.log(7) / 2, "joint": 0.5}, rel=1e-6)
    assert all(value == float(np.float32(value)) for value in found.values())  # as a record has them


def test_validation_samples_are_answered_by_what_the_others_say():
    """Rule b is right on the even samples and wrong on the odd ones, a says nothing: fitted on the odd ones, b is worth
    nothing for the even ones, and the other way round it is believed where it is wrong."""
    b = rows((4.0, 0.0), (4.0, 0.0), (4.0, 0.0), (4.0, 0.0))
    y = torch.tensor([0, 1, 0, 1])
    found = fit_experts({"a": torch.zeros(4, 2), "b": b}, y)[1].softmax(1)[:, 0]
    assert found[0] == found[2] < 0.51
    assert found[1] == found[3] == pytest.approx(5 / 6)  # (2 + ½)/(2 + 1)


def test_each_half_is_answered_with_the_temperatures_of_the_other():
    """Rule b gives (2, 0) and is always right; a agrees on odd samples and is silent on even ones.

    Two samples of each half: 2/T = log((2 + ½)/½) = log 5. Fitted on even ones, a has T = 1, and so has the sum, which
    is b's; on odd ones the rules are equal, and halved. So even samples have the margin ½·log 5, odd ones 2 + log 5.
    """
    a, b = rows((0.0, 0.0), (2.0, 0.0)).repeat(2, 1), rows((2.0, 0.0)).repeat(4, 1)
    crossed = fit_experts({"a": a, "b": b}, torch.zeros(4, dtype=torch.int64))[1]
    assert (crossed[:, 0] - crossed[:, 1]).tolist() == pytest.approx([math.log(5) / 2, 2 + math.log(5)] * 2)


def test_validation_samples_are_counted_as_the_other_half_answers_them():
    """Rule a is right on even samples, b on odd ones; on the others they say the class after. Who is believed by the
    other half is wrong here. Fitted to all samples both would be believed alike, and mostly the lower class be said."""
    task, population = build(spiral(validation=0.3))
    site, validated = population.site(0), population.site(0).client(1).validation

    class Alternating(type(task.algorithm)):
        rules = ("a", "b", "joint")

        def scores(self, client, state, message, x):
            wrong = torch.arange(len(x)) % 2
            both = ((validated.labels + shift) % 6 for shift in (wrong, 1 - wrong))
            return {rule: 4.0 * torch.nn.functional.one_hot(said, 6) for rule, said in zip("ab", both, strict=True)}

    state = first_state(task, site)
    object.__setattr__(task, "algorithm", Alternating())
    found = evaluate_step(task, site, Order(0, 1, 1), state, {}, ("validation",)).counts
    assert int(found["validation.correct.a"].sum()) == (len(validated) + 1) // 2
    assert int(found["validation.correct.joint"].sum()) == 0


def test_samples_are_scored_alike_however_many_at_once(monkeypatch):
    """As trained and as received, turn by turn: each batch has both networks."""
    task, population = build(spiral(algorithm="fedavg", models="mlp_small"))
    seen = played(task, population, 1)
    site, order, given = population.site(0), Order(0, 1, 1), (seen["after"][0], seen["step"].message, ("test",))
    whole = evaluate_step(task, site, order, *given).counts
    monkeypatch.setattr("protonorm.core.samples.MAX_BATCH", 3)
    few = evaluate_step(task, site, order, *given).counts
    for rule in ("logits", "received"):
        torch.testing.assert_close(few[f"test.nll.{rule}"], whole[f"test.nll.{rule}"], rtol=1e-5, atol=0)
    assert whole["test.nll.logits"] < 0.99 * whole["test.nll.received"]


def test_many_samples_are_fitted_as_few_are(monkeypatch):
    generator = torch.Generator().manual_seed(2)
    scores, y = (
        {"a": torch.randn(9, 3, generator=generator), "b": torch.randn(9, 3, generator=generator)},
        torch.arange(9) % 3,
    )
    few, crossed = fit_experts(scores, y)
    monkeypatch.setattr("protonorm.federation.experts.FEW", 0)
    many, same = fit_experts(scores, y)
    assert (few, crossed.tolist()) == (many, same.tolist())


def test_without_validation_temperatures_are_1_and_the_record_has_none(tmp_path):
    result = run(spiral(validation=0), tmp_path)
    record = result.history[-1]
    assert record.rules["joint"] is not None
    assert not [name for name in result.run.arrays(record) if "sharpness" in name]
    assert result.clients[0].info.sharpness == {}
    scores = result.clients[0].scores(result.population.dataset.inputs[:9])
    experts = {rule: torch.from_numpy(scores[rule]) for rule in ("nearest-global", "nearest-local", "logits")}
    np.testing.assert_array_equal(joint_scores(experts, {}).numpy(), scores["joint"])


def test_the_record_has_the_temperatures_of_every_client(tmp_path):
    """They are those of its validation samples, fitted here once more."""
    result = run(spiral(validation=0.3), tmp_path)
    record = result.history[-1]
    arrays, data = result.run.arrays(record), result.population.dataset
    clients = list(result.trained("last"))
    for id, client in enumerate(clients):
        held = result.population.site(id).client(1).validation
        scores = {rule: torch.from_numpy(one) for rule, one in client.scores(data.inputs[held.index.numpy()]).items()}
        found, _ = fit_experts(
            {rule: scores[rule] for rule in ("nearest-global", "nearest-local", "logits")}, held.labels
        )
        for rule, value in found.items():
            assert arrays[f"validation.sharpness.clients.{rule}"][id] == pytest.approx(value, rel=1e-4)
            assert client.info.sharpness[rule] == arrays[f"validation.sharpness.clients.{rule}"][id]


def test_a_client_that_was_not_evaluated_has_no_joint_answer(tmp_path):
    """Evaluated is the cohort alone: the others' temperatures are not known, and another rule is recommended."""
    result = run(spiral(participation=0.5, evaluate="cohort", validation=0.3), tmp_path)
    *earlier, last = result.history
    assert last.evaluated == "cohort"
    missing = next(id for record in earlier for id in record.cohort if id not in last.cohort)
    x = result.population.dataset.inputs[:5]
    inside, outside = (load_from_run(result.run, id, checkpoint="last") for id in (last.cohort[0], missing))
    assert "joint" in inside.scores(x)
    assert outside.info.sharpness is None
    assert "joint" not in outside.scores(x)
    assert recommend(result.run, 3).rule == "joint" or outside.rule == recommend(result.run, 3).rule
    assert outside.rule != "joint"


def test_parts_are_answered_alike_in_any_order_and_each_is_passed_once():
    """The validation part comes first, whatever the order; nothing is looked at twice."""
    task, population = build(spiral(algorithm="fedavg", models="mlp_small", validation=0.3))
    seen = played(task, population, 1)
    site, order = population.site(0), Order(0, 1, 1)
    passes = []

    class Watched(type(task.algorithm)):
        def scores(self, client, state, message, x):
            passes.append(len(x))
            return super().scores(client, state, message, x)

    object.__setattr__(task, "algorithm", Watched())
    message = seen["step"].message
    one = evaluate_step(task, site, order, seen["after"][0], message, ("test", "validation")).counts
    client = site.client(1)
    assert sum(passes) == 2 * (len(client.test) + len(client.validation))  # as trained and as received
    two = evaluate_step(task, site, order, seen["after"][0], message, ("validation", "test")).counts
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert {"test.correct.joint", "validation.sharpness.received", "validation.sharpness.joint"} <= one.keys()


def test_a_client_without_validation_samples_takes_1():
    """Its counts name no temperature, and the record has a NaN."""
    tally = Tally("validation", ("logits", "joint"), 2, 1)
    whole = {"support": torch.ones(1, dtype=torch.int64), "unseen": torch.tensor(0)}
    for rule in ("logits", "joint"):
        whole |= {f"correct.{rule}": whole["support"], f"predicted.{rule}": whole["support"]}
    for id, more in (
        (0, {"sharpness.logits": torch.tensor(0.5).double(), "sharpness.joint": torch.tensor(2.0).double()}),
        (1, {}),
    ):
        counts = Counts(id, {f"validation.{name}": value for name, value in (whole | more).items()})
        tally.check(counts)
        tally.add(counts)
    arrays = tally.arrays()
    np.testing.assert_array_equal(arrays["validation.sharpness.clients.logits"], [0.5, math.nan])
    assert not unfit(arrays, 2, 1)
    assert unfit(arrays | {"validation.sharpness.clients.joint": np.array([-1.0, 1.0], np.float32)}, 2, 1)
    bad = Counts(
        2,
        {
            f"validation.{name}": value
            for name, value in (whole | {"sharpness.joint": torch.tensor(-1.0).double()}).items()
        },
    )
    with pytest.raises(ValueError, match=r"no validation.sharpness.joint"):
        tally.check(bad)


def test_methods_with_one_rule_have_no_joint_one():
    task, population = build(spiral(algorithm="local"))
    site = population.site(0)
    found = evaluate_step(task, site, Order(0, 1, 0), first_state(task, site), {}, ("validation", "test")).counts
    assert not [name for name in found if "joint" in name or "sharpness" in name]


@pytest.mark.parametrize("method", ["protonorm", "fml"])
def test_worker_processes_fit_the_same_bits(tmp_path, method):
    experiment = spiral(algorithm=method, validation=0.3, rounds=2)
    serial = run(experiment, tmp_path / "one")
    apart = run(experiment, tmp_path / "two", engine="processes")
    for name in ("evaluations.bin", "rounds.jsonl"):
        files = [contents(run_folder(experiment, tmp_path / folder)) for folder in ("one", "two")]
        assert files[0].get(name) == files[1].get(name)
    assert serial.history[-1].rules["joint"] == apart.history[-1].rules["joint"]
    assert "validation.sharpness.clients.joint" in apart.run.arrays(apart.history[-1])
