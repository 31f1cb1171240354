"""Simulated systems: schedules derived by hand, draws with the moments of their distributions, runs with equal bits."""

from itertools import islice

import numpy as np
import pytest
import torch

import protonorm as pn
from protonorm.core.combine import Contribution, Mean, scaled
from protonorm.core.systems import Plan, System, arrivals, waited
from protonorm.core.task import Reply, message_for
from protonorm.engines.serial import Serial
from protonorm.federation.policy import Policy
from protonorm.federation.rounds import _conclude
from protonorm.runs.states import Checkpoint
from protonorm.session.build import build, policy_of
from tests.algorithms.tasks import task_of, vectors
from tests.support import contents, run, run_folder, spiral

LATE = {"delay": "lognormal:10,1", "stragglers": 0.3, "dropout": 0.1, "asynchronous": True, "staleness": 2}


def test_a_round_waits_for_whoever_would_be_too_late():
    """One client takes 1 second, the other 10, and a round one reply: the fast one replies at 1, 2 and 3; in round 4
    the other is three rounds late and is waited for until 10. Both begin again then."""
    system = System(stragglers=0.5, asynchronous=True, buffer=0.5, staleness=3)
    plans = list(islice(arrivals(system, 0, 2, 2), 8))
    fast = plans[0].cohort
    assert [plan.cohort for plan in plans] == [fast, fast, fast, [0, 1]] * 2
    assert [plan.seconds for plan in plans] == [1, 1, 1, 7] * 2
    assert [plan.metrics["simulated.staleness"] for plan in plans] == [0, 0, 0, 1.5] * 2
    assert [plan.waiting for plan in plans] == [{0}, {0}, {0}, set(), {4}, {4}, {4}, set()]
    patient = list(islice(arrivals(System(stragglers=0.5, asynchronous=True, staleness=99), 0, 2, 2), 10))
    assert [plan.seconds for plan in patient] == [1] * 10  # at 10 seconds both reply
    assert patient[-1].started == {fast[0]: 9, 1 - fast[0]: 0}
    strict = System(stragglers=0.5, asynchronous=True, staleness=0)
    assert [plan.seconds for plan in islice(arrivals(strict, 0, 2, 2), 3)] == [10] * 3


def test_clients_that_are_held_out_never_train(tmp_path):
    result = run(spiral(rounds=3, system=LATE, held_out=0.34), out=tmp_path)
    held = set(policy_of(result.experiment).held_out)
    trained = [set(range(6)) if record.cohort == "all" else set(record.cohort) for record in result.history]
    assert len(held) == 2
    assert not held & set().union(*trained)


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_later_than_the_bound_and_so_many_are_running(seed):
    system = System(delay="lognormal:10,2", stragglers=0.2, dropout=0.2, asynchronous=True, buffer=0.3, staleness=4)
    for plan in islice(arrivals(system, seed, 20, 10), 200):
        late = [plan.late(id) for id in plan.cohort]
        assert max(late) <= 4
        assert min(late) >= 0
        assert len(plan.cohort) - len(plan.lost) >= 1
        assert plan.seconds >= 0


def test_a_synchronous_round_loses_failed_and_late_clients_but_keeps_its_quorum():
    system = System(delay="uniform:0,10", dropout=0.25, deadline=5)
    plans = [waited(system, 1, round, 100, list(range(100)), 20) for round in range(1, 101)]
    lost = np.array([len(plan.lost) for plan in plans])
    assert abs(lost.mean() - 62.5) < 1.5  # 25 of 100 fail, and half of the others are late; deviation of a mean 0.5
    assert {plan.seconds for plan in plans} == {5.0}
    assert all("it failed" in why or "it was late" in why for plan in plans for why in plan.lost.values())
    (kept,) = {100 - len(waited(system, 1, round, 100, list(range(100)), 90).lost) for round in range(1, 4)}
    assert kept == 90


@pytest.mark.parametrize(
    ("delay", "mean", "deviation"),
    [
        ("constant:3", 3, 0),
        ("uniform:2,4", 3, 2 / 12**0.5),
        ("exponential:3", 3, 3),
        ("lognormal:3,0.5", 3 * np.exp(0.125), 3 * np.exp(0.125) * (np.exp(0.25) - 1) ** 0.5),
    ],
)
def test_delays_have_the_moments_of_their_distribution(delay, mean, deviation):
    delays, fails, _ = System(delay=delay, dropout=0.3).draw(0, 1, 100_000)
    assert delays.mean() == pytest.approx(mean, rel=0.02)
    assert delays.std() == pytest.approx(deviation, rel=0.03)
    assert fails.mean() == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize(
    ("system", "reason"),
    [
        ({"delay": "gamma:1"}, "system.delay must be constant:SECONDS"),
        ({"delay": "uniform:1"}, "system.delay must be constant:SECONDS"),
        ({"delay": "uniform:2,1"}, "must have the smaller number first"),
        ({"delay": "constant:1.2.3"}, "system.delay must be constant:SECONDS"),
        ({"dropout": 1}, "system.dropout must be"),
        ({"slowdown": 0.5}, "system.slowdown must be"),
        ({"speed": 1}, "speed"),
        ({"dropout": 0.1}, "need quorum below 1"),
        ({"asynchronous": True, "deadline": 3}, "system.deadline must be left out"),
    ],
)
def test_other_systems_are_refused(system, reason):
    with pytest.raises(ValueError, match=reason):
        spiral(system=system)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"algorithm": "local"}, "Local, whose server does not add up messages"),
        ({"algorithm": "fedtgp"}, "FedTGP, whose server does not add up messages"),
        ({"algorithm": "afl"}, "AFL, which is finished after fixed rounds"),
        ({"control": "solo"}, "ProtoNorm, which has no server with control=solo"),
    ],
)
def test_asynchronous_servers_are_for_methods_that_add_up(settings, reason):
    with pytest.raises(ValueError, match=f"system.asynchronous must be false for {reason}"):
        build(spiral(system={"asynchronous": True}, **settings))


def test_weights_are_multiplied():
    """Values 1 of weight 1 and 4 of weight ½: (1 + 2)/1.5 = 2; totals 3 and ½·4."""
    fold = Mean()
    for value, factor in ((1.0, 1.0), (4.0, 0.5)):
        part = Contribution(
            {"x": torch.tensor([value])}, torch.tensor(1), {"t": torch.tensor(value + 2 * (factor == 1))}
        )
        fold.add(scaled(part, factor))
    assert fold.sums().means["x"].tolist() == [2]
    assert fold.sums().totals["t"].tolist() == 5
    assert System(discount=0.5).factor(3) == 0.5
    assert System(discount=0).factor(7) == 1


def test_late_replies_weigh_less_in_a_round():
    """In round 5 client 0 has the message of round 4 and client 1 that of round 1, three rounds late: with a = ½ it
    weighs (1 + 3)^(−½) = ½. Prototypes 1 and 4: (1 + ½·4)/1.5 = 2."""
    plan = Plan(5, [0, 1], lost={}, started={0: 4, 1: 1}, waiting=set(), seconds=1.0)
    policy = Policy(2, 2, system=System(asynchronous=True, discount=0.5))
    answers = [Reply(id, vectors([1], [[value, value]]), {}, 0.0) for id, value in enumerate((1.0, 4.0))]
    _, step = _conclude(task_of(pn.FedProto()), policy, Checkpoint(4, {}, {}, [4, 1]), answers, 2, plan)
    assert step.message["prototypes"].tolist() == [[2.0, 2.0]]


def test_without_a_system_nothing_changes(tmp_path):
    """A system in which all reply at once gives the numbers of a run without one; so does an asynchronous one."""
    plain = run(spiral(), out=tmp_path)
    assert "system" not in plain.experiment.model_dump()
    systems = {"slowdown": 2}, {"asynchronous": True, "buffer": 1}, {"asynchronous": True, "staleness": 0}
    for number, system in enumerate(systems):
        result = run(spiral(system=system), out=tmp_path / str(number))
        assert result.experiment.key != plain.experiment.key
        for record, usual in zip(result.history, plain.history, strict=True):
            assert record.rules == usual.rules
            assert record.bytes == usual.bytes
            assert record.server["simulated.seconds"] == 1
            assert usual.server.keys() == record.server.keys() - {"simulated.seconds", "simulated.staleness"}


def test_late_clients_train_with_the_message_that_they_began_with(tmp_path, monkeypatch):
    given, train = {}, Serial.train

    def noted(self, orders, messages, deadline=None):
        given[orders[0].round] = {order.id: message_for(messages, order.id) for order in orders}
        return train(self, orders, messages, deadline)

    monkeypatch.setattr(Serial, "train", noted)
    experiment = spiral(rounds=8, system=LATE)
    run(experiment, out=tmp_path)
    plans = dict(enumerate(islice(arrivals(experiment.system, 0, 6, 6), 8), start=1))
    published = {r - 1: given[r][id] for r in given for id in given[r] if not plans[r].late(id)}
    late = [(r, id) for r in given for id in given[r] if plans[r].late(id) and plans[r].started[id] in published]
    assert late
    for r, id in late:
        expected = published[plans[r].started[id]]
        assert given[r][id].keys() == expected.keys()
        assert all(torch.equal(given[r][id][name], expected[name]) for name in expected)


@pytest.mark.parametrize("algorithm", ["fedproto", "fedavg"])
def test_equal_bits_on_workers_and_after_a_resume(tmp_path, algorithm):
    experiment = spiral(algorithm=algorithm, rounds=5, system=LATE, models="mlp")
    run(experiment, out=tmp_path / "a")
    for stop in (2, 4):

        def interrupt(round, stop=stop):
            if round.number == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(experiment, out=tmp_path / "b", watch=interrupt)
    run(experiment, out=tmp_path / "b")
    run(experiment, out=tmp_path / "c", engine="processes", workers=2)
    first = contents(run_folder(experiment, tmp_path / "a"))
    assert contents(run_folder(experiment, tmp_path / "b")) == first
    assert contents(run_folder(experiment, tmp_path / "c")) == first
    assert pn.load_run(experiment.key, out=tmp_path / "a").clients[0].predict([[1.0, 2.0]]).shape == (1,)
