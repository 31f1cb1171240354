"""Whatever is sent to a client or to the server: no error, nothing taken that is not right, bounded memory."""

import json
import struct
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import protonorm as pn
from protonorm.core.frames import SIZES, encode_body, join
from protonorm.core.training import Training
from protonorm.data.partitions import ClientIndex
from protonorm.deployment.agreement import Agreement
from protonorm.deployment.guard import Guard
from protonorm.deployment.messages import (
    Answer,
    AnswerHeader,
    RequestHeader,
    read_answer_header,
    read_request,
    write_answer,
    write_request,
)
from protonorm.deployment.node import Node
from protonorm.deployment.site import OwnSite, open_store
from protonorm.models.choose import Recipe

TERMS = {"algorithm": "fedproto", "classes": ["cat", "dog", "fox"], "feature_dim": 4, "rounds": 5, "seed": 7}
AGREEMENT = Agreement.of(TERMS)
SAID = {"classes": torch.tensor([0, 2]), "prototypes": torch.ones(2, 4)}
ABOUT = {"format": 1, "agreement": AGREEMENT.digest, "client": 3, "round": 2, "kind": "evaluate+train"}
REQUESTS = [
    write_request(RequestHeader.model_validate({**ABOUT, "trained": 1, "parts": ["test"]}), encode_body(SAID)),
    write_request(RequestHeader.model_validate({**ABOUT, "trained": 0, "kind": "train"}), b""),
]
COUNTED = {"support": [2, 0, 3], "correct.logits": [1, 0, 3], "predicted.logits": [1, 1, 3], "unseen": 0}
COUNTS = {f"test.{name}": torch.tensor(value) for name, value in COUNTED.items()}
ANSWERS = [
    write_answer(Answer(AnswerHeader.model_validate({**ABOUT, "metrics": {"loss": 0.5}}), SAID, COUNTS)),
    write_answer(Answer(AnswerHeader.model_validate(ABOUT), SAID, {"test.support": torch.tensor(5)})),
]
SOME = 500  # examples in the usual suite

texts = st.text('ax0 "\\{}[],.\n\x00\x1b\x7f\xe9\u202e\ud800\U0001f600', max_size=9)  # also half a surrogate pair
numbers = st.integers(-3, 9) | st.integers() | st.floats()
scalars = st.none() | st.booleans() | numbers | texts | st.sampled_from(["train", "evaluate", "test", "F32", "I64"])
plain = st.recursive(
    scalars, lambda one: st.lists(one, max_size=4) | st.dictionaries(texts, one, max_size=3), max_leaves=4
)
near = {
    "format": [0, 2, 1.0, True],
    "agreement": ["0" * 64, AGREEMENT.digest.upper(), ""],
    "client": [-1, 0, 2, 4, 3.0],
    "round": [-1, 0, 1, 3, 6, 2.0],
    "kind": ["train", "evaluate", "fetch"],
    "trained": [-1, 0, 2, 3],
    "parts": [["test"], ["validation"], ["train"], ["test", "test"], []],
    "declined": ["no", ""],
    "seconds": [-1.0, 1, 1e300],
}
shapes = st.sampled_from([(), (1,), (2,), (2,), (4,), (1, 4), (2, 4), (2, 4), (2, 5), (4, 4), (0, 4), (2, 4, 1)])
types = st.sampled_from([torch.float32, torch.int64, torch.float64, torch.uint8])
values = st.sampled_from([0.0, 1.0, 2.0, 3.0, -1.0, 1e7, float("nan"), float("inf")])
edits = st.lists(
    st.tuples(st.integers(0, 4000), st.sampled_from(["cut", "insert", "set", "repeat"]), st.binary(max_size=9)),
    min_size=1,
    max_size=4,
)


def frame(header, body):
    return SIZES.pack(b"PNFL", len(header), len(body)) + header + body


def parts(content):
    """Take a good frame apart: header, index of tensors, and their numbers."""
    _, header, body = SIZES.unpack_from(content)
    start = SIZES.size + header
    (size,) = struct.unpack_from("<Q", content, start) if body else (0,)
    index = json.loads(content[start + 8 : start + 8 + size]) if body else {}
    return json.loads(content[SIZES.size : start]), index, content[start + 8 + size :]


def edited(content, changes):
    """Cut, insert, overwrite or repeat bytes."""
    found = bytearray(content)
    for where, kind, new in changes:
        place = where % (len(found) + 1)
        if kind == "cut":
            del found[place:]
        elif kind == "insert":
            found[place:place] = new
        elif kind == "set":
            found[place : place + len(new)] = new
        else:
            found[place:place] = found[:40]
    return bytes(found)


def tensor(shape, kind, value):
    """Make a tensor whose first number is the given one, if its type has it."""
    found = torch.arange(int(torch.tensor(shape).prod())).reshape(shape).to(kind)
    if found.numel() and (kind.is_floating_point or (value == value // 1 and 0 <= value < 255)):
        found.view(-1)[0] = value
    return found


def dressed(header, index, data):
    """Make a frame whose lengths are right, of whatever header and index."""
    text, about = (json.dumps(one).encode() for one in (header, index))
    return frame(text, struct.pack("<Q", len(about)) + about + data if index or data else b"")


def changed(good):
    """Draw messages: random bytes, random parts in a right frame, edited bytes, and other values in right JSON."""

    @st.composite
    def other_values(draw):
        header, index, data = parts(draw(st.sampled_from(good)))
        target = draw(st.sampled_from([header, index, *index.values()]))
        known = sorted(target) or ["more"]
        target[draw(st.sampled_from(known) | texts)] = draw(plain)
        return dressed(header, index, draw(st.just(data) | st.binary(max_size=80)))

    @st.composite
    def near_misses(draw):
        """Well-formed, with one value of the header, or with tensors, that are right or almost right."""
        header, index, data = parts(draw(st.sampled_from(good)))
        which = draw(st.integers(0, 2))
        if which < 2:
            name = draw(st.sampled_from(sorted(near.keys() & header.keys())))
            header[name] = draw(st.sampled_from(near[name]))
        if which > 0:
            first = "said." if any(name.startswith("said.") for name in index) else ""
            names = st.sampled_from([f"{first}{name}" for name in ("classes", "prototypes", "more")])
            tensors = {f"{first}{name}": value for name, value in SAID.items()}
            name = draw(names)
            like = tensors.get(name, torch.ones(2))
            tensors[name] = draw(
                st.builds(tensor, shapes, st.just(like.dtype), st.just(1.0))
                | st.builds(tensor, st.just(tuple(like.shape)), types, st.just(1.0))
                | st.builds(tensor, st.just(tuple(like.shape)), st.just(like.dtype), values)
            )
            return join(header, encode_body(tensors))
        return dressed(header, index, data)

    any_bytes = st.binary(max_size=200)
    return st.one_of(
        any_bytes,
        st.builds(frame, any_bytes, any_bytes),
        st.builds(edited, st.sampled_from(good), edits),
        other_values(),
        near_misses(),
        near_misses(),
    )


def is_right(message, most=1e7):
    """Look at prototypes without the schema: finite, of no absurd size, of different classes."""
    classes, vectors = message["classes"].tolist(), message["prototypes"].numpy()
    assert set(classes) <= {0, 1, 2}
    return len(set(classes)) == len(vectors) == len(classes) and bool((np.abs(vectors) < most).all())


def limited(act, content):
    """Read a message, and check that it takes no more memory than a multiple of its length."""
    tracemalloc.start()
    try:
        found = act(content)
        assert tracemalloc.get_traced_memory()[1] < 2**20 + 100 * len(content)
    finally:
        tracemalloc.stop()
    return found


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A client that answers what it takes with nothing, and notes it."""
    points = torch.randn(20, 2).numpy()
    data = pn.Dataset("own", points, torch.arange(20).remainder(3).numpy(), tuple(TERMS["classes"]))
    index = ClientIndex(*torch.arange(20).split([15, 5]))
    own = ClientIndex(index.train.numpy(), index.test.numpy())
    site = OwnSite(AGREEMENT.task, 3, data, own, Recipe("mlp", (2,), 4, 3), Training())
    made = Node(AGREEMENT, site, open_store(tmp_path, AGREEMENT), "classes")
    made.taken = []

    def fulfil(request):
        made.taken.append(request)
        return write_answer(Answer(made._header(request.header), {}, {}))

    monkeypatch.setattr(made, "_compute_answer", fulfil)
    monkeypatch.setattr(made._last, "keep", lambda *_: None)
    return made


def fuzz(examples, good, check):
    settings(max_examples=examples, database=None)(given(changed(good))(check))()


@pytest.mark.parametrize("examples", [SOME, pytest.param(100_000, marks=pytest.mark.long)])
def test_no_request_breaks_a_client(node, examples):
    """It answers everything: with a sentence, or as asked if what was asked is allowed by the agreement."""

    def check(content):
        node.taken.clear()
        header, body = read_answer_header(limited(node.answer, content))
        assert (header.client, header.agreement, body) == (3, AGREEMENT.digest, b"")
        assert bool(header.declined) is not bool(node.taken)
        for request in node.taken:
            asked = request.header
            assert (asked.client, asked.agreement, asked.kind) == (3, AGREEMENT.digest, header.kind)
            assert 0 <= asked.trained <= asked.round <= 5
            assert set(asked.parts) <= {"test"}
            AGREEMENT.task.schema.check_down(request.message)
            assert not request.message or is_right(request.message, np.inf)

    fuzz(examples, REQUESTS, check)


@pytest.mark.parametrize("examples", [SOME, pytest.param(100_000, marks=pytest.mark.long)])
def test_no_answer_breaks_the_server(examples):
    """Each is refused in a sentence, or it is what the schema allows, from the client that was asked."""
    guard = Guard(AGREEMENT)

    def check(content):
        guard.expect(2, "evaluate+train", [3], ["test"])
        found = limited(lambda one: guard.admit(3, one), content)
        if not isinstance(found, Answer):
            found.sentence.encode()
            assert 40 < len(found.sentence) < 600
            return
        assert (found.header.client, found.header.round, found.header.agreement) == (3, 2, AGREEMENT.digest)
        AGREEMENT.task.schema.check_up(found.message, "An admitted answer")
        assert is_right(found.message)
        assert found.counts.keys() <= {f"test.{name}" for name in [*COUNTED, "bins.logits", "nll.logits"]} | {
            f"test.{kind}.{rule}" for kind in ("correct", "predicted") for rule in ("nearest-global", "nearest-local")
        }

    fuzz(examples, ANSWERS, check)


TENSOR = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
GREEDY = {  # frames of 4 kB that ask for much more than they hold
    "nesting": frame(b"[" * 4000, b""),
    "a number of 4,000 digits": frame(b'{"format":' + b"9" * 4000 + b"}", b""),
    "names that differ in case": frame(b"{" + b",".join(b'"%d":{}' % n for n in range(500)) + b"}", b""),
    "two hundred tensors": dressed({**ABOUT}, {f"said.{n}": TENSOR for n in range(50)}, b""),
    "terabytes in a shape": dressed(ABOUT, {"said.classes": TENSOR | {"shape": [2**39] * 8}}, bytes(3000)),
    "terabytes times nothing": dressed(ABOUT, {"said.classes": TENSOR | {"shape": [2**39, 0, 2**39]}}, b""),
    "numbers of many axes": dressed(ABOUT, {"said.classes": TENSOR | {"shape": [1] * 1900}}, b""),
    "more than there is": SIZES.pack(b"PNFL", 2**16, 2**40) + bytes(4000),
}


@pytest.mark.parametrize("case", GREEDY)
def test_a_small_message_does_not_become_a_large_one(node, case):
    """Eight of them once stopped all rounds: each is refused at once, on both sides, in bounded memory."""
    guard = Guard(AGREEMENT)
    guard.expect(2, "evaluate+train", [3], ["test"])
    assert len(GREEDY[case]) < 7000
    found = limited(lambda one: guard.admit(3, one), GREEDY[case])
    assert found.why in ("malformed", "content")
    header, _ = read_answer_header(limited(node.answer, GREEDY[case]))
    assert header.declined
    assert not node.taken


def test_what_is_drawn_reaches_beyond_the_first_check(node):
    """Good messages are taken, so that the changed ones are near what is right."""
    for content in REQUESTS:
        node.answer(content)
    assert len(node.taken) == len(REQUESTS)
    guard = Guard(AGREEMENT)
    for content in ANSWERS:
        guard.expect(2, "evaluate+train", [3], ["test"])
        assert isinstance(guard.admit(3, content), Answer)
    header, index, data = parts(REQUESTS[0])
    assert read_request(dressed(header, index, data)).message.keys() == SAID.keys()
