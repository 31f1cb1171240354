"""Secure sums against plain ones, shares of noise, and rounds in which somebody is missing."""

import math

import numpy as np
import pytest
import torch

import protonorm as pn
from protonorm.core import Contribution
from protonorm.core.combine import Mean
from protonorm.core.masking import FRACTION
from protonorm.core.noise import STEPS
from protonorm.core.privacy import Gaussian, moments_change
from protonorm.core.robust import check_rule
from protonorm.core.secure_sum import MASKED, MaskedSum, Unread
from protonorm.engines.serial import Serial
from protonorm.errors import Burned
from protonorm.session.build import build
from tests.algorithms.test_analytic import client as analytic_client
from tests.algorithms.test_analytic import task_of
from tests.core.test_privacy import client as fixed_client
from tests.support import contents, run, spiral

SECURE = {"combine": "secure_sum", "clients": 4, "rounds": 2}


class Sizes(pn.FedProto):
    """FedProto whose contributions have weights by name, a weight for all rows of one value, and totals."""

    def contribution(self, server, state, reply):
        rows = super().contribution(server, state, reply)
        weight = {"prototypes": rows.weight, "mean": torch.tensor(len(reply["classes"]) + 1)}
        values = rows.values | {"mean": reply["prototypes"].sum(0)}
        return Contribution(values, weight, {"classes": reply["classes"].sum(), "length": reply["prototypes"].norm()})


def secure_task(method, **change):
    usual = {"classes": ("a", "b", "c"), "feature_dim": 5, "rounds": 3, "seed": 1, "combine": "secure_sum:2"}
    return pn.Task(method, **usual | change)


def replies(count, scale):
    """Clients of FedProto with ragged sets of classes; class 2 is nobody's."""
    made = []
    for number in range(count):
        classes = torch.tensor([[0], [1], [1, 0]][number % 3])
        vectors = torch.randn(len(classes), 5, generator=torch.Generator().manual_seed(number))
        made.append({"classes": classes, "prototypes": scale * vectors})
    return made


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5])
@pytest.mark.parametrize("method", [pn.FedProto(), Sizes()], ids=["rows", "names"])
def test_the_sum_is_the_plain_one_to_the_precision_of_fixed_point(method, scale):
    """Each of 5 numbers is rounded by half a step at most, and means are divided by 1 at least, then float32."""
    task, plain, masked = secure_task(method), Mean(), np.zeros(secure_task(method).layout.size, np.int64)
    for reply in replies(5, scale):
        contribution = method.contribution(task.server(1), {}, reply)
        plain.add(contribution)
        masked += task.layout.integers(contribution, 5)
    assert masked[-1] == 5
    expected, found = plain.sums(), task.layout.sums(masked)
    for name, mean in expected.means.items():
        assert found.means[name].dtype == mean.dtype
        torch.testing.assert_close(found.means[name], mean, rtol=2e-7, atol=5 * 2.0 ** -(FRACTION + 1))
        torch.testing.assert_close(found.weight_of(name), expected.weight_of(name), rtol=0, atol=0)
    for name, total in expected.totals.items():
        assert found.totals[name].dtype == total.dtype
        torch.testing.assert_close(found.totals[name], total, rtol=0, atol=5 * 2.0 ** -(FRACTION + 1))


@pytest.mark.parametrize("method", ["protonorm", {"name": "choir", "public": False}, "fedavg", "fednh", "lgfedavg"])
def test_a_secure_run_has_the_results_of_a_plain_one(tmp_path, method):
    """Accuracies are equal; the server is told no loss, and each client sends as many bytes as the layout has."""
    settings = SECURE | {"algorithm": method} | ({"models": "mlp_small"} if method == "fedavg" else {})
    secure = run(spiral(**settings), tmp_path / "secure")
    plain = run(spiral(**settings | {"combine": "mean"}), tmp_path / "plain")
    for one, other in zip(secure.history, plain.history, strict=True):
        assert one.rules.keys() == other.rules.keys()
        for rule, accuracy in one.rules.items():
            assert accuracy.mean == pytest.approx(other.rules[rule].mean, abs=0.02)
        assert (one.metrics, one.lost) == ({}, {})
    task, _ = build(spiral(**settings))
    assert secure.history[0].bytes.up == 4 * 8 * task.layout.size
    assert secure.history[0].floats.up == 4 * task.layout.size


def test_engines_agree_and_the_key_names_the_rule(tmp_path):
    experiment = spiral(**SECURE)
    assert experiment.key != spiral(clients=4, rounds=2).key
    assert experiment.changed["combine"] == "secure_sum:3"
    one, two = (run(experiment, tmp_path / engine, engine=engine) for engine in ("serial", "processes"))
    assert contents(one.run.folder) == contents(two.run.folder)


class Forgetful(Serial):
    """Engine whose client 2 is lost in the second round."""

    def train(self, orders, messages, deadline=None):
        for answer in super().train(orders, messages, deadline):
            lost = orders[0].round == 2 and answer.id == 2
            yield pn.core.Lost(2, "it is gone") if lost else answer


def test_a_round_in_which_somebody_drops_out_yields_nothing(tmp_path, monkeypatch):
    """Nothing of round 2 counts: the server's message and the clients' states are those of round 1."""
    monkeypatch.setattr("protonorm.engines.serial.Serial", Forgetful)
    result = run(spiral(**SECURE | {"rounds": 3}), tmp_path)
    first, second, third = result.history
    assert second.lost["2"] == "it is gone"
    assert set(second.lost) == {"0", "1", "2", "3"}
    assert "not all of its members sent their messages" in second.lost["0"]
    assert second.server == {"burned": 1.0}
    assert {rule: one.mean for rule, one in second.rules.items()} == {rule: x.mean for rule, x in first.rules.items()}
    assert third.lost == {}


def test_the_server_has_no_sum_unless_all_masks_cancel():
    task, total = secure_task(pn.FedProto()), MaskedSum(secure_task(pn.FedProto()))
    with pytest.raises(Burned):
        total.sums()
    shares = [task.algorithm.contribution(task.server(1), {}, reply) for reply in replies(2, 1.0)]
    numbers = [task.layout.integers(share, 2) for share in shares]
    mask = np.random.default_rng(0).integers(-(2**62), 2**62, len(numbers[0]))
    total.add({MASKED: torch.from_numpy(numbers[0] + mask)})
    with pytest.raises(Burned, match="not all of its members"):
        total.sums()
    total.add({MASKED: torch.from_numpy(numbers[1] - mask)})
    assert int(total.sums().weight.sum()) == 2
    total.add({MASKED: torch.from_numpy(numbers[1] - mask)})
    with pytest.raises(Burned):
        total.sums()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"algorithm": "fedtgp"}, "combine must be mean for FedTGP, whose server trains on the messages one by one"),
        ({"algorithm": "local"}, "whose server receives no messages to combine"),
        ({"algorithm": "heterofl", "models": "mlp_small"}, "not possible for HeteroFL: it needs the server's state"),
        ({"algorithm": "fedkd"}, "not possible for FedKD: it needs the server's state, which clients do not have"),
        ({"clients": 2}, "combine=secure_sum:3 must have 3 to 256 clients in a round, got 2"),
        ({"control": "solo"}, "must have 3 to 256 clients in a round, got 1"),
        ({"protect": {"name": "gaussian", "bounds": "message", "colluding": 3}}, "protect.colluding must be below"),
        (
            {"algorithm": {"name": "protonorm", "gamma": "auto"}}
            | {"protect": {"name": "gaussian", "bounds": "message", "colluding": 1}},
            "protect.colluding must be left out for ProtoNorm with these settings",
        ),
        (
            {"combine": "mean", "protect": {"name": "gaussian", "bounds": "message", "colluding": 0}},
            "must be below the",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(spiral(**SECURE | settings))


@pytest.mark.parametrize("rule", ["secure_sum:1", "secure_sum:x", "secure_sum:257", "secure_sum:2.5"])
def test_a_rule_with_another_number_is_refused(rule):
    with pytest.raises(ValueError, match="combine must be secure_sum:LEAST with 2 to 256 members"):
        check_rule(rule)


def test_a_state_that_clients_do_not_have_cannot_be_read():
    for read in (lambda x: x["a"], lambda x: "a" in x, lambda x: x.get("a"), lambda x: {**x}, dict, bool, list):
        with pytest.raises(ValueError, match="it needs the server's state"):
            read(Unread())


# ---- noise that all members share ------------------------------------------------------------------------------------


def test_shares_of_noise_add_up_to_what_is_claimed():
    """4 members, 1 of whom may add none: each adds σ²/3, so that 4 have 4/3 σ². 9,000 numbers, 5 standard errors.

    Samples count exactly: 3 of each class with the feature (1, 0, 0), clipped to C = 1.
    """
    task, step = secure_task(pn.FedProto(), feature_dim=3), Gaussian(noise=2.0, colluding=1)
    one = fixed_client(torch.tensor([[1.0, 0, 0]]).repeat(9, 1), torch.arange(3).repeat(3), 3)
    sums = torch.stack([sum(step.among(4).apply(task, one, {})["prototypes"] for _ in range(4)) for _ in range(1000)])
    assert sums.dtype == torch.float64
    noise = sums - 12 * torch.tensor([1.0, 0, 0])
    assert float(noise.square().mean()) == pytest.approx(4 / 3 * 4, rel=5 * math.sqrt(2 / 9000))
    assert (sums * STEPS == (sums * STEPS).round()).all()  # integers: nothing is scaled after the noise
    assert step.among(4).apply(task, one, {})["classes"].tolist() == [0, 1, 2]
    assert Gaussian().among(4) == Gaussian()
    with pytest.raises(ValueError, match="must have more than 1 members, got 1"):
        step.among(1)


def test_shared_noise_on_second_moments_is_exact_and_told():
    """The told variances add up to n/(n − c) times that of one; numbers are multiples of 2⁻³², which masks keep."""
    method, sigma = pn.AFL(), 2.0
    one = analytic_client(0, [0, 1, 2, 1], method)
    sent = Gaussian(noise=sigma, colluding=1).among(3).apply(task_of(method), one, {"gram": torch.zeros(1)})
    gram = next(value for name, value in sent.items() if name.startswith("gram"))
    told = next(value for name, value in sent.items() if name.startswith("noise"))
    assert float(told) * 2 == pytest.approx((sigma * moments_change()) ** 2 / 2, rel=1e-3)
    assert gram.dtype == torch.float64
    assert (gram * 2.0**FRACTION == (gram * 2.0**FRACTION).round()).all()


def test_sums_with_shared_noise_are_published_with_the_longest_row_of_length_c(tmp_path):
    """Rows (3, 4) and (0, 1) of two members become (6, 8)/5 and (0, 2)/5 with C = 2: noisy sums have no scale."""
    task = secure_task(pn.FedProto(), feature_dim=2, noise_length=2.0)
    reply = {"classes": torch.tensor([0, 1]), "prototypes": torch.tensor([[3.0, 4.0], [0.0, 1.0]])}
    integers = task.layout.integers(task.algorithm.contribution(task.server(1), {}, reply), 2)
    total = MaskedSum(task)
    for _ in range(2):
        total.add({MASKED: torch.from_numpy(integers)})
    rows = total.sums().means["prototypes"]
    torch.testing.assert_close(rows, torch.tensor([[1.2, 1.6], [0.0, 0.4], [0.0, 0.0]]))
    protect = {"name": "gaussian", "bounds": "message", "noise": 5.0, "clip": 2.0, "colluding": 1}
    settings = SECURE | {"algorithm": "fedproto", "protect": protect}
    assert build(spiral(**settings))[0].noise_length == 2.0
    assert run(spiral(**settings), tmp_path).history[-1].lost == {}
