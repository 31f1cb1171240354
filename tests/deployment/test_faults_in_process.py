"""Answers that do not count: each is refused, told and counted, and the round goes on without it."""

import json

import pytest
import torch

from protonorm.core.frames import join, split
from protonorm.deployment.engine import Arrived
from protonorm.deployment.messages import Answer, read_answer_header, read_answer_tensors, write_answer
from protonorm.runs.run import read_run
from tests.deployment.federation import Federation, small, without_states

BAD = 1  # the client whose answers are changed


def rewritten(answer, change):
    """Change the tensors of an answer."""
    header, body = read_answer_header(answer)
    message, counts = read_answer_tensors(body)
    return write_answer(Answer(header, change(message), counts))


def of_header(**change):
    return lambda answer: join(split(answer)[0] | change, split(answer)[1])


def of_prototypes(change):
    return lambda answer: rewritten(answer, lambda said: said | {"prototypes": change(said["prototypes"])})


def of_counts(change):
    def changed(answer):
        header, body = read_answer_header(answer)
        message, counts = read_answer_tensors(body)
        return write_answer(Answer(header, message, counts | change(counts)))

    return changed


def _all_right(counts):
    return {"test.correct.logits": counts["test.support"]}


FAULTS = {
    "wrong shape": ("content", of_prototypes(lambda one: one[:, :-1].contiguous()), "expected (K_i, d)"),
    "wrong type": ("content", of_prototypes(torch.Tensor.double), "float64"),
    "NaN": ("content", of_prototypes(lambda one: one * float("nan")), "not finite"),
    "infinity": ("content", of_prototypes(lambda one: one / 0.0), "not finite"),
    "absurd norm": ("scale", of_prototypes(lambda one: one + 1e9), "larger than training can make them"),
    "other round": ("round", of_header(round=3), "for round 3, and round 2 is on"),
    "other agreement": ("agreement", of_header(agreement="f" * 64), "for another agreement, ffffffffffffffff"),
    "other client": ("identity", of_header(client=0), "says that it comes from client 0"),
    "nothing": ("malformed", lambda _: b"", "too few for a message"),
    "cut short": ("malformed", lambda answer: answer[:-9], "says that it has"),
    "declined": ("declined", lambda answer: join(split(answer)[0] | {"declined": "No."}, b""), "it declines: No."),
    "absurd loss": ("malformed", of_header(metrics={"loss": 1.7e308}), "less than or equal to 1"),
    "absurd seconds": ("malformed", of_header(seconds=1e300), "less than or equal to 1000000000"),
    "text that is none": ("malformed", of_header(metrics={"\ud800": 1.0}), "a valid string"),
    "parts of others": (
        "content",
        lambda answer: rewritten(answer, lambda said: said | {"clients.0.prototypes": said["prototypes"]}),
        "clients.0.prototypes",
    ),
    "other clients in its header": ("malformed", of_header(parts=["0", "2"]), "parts"),
    "counts of another part": ("content", of_counts(lambda one: {"train.support": one["test.support"]}), "train"),
    "impossible counts": (
        "content",
        of_counts(lambda one: {"test.correct.logits": one["test.support"] + 1}),
        "more right answers than samples",
    ),
    "impossible F1": (
        "content",
        of_counts(lambda one: {"test.predicted.logits": one["test.predicted.logits"].roll(1)} | _all_right(one)),
        "more right answers than answers",
    ),
    "impossible calibration": (
        "content",
        of_counts(lambda one: {"test.bins.logits": 2 * one["test.bins.logits"]}),
        "bins.logits that are not those of its samples",
    ),
    "impossible loss": (
        "content",
        of_counts(lambda one: {"test.nll.logits": one["test.nll.logits"] + 1e308}),
        "larger than probabilities can make it",
    ),
}


def disturbed(folder, change, rounds=3, **settings):
    """Make a federation of three, two of whom are enough; what a client sends in round 2 is changed."""
    experiment = small(**{"algorithm": "fedproto", "rounds": rounds, "quorum": 0.6, "deadline": 30.0} | settings)
    federation = Federation(experiment, folder)
    federation.line.change = lambda id, header, answer: (
        change(answer) if id == BAD and header["round"] == 2 and header["kind"] != "evaluate" else [answer]
    )
    return federation


@pytest.mark.parametrize("fault", FAULTS)
def test_a_refused_answer_costs_its_sender_the_round_and_nobody_else(tmp_path, fault):
    """The round goes on at once with the others; in the next one the client takes part from its last valid state."""
    why, change, said = FAULTS[fault]
    federation = disturbed(tmp_path, lambda answer: [change(answer)])
    federation.run()
    first, second, third = federation.records()
    assert (first["lost"], third["lost"]) == ({}, {})
    assert list(second["lost"]) == [str(BAD)]
    assert said in second["lost"][str(BAD)]
    assert first["evaluated"] == "some"  # its counts of round 1 came with the same answer
    assert third["evaluated"] == "all"
    assert federation.line.now == 0.0
    assert federation.engine.guard.refused == {why: 1}
    told = federation.heard("refused")
    assert [(event.round, event.client, event.why) for event in told] == [(2, BAD, why)]
    assert said in told[0].sentence
    asked = {header["round"]: header["trained"] for header in federation.line.sent if header["client"] == BAD}
    assert asked[3] == 3  # the last request evaluates round 3
    trained = [header["trained"] for header in federation.line.sent if header["client"] == BAD]
    assert trained == [0, 1, 1, 3]
    committed = federation.heard("committed")[1].numbers
    assert (committed["replied"], committed["lost"]) == (2, 1)


@pytest.mark.parametrize("fault", ["NaN", "cut short"])
def test_a_repaired_answer_counts_if_the_round_still_needs_it(tmp_path, fault):
    """Everybody must answer: the client is asked again 30 seconds later, and the record is that of a good run."""
    why, change, _ = FAULTS[fault]
    broken = [change]
    federation = disturbed(tmp_path, lambda answer: [broken.pop()(answer) if broken else answer], quorum=1.0)
    found = federation.run()
    assert federation.engine.guard.refused == {why: 1}
    assert federation.line.now == 30.0
    assert federation.heard("waiting")
    assert without_states(found) == federation.serial()


def test_a_repeated_answer_counts_once(tmp_path):
    federation = disturbed(tmp_path, lambda answer: [answer, answer, answer])
    found = federation.run()
    assert federation.engine.guard.refused == {"repeated": 2}
    assert without_states(found) == federation.serial()


def test_who_is_lost_after_it_has_answered_is_not_missed(tmp_path):
    federation = disturbed(tmp_path, lambda answer: [answer, Arrived(BAD, failure="its process ended")])
    found = federation.run()
    assert not federation.heard("away")
    assert without_states(found) == federation.serial()


def test_a_late_answer_is_refused_in_the_next_round_and_its_sender_takes_part(tmp_path):
    """Its answer of round 2 comes with that of round 3."""
    held = []
    federation = disturbed(tmp_path, lambda answer: held.append(answer) or [])
    send = federation.line.change

    def change(id, header, answer):
        late = [held.pop()] if held and header["round"] == 3 and id == BAD else []
        return [*late, *send(id, header, answer)]

    federation.line.change = change
    federation.run()
    assert federation.line.now == 30.0
    assert federation.engine.guard.refused == {"late": 1}
    assert [event.client for event in federation.heard("late")] == [BAD]
    assert [list(record["lost"]) for record in federation.records()] == [[], [str(BAD)], []]
    assert federation.records()[1]["lost"][str(BAD)] == "it had not replied after 30 seconds"


def test_a_stranger_s_answer_changes_nothing(tmp_path):
    """It comes under a number that nobody has, with the content of a good answer, and again with that number inside."""
    federation = disturbed(
        tmp_path, lambda answer: [Arrived(9, answer), Arrived(9, of_header(client=9)(answer)), answer]
    )
    found = federation.run()
    assert federation.engine.guard.refused == {"identity": 1, "unknown client": 1}
    assert [event.client for event in federation.heard("refused")] == [9, 9]
    assert without_states(found) == federation.serial()


def test_a_client_that_always_sends_nonsense_stops_nobody(tmp_path):
    """Five rounds, in each of which it is asked once; it is never evaluated, and its refusals are counted."""
    federation = disturbed(tmp_path, None, rounds=5)
    federation.line.change = lambda id, _, answer: [b"x" * 100] if id == BAD else [answer]
    found = federation.run()
    assert federation.engine.guard.refused == {"malformed": 6}
    run = read_run(found)
    assert run.finished
    assert [record.evaluated for record in run.rounds] == ["some"] * 5
    assert all(list(record.lost) == [str(BAD)] for record in run.rounds)


def test_a_client_that_leaves_and_returns_goes_on_from_its_state(tmp_path):
    """It is away in rounds 2 and 3, and back for round 4: its order names the state after round 1."""
    federation = disturbed(tmp_path, None, rounds=5)

    def change(id, header, answer):
        if id == 0:
            federation.line.away = {BAD: "it is not connected"} if header["round"] in (1, 2) else {}
        return [answer]

    federation.line.change = change
    federation.run()
    assert [list(record["lost"]) for record in federation.records()] == [[], ["1"], ["1"], [], []]
    orders = [(one["round"], one["trained"]) for one in federation.line.sent if one["client"] == BAD]
    assert orders == [(1, 0), (4, 1), (5, 4), (5, 5)]


def test_a_killed_server_and_lost_clients_together_end_well(tmp_path):
    """All must answer; each round one client is away for a while, and the result is that of a good run."""
    federation = disturbed(tmp_path, None, rounds=4, quorum=1.0)

    def change(id, header, answer):
        gone = header["round"] % 3
        if id == gone:
            return [Arrived(id, failure="its process ended")] if federation.line.now % 60 < 30 else [answer]
        return [answer]

    federation.line.change = change
    for rounds in (1, 2, 3, 4):
        federation.run(rounds)
    federation.run()
    assert without_states(federation.place) == federation.serial()
    assert federation.heard("away")


def test_what_is_told_of_refusals_can_be_written_as_a_line(tmp_path):
    """A client's own words are in it, whatever characters they have; they are short, and JSON takes them."""
    words = "a\nb\x1b[31m\u202e" + "x" * 1500
    federation = disturbed(tmp_path, lambda answer: [join(split(answer)[0] | {"declined": words}, b"")])
    federation.run()
    (told,) = federation.heard("refused")
    assert len(told.sentence) < 700
    assert "\n" not in told.sentence
    assert "\x1b" not in told.sentence
    json.dumps(told._asdict())
