"""The round loop against engines that lose clients, are late, or say what nobody may say."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import protonorm as pn
from protonorm.core import SERVER, Lost, Order, Reply, seeded
from protonorm.engines.serial import Host, Serial
from protonorm.errors import TooFewReplies
from protonorm.federation.policy import Policy, draw_cohort
from protonorm.federation.rounds import begin, run_rounds
from protonorm.federation.server import Replies, admit
from protonorm.runs.run import read_run
from protonorm.runs.states import FolderStore
from protonorm.runs.writer import RunWriter
from protonorm.session.build import build, policy_of
from protonorm.session.running import _counts, info_of
from tests.contract.playing import same
from tests.support import contents, run, run_folder, spiral


class Unreliable(Serial):
    """A serial engine whose clients fail as a plan says: (round, client) to the number of tries that are lost."""

    def __init__(self, *parts, plan=(), spoil=None, blind=()):
        super().__init__(*parts)
        self.plan, self.spoil, self.blind = dict(plan), spoil, dict(blind)
        self.tries = []

    def train(self, orders, messages, deadline=None):
        self.tries.append(orders[0].round)
        for order in orders:
            place = (order.round, order.id)
            if self.plan.get(place, 0) > 0:
                self.plan[place] -= 1
                yield Lost(order.id, "it was switched off")
                continue
            (answer,) = super().train([order], messages, deadline)
            spoilt = self.spoil and isinstance(answer, Reply) and self.spoil(order, answer.message)
            yield answer._replace(message=spoilt) if spoilt else answer

    def evaluate(self, orders, messages, parts):
        for order in orders:
            if self.blind.get(order.id, 0) > 0:
                self.blind[order.id] -= 1
                yield Lost(order.id, "it was switched off")
            else:
                yield from super().evaluate([order], messages, parts)


def play(experiment, folder, **faults):
    """Run an experiment with faults, in the folder of its run; give the record and the engine."""
    task, population = build(experiment)
    with RunWriter(folder, experiment.key) as writer:
        writer.describe(info_of(experiment, task), _counts(population))
        point = writer.resume() or begin(task, policy_of(experiment))
        engine = Unreliable(task, population, writer.store, **faults)
        try:
            for _ in run_rounds(task, engine, policy_of(experiment), point, writer):
                pass
        finally:
            engine.close()
    return read_run(folder), engine


def test_a_round_without_a_quorum_is_tried_again_to_the_same_bytes(tmp_path):
    """By default everybody must reply; a client that fails twice in round 2 changes nothing in the end."""
    experiment = spiral()
    run(experiment, tmp_path / "whole")
    folder = run_folder(experiment, tmp_path / "broken")
    _, engine = play(experiment, folder, plan={(2, 4): 2})
    assert engine.tries == [1, 2, 2, 2, 3]
    assert contents(folder) == contents(run_folder(experiment, tmp_path / "whole"))


def test_after_all_tries_nothing_is_committed_and_the_run_goes_on_later(tmp_path):
    experiment = spiral()
    folder = run_folder(experiment, tmp_path / "broken")
    with pytest.raises(TooFewReplies, match=r"Round 2 does not count: 5 of 6 clients replied, 6 must \(client 4"):
        play(experiment, folder, plan={(2, 4): 3})
    assert len(read_run(folder).rounds) == 1
    play(experiment, folder)
    run(experiment, tmp_path / "whole")
    assert contents(folder) == contents(run_folder(experiment, tmp_path / "whole"))


def test_with_a_quorum_the_others_go_on_and_only_they_have_trained(tmp_path):
    """Client 0 is lost in round 2: its state is that of round 1 until it trains again in round 3."""
    experiment = spiral(quorum=0.5)
    record, engine = play(experiment, run_folder(experiment, tmp_path), plan={(2, 0): 9})
    assert engine.tries == [1, 2, 3]
    second = record.rounds[1]
    assert second.lost == {"0": "it was switched off"}
    assert second.cohort == "all"
    held = {path.name for path in (record.folder / "clients").iterdir()}
    assert held == {f"{id}.3.safetensors" for id in range(6)}
    whole = run(spiral(), tmp_path / "whole")
    assert record.rounds[0].metrics == whole.history[0].metrics
    assert second.metrics != whole.history[1].metrics  # the loss is averaged over those that replied
    assert second.bytes.up < whole.history[1].bytes.up
    assert second.bytes.down == whole.history[1].bytes.down  # everybody was told


def test_a_lost_client_goes_on_from_the_state_before(tmp_path):
    experiment = spiral(quorum=0.5, rounds=2)
    record, _ = play(experiment, run_folder(experiment, tmp_path), plan={(2, 0): 9})
    held = {path.name for path in (record.folder / "clients").iterdir()}
    assert held == {"0.1.safetensors", *(f"{id}.2.safetensors" for id in range(1, 6))}
    one = run(spiral(rounds=1), tmp_path / "one")
    client = pn.Result(experiment, record).clients[0]
    assert client.info.trained == 1
    assert all(torch.equal(value, one.clients[0].state[name]) for name, value in client.state.items())


def test_a_client_whose_reply_does_not_count_goes_on_from_the_state_before(tmp_path):
    """Both train in rounds 1 to 3; client 1's reply of round 1 and client 0's of round 2 are refused, or come late.

    What they learnt then is dropped: client 0 is what it was after round 1, also in round 2, which is the best, when
    it has trained again; client 1 begins in round 2 from its first state, as it did in round 1."""
    store = FolderStore(tmp_path, "key")
    engine = Serial(*build(spiral(algorithm="local", clients=2)), store)

    def held(*orders, replied, chosen):
        replies = list(engine.train([Order(*order) for order in orders], {}))
        engine.commit(orders[0][1], replied, chosen)
        return [reply.metrics["loss"] for reply in replies], {path.name[:3] for path in tmp_path.iterdir()}

    assert held((0, 1, 0), (1, 1, 0), replied=[0], chosen=1)[1] == {"0.1"}
    before = store.load(0, 1)
    second, names = held((0, 2, 1), (1, 2, 0), replied=[1], chosen=2)
    assert names == {"0.1", "1.2"}
    third, names = held((0, 3, 1), (1, 3, 2), replied=[0, 1], chosen=2)
    assert names == {"0.1", "0.3", "1.2", "1.3"}
    assert same(store.load(0, 1), before)
    assert third[1] < second[1]  # client 1 has learnt in round 2


@pytest.mark.parametrize(
    ("quorum", "cohort", "needed"),
    [(1.0, 5, 5), (0.5, 4, 2), (0.5, 5, 3), (0.34, 3, 2), (0.07, 100, 7), (0.01, 10, 1), (0.9, 1, 1)],
)
def test_how_many_must_reply(quorum, cohort, needed):
    """A quorum is rounded up: 2.5 is 3, 1.02 is 2; but 0.07·100 is 7, although a little above it in binary."""
    assert Policy(100, cohort, quorum=quorum).needed(cohort) == needed


def test_a_quorum_is_of_the_cohort_and_just_met_is_met(tmp_path):
    """Of 6 clients 3 are asked, of which ⌈0.6·3⌉ = 2 must reply (of 6 it would be 4): with one lost the round counts,
    with two it does not."""
    experiment = spiral(quorum=0.6, retries=0, rounds=1, participation=0.5, algorithm="local")
    first, second, third = draw_cohort(experiment.seed, 1, 6, 3)
    record, _ = play(experiment, tmp_path / "met" / experiment.key, plan={(1, second): 1})
    assert (record.rounds[0].cohort, list(record.rounds[0].lost)) == ([first, second, third], [str(second)])
    with pytest.raises(TooFewReplies, match="1 of 3 clients replied, 2 must"):
        play(experiment, tmp_path / "missed" / experiment.key, plan={(1, second): 1, (1, third): 1})


def test_every_setting_of_rounds_is_the_experiments():
    """All are other than usual; a third of 6 clients are 2."""
    settings = {"evaluate": "cohort", "evaluate_every": 2, "evaluate_all_every": 3}
    settings |= {"quorum": 0.4, "retries": 5, "deadline": 7.5}
    experiment = spiral(participation=0.34, control="solo", **settings)
    expected = Policy(6, 2, parts=("validation", "test"), solo=True, client_names=("a",) * 6, **settings)
    assert policy_of(experiment, ("a",) * 6) == expected
    assert policy_of(spiral(validation=0)).parts == ("test",)


def test_nobody_replies(tmp_path):
    experiment = spiral(quorum=0.1, retries=0, algorithm="fedgen")
    with pytest.raises(TooFewReplies, match="0 of 6 clients replied, 1 must"):
        play(experiment, run_folder(experiment, tmp_path), plan={(1, id): 9 for id in range(6)})


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda m: m | {"more": torch.ones(1)}, "holds more, which is not expected"),
        (lambda m: {"classes": m["classes"]}, "lacks prototypes"),
        (lambda m: m | {"prototypes": m["prototypes"] * torch.nan}, "numbers that are not finite"),
        (lambda m: m | {"prototypes": m["prototypes"].double()}, "torch.float64"),
        (lambda m: m | {"classes": m["classes"] + 6}, "expected whole numbers from 0 to 5"),
        (lambda m: m | {"classes": m["classes"] * 0}, "occurs more than once"),
        (lambda m: m | {"classes": torch.cat([m["classes"][:1], m["classes"][:-1]])}, "occurs more than once"),
        (lambda m: m | {"prototypes": m["prototypes"][:, :1]}, "of shape"),
        (lambda m: m | {"prototypes": m["prototypes"][:-1]}, "of shape"),
    ],
)
def test_a_reply_that_the_schema_does_not_allow_is_as_good_as_none(tmp_path, spoil, said):
    experiment = spiral(quorum=0.5, rounds=1, partition="iid")
    record, _ = play(
        experiment, run_folder(experiment, tmp_path), spoil=lambda order, m: spoil(m) if order.id == 3 else None
    )
    assert list(record.rounds[0].lost) == ["3"]
    assert said in record.rounds[0].lost["3"]
    assert "client 3" in record.rounds[0].lost["3"]


def test_clients_check_every_message_of_the_server(tmp_path):
    host, more = Host(*build(spiral()), FolderStore(tmp_path, "key")), {"more": torch.ones(1)}
    host.train(Order(0, 1, 0), {})
    with pytest.raises(ValueError, match="The server's message holds more, which is not expected"):
        host.train(Order(0, 2, 1), more)
    with pytest.raises(ValueError, match="The server's message holds more, which is not expected"):
        host.evaluate(Order(0, 1, 1), more, ["test"])


def test_a_reply_that_a_condition_of_the_policy_refuses_is_as_good_as_none():
    def refuse(reply):
        raise ValueError(f"The reply of client {reply.id} is too long.")

    replies, task = Replies(), build(spiral(algorithm="local"))[0]
    assert not admit(task, Reply(3, {}, {}, 0.0), replies, Policy(6, 6, checks=(lambda reply: None, refuse)))
    assert (replies.ids, replies.lost) == ([], {3: "The reply of client 3 is too long."})
    assert admit(task, Reply(4, {}, {}, 0.0), replies, Policy(6, 6, checks=(lambda reply: None,)))
    assert replies.ids == [4]


def test_clients_that_cannot_be_evaluated_are_asked_again(tmp_path):
    experiment = spiral(rounds=1)
    run(experiment, tmp_path / "whole")
    folder = run_folder(experiment, tmp_path / "broken")
    play(experiment, folder, blind={2: 2, 5: 1})
    assert contents(folder) == contents(run_folder(experiment, tmp_path / "whole"))
    with pytest.raises(TooFewReplies, match="Round 1 cannot be evaluated: client 2"):
        play(experiment, tmp_path / "blind", blind={2: 3})


def test_a_round_in_which_somebody_was_not_evaluated_is_not_reported(tmp_path):
    """With a quorum client 2 is missing in the first evaluation; a round without it never is the one with everybody."""
    experiment = spiral(quorum=0.5, retries=0, rounds=2, algorithm="local")
    folder = run_folder(experiment, tmp_path)
    record, _ = play(experiment, folder, blind={2: 1})
    assert [one.evaluated for one in record.rounds] == ["some", "all"]
    assert record.arrays(record.rounds[0])["ids"].tolist() == [0, 1, 3, 4, 5]
    assert (record.chosen.record.round, record.chosen.by) == (2, "validation")
    never, _ = play(experiment, tmp_path / "never" / experiment.key, blind={2: 9})
    assert (never.chosen.record.round, never.chosen.by) == (2, "last")


def test_a_cohort_of_everybody_is_everybody(tmp_path):
    found = run(spiral(evaluate="cohort", rounds=2), tmp_path).run
    assert [record.evaluated for record in found.rounds] == ["all", "all"]
    assert found.chosen.by == "validation"


def test_late_clients_are_lost(tmp_path):
    """With a deadline that is over at once, nobody replies in time; a quorum can never be reached."""
    with pytest.raises(TooFewReplies, match="it had not replied after 1e-09 seconds"):
        run(spiral(deadline=1e-9, retries=0), tmp_path)
    with pytest.raises(TooFewReplies, match="it had not replied after 1e-09 seconds"):
        run(spiral(deadline=1e-9, retries=0), tmp_path, engine="processes", workers=2)


def test_a_deadline_is_that_of_all_clients_of_a_round_together(monkeypatch):
    """Each client trains for 4 seconds, and 10 are allowed: two reply in time, the third is ready after 12 seconds, and
    the fourth is not asked. The next round has 10 seconds again."""
    now, trained = [100.0], []

    class Slow:
        def train(self, order, message):
            now[0] += 4.0
            trained.append(order.id)
            return Reply(order.id, {}, {}, 4.0)

    monkeypatch.setattr("protonorm.engines.serial.time.monotonic", lambda: now[0])
    engine = Serial(*build(spiral(algorithm="local")), None)
    engine._host = Slow()
    for number in (1, 2):
        answers = list(engine.train([Order(id, number, 0) for id in range(4)], {}, 10.0))
        assert [(one.id, isinstance(one, Reply)) for one in answers] == [(0, True), (1, True), (2, False), (3, False)]
        assert answers[2].reason == "it had not replied after 10 seconds"
    assert trained == [0, 1, 2] * 2
    assert all(isinstance(one, Reply) for one in engine.train([Order(id, 3, 0) for id in range(4)], {}))


def test_evaluation_now_and_then_changes_no_training(tmp_path):
    often, rarely = run(spiral(rounds=5), tmp_path), run(spiral(rounds=5, evaluate_every=2), tmp_path)
    assert [record.evaluated for record in rarely.history] == ["nobody", "all", "nobody", "all", "all"]
    assert [record.rules for record in rarely.history] == [
        often.history[i].rules if i in (1, 3, 4) else {} for i in range(5)
    ]
    assert [record.metrics for record in rarely.history] == [record.metrics for record in often.history]
    assert rarely.summary().best.round in (2, 4, 5)


def test_only_the_cohort_is_evaluated_if_asked(tmp_path):
    result = run(spiral(participation=0.5, evaluate="cohort", rounds=4), tmp_path)
    for record, row in zip(result.history, result.accuracy("logits", "clients"), strict=True):
        assert record.evaluated == "cohort"
        assert [id for id, value in enumerate(row) if value == value] == record.cohort
    own = np.fmax.reduce(result.accuracy("logits", "clients"))  # of the rounds in which each was evaluated
    assert result.summary("logits").own_best == pytest.approx(np.nanmean(own), abs=1e-6)


def test_one_message_for_each_client(tmp_path):
    """`train` and `evaluate` take one message for all, or one for each order; both give the same for equal ones."""
    experiment = spiral(rounds=1)
    task, population = build(experiment)
    (tmp_path / "clients").mkdir()
    with RunWriter(tmp_path, "key") as writer:
        from protonorm.core.task import ByClient

        for engine in (Serial(task, population, writer.store),):
            orders = [Order(id, 1, 0) for id in range(6)]
            common = {"classes": torch.arange(6), "prototypes": torch.eye(6)[:, :2].contiguous()}
            other = common | {"prototypes": -common["prototypes"]}
            all_alike = [reply.message for reply in engine.train(orders, common)]
            single = [
                reply.message for reply in engine.train(orders, ByClient({**dict.fromkeys(range(6), common), 3: other}))
            ]
            same = [torch.equal(a["prototypes"], b["prototypes"]) for a, b in zip(all_alike, single, strict=True)]
            assert same == [True, True, True, False, True, True]


def test_cohorts_depend_on_seed_and_round_alone():
    draws = [draw_cohort(0, round, 10, 4) for round in range(1, 6)]
    assert draws == [draw_cohort(0, round, 10, 4) for round in range(1, 6)]
    assert len({tuple(draw) for draw in draws}) > 1
    assert all(draw == sorted(set(draw)) and len(draw) == 4 for draw in draws)
    assert any(a != b for a, b in pairwise(draw_cohort(seed, 1, 10, 4) for seed in range(5)))


def test_all_clients_are_drawn_equally_often():
    """4 of 10 clients in 200 rounds: 80 times each, ±√(200·0.4·0.6) ≈ 7; four times that is allowed.

    So do two rounds share 4·4/10 = 1.6 clients on average, ±0.8/√199 ≈ 0.06: a cohort does not depend on the last."""
    draws = [draw_cohort(3, round, 10, 4) for round in range(1, 201)]
    times = np.bincount(np.concatenate(draws), minlength=10)
    assert np.abs(times - 80).max() < 28
    assert np.mean([len({*one} & {*two}) for one, two in pairwise(draws)]) == pytest.approx(1.6, abs=0.24)


def test_a_cohort_is_the_beginning_of_a_permutation_of_all_clients():
    """Drawn from the server's own stream for cohorts; a cohort of everybody is not drawn."""
    with seeded(5, 2, SERVER, "cohort"):
        expected = np.random.permutation(9)
    assert draw_cohort(5, 2, 9, 4) == sorted(expected[:4])
    assert draw_cohort(5, 2, 9, 9) == list(range(9))


# ---- methods that are finished before the last round ----------------------------------------------------------------


def test_a_method_that_is_finished_ends_the_run(tmp_path):
    """Choir exchanges in round 1 and solves in round 2; AFL needs one round. More rounds are not begun, nor later."""
    for method, last in (("choir", 2), ("afl", 1)):
        result = run(spiral(algorithm=method, rounds=9, evaluate_every=5), tmp_path)
        assert len(result.history) == last
        assert result.history[-1].evaluated == "all"
        assert result.run.finished
        before = contents(result.run.folder)
        assert len(run(spiral(algorithm=method, rounds=9, evaluate_every=5), tmp_path).history) == last
        assert contents(result.run.folder) == before


def test_a_method_is_not_finished_while_clients_are_missing(tmp_path):
    """Client 4 is lost in round 2: rounds 3 and 4 are the first two in a row in which everybody replies."""
    experiment = spiral(algorithm="choir", rounds=9, quorum=0.5)
    found, _ = play(experiment, run_folder(experiment, tmp_path), plan={(2, 4): 1})
    assert [len(record.lost) for record in found.rounds] == [0, 1, 0, 0]
    assert found.finished
    experiment = spiral(algorithm="choir", rounds=4, participation=0.5)  # never everybody
    assert len(run(experiment, tmp_path).history) == 4


def test_a_client_that_comes_late_adds_its_statistics(tmp_path):
    """Client 4 is lost in round 1, and everybody ends where a federation without that loss does, two rounds later."""
    experiment = spiral(algorithm="choir", rounds=9, quorum=0.5)
    found, _ = play(experiment, run_folder(experiment, tmp_path / "late"), plan={(1, 4): 1})
    whole = run(experiment, tmp_path / "whole").run
    assert (len(found.rounds), len(whole.rounds)) == (3, 2)
    assert found.rounds[-1].rules == whole.rounds[-1].rules
    assert [record.floats.up for record in found.rounds] == [5 * 24, 24, 0]  # 6 of G and 18 of R each
