"""What the server lets in: answers that were asked for, once, in the right form; all else is refused and counted."""

import math
import random
import tracemalloc

import pytest
import torch

from protonorm.core import Task
from protonorm.core.frames import SIZES, join, split
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.guard import Guard, Refusal
from protonorm.deployment.messages import Answer, AnswerHeader, largest_message, write_answer
from protonorm.tensors import encode

TERMS = {"algorithm": "fedproto", "classes": ["cat", "dog", "fox"], "feature_dim": 4, "rounds": 5, "seed": 7}
AGREEMENT = Agreement.of(TERMS)


def reply(**change):
    return {"classes": torch.tensor([0, 2]), "prototypes": torch.ones(2, 4)} | change


def counted(**change):
    """Counts of five samples under one rule: two cats and three foxes, of which four are known."""
    found = {"support": [2, 0, 3], "correct.logits": [1, 0, 3], "predicted.logits": [1, 1, 3]}
    counts = {f"test.{name}": torch.tensor(value) for name, value in found.items()}
    return counts | {"test.unseen": torch.tensor(0)} | change


def answered(message=None, counts=None, **change):
    usual = {"format": 1, "agreement": AGREEMENT.digest, "client": 3, "round": 2, "kind": "train"}
    message = reply() if message is None else message
    return write_answer(Answer(AnswerHeader.model_validate(usual | change), message, counts or {}))


@pytest.fixture
def guard():
    found = Guard(AGREEMENT)
    found.expect(2, "train", [3, 4])
    return found


def test_a_good_answer_is_admitted_once(guard):
    found = guard.admit(3, answered(metrics={"loss": 1.5}, seconds=2.0))
    assert torch.equal(found.message["prototypes"], torch.ones(2, 4))
    assert found.header.metrics == {"loss": 1.5}
    again = guard.admit(3, answered())
    assert (again.why, again.final) == ("repeated", False)
    assert guard.refused == {"repeated": 1}


REFUSED = [
    (answered(client=4), "identity", "says that it comes from client 4"),
    (answered(agreement="f" * 64), "agreement", "another agreement, ffffffffffffffff"),
    (answered(round=1), "late", "for round 1, and round 2 is on"),
    (answered(round=3), "round", "for round 3, and round 2 is on"),
    (answered(kind="evaluate"), "late", "was asked to train"),
    (answered({}, declined="No disk.", round=2), "declined", "it declines: No disk."),
    (answered({}, declined="What is this?", round=0), "declined", "it declines"),
    (answered(reply(prototypes=torch.ones(2, 5))), "content", "expected (K_i, d)"),
    (answered(reply(prototypes=torch.ones(2, 4, dtype=torch.float64))), "content", "torch.float64"),
    (answered(reply(classes=torch.tensor([0, 3]))), "content", "whole numbers from 0 to 2"),
    (answered(reply(classes=torch.tensor([1, 1]))), "content", "occurs more than once"),
    (answered(reply(more=torch.ones(1))), "content", "holds more, which is not expected"),
    (answered({"classes": torch.tensor([0])}), "content", "lacks prototypes"),
    (answered(reply(prototypes=torch.full((2, 4), math.nan))), "content", "not finite"),
    (answered(reply(prototypes=torch.full((2, 4), math.inf))), "content", "not finite"),
    (answered(reply(prototypes=torch.full((2, 4), 1.01e6))), "scale", "larger than training can make them"),
    (answered(counts=counted()), "content", "which was not asked for"),
    (answered(reply(prototypes=torch.ones(9**5, 4), classes=torch.arange(9**5))), "malformed", "at most are expected"),
    (b"", "malformed", "too few"),
    (b"x" * 100, "malformed", "does not begin"),
    (answered()[:-1], "malformed", "says that it has"),
    (join({"format": 1}, b""), "malformed", "needs the setting agreement"),
    (join(split(answered())[0], encode({"other.a": torch.ones(1)})), "malformed", "'other.a', which is not expected"),
    (join(split(answered())[0], b"\x10" + b"\0" * 7 + b"{}"), "malformed", "no index"),
]


@pytest.mark.parametrize(("content", "why", "said"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_not_right_is_refused_told_and_counted(guard, content, why, said):
    """What is late or repeated costs nothing; with anything else the client has lost its part in the round."""
    told = []
    guard._on_refusal = told.append
    found = guard.admit(3, content)
    assert isinstance(found, Refusal)
    assert (found.client, found.why, found.final) == (3, why, why != "late")
    assert said in found.sentence
    assert told == [found]
    assert guard.refused == {why: 1}
    if why == "late":
        assert isinstance(guard.admit(3, answered()), Answer)
    else:
        assert guard.admit(3, answered()).why == "repeated"


def test_numbers_as_large_as_allowed_are_taken(guard):
    """The bound is on the root mean square, 10⁶, so that one large number among eight may pass."""
    one = torch.zeros(2, 4)
    one[0, 0] = 2e6  # √(4·10¹² / 8) is 0.7·10⁶
    assert isinstance(guard.admit(3, answered(reply(prototypes=one))), Answer)


def test_who_was_not_asked_is_refused(guard):
    assert guard.admit(7, answered(client=7)).why == "unknown client"


def test_who_was_refused_may_get_another_chance(guard):
    """The first answer is nonsense, and the client is asked again; another client is not concerned."""
    assert guard.admit(3, b"nonsense").final
    assert guard.admit(3, answered()).why == "repeated"
    guard.reopen(3)
    assert isinstance(guard.admit(3, answered()), Answer)
    assert guard.admit(3, answered()).why == "repeated"
    assert isinstance(guard.admit(4, answered(client=4)), Answer)


def test_counts_are_looked_at():
    """Right answers cannot be more than samples, nor can there be fewer predictions."""
    guard = Guard(AGREEMENT)
    bad = {
        "more right answers": {"test.correct.logits": torch.tensor([1, 0, 4])},
        "an answer for each": {"test.predicted.logits": torch.tensor([1, 1, 2])},
        "no test.support": {"test.support": torch.tensor([2.0, 0.0, 3.0])},
        "which was not asked for": {"test.correct.other": torch.tensor([1, 0, 3])},
        "not finite": {"test.nll.logits": torch.tensor(math.inf, dtype=torch.float64)},
        "no test.nll.logits": {"test.nll.logits": torch.tensor(-1.0, dtype=torch.float64)},
    }
    for said, change in bad.items():
        guard.expect(2, "evaluate", [3], ["test"])
        found = guard.admit(3, answered({}, counted(**change), kind="evaluate"))
        assert isinstance(found, Refusal)
        assert said in found.sentence
    guard.expect(2, "evaluate", [3], ["test"])
    assert isinstance(guard.admit(3, answered({}, counted(), kind="evaluate")), Answer)
    guard.expect(2, "evaluate", [3], ["test"])
    assert "asked to evaluate alone" in guard.admit(3, answered(reply(), counted(), kind="evaluate")).sentence


def test_sizes_are_bounded_by_the_schema():
    """classes (K_i,) int64 and prototypes (K_i, d) float32, with K = 3 and d = 4: 24 and 48 bytes, and the index."""
    task: Task = AGREEMENT.task
    assert largest_message(task.schema, task.schema.up) == 24 + 48 + 512 * 3


def mutated(content, chance):
    """Change, cut, repeat or insert some bytes, or only the numbers that say how long things are."""
    found = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        place, kind = chance.randrange(len(found) + 1), chance.randrange(6)
        if kind == 0:
            del found[place:]
        elif kind == 1:
            found[place:place] = chance.randbytes(chance.randint(1, 9))
        elif kind == 2:
            found[4 : SIZES.size] = chance.randbytes(12)
        elif kind == 3:
            found[place:place] = found[: chance.randint(0, 40)]
        elif place < len(found):
            found[place] = chance.choice((0, 255, 34, 123, 125, 44, 57, found[place] ^ 1 << chance.randrange(8)))
        if not found:
            break
    return bytes(found)


@pytest.mark.parametrize("count", [4000, pytest.param(100_000, marks=pytest.mark.long)])
def test_nothing_that_is_sent_breaks_the_guard(count):
    """Random bytes and mutations of good answers: no error, nothing admitted but what is allowed, bounded memory."""
    chance, guard = random.Random(12), Guard(AGREEMENT)
    good = [answered(), answered(metrics={"loss": 0.5}), answered({}, declined="no"), answered(counts=counted())]
    admitted = 0
    tracemalloc.start()
    for number in range(count):
        guard.expect(2, "evaluate+train" if number % 3 == 0 else "train", [3], ["test"] if number % 2 else [])
        content = chance.randbytes(chance.randrange(200)) if number % 4 == 0 else mutated(chance.choice(good), chance)
        found = guard.admit(3, content)
        if isinstance(found, Answer):
            admitted += 1
            AGREEMENT.task.schema.check_up(found.message, "An admitted answer")
            assert found.header.agreement == AGREEMENT.digest
        else:
            assert len(found.sentence) < 600
            found.sentence.encode()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert admitted + guard.refused.total() == count
    assert 0 < admitted < count / 4  # a changed bit of a prototype is still a prototype
    assert peak < 2**24


def test_a_late_copy_of_a_decline_is_no_refused_answer(guard):
    """It is reported once; another reason is told, and the client may still answer in the round that is on."""
    told = []
    guard._on_refusal = told.append
    assert guard.admit(3, answered({}, declined="No disk.")).final
    guard.expect(3, "train", [3, 4])
    late = guard.admit(3, answered({}, declined="No disk."))
    assert (late.why, late.final) == ("declined", False)
    assert (len(told), guard.refused) == (1, {"declined": 1})
    assert "No key." in guard.admit(3, answered({}, declined="No key.")).sentence
    assert [each.why for each in told] == ["declined"] * 2
    assert guard.admit(3, answered({}, declined="No key.", round=3)).final
    assert len(told) == 3  # a decline of this round is always told
