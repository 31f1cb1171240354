"""Clients behind the wire: who is late, away, lost or refused costs a round no more than it must."""

import pytest
import torch

from protonorm.core import Lost, Order
from protonorm.core.frames import join, split
from protonorm.deployment.call import Call, Turn
from protonorm.deployment.engine import Arrived, accuracy_of
from protonorm.federation.rounds import begin
from tests.contract.playing import same
from tests.deployment.federation import PARTS, Federation, small


def started(folder, **settings):
    """Make a federation of three, of whom two must answer within 30 seconds."""
    federation = Federation(small(**{"rounds": 2, "quorum": 0.6, "deadline": 30.0} | settings), folder)
    federation.message = begin(federation.task, federation.policy).message
    return federation


def train(federation, number=1, trained=(0, 0, 0), **options):
    orders = [Order(id, number, last) for id, last in enumerate(trained)]
    return federation.engine.ask("train", orders, federation.message, **options)


def lost(found):
    return {id: one.reason for id, one in found.items() if isinstance(one, Lost)}


def test_counts_and_replies_of_one_message_are_those_of_two(tmp_path):
    one, two = (started(tmp_path / name) for name in ("one", "two"))
    for each in (one, two):
        train(each)
    orders, later = ([Order(id, round, 1) for id in range(3)] for round in (1, 2))
    counts = one.engine.ask("evaluate", orders, one.message, PARTS)
    replies = one.engine.ask("train", later, one.message)
    both = two.engine.ask("evaluate+train", later, two.message, PARTS)
    for id in range(3):
        assert same(both[id].counts, counts[id].counts)
        assert same(both[id].message, replies[id].message)
        assert both[id].header.metrics == replies[id].header.metrics


def test_a_told_accuracy_is_of_the_test_part_or_else_of_the_validation_part():
    """3 of 4 test samples are right, and 1 of 4 of those for validation; without samples there is none."""
    validation = {"validation.support": torch.tensor([4, 0]), "validation.correct.logits": torch.tensor([1, 0])}
    tested = {"test.support": torch.tensor([2, 2]), "test.correct.logits": torch.tensor([1, 2])}
    assert accuracy_of(validation | tested, "logits") == {"accuracy": 0.75}
    assert accuracy_of(validation, "logits") == {"accuracy": 0.25}
    none = {"test.support": torch.tensor([0, 0]), "test.correct.logits": torch.tensor([0, 0])}
    assert accuracy_of(validation | none, "logits") == {"accuracy": 0.25}
    assert accuracy_of(none, "logits") == accuracy_of(tested, "joint") == {}


def test_answers_are_given_in_the_order_of_the_clients(tmp_path):
    federation = started(tmp_path)
    assert list(train(federation)) == [0, 1, 2]
    assert [event.client for event in federation.heard("answered")] == [2, 1, 0]
    assert all(event.numbers["bytes"] > 0 for event in federation.heard("answered"))


def test_who_is_away_is_not_waited_for_if_the_others_are_enough(tmp_path):
    federation = started(tmp_path)
    federation.line.away = {1: "it is not connected"}
    assert lost(train(federation)) == {1: "it is not connected"}
    assert federation.line.now == 0.0
    assert [event.client for event in federation.heard("away")] == [1]
    assert not federation.heard("waiting")


@pytest.mark.parametrize(("deadline", "patience"), [(30.0, 30.0), (600.0, 60.0)])
def test_the_first_call_waits_a_while_for_those_who_are_away(tmp_path, deadline, patience):
    """The second client comes after 10 seconds and answers; if nobody comes, the call ends after a minute at most."""
    federation = started(tmp_path, deadline=deadline)
    federation.line.away = {1: "it is not connected"}
    federation.line.plans = [(10.0, federation.line.away.clear)]
    assert not lost(train(federation, patient=True))
    assert federation.line.now == 10.0
    federation.line.away = {1: "it is not connected"}
    assert lost(train(federation, 2, (1, 1, 1), patient=True)) == {1: "it is not connected"}
    assert federation.line.now == 10.0 + patience
    assert len(federation.heard("away")) == 2  # told once, however often it was tried
    assert [event.numbers["answered"] for event in federation.heard("waiting")] == [2, 2]
    said = federation.heard("waiting")[0].sentence
    assert said.startswith("Round 1 waits a while for others: 2 of 3 clients have answered, 2 must; missing: client ")


def test_who_is_late_is_lost_and_its_answer_does_not_count_in_the_next_round(tmp_path):
    federation = started(tmp_path)
    late = []
    federation.line.change = lambda id, _, answer: late.append(answer) or [] if id == 1 else [answer]
    assert lost(train(federation)) == {1: "it had not replied after 30 seconds"}
    assert federation.line.now == 30.0
    assert [event.client for event in federation.heard("late")] == [1]
    federation.line.change = None
    federation.line.waiting = [Arrived(1, late[0])]
    assert not lost(train(federation, 2, (1, 0, 1)))
    assert federation.engine.guard.refused == {"late": 1}


def test_below_the_quorum_a_call_waits_and_asks_again_who_comes_back(tmp_path):
    """Two of three are away; after 100 seconds, more than three deadlines, one comes back: that is enough at once."""
    federation = started(tmp_path)
    federation.line.away = {1: "it is not connected", 2: "it is not connected"}
    federation.line.plans = [(100.0, lambda: federation.line.away.pop(2))]
    assert lost(train(federation)) == {1: "it is not connected"}
    assert federation.line.now == 100.0
    assert [header["client"] for header in federation.line.sent] == [0, 2]  # who has answered is not asked again
    first = federation.heard("waiting")[0]
    assert first.numbers == {"answered": 0, "needed": 2}
    assert "0 of 3 clients have answered, 2 must; missing: client 1 (it is not connected)" in first.sentence
    assert len(federation.heard("waiting")) < 4


def test_below_the_quorum_who_is_late_is_asked_again_at_each_deadline(tmp_path):
    """Requests to two clients are lost and nobody notices, as when a client is killed; it is back after 70 seconds."""
    federation = started(tmp_path)
    federation.line.deaf = {1, 2}
    federation.line.plans = [(70.0, federation.line.deaf.clear)]
    assert not lost(train(federation))
    assert federation.line.now == 90.0  # asked at 0, 30, 60 and 90 seconds
    assert [event.client for event in federation.heard("late")] == [1, 2] * 3
    assert [event.client for event in federation.heard("asked")] == [0, 1, 2] + [1, 2] * 3
    assert len(federation.heard("waiting")) == 1  # from the deadline on
    assert "1 of 3 clients have answered, 2 must; missing: client 1 (it has" in federation.heard("waiting")[0].sentence


def test_who_comes_back_shortly_before_the_deadline_does_not_hold_up_the_others(tmp_path):
    """One is away until 12 seconds and then slow; another answers after 20; the deadline is that of the round, 30."""
    federation = started(tmp_path)
    line, held = federation.line, []

    def change(id, header, answer):
        if id == 2:
            held.append(Arrived(id, answer))
        return [answer] if id == 0 else []

    line.away, line.change = {1: "it is not connected"}, change
    line.plans = [(12.0, line.away.clear), (20.0, lambda: line.waiting.append(held[0]))]
    assert lost(train(federation)) == {1: "the round ended before it answered"}
    assert line.now == 30.0
    assert not federation.heard("waiting")


def test_others_have_as_long_again_as_the_quorum_took(tmp_path):
    """Two have answered after 40 seconds: the third is waited for until 80."""
    federation, held = started(tmp_path, deadline=600.0), []

    def change(id, header, answer):
        if id == 2:
            held.append(Arrived(id, answer))
        return [answer] if id == 0 else []

    federation.line.change = change
    federation.line.plans = [(40.0, lambda: federation.line.waiting.append(held[0]))]
    assert list(lost(train(federation))) == [1]
    assert federation.line.now == 80.0


def test_who_is_set_aside_does_not_count_for_the_quorum():
    """Half of four are 2, of the three others 2, of two 1."""
    turns = [Turn(Order(id, 1, 0), b"") for id in range(4)]
    half = lambda count: -(-count // 2)  # noqa: E731
    calls = [Call(turns, half, 0.0, 60.0, patient=True, aside=range(count)) for count in range(4)]
    assert [call.needed for call in calls] == [2, 2, 1, 1]
    calls[2].ask(turns[0], 1.0)  # it is aside, and stays so
    calls[2].ask(turns[3], 1.0)
    assert calls[2].needed == 1


def test_an_answer_that_comes_after_the_deadline_counts_while_the_round_waits(tmp_path):
    federation = started(tmp_path)
    held = []
    federation.line.change = lambda id, _, answer: held.append(Arrived(id, answer)) or [] if id else [answer]
    federation.line.plans = [(50.0, lambda: federation.line.waiting.append(held[0]))]
    found = train(federation)
    assert list(lost(found)) == [1]  # of clients 2 and 1, who were asked in this order, the first answered
    assert federation.line.now == 50.0


def test_who_is_lost_on_the_way_is_asked_again_after_a_while(tmp_path):
    """The client's process fails at its first request; 30 seconds later it works."""
    federation = started(tmp_path, quorum=1.0, deadline=100.0)
    failures = [Arrived(1, failure="its process ended")]
    federation.line.change = lambda id, _, answer: [failures.pop()] if id == 1 and failures else [answer]
    assert not lost(train(federation))
    assert federation.line.now == 30.0
    assert "is away: its process ended." in federation.heard("away")[0].sentence


def test_a_client_that_declines_says_why_and_is_asked_again_if_it_is_needed(tmp_path):
    """Its state after round 1 is not on its disk; with a quorum it is lost, without one the round waits for it."""
    federation = started(tmp_path)
    found = lost(train(federation, 2, (1, 0, 0)))
    assert list(found) == [0]
    assert "it declines: Its state after round 1" in found[0]
    assert federation.engine.guard.refused == {"declined": 1}
    whole = started(tmp_path / "whole", quorum=1.0)
    store = whole.line.nodes[0]._store
    whole.line.plans = [(40.0, lambda: train_alone(whole))]
    assert not lost(train(whole, 2, (1, 0, 0)))
    assert store.has(0, 2)
    assert whole.line.now == 60.0  # asked at 0, 30 and 60 seconds
    assert "declines" in whole.heard("waiting")[-1].sentence


def train_alone(federation):
    """Bring the state after round 1 back to the disk of client 0."""
    other = Federation(federation.experiment, federation.folder / "other")
    orders = [Order(0, 1, 0)]
    answer = other.engine.ask("train", orders, federation.message)[0]
    assert not isinstance(answer, Lost)
    federation.line.nodes[0]._store.save(0, 1, other.line.nodes[0]._store.load(0, 1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"agreement": "0" * 64}, "another agreement"),
        ({"client": 2}, "for client 2; this is client 0"),
        ({"round": 9}, "There is no round 9"),
        ({"trained": 1}, "There is no round 1 that follows on round 1"),
        ({"parts": ["validation"], "kind": "evaluate"}, "validation part is not evaluated"),
        ({"kind": "fetch"}, "kind must "),
        ({"more": 1}, "no setting 'more'"),
    ],
    ids=str,
)
def test_a_client_declines_what_was_not_agreed_on(tmp_path, change, said):
    federation = started(tmp_path)
    node = federation.line.nodes[0]
    node._agreement = federation.agreement.model_copy(update={"evaluated": ["test"]})
    train(federation)
    header, body = split(dict(federation.line.requests)[0])
    header["agreement"] = node._agreement.digest
    answer, rest = split(node.answer(join(header | change, body)))
    assert said in answer["declined"]
    assert rest == b""


def test_the_best_round_s_state_stays_and_newer_ones_too(tmp_path):
    """States after rounds 1, 2 and 3 are there; asked with 3 as the valid and 1 as the best, the client drops 2."""
    federation = started(tmp_path, rounds=6)
    node = federation.line.nodes[0]
    for round in (1, 2, 3):
        node._store.save(0, round, {"a": torch.zeros(1)})
    files = lambda: sorted(round for _, round, _ in node._store.files())  # noqa: E731
    train(federation, 3, (2, 0, 0))
    assert files() == [1, 2, 3]  # the server has lost its round 3
    federation.engine.chosen = 1
    train(federation, 4, (3, 0, 0))
    assert files() == [1, 3]


def test_an_owner_may_keep_its_evaluation_to_itself(tmp_path):
    """It has answered, and nobody waits for more; the record says that some were evaluated."""
    federation = started(tmp_path, quorum=1.0)
    federation.line.nodes[1]._allowed = "off"
    federation.run()
    assert federation.line.now == 0.0
    assert [record["evaluated"] for record in federation.records()] == ["some", "some"]
    assert [event.numbers["clients"] for event in federation.heard("evaluated")] == [2, 2]
